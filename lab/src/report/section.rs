//! One outcome in the report.

use maud::{Markup, html};

use super::{about, figures, folder::Run, headline, number, series_table, tables};
use crate::experiment::outcome::{Calibration, Check, Trust};

/// The number of notes that are shown unfolded.
const FEW: usize = 8;

/// Returns the run's section; `id` is its anchor. With `names_tree` it says which tree was measured.
pub(super) fn render(run: &Run, id: &str, names_tree: bool) -> Markup {
    let outcome = &run.outcome;
    let about = about::of(&outcome.experiment);
    let trust = outcome.calibration.trust();
    html! {
        section id=(id) {
            h2 { (title(run)) }
            p.name {
                code { "taut lab run " (outcome.experiment) @if outcome.quick { " --quick" } }
                @if outcome.quick { span.badge { "quick form" } }
                @if names_tree { span.badge { "tree: " (tree(run)) } }
            }
            (verdict(&outcome.calibration, trust))
            @if let Some(about) = about { p { (about.story) } }
            (figures::first(outcome, about))
            h3 { "Headline" }
            @if about.is_some() {
                p.aside { "What each name means is on the page of “" (outcome.experiment) "” that docs/lab.md links to." }
            }
            (headline::headline(outcome))
            (notes(&outcome.notes))
            @if outcome.series.is_empty() {
                p { "No series were measured." }
            } @else {
                (figures::render(outcome, about))
            }
            h3 { "Calibration" }
            p { (meaning(trust)) }
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

/// Returns the commands that the run's experiment is about.
pub(super) fn job(run: &Run) -> &'static str {
    about::of(&run.outcome.experiment).map_or("other experiments", |about| about.job)
}

/// Returns whether runs were measured on different trees.
pub(super) fn are_mixed(runs: &[Run]) -> bool {
    runs.windows(2)
        .any(|two| two[0].outcome.tree != two[1].outcome.tree)
}

/// Returns the name of the tree that a run was measured on.
pub(super) fn tree(run: &Run) -> &str {
    run.outcome.tree.as_deref().unwrap_or("not named")
}

/// Returns the notes, folded if they would push the figures far down.
fn notes(notes: &[String]) -> Markup {
    let list = html! { ul { @for note in notes { li { (note) } } } };
    html! {
        @if notes.len() > FEW {
            h3 { "Notes" }
            details { summary { (notes.len()) " notes" } (list) }
        } @else if !notes.is_empty() {
            h3 { "Notes" }
            (list)
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
            b { (words(trust)) }
            @if trust == Trust::Failed {
                ". This world did not show the problem that it is built to show, so the figures below "
                "prove nothing."
            }
            @if trust == Trust::Busy {
                ". The figures are kept; run the experiment again on an idle machine."
            }
            @if matches!(trust, Trust::Failed | Trust::Busy) {
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

/// Returns the verdict of a calibration, in words.
pub(super) fn words(trust: Trust) -> &'static str {
    match trust {
        Trust::Calibrated => "✓ Calibration held",
        Trust::Busy => "△ This machine was busy: the figures are doubtful",
        Trust::Failed => "✗ CALIBRATION FAILED",
        Trust::Unchecked => "○ Not calibrated: nothing was checked",
    }
}

fn meaning(trust: Trust) -> &'static str {
    match trust {
        Trust::Calibrated => {
            "Before a remedy is measured, the world has to show the problem. It did: every check \
             lay within its bounds."
        }
        Trust::Busy => {
            "Before a remedy is measured, the world has to show the problem, on a machine that is fast \
             enough for what it emulates. Something else used the processors."
        }
        Trust::Failed => {
            "Before a remedy is measured, the world has to show the problem. It did not."
        }
        Trust::Unchecked => "This run did not check its world.",
    }
}
