//! The reasons for resetting a connection before its PROXY protocol header is accepted.

use strum::{IntoStaticStr, VariantArray};
use taut_mesh::proxy::ProxyError;

/// The reason why a connection was reset before its PROXY protocol header was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    pub(crate) const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        self.into()
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
