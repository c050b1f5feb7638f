//! What a feature's presence or absence means.

use serde::Serialize;
use taut_sys::probe::Answer;

use super::severity::Severity;

mod list;

pub(crate) use list::FEATURES;

/// A feature of the kernel or the machine, and why anybody would want it.
pub(crate) struct Feature {
    /// Its name for programs; never changes once published.
    pub(crate) id: &'static str,
    pub(crate) group: Group,
    pub(crate) name: &'static str,
    pub(crate) used_for: &'static str,
    pub(crate) if_missing: &'static str,
    /// What its absence is.
    pub(crate) absence: Severity,
    pub(crate) probe: fn() -> Answer,
}

/// Whose feature it is.
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
            Self::Bpf => "BPF (for jobs to come)",
            Self::Guests => "Processes and guests (for jobs to come)",
        }
    }
}

/// Whether the feature is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Yes,
    No,
    /// It could not be tried.
    Unknown,
}

/// A feature as it was found here.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) id: &'static str,
    pub(crate) group: Group,
    pub(crate) name: &'static str,
    pub(crate) state: State,
    pub(crate) severity: Severity,
    /// The kernel's answer, where there is more to say than yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    pub(crate) used_for: &'static str,
    pub(crate) if_missing: &'static str,
}

/// The detail of what only root can try.
pub(crate) const NEEDS_ROOT: &str = "needs root";

/// What `answer` means. What could not be tried is held against nobody.
pub(crate) fn judge(feature: &Feature, answer: Answer) -> Finding {
    let (state, detail) = match answer {
        Answer::Yes => (State::Yes, None),
        Answer::NotLoaded { module } => (
            State::Yes,
            Some(format!("module {module}, not loaded yet, so not tried")),
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
        probe: || Answer::Yes,
    };

    #[test]
    fn only_a_feature_that_is_known_to_be_missing_blocks() {
        let severity = |answer| judge(&NEEDED, answer).severity;
        assert_eq!(
            severity(Answer::No("no such thing".into())),
            Severity::Blocks
        );
        assert_eq!(severity(Answer::NeedsRoot), Severity::Fine);
        assert_eq!(severity(Answer::Yes), Severity::Fine);
    }

    #[test]
    fn a_module_that_is_not_loaded_counts_as_there_and_says_that_it_was_not_tried() {
        let finding = judge(
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
                .contains("module sch_fq, not loaded")
        );
    }

    #[test]
    fn every_feature_has_an_id_of_its_own() {
        let ids = FEATURES.iter().map(|f| f.id).collect::<HashSet<_>>();
        assert_eq!(ids.len(), FEATURES.len());
    }

    #[test]
    fn only_what_relay_and_lab_need_can_block() {
        for feature in FEATURES.iter().filter(|f| f.absence != Severity::Fine) {
            assert!(
                matches!(feature.group, Group::Relay | Group::Lab),
                "{}",
                feature.id
            );
        }
    }
}
