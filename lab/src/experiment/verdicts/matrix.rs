//! The verdicts on each cause, and the shares of right ones.

use std::collections::BTreeMap;

use super::family::Part;
use super::mode::{Mode, Said};

/// A confusion matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    mode: Mode,
    said: BTreeMap<Part, Vec<Said>>,
}

// === impl Matrix ===

impl Matrix {
    /// Returns an empty matrix for verdicts of `mode`.
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            said: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, part: Part, said: Said) {
        self.said.entry(part).or_default().push(said);
    }

    /// Returns each verdict with its part.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Part, &Said)> {
        let parts = self.said.iter();
        parts.flat_map(|(part, said)| said.iter().map(move |said| (*part, said)))
    }

    /// Returns the share of right verdicts in the runs that `of` selects; NaN without any.
    pub(super) fn accuracy(&self, of: impl Fn(Part, &Said) -> bool) -> f64 {
        let (mut runs, mut right) = (0, 0);
        for (part, said) in self.runs().filter(|(part, said)| of(*part, said)) {
            runs += 1;
            right += usize::from(said.factor == self.mode.expected(part));
        }
        share(right, runs)
    }

    /// Returns the group with the smallest share of right verdicts, and that share. `group` returns
    /// the group of a part; parts without one do not count.
    pub(super) fn worst<G: Ord + Copy>(
        &self,
        group: impl Fn(Part) -> Option<G>,
    ) -> Option<(G, f64)> {
        let mut groups: Vec<G> = self.said.keys().filter_map(|part| group(*part)).collect();
        groups.sort_unstable();
        groups.dedup();
        let each = groups
            .into_iter()
            .map(|of| (of, self.accuracy(|part, _| group(part) == Some(of))));
        each.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the share of all runs whose verdict was sure and wrong.
    pub(super) fn confident_wrong_rate(&self) -> f64 {
        let wrong = self.runs().filter(|(part, said)| {
            said.confidence == "sure" && said.factor != self.mode.expected(*part)
        });
        share(wrong.count(), self.runs().count())
    }

    /// Returns the number of verdicts that name this factor although another one was right.
    pub(super) fn wrongly(&self, factor: &str) -> usize {
        let wrong = self
            .runs()
            .filter(|(part, said)| said.factor == factor && self.mode.expected(*part) != factor);
        wrong.count()
    }

    /// Returns each part, each factor in its verdicts, and the number of those verdicts.
    pub(super) fn cells(&self) -> Vec<(Part, &str, usize)> {
        let mut cells: BTreeMap<(Part, &str), usize> = BTreeMap::new();
        for (part, said) in self.runs() {
            *cells.entry((part, &said.factor)).or_default() += 1;
        }
        cells
            .into_iter()
            .map(|((part, factor), count)| (part, factor, count))
            .collect()
    }
}

fn share(part: usize, of: usize) -> f64 {
    match of {
        0 => f64::NAN,
        of => part as f64 / of as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::cause::Cause;
    use super::super::family::Family;
    use super::*;

    fn said(factor: &str, confidence: &str) -> Said {
        Said {
            factor: factor.to_owned(),
            confidence: confidence.to_owned(),
        }
    }

    fn part(family: Family, cause: Cause) -> Part {
        Part { family, cause }
    }

    #[test]
    fn shares_are_of_what_was_said() {
        let mut matrix = Matrix::new(Mode::Why);
        let (loss, link) = (
            part(Family::Cubic, Cause::Loss),
            part(Family::Cubic, Cause::Link),
        );
        matrix.add(loss, said("loss", "sure"));
        matrix.add(loss, said("link", "likely"));
        matrix.add(link, said("loss", "sure"));
        matrix.add(link, said("link", "sure"));
        matrix.add(link, said("link", "sure"));
        matrix.add(link, said("link", "likely"));
        assert_eq!(matrix.accuracy(|_, _| true), 4.0 / 6.0);
        assert_eq!(matrix.accuracy(|part, _| part == link), 0.75);
        assert_eq!(matrix.accuracy(|_, said| said.confidence == "sure"), 0.75);
        let worst = matrix.worst(|part| Some(part.cause));
        assert_eq!(worst, Some((Cause::Loss, 0.5)));
        assert_eq!(matrix.confident_wrong_rate(), 1.0 / 6.0);
        assert_eq!(matrix.wrongly("link"), 1);
        let cells = matrix.cells();
        assert_eq!(cells.iter().map(|(.., count)| count).sum::<usize>(), 6);
        assert!(cells.contains(&(link, "loss", 1)));
    }

    #[test]
    fn the_same_verdict_is_right_in_one_family_and_wrong_in_another() {
        let mut matrix = Matrix::new(Mode::Why);
        matrix.add(part(Family::Bbr, Cause::Loss), said("link", "sure"));
        matrix.add(part(Family::Reno, Cause::Loss), said("link", "sure"));
        assert_eq!(matrix.accuracy(|part, _| part.family == Family::Bbr), 1.0);
        let worst = matrix.worst(|part| Some(part.family));
        assert_eq!(worst, Some((Family::Reno, 0.0)));
    }

    #[test]
    fn of_nothing_there_is_no_share() {
        let matrix = Matrix::new(Mode::Why);
        assert!(matrix.accuracy(|_, _| true).is_nan());
        assert_eq!(matrix.worst(|part| Some(part.cause)), None);
    }
}
