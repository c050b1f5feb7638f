//! How long to wait after dials that failed.

use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::unit;

/// The longest wait after a first failure. Each wait is between half of it and all of it.
const FIRST: Duration = Duration::from_millis(200);

/// The longest wait of all.
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double with each failure in a row, at random so that relays that lost the same peer
/// do not come back to it together.
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
        // Dials that were under way together fail together, and that is one failure.
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
