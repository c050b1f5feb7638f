//! One outcome in the report.

use maud::{Markup, html};

use super::{about, figures, folder::Run, headline, number, series_table, tables};
use crate::experiment::outcome::{Calibration, Check};

/// Whether the figures of a run can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The world showed the problem.
    Calibrated,
    /// The world did not show the problem, so the figures prove nothing.
    Failed,
    /// The run had no checks.
    Unchecked,
}

/// Returns the run's section; `id` is its anchor.
pub(super) fn render(run: &Run, id: &str) -> Markup {
    let outcome = &run.outcome;
    let about = about::of(&outcome.experiment);
    let trust = Trust::of(&outcome.calibration);
    html! {
        section id=(id) {
            h2 { (title(run)) }
            p.name {
                code { "taut lab run " (outcome.experiment) @if outcome.quick { " --quick" } }
                @if outcome.quick { span.badge { "quick form" } }
            }
            (verdict(&outcome.calibration, trust))
            @if let Some(about) = about { p { (about.story) } }
            @if !outcome.notes.is_empty() {
                h3 { "Notes" }
                ul { @for note in &outcome.notes { li { (note) } } }
            }
            h3 { "Headline" }
            (headline::headline(outcome))
            @if outcome.series.is_empty() {
                p { "No series were measured." }
            } @else {
                (figures::render(outcome, about))
            }
            h3 { "Calibration" }
            p { (trust.meaning()) }
            (tables::calibration(&outcome.calibration))
            h3 { "Environment" }
            (tables::environment(outcome, &run.file))
            (headline::others(outcome))
            @if !outcome.series.is_empty() {
                h3 { "All series" }
                (series_table::render(outcome))
            }
        }
    }
}

/// Returns the experiment's title, or its name if it has no title.
pub(super) fn title(run: &Run) -> &str {
    let experiment = &run.outcome.experiment;
    about::of(experiment).map_or(experiment, |about| about.title)
}

fn verdict(calibration: &Calibration, trust: Trust) -> Markup {
    let failed = calibration
        .checks
        .iter()
        .filter(|(_, check)| !check.holds());
    html! {
        p.verdict.failed[trust == Trust::Failed] {
            b { (trust.words()) }
            @if trust == Trust::Failed {
                ". This world did not show the problem that it is built to show, so the figures below "
                "prove nothing."
                @for (name, check) in failed { " " (outside(name, check)) }
            }
        }
    }
}

fn outside(name: &str, check: &Check) -> Markup {
    html! {
        code { (name) } " was " (number::measured(check.measured, 4))
        " and must be from " (number::given(check.least))
        @if let Some(most) = check.most { " to " (number::given(most)) } "."
    }
}

// === impl Trust ===

impl Trust {
    /// Also treats a calibration as failed if it claims `ok` although one of its checks failed.
    pub(super) fn of(calibration: &Calibration) -> Self {
        if !calibration.ok || !calibration.checks.values().all(Check::holds) {
            Self::Failed
        } else if calibration.checks.is_empty() {
            Self::Unchecked
        } else {
            Self::Calibrated
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Calibrated => "✓ Calibration held",
            Self::Failed => "✗ CALIBRATION FAILED",
            Self::Unchecked => "○ Not calibrated: nothing was checked",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Calibrated => {
                "Before a remedy is measured, the world has to show the problem. It did: every check \
                 lay within its bounds."
            }
            Self::Failed => {
                "Before a remedy is measured, the world has to show the problem. It did not."
            }
            Self::Unchecked => "This run did not check its world.",
        }
    }
}
