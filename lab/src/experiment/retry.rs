//! Repeats measurements during which a link was late, and leaves out those that are late all the same.
//!
//! The result does not decide whether a measurement is late, but one with fewer packets tolerates
//! fewer late ones.

/// The maximum number of attempts at a measurement. The short form makes one attempt.
const TRIES: usize = 3;

/// Takes measurements, and repeats those during which a link was late.
pub(super) struct Retry {
    tries: usize,
    /// The maximum of `count`.
    budget: u64,
    /// The number of repeated measurements.
    pub(super) count: u64,
}

// === impl Retry ===

impl Retry {
    /// Allows for a third as many repetitions as there are planned measurements: on a machine whose
    /// processors are often taken away, every measurement would be made [`TRIES`] times, in vain.
    pub(super) fn new(quick: bool, planned: usize) -> Self {
        Self {
            tries: if quick { 1 } else { TRIES },
            budget: planned.div_ceil(3) as u64,
            count: 0,
        }
    }

    /// Returns the first measurement during which no link was late, or else the last one.
    pub(super) fn measure<T, E>(
        &mut self,
        mut once: impl FnMut() -> Result<T, E>,
        was_late: impl Fn(&T) -> bool,
    ) -> Result<T, E> {
        let mut seen = once()?;
        for _ in 1..self.tries {
            if !was_late(&seen) || self.count == self.budget {
                break;
            }
            self.count += 1;
            seen = once()?;
        }
        Ok(seen)
    }
}

/// The measurements that are left out because a link was late.
#[derive(Default)]
pub(super) struct LeftOut {
    /// The cells that have any, each with their number, as in the note.
    cells: Vec<String>,
}

// === impl LeftOut ===

impl LeftOut {
    /// Leaves out measurements of a cell during which a link was late. `enough` measurements remain: if
    /// fewer were on time, late ones stay, and the calibration fails.
    pub(super) fn take<T>(
        &mut self,
        name: String,
        cell: &mut Vec<T>,
        enough: usize,
        was_late: impl Fn(&T) -> bool,
    ) {
        let before = cell.len();
        let mut spare = before.saturating_sub(enough);
        cell.retain(|seen| {
            let leave_out = spare > 0 && was_late(seen);
            spare -= usize::from(leave_out);
            !leave_out
        });
        let left_out = before - cell.len();
        if left_out > 0 {
            self.cells.push(format!("{left_out} of `{name}`"));
        }
    }

    /// Returns a note on what was repeated or left out, if anything was. `what` names measurements.
    pub(super) fn note(&self, what: &str, repeated: u64) -> Option<String> {
        let cells = self.cells.join(", ");
        let left_out = (!cells.is_empty())
            .then(|| format!("Because the link was late, these {what} are left out: {cells}."));
        let sentences = [note(what, repeated), left_out].into_iter().flatten();
        let sentences: Vec<String> = sentences.collect();
        (!sentences.is_empty()).then(|| sentences.join(" "))
    }
}

/// Returns a note on what was repeated, if anything was. `what` names measurements.
pub(super) fn note(what: &str, repeated: u64) -> Option<String> {
    (repeated > 0).then(|| {
        format!(
            "Repeated because the link was late: {repeated} of the {what}; the figures of the late ones are \
             discarded."
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// Returns the index of the attempt whose result is returned, and the number of repetitions.
    /// `late` states for each attempt whether the link was late.
    fn taken(quick: bool, late: &[bool]) -> (usize, u64) {
        let (mut again, mut made) = (Retry::new(quick, 6), 0);
        let once = || {
            made += 1;
            Ok::<_, ()>(made - 1)
        };
        let at = again.measure(once, |at| late[*at]).unwrap();
        (at, again.count)
    }

    #[test]
    fn what_a_late_link_has_spoilt_is_made_again_a_few_times() {
        assert_eq!(taken(false, &[false]), (0, 0));
        assert_eq!(taken(false, &[true, false]), (1, 1));
        assert_eq!(taken(false, &[true, true, true, false]), (2, 2));
        assert_eq!(taken(true, &[true, false]), (0, 0));
    }

    #[test]
    fn a_third_of_the_planned_measurements_is_made_again_at_most() {
        let mut again = Retry::new(false, 7);
        let mut made = 0;
        for _ in 0..7 {
            let once = || {
                made += 1;
                Ok::<_, ()>(())
            };
            again.measure(once, |()| true).unwrap();
        }
        assert_eq!((made, again.count), (10, 3));
    }

    #[test]
    fn what_a_late_link_has_spoilt_is_left_out_of_a_cell_that_has_enough_others() {
        let remains = |late: &[bool], enough| {
            let mut cell: Vec<(usize, bool)> = late.iter().copied().enumerate().collect();
            LeftOut::default().take(String::new(), &mut cell, enough, |(_, late)| *late);
            cell.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(remains(&[false, true, false], 2), [0, 2]);
        assert_eq!(remains(&[true, true, false], 2), [1, 2]);
        assert_eq!(remains(&[true, true, true], 1), [2]);
        assert_eq!(remains(&[true], 1), [0]);
        assert_eq!(remains(&[true], 2), [0]);
        assert_eq!(remains(&[false, false, false], 2), [0, 1, 2]);
    }

    #[test]
    fn the_note_names_the_cells_that_lack_measurements() {
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.note("flows", 0), None);
        let repeated = note("flows", 3).unwrap();
        assert_eq!(left_out.note("flows", 3).as_ref(), Some(&repeated));
        for (name, late) in [("a", [true, true, false]), ("b", [false; 3])] {
            left_out.take(name.to_owned(), &mut late.to_vec(), 1, |late| *late);
        }
        let both = left_out.note("flows", 3).unwrap();
        assert!(both.starts_with(&repeated));
        assert!(both.ends_with("left out: 2 of `a`."));
    }

    #[test]
    fn what_fails_is_not_made_again() {
        let mut again = Retry::new(false, 6);
        let failed = again.measure(|| Err::<(), _>("no guest"), |()| true);
        assert_eq!((failed, again.count), (Err("no guest"), 0));
    }
}
