//! The memory of one address's failed connection attempts: when it counts as dead, and when the
//! next session may try it.

use std::time::{Duration, Instant};

/// The upper limit of the time after the first failure in which sessions avoid the address. A time
/// is random, from half of its limit to the limit, and its limit doubles with each failure.
pub(crate) const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The upper limit of every such time.
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Whether sessions should use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// No attempt has failed since the last success.
    Alive,
    /// Dead, but the time for the next try has come.
    Due,
    /// Dead: sessions try it after all others.
    Dead,
}

/// The failures of an address since its last success.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u32,
    /// The time of the next try; `None` while the address is alive.
    retry_at: Option<Instant>,
}

impl Failures {
    pub(crate) fn health(&self, now: Instant) -> Health {
        match self.retry_at {
            None => Health::Alive,
            Some(at) if at <= now => Health::Due,
            Some(_) => Health::Dead,
        }
    }

    /// Records a failed attempt, or one that begins at a dead address and is expected to fail.
    /// `jitter` is random, from 0 to 1. Returns whether the address was alive.
    pub(crate) fn add(&mut self, now: Instant, jitter: f64) -> bool {
        let was_alive = self.retry_at.is_none();
        // Attempts that were in progress together fail together and count as one failure.
        if self.health(now) != Health::Dead {
            let limit = FIRST_RETRY.saturating_mul(1 << self.count.min(16));
            let wait = limit.min(LONGEST_RETRY).mul_f64(0.5 + 0.5 * jitter);
            self.count = self.count.saturating_add(1);
            self.retry_at = Some(now + wait);
        }
        was_alive
    }

    /// Records that health checks have failed. No session tries the address before `until`.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.count = self.count.max(1);
        self.retry_at = self.retry_at.max(Some(until));
    }

    /// Records a connection. Returns whether the address was dead.
    pub(crate) fn clear(&mut self) -> bool {
        self.count = 0;
        self.retry_at.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_that_failed_is_dead_until_its_time_has_come() {
        let start = Instant::now();
        let mut failures = Failures::default();
        assert_eq!(failures.health(start), Health::Alive);
        assert!(failures.add(start, 1.0));
        let before = start + FIRST_RETRY - Duration::from_nanos(1);
        assert_eq!(failures.health(before), Health::Dead);
        assert_eq!(failures.health(start + FIRST_RETRY), Health::Due);
        assert!(failures.clear());
        assert!(!failures.clear());
        assert_eq!(failures.health(start), Health::Alive);
    }

    #[test]
    fn attempts_that_fail_together_count_once() {
        let start = Instant::now();
        let mut failures = Failures::default();
        failures.add(start, 1.0);
        for _ in 0..100 {
            assert!(!failures.add(start, 1.0));
        }
        assert_eq!(failures.health(start + FIRST_RETRY), Health::Due);
    }

    #[test]
    fn a_failed_check_holds_sessions_off_and_a_connection_ends_that() {
        let start = Instant::now();
        let mut failures = Failures::default();
        let until = start + Duration::from_secs(300);
        failures.hold(until);
        failures.hold(start);
        assert_eq!(
            failures.health(until - Duration::from_secs(1)),
            Health::Dead
        );
        assert!(failures.clear());
        assert_eq!(failures.health(start), Health::Alive);
    }

    proptest! {
        #[test]
        fn times_grow_and_stay_within_their_bounds(jitters in prop::collection::vec(0.0..=1.0, 1..40)) {
            let mut now = Instant::now();
            let mut failures = Failures::default();
            let mut limit = FIRST_RETRY;
            for jitter in jitters {
                failures.add(now, jitter);
                let retry = failures.retry_at.unwrap();
                prop_assert!(retry >= now + limit / 2 && retry <= now + limit);
                limit = (limit * 2).min(LONGEST_RETRY);
                now = retry;
            }
        }
    }
}
