//! The JSON of the control socket: requests to the serving process, and its answers.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::tap_supervisor::{State, Status};
use crate::wire::{Flow, Key, Mode};

/// A request to the serving process.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// State and counters of every tap.
    Status,
    /// Stop early ACKs at a tap. The answer comes once the guest has everything that was
    /// acknowledged early.
    Off {
        /// The tap's name.
        tap: String,
    },
    /// Resume early ACKs at a tap.
    On {
        /// The tap's name.
        tap: String,
    },
}

/// An answer of the serving process.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The request is done.
    Done,
    /// The guest has everything that was acknowledged early.
    Drained {
        /// The number of flows that were left out, because the guest refuses their data.
        refused: u64,
    },
    /// The request failed, with a sentence for the user.
    Error(String),
    /// State and counters of every tap.
    Taps(Vec<TapStatus>),
}

/// State and counters of a tap.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct TapStatus {
    /// The tap's name.
    pub tap: String,
    /// `on`, `draining`, `off` or `unfit`.
    pub state: String,
    /// The reason why the tap is unfit, or the state of the guest of a tap that is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Length of the ring, in frames.
    pub ring: u32,
    /// Flows in which the guest never took data that was acknowledged early.
    pub lost_after_early_ack: u64,
    /// Bytes that were acknowledged early but not yet by the guest, over all flows.
    pub exposure: u64,
    /// The maximum of these bytes in one flow so far.
    pub exposure_most: u32,
    /// Bytes of copies that are retained until the guest acknowledges them.
    pub retained: u64,
    /// Flows in which the guest lacked early-acknowledged data, which was then retransmitted.
    pub repaired: u64,
    /// Segments retransmitted to the guest.
    pub retransmitted: u64,
    /// Segments that could not be retransmitted when due, for example because the ring was full.
    pub not_sent: u64,
    /// Flows whose early-acknowledged data the guest sees and does not take, for example because its
    /// firewall drops it. `--off` does not wait for them.
    pub refused: u64,
    /// Flows that were removed because newer ones needed their places.
    pub evicted: u64,
    /// Peer networks that get no early ACKs for now.
    pub distrusted: Vec<String>,
    /// Packets towards the guest, by exit of the program.
    pub to_guest: Vec<(String, u64)>,
    /// Packets from the guest, by exit of the program.
    pub from_guest: Vec<(String, u64)>,
    /// The tap's flows.
    pub flows: Vec<FlowStatus>,
}

/// State and counters of a flow.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct FlowStatus {
    /// The sender's address.
    pub peer: SocketAddr,
    /// The guest's address.
    pub guest: SocketAddr,
    /// FL_MODE, by the paper's name.
    pub mode: String,
    /// The reason, if the mode is BYPASS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass: Option<String>,
    /// Bytes that were acknowledged early but not yet by the guest.
    pub exposure: u32,
    /// The maximum of these bytes so far.
    pub exposure_most: u32,
    /// Segments acknowledged early.
    pub acked_segments: u64,
    /// Bytes acknowledged early.
    pub acked_bytes: u64,
    /// ACKs of the guest that were dropped.
    pub suppressed: u64,
    /// Segments of the guest whose acknowledgment number was raised.
    pub lifted: u64,
}

// === impl TapStatus ===

impl From<Status> for TapStatus {
    fn from(status: Status) -> Self {
        let (state, why) = match status.state {
            State::On => ("on", None),
            State::Draining => ("draining", status.held.map(str::to_owned)),
            State::Off => ("off", status.held.map(str::to_owned)),
            State::Unfit(why) => ("unfit", Some(why)),
        };
        let named = |(label, count): (&str, u64)| (label.to_owned(), count);
        let flow = |(key, flow): (Key, Flow)| FlowStatus {
            peer: key.peer,
            guest: key.guest,
            mode: flow.mode.label().into(),
            bypass: match flow.mode {
                Mode::Bypass(why) => Some(why.label().into()),
                _ => None,
            },
            exposure: flow.exposure(),
            exposure_most: flow.exposed_most,
            acked_segments: flow.acked_segments,
            acked_bytes: flow.acked_bytes,
            suppressed: flow.suppressed,
            lifted: flow.lifted,
        };
        Self {
            tap: status.tap,
            state: state.into(),
            why,
            ring: status.ring,
            lost_after_early_ack: status.counts.lost,
            exposure: status
                .flows
                .iter()
                .map(|(_, flow)| u64::from(flow.exposure()))
                .sum(),
            exposure_most: status.counts.exposure_most,
            retained: status.retained as u64,
            repaired: status.counts.repaired,
            retransmitted: status.counts.retransmitted,
            not_sent: status.counts.not_sent,
            refused: status.refused,
            evicted: status.evicted,
            distrusted: status.distrusted.iter().map(ToString::to_string).collect(),
            to_guest: status.to_guest.iter().map(named).collect(),
            from_guest: status.from_guest.iter().map(named).collect(),
            flows: status.flows.into_iter().map(flow).collect(),
        }
    }
}
