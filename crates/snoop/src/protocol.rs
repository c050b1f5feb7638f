//! The questions that a serving process answers at its UNIX socket, and its answers, as JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::tap_supervisor::{State, Status};
use crate::wire::{Flow, Key, Mode};

/// What may be asked.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// How it goes.
    Status,
    /// To acknowledge nothing more at a tap, and to say when all that was promised has been taken.
    Off {
        /// Its name.
        tap: String,
    },
    /// To acknowledge again.
    On {
        /// Its name.
        tap: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is done.
    Done,
    /// It is not, and why.
    Error(String),
    /// How it goes.
    Taps(Vec<TapStatus>),
}

/// A tap, as it is told of.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct TapStatus {
    /// Its name.
    pub tap: String,
    /// `on`, `draining`, `off` or `unfit`.
    pub state: String,
    /// What is wrong, if it is unfit; what happens to the guest, if it is off because of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Places of its ring.
    pub ring: u32,
    /// Flows of which the guest never took what was acknowledged early.
    pub lost_after_early_ack: u64,
    /// Bytes that were acknowledged early and not yet by the guest, of all flows now.
    pub exposure: u64,
    /// The same of one flow, at most.
    pub exposure_most: u32,
    /// Bytes of frames that are retained until the guest has acknowledged them.
    pub retained: u64,
    /// Flows of which the guest lacked something that was acknowledged early, so that it was retransmitted.
    pub repaired: u64,
    /// Segments that were retransmitted to the guest.
    pub retransmitted: u64,
    /// Segments that could not be retransmitted when they were due, such as into a full ring.
    pub not_sent: u64,
    /// Networks of peers for which nothing is acknowledged early for now.
    pub distrusted: Vec<String>,
    /// Packets towards the guest, by their way out of the program.
    pub to_guest: Vec<(String, u64)>,
    /// Packets from it.
    pub from_guest: Vec<(String, u64)>,
    /// Its flows.
    pub flows: Vec<FlowStatus>,
}

/// A flow, as it is told of.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct FlowStatus {
    /// The sender.
    pub peer: SocketAddr,
    /// The guest.
    pub guest: SocketAddr,
    /// FL_MODE, in the paper's words.
    pub mode: String,
    /// Why, in BYPASS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass: Option<String>,
    /// Bytes that the sender believes the guest to have and that are still in its ring.
    pub exposure: u32,
    /// The most of these at one time.
    pub exposure_most: u32,
    /// Segments that were acknowledged for it.
    pub acked_segments: u64,
    /// Their bytes.
    pub acked_bytes: u64,
    /// Its own acknowledgements that were dropped.
    pub suppressed: u64,
    /// Its segments whose acknowledgement was lifted.
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
            distrusted: status.distrusted.iter().map(ToString::to_string).collect(),
            to_guest: status.to_guest.iter().map(named).collect(),
            from_guest: status.from_guest.iter().map(named).collect(),
            flows: status.flows.into_iter().map(flow).collect(),
        }
    }
}
