//! How often a cell is measured: a configuration under one condition.
//!
//! A cell that hardly varies needs fewer measurements than one that does. The rule is in
//! `docs/lab.md`; it looks at how much the cell's own measurements vary, and at no other cell, so
//! medians are not biased by it. Extremes are: a cell with fewer measurements has smaller ones, so
//! experiments that report extremes have a fixed number.

use super::{Request, stats};

/// The least and the greatest number of measurements of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    least: usize,
    /// The number of rounds. In each, every cell is measured once that still needs it.
    pub(super) most: usize,
}

// === impl Rounds ===

impl Rounds {
    /// The rounds of most experiments.
    const FULL: Self = Self { least: 2, most: 3 };

    /// Returns `--runs N` rounds, one in the short form, or else two or three.
    pub(super) fn of(request: &Request) -> Self {
        match (request.runs, request.form.is_short()) {
            (Some(runs), _) => Self::exactly(runs),
            (None, true) => Self::exactly(1),
            (None, false) => Self::FULL,
        }
    }

    fn exactly(runs: usize) -> Self {
        Self {
            least: runs,
            most: runs,
        }
    }

    /// Returns how many measurements of a cell suffice if others are left out.
    pub(super) fn enough(self) -> usize {
        self.least.min(Self::FULL.least)
    }

    /// Returns whether a cell with these samples is measured again.
    pub(super) fn need_more(self, samples: &[f64]) -> bool {
        let n = samples.len();
        n < self.least || n < self.most && !stats::is_narrow(samples, &[1.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Form;

    fn rounds(runs: Option<usize>, quick: bool) -> Rounds {
        Rounds::of(&Request {
            runs,
            ..Request::of_test(Form::of(quick))
        })
    }

    #[test]
    fn a_third_measurement_is_made_where_two_differ() {
        let full = rounds(None, false);
        assert!(full.need_more(&[]) && full.need_more(&[5.0]));
        assert!(!full.need_more(&[5.0, 5.1]));
        assert!(full.need_more(&[5.0, 6.0]));
        assert!(full.need_more(&[f64::NAN, f64::NAN]));
        assert!(!full.need_more(&[5.0, 6.0, 9.0]));
    }

    #[test]
    fn a_given_number_is_kept_to() {
        assert!(rounds(Some(4), true).need_more(&[5.0; 3]));
        assert!(!rounds(Some(4), false).need_more(&[1.0, 9.0, 3.0, 4.0]));
        assert!(!rounds(None, true).need_more(&[5.0]));
    }

    #[test]
    fn two_measurements_are_enough_and_one_in_the_short_form() {
        assert_eq!(rounds(None, false).enough(), 2);
        assert_eq!(rounds(Some(5), false).enough(), 2);
        assert_eq!(rounds(None, true).enough(), 1);
    }
}
