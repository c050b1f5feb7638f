//! Waits after failed dials.

use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Upper limit of the wait after a first failure. A wait is random, from half of its limit to the limit.
const FIRST: Duration = Duration::from_millis(200);

/// Upper limit of every wait.
const LONGEST: Duration = Duration::from_secs(10);

/// Exponential backoff with random waits, so that relays that lost the same peer do not all return to it
/// at the same time.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    retry_at: Option<Instant>,
    random: Pcg64Mcg,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            retry_at: None,
            random: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }

    pub(super) fn failed(&mut self, now: Instant) {
        // Dials that were in progress together fail together and count as one failure.
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let longest = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let wait = longest.mul_f64(0.5 + 0.5 * unit(self.random.next_u64()));
        self.retry_at = Some(now + wait);
    }

    pub(super) fn is_failing(&self) -> bool {
        self.retry_at.is_some()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }
}

/// Converts random bits to a number from 0 to 1.
pub(super) fn unit(random: u64) -> f64 {
    random as f64 / u64::MAX as f64
}
