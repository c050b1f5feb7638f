//! Cumulative distributions: for each value, the share of samples at or below it.

use maud::{Markup, html};

use super::{
    super::{number, unit::Unit},
    WIDTH,
    axis::{self, Axis},
    legend::Legend,
    look, path, px, text,
};

const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 200.0;

/// A chart of distributions.
#[derive(Debug)]
pub(in super::super) struct Cdf<'a> {
    pub(in super::super) title: String,
    /// The unit of the samples.
    pub(in super::super) unit: &'a str,
    pub(in super::super) curves: Vec<Curve<'a>>,
}

/// One distribution.
#[derive(Debug)]
pub(in super::super) struct Curve<'a> {
    pub(in super::super) label: &'a str,
    pub(in super::super) colour: usize,
    pub(in super::super) samples: &'a [f64],
}

// === impl Cdf ===

impl Cdf<'_> {
    pub(in super::super) fn draw(&self) -> Markup {
        let all = || {
            self.curves
                .iter()
                .flat_map(|curve| curve.samples.iter().copied())
        };
        let x = if axis::spans_decades(all()) {
            Axis::log(all())
        } else {
            Axis::around(all())
        };
        let x = x.on(LEFT, RIGHT);
        let y = Axis::from_zero([1.0]).on(BOTTOM, TOP);
        let unit = Unit::fitting(self.unit, all().filter(|v| !v.is_nan()).fold(0.0, f64::max));
        let legend = Legend::new(self.curves.iter().map(|c| (c.label, c.colour)), false);
        let height = BOTTOM + 30.0 + legend.height;
        let ticks = x.ticks(5);
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(self.title)
                xmlns="http://www.w3.org/2000/svg" {
                text.heading x="0" y="15" { (text::fit(&self.title, 14.0, WIDTH)) }
                @for (share, label) in [(0.0, "0 %"), (0.1, "10 %"), (0.5, "50 %"), (0.9, "90 %"), (1.0, "100 %")] {
                    @let at = y.at(share);
                    line.grid x1=(LEFT) x2=(RIGHT) y1=(px(at)) y2=(px(at)) {}
                    text.tick x=(LEFT - 6.0) y=(px(at + 4.0)) text-anchor="end" { (label) }
                }
                @for (i, tick) in ticks.iter().copied().enumerate() {
                    line.grid x1=(px(x.at(tick))) x2=(px(x.at(tick))) y1=(TOP) y2=(BOTTOM) {}
                    text.tick x=(px(x.at(tick))) y=(BOTTOM + 16.0) text-anchor="middle" {
                        (number::measured(unit.of(tick), 3))
                        @if i + 1 == ticks.len() { " " (unit.label) }
                    }
                }
                @for curve in &self.curves {
                    g class=(look(curve.colour)) {
                        title { (curve.label) }
                        path.curve d=(path(steps(curve.samples).map(|(v, s)| (x.at(v), y.at(s))))) {}
                    }
                }
                (legend.draw(BOTTOM + 26.0))
            }
        }
    }
}

/// Returns the corners of the empirical distribution, as pairs of value and share.
fn steps(samples: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let share = move |n: usize, of: usize| n as f64 / of as f64;
    let of = sorted.len();
    sorted
        .into_iter()
        .enumerate()
        .flat_map(move |(i, value)| [(value, share(i, of)), (value, share(i + 1, of))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_climbs_from_none_to_all() {
        let corners: Vec<_> = steps(&[2.0, 1.0]).collect();
        assert_eq!(corners, [(1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0)]);
        assert_eq!(steps(&[f64::NAN]).count(), 0);
    }
}
