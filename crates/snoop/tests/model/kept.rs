//! What is kept of a flow.

use crate::reference::{Flow, Mode};
use crate::seq::Seq;

/// The state of a flow that matters for ACKs, of the programs or of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// With the reason, if it is BYPASS.
    pub(crate) mode: &'static str,
    pub(crate) next_seq: Seq,
    pub(crate) acked_seq: Seq,
    pub(crate) vm_seq: Seq,
    pub(crate) rcv_edge: Seq,
    pub(crate) advertised_edge: Seq,
    /// The header fields of a retransmission by the host: the peer's latest ACK and TSval.
    pub(crate) vm_una: Seq,
    pub(crate) ts_peer: Seq,
}

// === impl Kept ===

impl Kept {
    /// Formats the state with numbers relative to the first ones.
    pub(crate) fn shown(&self, first: Seq, guest_first: Seq) -> String {
        format!(
            "{} next {} acked {} vm {} edge {} advertised edge {}, guest's una {}, TSval {}",
            self.mode,
            self.next_seq.from(first),
            self.acked_seq.from(first),
            self.vm_seq.from(first),
            self.rcv_edge.from(first),
            self.advertised_edge.from(first),
            self.vm_una.from(guest_first),
            self.ts_peer.0
        )
    }

    pub(crate) fn of(flow: &Flow) -> Self {
        Self {
            mode: match flow.mode {
                Mode::Syn => "syn",
                Mode::Unproven => "unproven",
                Mode::Active => "active",
                Mode::UnexpectedSeq => "unexpected_seq",
                Mode::NoBuf => "no_buf",
                Mode::Bypass(why) => why,
            },
            next_seq: flow.next,
            acked_seq: flow.acked,
            vm_seq: flow.vm,
            rcv_edge: flow.edge,
            advertised_edge: flow.advertised_edge,
            vm_una: flow.vm_una,
            ts_peer: flow.ts_peer,
        }
    }
}
