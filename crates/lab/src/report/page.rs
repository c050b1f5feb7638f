//! The HTML page around the outcomes.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    folder::Run,
    section::{self, Trust},
};

const STYLE: &str = include_str!("style.css");

/// Returns the complete page of these runs.
pub(super) fn render(runs: &[Run]) -> String {
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
                    (summary(runs))
                }
                main {
                    @for (i, run) in runs.iter().enumerate() { (section::render(run, &id(i))) }
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
    let trust = |run: &Run| Trust::of(&run.outcome.calibration);
    let failed = runs
        .iter()
        .filter(|run| trust(run) == Trust::Failed)
        .count();
    html! {
        @if failed > 0 {
            p.verdict.failed {
                b { "✗ " (failed) " of " (runs.len()) @if runs.len() == 1 { " run" } @else { " runs" } }
                " did not show the problem, so their measurements prove nothing."
            }
        }
        div.scroll {
            table {
                thead { tr { th { "Experiment" } th { "Run" } th { "Calibration" } } }
                tbody {
                    @for (i, run) in runs.iter().enumerate() {
                        tr.failed[trust(run) == Trust::Failed] {
                            td { a href={ "#" (id(i)) } { (section::title(run)) } }
                            td {
                                code { (run.file) } ", seed " (run.outcome.seed)
                                @if run.outcome.quick { ", quick" }
                            }
                            td { (trust(run).words()) }
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
