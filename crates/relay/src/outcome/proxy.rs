//! The reasons for resetting a connection before its PROXY protocol header is accepted.

use taut_mesh::proxy::ProxyError;

/// The reason why a connection was reset before its PROXY protocol header was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyRefusal {
    /// The sender is not in `proxy_from`.
    Sender,
    /// The connection does not start with a valid header.
    Malformed,
    /// The header is too long.
    TooLong,
    /// The header was not complete in time.
    TimedOut,
    /// The sender closed the connection.
    Gone,
    /// Too many connections waited for a header.
    Full,
}

// === impl ProxyRefusal ===

impl ProxyRefusal {
    /// Every cause.
    pub(crate) const ALL: [Self; 6] = [
        Self::Sender,
        Self::Malformed,
        Self::TooLong,
        Self::TimedOut,
        Self::Gone,
        Self::Full,
    ];

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::TimedOut => "timed_out",
            Self::Gone => "gone",
            Self::Full => "full",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl From<ProxyError> for ProxyRefusal {
    fn from(error: ProxyError) -> Self {
        match error {
            ProxyError::TooLong { .. } => Self::TooLong,
            _ => Self::Malformed,
        }
    }
}
