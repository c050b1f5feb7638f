//! What the programs must do, as a state machine without packets, maps or clocks: docs/design/snoop.md, written a
//! second time. It knows one flow. Names are the design's.

mod arriving;
mod flow;
mod handshake;
mod leaving;

pub(crate) use flow::{Flow, Mode};

use crate::segment::{Mac, Options, Segment};
use crate::seq::Seq;

/// A guest that is heard so long after data went into its ring has had the time to take it (2^20 ns).
pub(crate) const RUNNING: u32 = 96;

/// How the programs are configured, and what user space knows of the flow's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Early ACKs are wanted, and somebody watches.
    pub(crate) on: bool,
    pub(crate) buffer: u32,
    /// With `--grow`; else 0.
    pub(crate) guest_rcvbuf: u32,
    pub(crate) start_early: bool,
    pub(crate) ecn: bool,
    /// Places of the ring, by which windows are bounded; 0: they are not.
    pub(crate) ring: u32,
    pub(crate) sharing: u32,
    pub(crate) exposure: u32,
    pub(crate) exposure_ticks: u32,
    /// One more TTL that systems send with; 0: none.
    pub(crate) guest_ttl: u8,
    pub(crate) guest_mac: Option<Mac>,
    /// Guests' addresses are said, and this flow's is none.
    pub(crate) foreign_address: bool,
    /// The tap's share of copies is used up.
    pub(crate) full: bool,
    /// The flow's peer is in a prefix that is not trusted.
    pub(crate) distrusted: bool,
}

/// What the programs depend on and cannot know beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// The tap's ring has a place.
    pub(crate) ring: bool,
    /// The buffer of copies has room for one.
    pub(crate) copies: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on, as this.
    Passes(Segment),
    /// The guest's segment is dropped, or the ring has refused the peer's.
    Dropped,
    /// It is in the ring, and nothing goes back.
    Delivered,
    /// It is in the ring, and this goes back. `renewed`: with the guest's newest number and time.
    Acknowledged { ack: Segment, renewed: bool },
}

/// What the programs must do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) exit: &'static str,
    pub(crate) fate: Fate,
    /// A copy of it is kept.
    pub(crate) copied: bool,
    /// User space is told that the guest lacks what was acknowledged early.
    pub(crate) event: Option<Event>,
}

/// What user space is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) vm_seq: Seq,
    pub(crate) acked_seq: Seq,
    pub(crate) reach: Seq,
    pub(crate) contradicted: bool,
}

/// What a peer's SYN has said, until the guest answers it.
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
    /// Time of 2^20 ns, from any beginning.
    pub(crate) now: u32,
    pub(crate) flow: Option<Flow>,
    pending: Option<Pending>,
    /// Handshakes of the flow's listener that have not ended.
    opening: Option<u32>,
    /// The Ethernet address that the tap's frames come from, and whether there are several.
    source: Option<(Mac, bool)>,
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

    /// The flow is over where both ends have the other's FIN and nothing is outstanding.
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
