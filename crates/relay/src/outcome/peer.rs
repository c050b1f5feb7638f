//! The reasons why a connection to another relay fails before a session uses it.

use strum::{IntoStaticStr, VariantArray};
use taut_sys::Errno;

/// The reason why a dial to a peer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum PeerFailure {
    /// The peer's machine answered the SYN with RST: no relay listens there.
    Refused,
    /// No answer came in time.
    TimedOut,
    /// No route leads to the peer, or the network reports it unreachable.
    Unreachable,
    /// This machine had no descriptor, port or memory left.
    NoResources,
    /// The peer closed the connection during the handshake or refused this relay's key.
    Closed,
    /// The peer's proof is wrong: this relay does not accept the peer.
    Rejected,
    /// The peer has no room for more ready connections.
    Full,
}

// === impl PeerFailure ===

impl PeerFailure {
    /// Every reason.
    pub(crate) const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        self.into()
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns the reason for an error. `connected` means that the handshake had begun.
    pub(crate) fn of(error: Errno, connected: bool) -> Self {
        match error {
            Errno::PROTO => Self::Rejected,
            Errno::ACCESS => Self::Closed,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::NOSPC
            | Errno::ADDRNOTAVAIL
            | Errno::AGAIN => Self::NoResources,
            _ if connected => Self::Closed,
            Errno::CONNREFUSED => Self::Refused,
            _ => Self::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_before_the_handshake_is_a_refusal_and_later_a_rejection_by_the_peer() {
        let of = PeerFailure::of;
        assert_eq!(of(Errno::CONNREFUSED, false), PeerFailure::Refused);
        assert_eq!(of(Errno::CONNRESET, true), PeerFailure::Closed);
        assert_eq!(of(Errno::HOSTUNREACH, false), PeerFailure::Unreachable);
        assert_eq!(of(Errno::PROTO, true), PeerFailure::Rejected);
    }
}
