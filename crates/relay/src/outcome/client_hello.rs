//! The reasons for resetting a client of a forward that chooses a destination by the TLS server name.

use strum::{IntoStaticStr, VariantArray};
use taut_mesh::client_hello::ClientHelloError;

/// The reason why a client was reset before a destination was chosen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    pub(crate) const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        self.into()
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
