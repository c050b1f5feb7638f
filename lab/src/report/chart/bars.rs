//! Horizontal bars: medians with whiskers, one row each. The name is at the left and the value at
//! the right. Rows, unlike columns, leave room for names and values.

use maud::{Markup, html};

use super::{
    super::{
        number,
        unit::{self, Unit},
    },
    WIDTH,
    axis::{Axis, sane},
    diamond, look, path, px, text,
};

const SIZE: f64 = 12.5;
const ROW: f64 = 24.0;
const BAR: f64 = 13.0;
/// Room for the title and the ideal's label above the first row.
const TOP: f64 = 40.0;
/// Room for the ticks and their labels below the last row.
const BOTTOM: f64 = 26.0;

/// A chart of bars. All values are in the series' own unit.
#[derive(Debug)]
pub(in super::super) struct Bars {
    pub(in super::super) title: String,
    pub(in super::super) unit: Unit,
    pub(in super::super) axis: Axis,
    /// The ideal, if all rows have the same.
    pub(in super::super) ideal: Option<f64>,
    pub(in super::super) bars: Vec<Bar>,
}

/// One row.
#[derive(Debug)]
pub(in super::super) struct Bar {
    pub(in super::super) label: String,
    pub(in super::super) colour: usize,
    pub(in super::super) median: f64,
    pub(in super::super) p10: f64,
    pub(in super::super) p90: f64,
    /// The ratio to the first row, such as `2.1×`.
    pub(in super::super) ratio: Option<String>,
    /// The paper's figure.
    pub(in super::super) paper: Option<f64>,
    /// The row's own ideal.
    pub(in super::super) ideal: Option<f64>,
    /// The row's figures as a sentence.
    pub(in super::super) about: String,
}

// === impl Bars ===

impl Bars {
    pub(in super::super) fn draw(&self) -> Markup {
        let left = widest(self.bars.iter().map(|bar| bar.label.clone())).min(150.0);
        let columns = Columns::of(self);
        let axis = self.axis.clone().on(left + 10.0, columns.from);
        let bottom = TOP + ROW * self.bars.len() as f64;
        let height = bottom + BOTTOM;
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(self.title)
                xmlns="http://www.w3.org/2000/svg" {
                text.heading x="0" y="15" { (text::fit(&self.title, 14.0, WIDTH)) }
                (self.grid(&axis, bottom))
                @for (i, bar) in self.bars.iter().enumerate() {
                    @let y = TOP + ROW * (i as f64 + 0.5);
                    g class=(look(bar.colour)) {
                        title { (bar.about) }
                        // The whole row reacts to the pointer, not only its marks.
                        rect.reach x="0" y=(px(y - ROW / 2.0)) width=(WIDTH) height=(ROW) {}
                        text.name x=(px(left)) y=(px(y + 4.5)) text-anchor="end" {
                            (text::fit(&bar.label, SIZE, left + 1.0))
                        }
                        (self.marks(bar, &axis, y))
                        (self.columns(bar, &columns, y))
                    }
                }
                @if let Some(ideal) = self.ideal { (self.ideal_line(ideal, &axis, bottom)) }
            }
        }
    }

    fn value(&self, bar: &Bar) -> String {
        if !bar.median.is_finite() {
            return number::measured(bar.median, 3);
        }
        let value = number::measured(self.unit.of(bar.median), 3);
        unit::with(value, &self.unit.label)
    }

    fn paper(&self, bar: &Bar) -> Option<String> {
        let paper = self.unit.of(sane(bar.paper?)?);
        Some(format!("◇ {}", number::given(round(paper))))
    }

    fn grid(&self, axis: &Axis, bottom: f64) -> Markup {
        let ticks = axis.ticks(5);
        html! {
            @for (i, tick) in ticks.iter().copied().enumerate() {
                @let x = px(axis.at(tick));
                line.grid x1=(x) x2=(x) y1=(px(TOP)) y2=(px(bottom + 4.0)) {}
                text.tick x=(x) y=(px(bottom + 18.0)) text-anchor="middle" {
                    (number::given(round(self.unit.of(tick))))
                    // Show the unit once, at the axis' end.
                    @if i + 1 == ticks.len() { " " (self.unit.label) }
                }
            }
        }
    }

    fn marks(&self, bar: &Bar, axis: &Axis, y: f64) -> Markup {
        let (zero, end) = (axis.at(0.0), axis.at(bar.median));
        let (low, high) = (axis.at(bar.p10), axis.at(bar.p90));
        let whisker = format!(
            "{}{}{}",
            path([(low, y), (high, y)]),
            path([(low, y - 4.0), (low, y + 4.0)]),
            path([(high, y - 4.0), (high, y + 4.0)]),
        );
        html! {
            @if bar.median.is_finite() {
                rect.bar x=(px(zero.min(end))) y=(px(y - BAR / 2.0))
                    width=(px((end - zero).abs())) height=(BAR) {}
            }
            @if bar.p10.is_finite() && bar.p90.is_finite() {
                path.halo d=(whisker) {}
                path.whisker d=(whisker) {}
            }
            @if let (Some(ideal), None) = (bar.ideal, self.ideal) {
                @let x = axis.at(ideal);
                path.ideal d=(path([(x, y - ROW / 2.0), (x, y + ROW / 2.0)])) {}
            }
            @if let Some(paper) = bar.paper.and_then(sane) {
                path.paper d=(diamond(axis.at(paper), y)) {}
            }
        }
    }

    fn columns(&self, bar: &Bar, columns: &Columns, y: f64) -> Markup {
        let y = px(y + 4.5);
        html! {
            text.value x=(px(columns.value)) y=(y) text-anchor="end" { (self.value(bar)) }
            @if let Some(ratio) = &bar.ratio {
                text.ratio x=(px(columns.ratio)) y=(y) text-anchor="end" { (ratio) }
            }
            @if let Some(paper) = self.paper(bar) {
                text.ratio x=(px(WIDTH)) y=(y) text-anchor="end" { (paper) }
            }
        }
    }

    fn ideal_line(&self, ideal: f64, axis: &Axis, bottom: f64) -> Markup {
        let x = axis.at(ideal);
        let value = number::measured(self.unit.of(ideal), 3);
        let label = format!("ideal {}", unit::with(value, &self.unit.label));
        let half = text::width(&label, 11.0) / 2.0;
        html! {
            g {
                title { (label) }
                path.ideal d=(path([(x, TOP - 3.0), (x, bottom + 4.0)])) {}
                text.note x=(px(x.clamp(half, WIDTH - half))) y=(px(TOP - 7.0))
                    text-anchor="middle" { (label) }
            }
        }
    }
}

/// Where the columns beside the plot end. Values are in columns, not at the ends of the marks,
/// because a value there could be read as the whisker's or the paper's.
#[derive(Debug)]
struct Columns {
    /// Where the plot ends and the columns begin.
    from: f64,
    value: f64,
    ratio: f64,
}

// === impl Columns ===

impl Columns {
    fn of(bars: &Bars) -> Self {
        let gap = |width: f64| if width > 0.0 { width + 12.0 } else { 0.0 };
        let all = || bars.bars.iter();
        let ratio = WIDTH - gap(widest(all().filter_map(|bar| bars.paper(bar))));
        let value = ratio - gap(widest(all().filter_map(|bar| bar.ratio.clone())));
        let from = value - widest(all().map(|bar| bars.value(bar))) - 22.0;
        Self {
            // Keeps part of the plot, however long the unit is.
            from: from.max(WIDTH * 0.45),
            value,
            ratio,
        }
    }
}

fn widest(labels: impl Iterator<Item = String>) -> f64 {
    labels
        .map(|label| text::width(&label, SIZE))
        .fold(0.0, f64::max)
}

/// Removes the floating-point error of a unit's factor. Ticks are multiples of a round step.
fn round(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
