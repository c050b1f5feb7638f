//! How a session ends: the causes that are counted and logged.

use taut_sys::Errno;

/// One of the two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Upstream,
}

/// Why a session ended. The label of each is the `cause` in `taut_relay_ended_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both streams were passed on whole, FIN included.
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
    /// There is no way to the destination, or the network says it cannot be reached.
    ConnectUnreachable,
    /// The destination's name has no address, or none could be found out.
    LookUpFailed,
    /// The destination's name leads to addresses that the configuration does not allow.
    NotAllowed,
    /// This machine had no descriptor, port or memory left for the upstream leg.
    NoResources,
    /// One side had ended its stream, and nothing came from the other for too long.
    HalfClosedTimeout,
    /// Nothing went either way for longer than `idle_timeout`.
    IdleTimeout,
    /// It was still open when the node had to stop.
    Stopped,
}

impl End {
    /// Every cause.
    pub const ALL: [Self; 14] = [
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
        Self::Stopped,
    ];

    /// The name used in metrics and logs.
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
            Self::Stopped => "stopped",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// How an error on an established leg is counted.
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

    /// How an error while connecting is counted.
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
