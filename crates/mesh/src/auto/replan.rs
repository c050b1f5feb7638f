//! When the routes of forwards with `via = "auto"` are chosen again.

use std::time::{Duration, Instant};

/// The shortest time between two choices.
const MIN_REPLAN_INTERVAL: Duration = Duration::from_millis(200);

/// The share of the time that the thread spends on choices: a tenth.
const SHARE: u32 = 10;

/// When the routes are chosen next.
#[derive(Debug, Default)]
pub struct Replan {
    /// Something has changed since the last choice.
    pub is_due: bool,
    not_before: Option<Instant>,
}

// === impl Replan ===

impl Replan {
    /// Returns when the routes are to be chosen.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.is_due
            .then(|| self.not_before.map_or(now, |at| at.max(now)))
    }

    /// Records a choice at `now` that took `took`.
    pub fn on_choice(&mut self, now: Instant, took: Duration) {
        self.is_due = false;
        self.not_before = Some(now + MIN_REPLAN_INTERVAL.max(took * SHARE));
    }
}
