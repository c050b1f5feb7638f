//! What must not be.

use std::fmt;

/// A rule that was broken, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Violation {
    /// Acknowledged by so many bytes beyond what the guest offers to take.
    BeyondEdge(u32),
    /// A new ACK goes so many bytes beyond an edge that the guest has taken back.
    BeyondRetreat(u32),
    /// Acknowledged for a receiver behind the guest, which may not have it.
    ForReceiverBehind,
    /// A window that ends so many bytes beyond what it offers.
    WindowBeyondEdge(u32),
    /// Acknowledged, and so many bytes have not been in the ring.
    NotInRing(u32),
    /// An acknowledgement by so many bytes lower than one of a while before, and not the guest's own.
    WentBack(u32),
    /// A sequence number that the guest has not come to.
    SequenceAhead(u32),
    /// No timestamps where they were agreed upon.
    NoTimestamps,
    /// A TSval that the guest has not come to, or has left behind.
    WrongTsval(u32),
    /// A TSecr that the peer has never sent.
    WrongTsecr(u32),
    /// A checksum that is wrong.
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
            Self::NoTimestamps => f.write_str("no timestamps, which were agreed upon"),
            Self::WrongTsval(n) => write!(f, "a TSval ({n}) that is not the guest's"),
            Self::WrongTsecr(n) => write!(f, "a TSecr ({n}) that the peer has never sent"),
            Self::Checksum => f.write_str("a wrong checksum"),
        }
    }
}
