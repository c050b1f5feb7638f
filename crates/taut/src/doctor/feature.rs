//! Features of the kernel and the machine, and the severity of their absence.

use serde::Serialize;
use taut_sys::probe::Answer;

use super::severity::Severity;

mod list;

pub(crate) use list::FEATURES;

/// A feature of the kernel or the machine, and its use.
pub(crate) struct Feature {
    /// The identifier for programs, which does not change between versions.
    pub(crate) id: &'static str,
    pub(crate) group: Group,
    pub(crate) name: &'static str,
    pub(crate) used_for: &'static str,
    pub(crate) if_missing: &'static str,
    /// The severity of the feature's absence.
    pub(crate) absence: Severity,
    /// The first version of Linux that has it, for the documentation: the probe decides.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the reference shows it"))]
    pub(crate) since: &'static str,
    pub(crate) probe: fn() -> Answer,
}

/// The part of Taut that uses the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    Relay,
    Lab,
    Intercept,
    Snoop,
    Bpf,
    Guests,
}

// === impl Group ===

impl Group {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Relay => "Relay",
            Self::Lab => "Lab",
            Self::Intercept => "Interception",
            Self::Snoop => "Snoop",
            Self::Bpf => "BPF",
            Self::Guests => "Processes and guests",
        }
    }
}

/// Whether the machine has the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Yes,
    No,
    /// The probe could not run.
    Unknown,
}

/// The result for one feature.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// An identifier that does not change between versions.
    pub(crate) id: &'static str,
    /// The use that it is listed under.
    pub(crate) group: Group,
    /// The feature, in words.
    pub(crate) name: &'static str,
    /// Whether the kernel has it.
    pub(crate) state: State,
    /// How much its absence matters.
    pub(crate) severity: Severity,
    /// The probe's reason, unless the answer is a plain yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// What Taut uses it for.
    pub(crate) used_for: &'static str,
    /// What happens without it.
    pub(crate) if_missing: &'static str,
}

/// The detail of a probe that only root can run.
pub(crate) const NEEDS_ROOT: &str = "needs root";

/// Converts a probe's answer to a finding. An unknown answer counts as fine.
pub(crate) fn assess(feature: &Feature, answer: Answer) -> Finding {
    let (state, detail) = match answer {
        Answer::Yes => (State::Yes, None),
        Answer::NotLoaded { module } => (
            State::Yes,
            Some(format!(
                "module {module} is not loaded, so it was not tried"
            )),
        ),
        Answer::No(why) => (State::No, Some(why)),
        Answer::NeedsRoot => (State::Unknown, Some(NEEDS_ROOT.to_owned())),
        Answer::Unknown(why) => (State::Unknown, Some(why)),
    };
    Finding {
        id: feature.id,
        group: feature.group,
        name: feature.name,
        state,
        severity: if state == State::No {
            feature.absence
        } else {
            Severity::Fine
        },
        detail,
        used_for: feature.used_for,
        if_missing: feature.if_missing,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const NEEDED: Feature = Feature {
        id: "needed",
        group: Group::Lab,
        name: "needed",
        used_for: "everything",
        if_missing: "nothing works",
        absence: Severity::Blocks,
        since: "6.1",
        probe: || Answer::Yes,
    };

    #[test]
    fn only_a_feature_that_is_known_to_be_missing_blocks() {
        let severity = |answer| assess(&NEEDED, answer).severity;
        assert_eq!(
            severity(Answer::No("no such thing".into())),
            Severity::Blocks
        );
        assert_eq!(severity(Answer::NeedsRoot), Severity::Fine);
        assert_eq!(severity(Answer::Yes), Severity::Fine);
    }

    #[test]
    fn a_module_that_is_not_loaded_counts_as_present_and_is_reported_as_not_tried() {
        let finding = assess(
            &NEEDED,
            Answer::NotLoaded {
                module: "sch_fq".into(),
            },
        );
        assert_eq!(finding.state, State::Yes);
        assert!(
            finding
                .detail
                .unwrap()
                .contains("module sch_fq is not loaded")
        );
    }

    #[test]
    fn every_feature_has_a_unique_id() {
        let ids = FEATURES.iter().map(|f| f.id).collect::<HashSet<_>>();
        assert_eq!(ids.len(), FEATURES.len());
    }

    #[test]
    fn only_features_of_relay_and_lab_can_slow_or_block() {
        for feature in FEATURES.iter().filter(|f| f.absence != Severity::Fine) {
            assert!(
                matches!(feature.group, Group::Relay | Group::Lab),
                "{}",
                feature.id
            );
        }
    }
}
