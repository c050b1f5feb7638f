//! The report. `docs/reference/json.md` has its JSON form, written from this file.

use serde::Serialize;

use super::severity::Severity;
use super::{Part, feature, leftover, setting};

/// All findings and the overall verdict.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The running kernel's release.
    pub(crate) kernel: String,
    /// Whether the command ran as root. Without root, some features cannot be probed.
    pub(crate) root: bool,
    /// The highest severity of all findings.
    pub(crate) verdict: Severity,
    /// The parts that were examined; empty if all were.
    #[serde(skip)]
    pub(crate) only: Vec<Part>,
    /// What the kernel can do.
    pub(crate) features: Vec<feature::Finding>,
    /// Settings and limits.
    pub(crate) settings: Vec<setting::Finding>,
    /// What killed processes have left; empty if nothing.
    pub(crate) leftovers: Vec<leftover::Leftover>,
}

// === impl Report ===

impl Report {
    pub(crate) fn new(
        kernel: String,
        root: bool,
        features: Vec<feature::Finding>,
        settings: Vec<setting::Finding>,
        leftovers: Vec<leftover::Leftover>,
    ) -> Self {
        let severities = features
            .iter()
            .map(|f| f.severity)
            .chain(settings.iter().map(|s| s.severity))
            .chain(leftovers.iter().map(leftover::Leftover::severity));
        let verdict = severities.max().unwrap_or(Severity::Fine);
        Self {
            kernel,
            root,
            verdict,
            only: Vec::new(),
            features,
            settings,
            leftovers,
        }
    }

    /// Returns the number of things that were looked at, whatever was found.
    pub(crate) fn looked_at(&self) -> usize {
        let leftovers = match Part::Leftovers.is_in(&self.only) {
            true => leftover::LOOKED_FOR,
            false => 0,
        };
        self.features.len() + self.settings.len() + leftovers
    }

    /// Returns the number of findings of this severity.
    pub(crate) fn count(&self, severity: Severity) -> usize {
        self.features
            .iter()
            .filter(|f| f.severity == severity)
            .count()
            + self
                .settings
                .iter()
                .filter(|s| s.severity == severity)
                .count()
            + self
                .leftovers
                .iter()
                .filter(|l| l.severity() == severity)
                .count()
    }
}
