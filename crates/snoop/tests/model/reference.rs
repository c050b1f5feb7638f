//! The expected behaviour of the programs, as a state machine without packets, maps or clocks:
//! docs/design/snoop.md, written a second time. It knows one flow. Names are the design's.

mod arriving;
mod flow;
mod handshake;
mod leaving;

pub(crate) use flow::{Flow, Mode};

use crate::segment::{Mac, Options, Segment};
use crate::seq::Seq;

/// A guest that is heard this long (2^20 ns) after data went into its ring has had the time to take
/// it.
pub(crate) const RUNNING: u32 = 96;

/// The programs' configuration, and what user space knows of the flow's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Early ACKs are on, and the lease is valid.
    pub(crate) on: bool,
    pub(crate) buffer: u32,
    /// With `--grow`; otherwise 0.
    pub(crate) guest_rcvbuf: u32,
    pub(crate) start_early: bool,
    pub(crate) ecn: bool,
    /// Length of the ring, which limits windows; 0: no limit.
    pub(crate) ring: u32,
    pub(crate) sharing: u32,
    pub(crate) exposure: u32,
    pub(crate) exposure_ticks: u32,
    /// Another initial TTL; 0: none.
    pub(crate) guest_ttl: u8,
    pub(crate) guest_mac: Option<Mac>,
    /// Guest networks are configured, and this flow is in none.
    pub(crate) foreign_address: bool,
    /// The tap's share of the memory for copies is used up.
    pub(crate) full: bool,
    /// The flow's peer is in a distrusted prefix.
    pub(crate) distrusted: bool,
}

/// Conditions that the programs cannot know beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// The tap's ring has room.
    pub(crate) ring: bool,
    /// The ring buffer for copies has room.
    pub(crate) copies: bool,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It passes, as this.
    Passes(Segment),
    /// The guest's segment is dropped, or the ring refused the peer's.
    Dropped,
    /// It is in the ring, without an early ACK.
    Delivered,
    /// It is in the ring, with this early ACK. `renewed`: with the guest's newest number and
    /// timestamp.
    Acknowledged { ack: Segment, renewed: bool },
}

/// The expected result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) exit: &'static str,
    pub(crate) fate: Fate,
    /// A copy of it is kept.
    pub(crate) copied: bool,
    /// User space gets an event: the guest lacks early-acknowledged data.
    pub(crate) event: Option<Event>,
}

/// An event for user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) vm_seq: Seq,
    pub(crate) acked_seq: Seq,
    pub(crate) reach: Seq,
    pub(crate) contradicted: bool,
}

/// A peer's SYN, until the guest answers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    first: Seq,
    ts: Seq,
    data: u16,
    scales: bool,
    timestamps: bool,
    signed: Option<&'static str>,
}

/// The programs' state at one tap, with one flow.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) config: Config,
    /// Time in ticks of 2^20 ns.
    pub(crate) now: u32,
    pub(crate) flow: Option<Flow>,
    pending: Option<Pending>,
    /// Unfinished handshakes of the flow's listener.
    opening: Option<u32>,
    /// The source Ethernet address of the tap's frames, and whether there are several.
    source: Option<(Mac, bool)>,
    /// The largest window scale in the guest's SYNs.
    largest_scale: Option<u8>,
}

// === impl Config ===

impl Config {
    pub(crate) fn grows(&self) -> bool {
        self.guest_rcvbuf > 0
    }
}

// === impl Model ===

impl Model {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            now: 1 << 24,
            flow: None,
            pending: None,
            opening: None,
            source: None,
            largest_scale: None,
        }
    }

    fn passes(exit: &'static str, segment: &Segment) -> Expected {
        Expected {
            exit,
            fate: Fate::Passes(*segment),
            copied: false,
            event: None,
        }
    }

    /// The flow is over if both ends have the other's FIN and no data is outstanding.
    fn forget_if_over(&mut self) {
        if self.flow.as_ref().is_some_and(Flow::is_over) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if let Some(flow) = self.flow.take()
            && flow.counted
        {
            self.has_begun();
        }
    }

    fn has_begun(&mut self) {
        if let Some(count) = &mut self.opening {
            *count = count.saturating_sub(1);
        }
    }

    /// An early ACK on its way back passes the tap's other program.
    pub(crate) fn own_ack(&self, ack: &Segment, renewed: bool) -> Segment {
        let Some(flow) = self.flow.as_ref().filter(|_| renewed) else {
            return *ack;
        };
        let mut ack = *ack;
        ack.seq = ack.seq.max(flow.vm_snd);
        let said = ack.said();
        if let Some((value, echo)) = said.timestamps {
            ack.options = Options::NONE.timestamps(value.max(flow.ts_vm), echo);
            if let Some(block) = said.sack {
                ack.options = ack.options.sack(&[block]);
            }
        }
        ack
    }
}
