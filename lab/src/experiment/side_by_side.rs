//! How many worlds measure at a time: fewer while links are late, because the machine is too busy for all.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::retry;

/// Halves the number if more than one in this many measurements is late.
const LATE: usize = 4;

/// Admits as many worlds at a time as this machine seems to be able to carry.
pub(super) struct SideBySide {
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    running: usize,
    /// How many may run.
    most: usize,
    /// Measurements since `most` has changed, and the late ones among them.
    ended: usize,
    late: usize,
    /// How many late measurements may still be repeated.
    repeats: usize,
}

/// The right to measure, until this is dropped.
pub(super) struct Turn<'a> {
    all: &'a SideBySide,
    /// Whether other worlds could measure at the same time.
    has_others: bool,
}

// === impl SideBySide ===

impl SideBySide {
    /// Admits all `worlds` at first. Allows for a third as many repetitions as there are `planned`
    /// measurements.
    pub(super) fn new(worlds: usize, planned: usize) -> Self {
        Self {
            state: Mutex::new(State {
                running: 0,
                most: worlds.max(1),
                ended: 0,
                late: 0,
                repeats: planned / 3,
            }),
            freed: Condvar::new(),
        }
    }

    /// Waits until one more world may measure.
    pub(super) fn turn(&self) -> Turn<'_> {
        let wait = self
            .freed
            .wait_while(self.state(), |state| state.running >= state.most);
        let mut state = wait.unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
        Turn {
            all: self,
            has_others: state.most > 1,
        }
    }

    /// Returns how many worlds may measure at a time now.
    pub(super) fn most(&self) -> usize {
        self.state().most
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// Takes note of whether a link was late. Returns whether to discard the measurement and repeat it
    /// later, beside fewer worlds.
    pub(super) fn ended(self, is_late: bool) -> bool {
        let mut state = self.all.state();
        state.ended += 1;
        state.late += usize::from(is_late);
        if state.ended >= state.most && state.late * LATE > state.ended {
            state.most = (state.most / 2).max(1);
            (state.ended, state.late) = (0, 0);
        }
        let repeats = is_late && self.has_others && state.repeats > 0;
        state.repeats -= usize::from(repeats);
        repeats
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.all.state().running -= 1;
        self.all.freed.notify_all();
    }
}

/// Returns a note on how many worlds ran at a time, at first and at the end, and what was repeated.
pub(super) fn note([first, last]: [usize; 2], repeated: u64) -> String {
    let fewer = match last < first {
        true => format!(", and {last} at the end, because links were late"),
        false => String::new(),
    };
    let repeated = retry::note("downloads", repeated).map(|note| format!(" {note}"));
    format!(
        "{first} worlds ran side by side on this machine{fewer}.{}",
        repeated.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_worlds_measure_while_links_are_late_and_what_was_late_is_repeated() {
        let all = SideBySide::new(5, 30);
        let late = |all: &SideBySide| all.turn().ended(true);
        assert!((0..5).all(|_| late(&all)));
        assert_eq!(all.most(), 2);
        assert!((0..2).all(|_| late(&all)));
        assert_eq!(all.most(), 1);
        // Alone, a measurement counts, late or not.
        assert!(!late(&all));
        assert_eq!(all.most(), 1);
    }

    #[test]
    fn a_late_link_now_and_then_changes_nothing() {
        let all = SideBySide::new(2, 0);
        for turn in 0..40 {
            assert!(!all.turn().ended(turn % 4 == 3));
        }
        assert_eq!(all.most(), 2);
    }

    #[test]
    fn a_third_of_the_planned_measurements_is_repeated_at_most() {
        let all = SideBySide::new(100, 9);
        assert_eq!((0..50).filter(|_| all.turn().ended(true)).count(), 3);
    }

    #[test]
    fn a_world_waits_until_another_has_ended() {
        let all = SideBySide::new(1, 0);
        let first = all.turn();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| all.turn().ended(false));
            drop(first);
            assert!(!second.join().unwrap());
        });
    }
}
