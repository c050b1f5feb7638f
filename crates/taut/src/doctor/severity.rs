//! How much a finding matters.

use serde::Serialize;

/// In order: the worst of several findings is their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Nothing to do.
    Fine,
    /// Taut runs, and gives away speed, connections or diagnosis.
    Slows,
    /// `taut relay` or `taut lab` cannot run.
    Blocks,
}

// === impl Severity ===

impl Severity {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Slows => "slows",
            Self::Blocks => "blocks",
        }
    }
}
