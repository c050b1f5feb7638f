//! The causes of a session's end, for metrics and logs.

use strum::{IntoStaticStr, VariantArray};
use taut_sys::Errno;

/// One of the two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Upstream,
}

/// The cause of a session's end. Its label is the `cause` in `taut_relay_ended_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        self.into()
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
