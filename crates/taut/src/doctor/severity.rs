//! The severity of a finding.

use serde::Serialize;
use strum::IntoStaticStr;

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// No action is needed.
    Fine,
    /// Taut runs with less speed, fewer connections or less diagnosis.
    Slows,
    /// `taut relay` or `taut lab` cannot run.
    Blocks,
}

// === impl Severity ===

impl Severity {
    pub(crate) fn word(self) -> &'static str {
        self.into()
    }
}
