//! Which server of etcd is tried next, and when. Without clock and sockets.

use std::time::Duration;

/// The longest wait after the first failure. A wait is random, from 0 to its limit, so that relays that lost
/// the same server do not return to it at the same time.
const FIRST: Duration = Duration::from_millis(500);

/// The longest wait.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// The servers of a configuration, by their places in it.
#[derive(Debug)]
pub(super) struct Endpoints {
    count: usize,
    current: usize,
    backoff: Backoff,
}

/// The wait after failures.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Endpoints {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count: count.max(1),
            current: 0,
            backoff: Backoff::default(),
        }
    }

    /// Returns the server to use.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    pub(super) fn succeeded(&mut self) {
        self.backoff.succeeded();
    }

    /// Goes on to the next server; returns the wait before it is tried. `random` is from 0 to 1.
    pub(super) fn failed(&mut self, random: f64) -> Duration {
        self.current = (self.current + 1) % self.count;
        // All servers are tried before the wait grows.
        self.backoff.failed(self.count, random)
    }
}

impl Backoff {
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Returns the wait after a failure, which doubles after each `round` of them. `random` is from 0 to 1.
    pub(super) fn failed(&mut self, round: usize, random: f64) -> Duration {
        let rounds = self.failures / u32::try_from(round).unwrap_or(u32::MAX).max(1);
        self.failures = self.failures.saturating_add(1);
        let limit = FIRST.saturating_mul(1 << rounds.min(16)).min(LONGEST);
        limit.mul_f64(random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_are_tried_before_the_wait_grows_and_it_has_a_limit() {
        let mut endpoints = Endpoints::new(2);
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push((endpoints.current(), endpoints.failed(1.0)));
        }
        let second = Duration::from_secs(1);
        assert_eq!(seen, [(0, FIRST), (1, FIRST), (0, second), (1, second)]);
        for _ in 0..100 {
            assert!(endpoints.failed(1.0) <= LONGEST);
        }
        endpoints.succeeded();
        let at = endpoints.current();
        assert_eq!(endpoints.failed(0.5), FIRST / 2);
        // A server that works is kept.
        assert_ne!(endpoints.current(), at);
    }
}
