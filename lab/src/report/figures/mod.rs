//! Draws an outcome's arranged series, with captions.

mod caption;
mod sweep;
mod view;

use maud::{Markup, html};

use self::view::{View, greatest, ratio};
use super::{
    about::{self, About},
    arrange::{self, Figure, Metric, Panel},
    chart::{
        axis::Axis,
        bars::{Bar, Bars},
        cdf::{Cdf, Curve},
    },
    name::in_words,
    unit::Unit,
};
use crate::experiment::outcome::Outcome;

/// The minimum number of samples for a distribution. A list shows fewer samples better.
const CDF_SAMPLES: usize = 10;
/// Panels do not share a scale if their maxima differ by more than this factor.
const SHARED_SCALE: f64 = 4.0;

/// A scale and the greatest value on it.
#[derive(Clone, Debug)]
struct Scale {
    axis: Axis,
    most: f64,
}

/// Returns the figure that shows most, if the experiment has one.
pub(super) fn first(outcome: &Outcome, about: Option<&About>) -> Markup {
    let view = View { outcome };
    let metrics = arrange::arrange(&outcome.series);
    let first = about.and_then(|about| metrics.iter().find(|metric| about.is_first(metric.name)));
    html! {
        @if let Some((metric, figure)) = first.and_then(|metric| Some((metric, metric.figures.first()?))) {
            h3 { (about::metric(metric.name)) }
            (one(view, metric, figure, shared_scale(view, metric).as_ref()))
        }
    }
}

/// Returns all figures of an outcome, but that of [`first`].
pub(super) fn render(outcome: &Outcome, about: Option<&About>) -> Markup {
    let view = View { outcome };
    let is_first = |metric: &Metric<'_>| about.is_some_and(|about| about.is_first(metric.name));
    html! {
        @for metric in arrange::arrange(&outcome.series) {
            @let skipped = usize::from(is_first(&metric));
            @if metric.figures.len() > skipped {
            h3 {
                (about::metric(metric.name))
                @if let Some(figure) = about.and_then(|about| about.figure(metric.name)) {
                    span.aside { " compare the paper’s " (figure) }
                }
            }
            @let shared = shared_scale(view, &metric);
            @for figure in metric.figures.iter().skip(skipped) { (one(view, &metric, figure, shared.as_ref())) }
            }
        }
    }
}

/// Returns one scale for all panels, or `None` if a panel's values are so small beside the others'
/// that a shared scale would hide them.
fn shared_scale(view: View<'_>, metric: &Metric<'_>) -> Option<Scale> {
    let panels = || metric.figures.iter().flat_map(|figure| &figure.panels);
    let most = |panel| greatest(view.values(panel));
    let largest = panels().map(most).fold(0.0, f64::max);
    let smallest = panels().map(most).fold(f64::INFINITY, f64::min);
    (smallest > 0.0 && largest / smallest <= SHARED_SCALE)
        .then(|| Scale::of(panels().flat_map(|panel| view.values(panel)).collect()))
}

fn one(view: View<'_>, metric: &Metric<'_>, figure: &Figure<'_>, shared: Option<&Scale>) -> Markup {
    let lines = sweep::lines(view, metric, figure);
    let panels = || figure.panels.iter();
    let cdfs: Vec<Markup> = panels()
        .filter_map(|panel| cdf(metric, figure, panel))
        .collect();
    html! {
        figure {
            @if let Some(condition) = figure.condition { h4 { (condition.replace('/', ", ")) } }
            div.panels {
                @if let Some(lines) = &lines { div { (lines.draw()) } }
                @else {
                    @for panel in panels() {
                        div { (bars(view, metric, figure, panel, shared).draw()) }
                    }
                }
            }
            figcaption {
                (caption::caption(view, metric, figure, shared.is_some(), lines.as_ref()))
            }
            @if !cdfs.is_empty() {
                details {
                    summary { "Distributions of the samples" }
                    div.panels { @for cdf in &cdfs { div { (cdf) } } }
                }
            }
        }
    }
}

fn bars(
    view: View<'_>,
    metric: &Metric<'_>,
    figure: &Figure<'_>,
    panel: &Panel<'_>,
    shared: Option<&Scale>,
) -> Bars {
    let scale = shared
        .cloned()
        .unwrap_or_else(|| Scale::of(view.values(panel)));
    let bars: Vec<Bar> = panel
        .rows
        .iter()
        .map(|row| Bar {
            label: in_words(row.configuration).to_owned(),
            colour: row.colour,
            median: row.series.median,
            p10: row.series.p10,
            p90: row.series.p90,
            ratio: ratio(panel, row),
            paper: view.paper(row.series),
            ideal: view.ideal(row.series),
            about: view.in_words(row.series),
        })
        .collect();
    let one_ideal = bars.windows(2).all(|pair| pair[0].ideal == pair[1].ideal);
    Bars {
        title: panel_title(metric, figure, panel),
        unit: Unit::fitting(metric.unit, scale.most),
        axis: scale.axis,
        ideal: bars.first().and_then(|bar| bar.ideal).filter(|_| one_ideal),
        bars,
    }
}

fn cdf(metric: &Metric<'_>, figure: &Figure<'_>, panel: &Panel<'_>) -> Option<Markup> {
    let curves: Vec<Curve<'_>> = panel
        .rows
        .iter()
        .filter(|row| row.series.samples.len() >= CDF_SAMPLES)
        .map(|row| Curve {
            label: in_words(row.configuration),
            colour: row.colour,
            samples: &row.series.samples,
        })
        .collect();
    let cdf = Cdf {
        title: panel_title(metric, figure, panel),
        unit: metric.unit,
        curves,
    };
    (!cdf.curves.is_empty()).then(|| cdf.draw())
}

/// Returns the panel's group and condition, or the metric if it has no group.
fn panel_title(metric: &Metric<'_>, figure: &Figure<'_>, panel: &Panel<'_>) -> String {
    match (panel.group, figure.condition) {
        (Some(group), Some(condition)) => format!("{group}, {}", condition.replace('/', ", ")),
        (Some(group), None) => group.to_owned(),
        (None, _) => about::metric(metric.name),
    }
}

// === impl Scale ===

impl Scale {
    fn of(values: Vec<f64>) -> Self {
        Self {
            axis: Axis::from_zero(values.iter().copied()),
            most: greatest(values),
        }
    }
}
