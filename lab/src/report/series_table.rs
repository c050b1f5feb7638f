//! The table of all measurements.

use maud::{Markup, html};

use super::{number, reference, unit};
use crate::experiment::outcome::{Outcome, Series};

/// Returns the table of all series. A series' samples unfold below its name.
pub(super) fn render(outcome: &Outcome) -> Markup {
    let Outcome {
        series,
        paper,
        ideal,
        ..
    } = outcome;
    let said = |value: Option<f64>| value.map(number::given).unwrap_or_default();
    let by_paper = series
        .iter()
        .any(|one| reference::paper(paper, one).is_some());
    let by_ideal = series
        .iter()
        .any(|one| reference::ideal(ideal, one).is_some());
    html! {
        div.scroll {
            table.series {
                thead { tr {
                    th { "Series" } th { "Metric" } th { "Unit" } th.number { "n" }
                    th.number { "Median" } th.number { "p10" } th.number { "p90" }
                    @if by_paper { th.number { "Paper" } }
                    @if by_ideal { th.number { "Ideal" } }
                } }
                tbody {
                    @for one in series {
                        tr {
                            td { (name_and_samples(one)) }
                            td { (one.metric) }
                            td { (unit::label(&one.unit)) }
                            td.number { (one.n) }
                            td.number { b { (number::measured(one.median, 4)) } }
                            td.number { (number::measured(one.p10, 4)) }
                            td.number { (number::measured(one.p90, 4)) }
                            @if by_paper { td.number { (said(reference::paper(paper, one))) } }
                            @if by_ideal { td.number { (said(reference::ideal(ideal, one))) } }
                        }
                    }
                }
            }
        }
    }
}

fn name_and_samples(series: &Series) -> Markup {
    html! {
        @if series.samples.is_empty() {
            (series.name)
        } @else {
            details {
                summary { (series.name) }
                p.samples {
                    @for (i, sample) in series.samples.iter().enumerate() {
                        @if i > 0 { ", " }
                        (number::given(*sample))
                    }
                }
            }
        }
    }
}
