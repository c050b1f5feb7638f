//! Lines: medians with whiskers over a quantity. They suit sweeps with more steps than bars can
//! show.

use maud::{Markup, html};

use super::{
    super::{number, unit::Unit},
    WIDTH,
    axis::{self, Axis},
    diamond,
    legend::Legend,
    look, path, px, text,
};

const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 250.0;

/// A chart of lines. Values are in the series' own unit.
#[derive(Debug)]
pub(in super::super) struct Lines<'a> {
    pub(in super::super) title: String,
    pub(in super::super) unit: Unit,
    /// The labelled positions on the horizontal axis.
    pub(in super::super) steps: Vec<(f64, &'a str)>,
    pub(in super::super) lines: Vec<Line<'a>>,
    /// The ideal at some of the steps.
    pub(in super::super) ideal: Vec<(f64, f64)>,
}

/// One configuration.
#[derive(Debug)]
pub(in super::super) struct Line<'a> {
    pub(in super::super) label: &'a str,
    pub(in super::super) colour: usize,
    pub(in super::super) points: Vec<Point>,
}

/// A series in a line.
#[derive(Debug)]
pub(in super::super) struct Point {
    pub(in super::super) x: f64,
    pub(in super::super) median: f64,
    pub(in super::super) p10: f64,
    pub(in super::super) p90: f64,
    pub(in super::super) paper: Option<f64>,
    /// The series' figures as a sentence.
    pub(in super::super) about: String,
}

// === impl Lines ===

impl Lines<'_> {
    /// Returns whether the vertical axis is logarithmic.
    pub(in super::super) fn is_log(&self) -> bool {
        axis::spans_decades(self.values())
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let measured = points.flat_map(|p| [p.median, p.p10, p.p90].into_iter().chain(p.paper));
        measured.chain(self.ideal.iter().map(|(_, ideal)| *ideal))
    }

    pub(in super::super) fn draw(&self) -> Markup {
        let xs = || self.steps.iter().map(|(x, _)| *x);
        let x = if axis::spans_decades(xs()) {
            Axis::ratios(xs())
        } else {
            Axis::around(xs())
        };
        let x = x.on(LEFT, RIGHT);
        let y = if self.is_log() {
            Axis::log(self.values())
        } else {
            Axis::from_zero(self.values())
        };
        let y = y.on(BOTTOM, TOP);
        let legend = Legend::new(
            self.lines.iter().map(|line| (line.label, line.colour)),
            !self.ideal.is_empty(),
        );
        let height = BOTTOM + 34.0 + legend.height;
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(self.title)
                xmlns="http://www.w3.org/2000/svg" {
                text.heading x="0" y="15" { (text::fit(&self.title, 14.0, WIDTH)) }
                (self.grid(&x, &y))
                @if !self.ideal.is_empty() {
                    path.ideal d=(path(self.ideal.iter().map(|(step, v)| (x.at(*step), y.at(*v))))) {}
                }
                @for line in &self.lines { (draw_line(line, &x, &y)) }
                (legend.draw(BOTTOM + 30.0))
            }
        }
    }

    fn grid(&self, x: &Axis, y: &Axis) -> Markup {
        html! {
            @for tick in y.ticks(5) {
                line.grid x1=(LEFT) x2=(RIGHT) y1=(px(y.at(tick))) y2=(px(y.at(tick))) {}
                text.tick x=(LEFT - 6.0) y=(px(y.at(tick) + 4.0)) text-anchor="end" {
                    (number::measured(self.unit.of(tick), 3))
                }
            }
            @for (at, label) in self.step_labels(x) {
                line.grid x1=(px(at)) x2=(px(at)) y1=(BOTTOM) y2=(BOTTOM + 4.0) {}
                text.tick x=(px(at)) y=(BOTTOM + 18.0) text-anchor="middle" { (label) }
            }
        }
    }

    /// Returns the steps' names, without names that would overlap the previous one.
    fn step_labels(&self, x: &Axis) -> Vec<(f64, String)> {
        let mut free_from = 0.0;
        let mut labels = Vec::new();
        for (step, name) in &self.steps {
            let name = text::fit(name, 11.0, 100.0);
            let half = text::width(&name, 11.0) / 2.0;
            let at = x.at(*step).clamp(half, WIDTH - half);
            if at - half >= free_from {
                free_from = at + half + 6.0;
                labels.push((at, name));
            }
        }
        labels
    }
}

fn draw_line(line: &Line<'_>, x: &Axis, y: &Axis) -> Markup {
    let shown = || line.points.iter().filter(|point| point.median.is_finite());
    html! {
        g class=(look(line.colour)) {
            path.curve d=(path(shown().map(|p| (x.at(p.x), y.at(p.median))))) {}
            @for point in shown() {
                @let (at, middle) = (x.at(point.x), y.at(point.median));
                g {
                    title { (point.about) }
                    @if point.p10.is_finite() && point.p90.is_finite() {
                        path.spread d=(path([(at, y.at(point.p10)), (at, y.at(point.p90))])) {}
                    }
                    circle.dot cx=(px(at)) cy=(px(middle)) r="3.5" {}
                    @if let Some(paper) = point.paper.and_then(axis::sane) {
                        path.paper d=(diamond(at, y.at(paper))) {}
                    }
                }
            }
        }
    }
}
