//! The rules that early ACKs must not break.

use std::fmt;

/// A broken rule, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Violation {
    /// An ACK goes this many bytes beyond the guest's window.
    BeyondEdge(u32),
    /// A new ACK goes this many bytes beyond an edge that the guest has taken back.
    BeyondRetreat(u32),
    /// An early ACK for a receiver behind the guest, which may not have the bytes.
    ForReceiverBehind,
    /// A window ends this many bytes beyond the guest's.
    WindowBeyondEdge(u32),
    /// An ACK covers this many bytes that have not been in the ring.
    NotInRing(u32),
    /// An ACK is this many bytes lower than an ACK of a while before, and not the guest's own.
    WentBack(u32),
    /// A sequence number is this far beyond the guest's.
    SequenceAhead(u32),
    /// A segment has no timestamps although they were negotiated.
    NoTimestamps,
    /// The guest has not reached this TSval yet, or has passed it.
    WrongTsval(u32),
    /// The peer has never sent this TSecr.
    WrongTsecr(u32),
    /// A checksum is wrong.
    Checksum,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeyondEdge(n) => {
                write!(f, "{n} bytes acknowledged beyond the guest's right edge")
            }
            Self::BeyondRetreat(n) => {
                write!(
                    f,
                    "{n} bytes acknowledged beyond an edge that the guest has taken back"
                )
            }
            Self::ForReceiverBehind => {
                f.write_str("an acknowledgement for a receiver behind the guest")
            }
            Self::WindowBeyondEdge(n) => {
                write!(f, "a window that ends {n} bytes beyond the guest's")
            }
            Self::NotInRing(n) => {
                write!(f, "{n} bytes acknowledged that were not in the ring")
            }
            Self::WentBack(n) => write!(
                f,
                "an acknowledgement {n} bytes lower than one of a second before, and not the guest's own"
            ),
            Self::SequenceAhead(n) => {
                write!(f, "a sequence number {n} beyond the guest's")
            }
            Self::NoTimestamps => f.write_str("no timestamps, although they were negotiated"),
            Self::WrongTsval(n) => write!(f, "a TSval ({n}) that is not the guest's"),
            Self::WrongTsecr(n) => write!(f, "a TSecr ({n}) that the peer has never sent"),
            Self::Checksum => f.write_str("a wrong checksum"),
        }
    }
}
