//! The tables of an outcome's environment and calibration.

use maud::{Markup, html};

use super::number;
use crate::experiment::outcome::{Calibration, Environment, Outcome};

/// Returns the table of what the experiment ran on.
pub(super) fn environment(outcome: &Outcome, file: &str) -> Markup {
    let Environment {
        kernel,
        cpus,
        links,
        guests,
        programs,
    } = &outcome.environment;
    html! {
        dl.environment {
            dt { "Taut" }
            dd { (outcome.version) }
            dt { "Kernel" }
            dd { (kernel) ", " (cpus) @if *cpus == 1 { " CPU" } @else { " CPUs" } }
            dt { "Seed" }
            dd { (outcome.seed) @if outcome.quick { " (quick form)" } }
            @if !links.is_empty() {
                dt { "Links" }
                dd { ul { @for (name, link) in links { li { b { (name) } ": " (link) } } } }
            }
            @if !guests.is_empty() {
                dt { "Guests" }
                dd { ul { @for guest in guests { li { (guest) } } } }
            }
            @if !programs.is_empty() {
                dt { "Programs" }
                dd { ul { @for (name, version) in programs { li { b { (name) } ": " (version) } } } }
            }
            dt { "File" }
            dd { code { (file) } }
        }
    }
}

/// Returns the table of all calibration checks.
pub(super) fn calibration(calibration: &Calibration) -> Markup {
    html! {
        @if !calibration.checks.is_empty() {
            div.scroll {
                table {
                    thead { tr {
                        th { "Check" } th.number { "Least" } th.number { "Measured" }
                        th.number { "Most" } th { "Verdict" }
                    } }
                    tbody {
                        @for (name, check) in &calibration.checks {
                            tr.failed[!check.holds()] {
                                td { code { (name) } }
                                td.number { (number::given(check.least)) }
                                td.number { (number::measured(check.measured, 4)) }
                                td.number { @if let Some(most) = check.most { (number::given(most)) } }
                                td { @if check.holds() { "✓ held" } @else { "✗ did not hold" } }
                            }
                        }
                    }
                }
            }
        }
    }
}
