//! Compares series with the references and the baseline of their outcome.

use super::super::{
    arrange::{Panel, Row},
    chart::axis,
    number, reference,
    unit::{self, Better},
};
use crate::experiment::outcome::{Outcome, Series};

/// An outcome, whose series are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) outcome: &'a Outcome,
}

// === impl View ===

impl View<'_> {
    /// Returns the paper's figure for this series.
    pub(super) fn paper(self, series: &Series) -> Option<f64> {
        reference::paper(&self.outcome.paper, series).and_then(axis::sane)
    }

    /// Returns an ideal system's figure for this series.
    pub(super) fn ideal(self, series: &Series) -> Option<f64> {
        reference::ideal(&self.outcome.ideal, series).and_then(axis::sane)
    }

    /// Returns all values that a panel needs room for.
    pub(super) fn values(self, panel: &Panel<'_>) -> Vec<f64> {
        let values = |row: &Row<'_>| {
            let one = row.series;
            [one.median, one.p10, one.p90]
                .into_iter()
                .chain(self.paper(one))
                .chain(self.ideal(one))
                .collect::<Vec<_>>()
        };
        panel.rows.iter().flat_map(values).collect()
    }

    /// Returns a series' figures as a sentence, which the chart shows under the pointer.
    pub(super) fn in_words(self, series: &Series) -> String {
        let unit = unit::label(&series.unit);
        let value = |value| unit::with(number::measured(value, 4), unit);
        let mut words = format!(
            "{}: median {} of {} (p10 {}, p90 {})",
            series.name,
            value(series.median),
            series.n,
            value(series.p10),
            value(series.p90),
        );
        if let Some(paper) = self.paper(series) {
            words += "; the paper: ";
            words += &unit::with(number::given(paper), unit);
        }
        words
    }
}

/// Returns the baseline: the row of the outcome's first configuration, if that was measured.
pub(super) fn baseline<'a>(panel: &'a Panel<'_>) -> Option<&'a Row<'a>> {
    panel.rows.first().filter(|row| row.colour == 0)
}

/// Returns the ratio of a row to the baseline. Returns `None` if neither direction of the unit is
/// better.
pub(super) fn ratio(panel: &Panel<'_>, row: &Row<'_>) -> Option<String> {
    let (base, this) = (baseline(panel)?.series, row.series);
    if row.colour == 0 {
        return None;
    }
    let ratio = match unit::better(&this.unit) {
        Better::Lower => base.median / this.median,
        Better::Higher => this.median / base.median,
        Better::Unknown => return None,
    };
    let sound = ratio.is_finite() && ratio > 0.0 && base.median > 0.0;
    sound.then(|| format!("{}×", number::ratio(ratio)))
}

/// Returns the largest positive value.
pub(super) fn greatest(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .filter_map(axis::sane)
        .fold(0.0, f64::max)
}
