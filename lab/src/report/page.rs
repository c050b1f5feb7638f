//! The HTML page around the outcomes.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    about,
    folder::{Missing, Run},
    section, won,
};

use crate::experiment::outcome::Trust;

const STYLE: &str = include_str!("style.css");

/// Returns the complete page of these runs, and of the experiments without one.
pub(super) fn render(runs: &[Run], missing: &[Missing]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // The page needs only its own style sheet. With this policy it cannot load or run
                // anything else, even if a string was not escaped.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "Taut lab report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Taut lab report" }
                    p {
                        "Taut takes the slack out of TCP on Linux. Each experiment of " code { "taut lab" }
                        " builds a world on one machine that shows a problem, checks that the problem is there (its calibration), and measures "
                        "the remedy beside it. Figures whose calibration failed are struck out: they prove nothing. Where the machine was busy, they are marked as doubtful."
                    }
                    (won::render(runs, id))
                    (summary(runs))
                    (without_outcome(missing))
                }
                main {
                    @for (i, run) in runs.iter().enumerate() { (section::render(run, &id(i), section::are_mixed(runs))) }
                }
            }
        }
    };
    printable(page)
}

fn id(place: usize) -> String {
    format!("run-{}", place + 1)
}

fn summary(runs: &[Run]) -> Markup {
    let trust = |run: &Run| run.outcome.calibration.trust();
    let failed = runs
        .iter()
        .filter(|run| trust(run) == Trust::Failed)
        .count();
    let busy = runs.iter().filter(|run| trust(run) == Trust::Busy).count();
    html! {
        @if failed > 0 {
            p.verdict.failed {
                b { "✗ " (failed) " of " (runs.len()) @if runs.len() == 1 { " run" } @else { " runs" } }
                " did not show the problem, so their measurements prove nothing."
            }
        }
        @if busy > 0 {
            p.verdict {
                b { "△ " (busy) " of " (runs.len()) @if runs.len() == 1 { " run" } @else { " runs" } }
                " had a machine that was busy: the figures stand, and are doubtful."
            }
        }
        h2 { "All runs" }
        (trees(runs))
        p.aside {
            "Tables give the number of measurements (n) and their spread (10 % to 90 %). Some experiments measure again only what "
            "varies: what has n = 2 was measured twice, because the two differ by at most a tenth, or lacks one during which a link was late. docs/lab.md has the rule of each."
        }
        div.scroll {
            table.runs {
                thead { tr { th { "Experiment" } th { "Run" } th { "Calibration" } } }
                tbody {
                    @for (i, run) in runs.iter().enumerate() {
                        @if i == 0 || section::job(&runs[i - 1]) != section::job(run) {
                            tr { th.job colspan="3" { (section::job(run)) } }
                        }
                        tr.failed[trust(run) == Trust::Failed] {
                            td { a href={ "#" (id(i)) } { (section::title(run)) } }
                            td {
                                code { (run.file) } ", seed " (run.outcome.seed)
                                @if run.outcome.quick { ", quick" }
                                @if section::are_mixed(runs) { ", tree " (section::tree(run)) }
                            }
                            td { (section::words(trust(run))) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the tree of the runs, or a notice if they are not all of one.
fn trees(runs: &[Run]) -> Markup {
    let first = runs.first().and_then(|run| run.outcome.tree.as_deref());
    let is_mixed = section::are_mixed(runs);
    html! {
        @if is_mixed {
            p { b { "These runs are not all of one tree." } " Each section names the tree that it was measured on." }
        } @else if let Some(tree) = first {
            p { "All of them were measured on the tree " code { (tree) } "." }
        }
    }
}

fn without_outcome(missing: &[Missing]) -> Markup {
    html! {
        @if !missing.is_empty() {
            h2 { "Without an outcome" }
            div.scroll {
                table {
                    thead { tr { th { "Experiment" } th { "Command" } th { "Why" } } }
                    tbody {
                        @for one in missing {
                            tr {
                                td { (about::of(one.experiment).map_or(one.experiment, |about| about.title)) }
                                td { code { "taut lab run " (one.experiment) } }
                                td { (one.reason) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Replaces unreadable characters with a mark. Control characters are errors in HTML even when
/// escaped, and characters that change the writing direction can make one text look like another.
fn printable(page: Markup) -> String {
    page.into_string()
        .chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => '\u{FFFD}',
            _ if c.is_control() || (c as u32) & 0xFFFE == 0xFFFE => '\u{FFFD}',
            _ => c,
        })
        .collect()
}
