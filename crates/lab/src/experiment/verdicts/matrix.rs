//! The verdicts on each cause, and the shares of right ones.

use std::collections::BTreeMap;

use super::cause::Cause;

/// The verdict of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// The factor, as `taut why --json` writes it.
    pub(super) factor: String,
    /// Whether the verdict was certain.
    pub(super) sure: bool,
}

/// A confusion matrix.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    said: BTreeMap<Cause, Vec<Said>>,
}

// === impl Matrix ===

impl Matrix {
    pub(super) fn add(&mut self, cause: Cause, said: Said) {
        self.said.entry(cause).or_default().push(said);
    }

    /// Returns the number of runs of a cause, and the number of right verdicts.
    fn right(&self, cause: Cause) -> (usize, usize) {
        let said = self.said.get(&cause).map_or(&[][..], Vec::as_slice);
        let right = said.iter().filter(|said| said.factor == cause.factor());
        (said.len(), right.count())
    }

    /// Returns the share of right verdicts in all runs.
    pub(super) fn accuracy(&self) -> f64 {
        let each = self.said.keys().map(|cause| self.right(*cause));
        let (runs, right) = each.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        share(right, runs)
    }

    /// Returns the share of right verdicts on one cause.
    pub(super) fn accuracy_of(&self, cause: Cause) -> f64 {
        let (runs, right) = self.right(cause);
        share(right, runs)
    }

    /// Returns the cause with the smallest share of right verdicts, and that share.
    pub(super) fn worst(&self) -> Option<(Cause, f64)> {
        let each = self
            .said
            .keys()
            .map(|cause| (*cause, self.accuracy_of(*cause)));
        each.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the share of all runs whose verdict was certain and wrong.
    pub(super) fn confident_wrong_rate(&self) -> f64 {
        let all = self
            .said
            .iter()
            .flat_map(|(cause, said)| said.iter().map(move |s| (cause, s)));
        let (mut runs, mut wrong) = (0, 0);
        for (cause, said) in all {
            runs += 1;
            wrong += usize::from(said.sure && said.factor != cause.factor());
        }
        share(wrong, runs)
    }

    /// Returns each cause, each factor in its verdicts, and the number of those verdicts.
    pub(super) fn cells(&self) -> Vec<(Cause, &str, usize)> {
        let mut cells: BTreeMap<(Cause, &str), usize> = BTreeMap::new();
        for (cause, said) in &self.said {
            for said in said {
                *cells.entry((*cause, &said.factor)).or_default() += 1;
            }
        }
        cells
            .into_iter()
            .map(|((cause, factor), count)| (cause, factor, count))
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
    use super::*;

    fn said(factor: &str, sure: bool) -> Said {
        Said {
            factor: factor.to_owned(),
            sure,
        }
    }

    #[test]
    fn shares_are_of_what_was_said() {
        let mut matrix = Matrix::default();
        matrix.add(Cause::Loss, said("loss", true));
        matrix.add(Cause::Loss, said("link", false));
        matrix.add(Cause::Link, said("loss", true));
        matrix.add(Cause::Link, said("link", true));
        matrix.add(Cause::Link, said("link", true));
        matrix.add(Cause::Link, said("link", false));
        assert_eq!(matrix.accuracy(), 4.0 / 6.0);
        assert_eq!(matrix.worst(), Some((Cause::Loss, 0.5)));
        assert_eq!(matrix.accuracy_of(Cause::Link), 0.75);
        assert_eq!(matrix.confident_wrong_rate(), 1.0 / 6.0);
        let cells = matrix.cells();
        assert_eq!(cells.iter().map(|(.., count)| count).sum::<usize>(), 6);
        assert!(cells.contains(&(Cause::Link, "loss", 1)));
    }

    #[test]
    fn of_nothing_there_is_no_share() {
        let matrix = Matrix::default();
        assert!(matrix.accuracy().is_nan());
        assert_eq!(matrix.worst(), None);
    }
}
