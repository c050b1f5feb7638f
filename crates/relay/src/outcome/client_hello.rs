//! The reasons for resetting a client of a forward that chooses a destination by the TLS server name.

use taut_mesh::client_hello::ClientHelloError;

/// The reason why a client was reset before a destination was chosen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloRefusal {
    /// The connection does not start with a TLS handshake.
    NotTls,
    /// The ClientHello is malformed.
    Malformed,
    /// The ClientHello is too long.
    TooLong,
    /// The ClientHello was not complete in time.
    TimedOut,
    /// The client closed the connection.
    Gone,
    /// Too many connections waited for the end of their ClientHello.
    Full,
    /// The client named no server, and the forward has no default.
    NoName,
    /// The forward has no destination for the server name, and no default.
    UnknownName,
}

// === impl HelloRefusal ===

impl HelloRefusal {
    /// Every cause.
    pub(crate) const ALL: [Self; 8] = [
        Self::NotTls,
        Self::Malformed,
        Self::TooLong,
        Self::TimedOut,
        Self::Gone,
        Self::Full,
        Self::NoName,
        Self::UnknownName,
    ];

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::TimedOut => "timed_out",
            Self::Gone => "gone",
            Self::Full => "full",
            Self::NoName => "no_name",
            Self::UnknownName => "unknown_name",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl From<ClientHelloError> for HelloRefusal {
    fn from(error: ClientHelloError) -> Self {
        match error {
            ClientHelloError::NotTls => Self::NotTls,
            ClientHelloError::TooLong => Self::TooLong,
            ClientHelloError::Malformed(_) => Self::Malformed,
        }
    }
}
