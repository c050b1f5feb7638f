//! The causes of a session's end, for metrics and logs.

use taut_sys::Errno;

/// One of the two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Upstream,
}

/// The cause of a session's end. Its label is the `cause` in `taut_relay_ended_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both streams were forwarded completely, FIN included.
    Complete,
    /// The client sent RST.
    ClientReset,
    /// The destination sent RST.
    UpstreamReset,
    /// The client stopped answering.
    ClientLost,
    /// The destination stopped answering.
    UpstreamLost,
    /// The destination answered the SYN with RST.
    ConnectRefused,
    /// The destination did not answer the SYN.
    ConnectTimedOut,
    /// No route leads to the destination, or the network reports it unreachable.
    ConnectUnreachable,
    /// The destination's name has no address, or the look-up failed.
    LookUpFailed,
    /// The destination's name resolves only to addresses that the configuration does not allow.
    NotAllowed,
    /// This machine had no descriptor, port or memory left for the upstream leg.
    NoResources,
    /// One side had ended its stream, and the other sent nothing for too long.
    HalfClosedTimeout,
    /// No byte went either way for longer than `idle_timeout`.
    IdleTimeout,
    /// No byte came from either peer within `first_byte_timeout`.
    FirstByteTimeout,
    /// `max_sessions` were open, and the session was idle and made room for a new one.
    Evicted,
    /// A relay of the session is no longer a member of the mesh.
    MemberRemoved,
    /// The session was still open when the node had to stop.
    Stopped,
    /// An operator ended the session.
    Operator,
}

impl End {
    /// Every cause.
    pub const ALL: [Self; 18] = [
        Self::Complete,
        Self::ClientReset,
        Self::UpstreamReset,
        Self::ClientLost,
        Self::UpstreamLost,
        Self::ConnectRefused,
        Self::ConnectTimedOut,
        Self::ConnectUnreachable,
        Self::LookUpFailed,
        Self::NotAllowed,
        Self::NoResources,
        Self::HalfClosedTimeout,
        Self::IdleTimeout,
        Self::FirstByteTimeout,
        Self::Evicted,
        Self::MemberRemoved,
        Self::Stopped,
        Self::Operator,
    ];

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientReset => "client_reset",
            Self::UpstreamReset => "upstream_reset",
            Self::ClientLost => "client_lost",
            Self::UpstreamLost => "upstream_lost",
            Self::ConnectRefused => "connect_refused",
            Self::ConnectTimedOut => "connect_timed_out",
            Self::ConnectUnreachable => "connect_unreachable",
            Self::LookUpFailed => "look_up_failed",
            Self::NotAllowed => "not_allowed",
            Self::NoResources => "no_resources",
            Self::HalfClosedTimeout => "half_closed_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::Evicted => "evicted",
            Self::MemberRemoved => "member_removed",
            Self::Stopped => "stopped",
            Self::Operator => "operator",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Returns whether the session ended because it got no upstream leg.
    pub(crate) fn is_of_connect(self) -> bool {
        matches!(
            self,
            Self::ConnectRefused
                | Self::ConnectTimedOut
                | Self::ConnectUnreachable
                | Self::NoResources
                | Self::LookUpFailed
        )
    }

    /// Returns the cause for an error on an established leg.
    pub(crate) fn of_leg(side: Side, error: Errno) -> Self {
        let lost = matches!(
            error,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN
        );
        match (side, lost) {
            (Side::Client, false) => Self::ClientReset,
            (Side::Client, true) => Self::ClientLost,
            (Side::Upstream, false) => Self::UpstreamReset,
            (Side::Upstream, true) => Self::UpstreamLost,
        }
    }

    /// Returns the cause for an error while connecting.
    pub(crate) fn of_connect(error: Errno) -> Self {
        match error {
            Errno::CONNREFUSED => Self::ConnectRefused,
            Errno::TIMEDOUT => Self::ConnectTimedOut,
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::NOSPC
            | Errno::ADDRNOTAVAIL
            | Errno::AGAIN => Self::NoResources,
            _ => Self::ConnectUnreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_their_own_place_and_label() {
        for (i, end) in End::ALL.into_iter().enumerate() {
            assert_eq!(end.index(), i);
            assert_eq!(
                End::ALL.iter().filter(|e| e.label() == end.label()).count(),
                1
            );
        }
    }
}
