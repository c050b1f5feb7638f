//! When the routes of forwards with `via = "auto"` are chosen again.

use std::time::{Duration, Instant};

/// The shortest time between two choices.
const MIN_REPLAN_INTERVAL: Duration = Duration::from_millis(200);

/// The thread spends at most one part in this many of its time on choices: a tenth.
const SHARE: u32 = 10;

/// When the routes are chosen next.
#[derive(Debug, Default)]
pub struct Replan {
    /// Whether something has changed since the last choice.
    pub is_due: bool,
    not_before: Option<Instant>,
    /// When they are chosen again even if nothing changes.
    at_latest: Option<Instant>,
}

// === impl Replan ===

impl Replan {
    /// Returns when the routes are to be chosen.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let due = match self.is_due {
            true => Some(now),
            false => self.at_latest,
        };
        let not_before = self.not_before.unwrap_or(now);
        due.map(|at| at.max(now).max(not_before))
    }

    /// Has the routes chosen at `at` even if nothing changes until then.
    pub fn choose_at(&mut self, at: Instant) {
        self.at_latest = Some(self.at_latest.map_or(at, |before| before.min(at)));
    }

    /// Records a choice at `now` that took `took`.
    pub fn on_choice(&mut self, now: Instant, took: Duration) {
        self.is_due = false;
        self.not_before = Some(now + MIN_REPLAN_INTERVAL.max(took * SHARE));
        self.at_latest = self.at_latest.filter(|at| *at > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_chosen_at_a_time_that_was_asked_for_though_nothing_has_changed() {
        let (start, mut replan) = (Instant::now(), Replan::default());
        assert_eq!(replan.next(start), None);
        let later = start + Duration::from_secs(10);
        replan.choose_at(later);
        replan.choose_at(later + Duration::from_secs(1));
        assert_eq!(replan.next(start), Some(later));
        // A change has them chosen sooner, and at that time again.
        replan.is_due = true;
        assert_eq!(replan.next(start), Some(start));
        replan.on_choice(start, Duration::ZERO);
        assert_eq!(replan.next(start), Some(later));
        replan.on_choice(later, Duration::ZERO);
        assert_eq!(replan.next(later), None);
    }

    #[test]
    fn choices_keep_their_interval_and_take_a_tenth_of_the_time() {
        let (now, mut replan) = (Instant::now(), Replan::default());
        replan.on_choice(now, Duration::from_millis(1));
        replan.choose_at(now + Duration::from_millis(1));
        assert_eq!(replan.next(now), Some(now + MIN_REPLAN_INTERVAL));
        replan.is_due = true;
        replan.on_choice(now, Duration::from_secs(1));
        replan.is_due = true;
        assert_eq!(replan.next(now), Some(now + Duration::from_secs(10)));
    }
}
