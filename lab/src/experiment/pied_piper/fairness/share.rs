//! How two flows shared a bottleneck, computed from the arrival times of their bytes.

use std::time::Duration;

use crate::experiment::flows::{Arrivals, all_active, jain};

/// The two flows of one contest.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    /// The flow from the near relay's host.
    pub(super) short: Arrivals,
    /// The flow from the far server.
    pub(super) long: Arrivals,
}

// === impl Contest ===

impl Contest {
    /// Returns the time in which both flows were active: from the later first byte to the earlier
    /// last byte. Returns `None` if they were never active at the same time.
    fn both(&self) -> Option<(Duration, Duration)> {
        all_active([&self.short, &self.long])
    }

    /// Returns Jain's index of the two rates while both flows were active. The index is 1/2 if one
    /// flow had finished before the other received a byte.
    pub(crate) fn jain(&self) -> f64 {
        let rates = self.both().map(|(from, to)| self.rates_in(from, to));
        rates.and_then(|rates| jain(&rates)).unwrap_or(0.5)
    }

    /// Returns the long flow's share of the bytes while both flows were active, from 0 to 1. A half
    /// is fair.
    pub(crate) fn long_share(&self) -> f64 {
        match self.both().map(|(from, to)| self.rates_in(from, to)) {
            Some([short, long]) if short + long > 0.0 => long / (short + long),
            _ => 0.0,
        }
    }

    fn rates_in(&self, from: Duration, to: Duration) -> [f64; 2] {
        [self.short.rate(from, to), self.long.rate(from, to)]
    }

    /// Returns the rates of the flow from the near relay's host in `bins` parts of `width` each, in
    /// Mbit/s.
    pub(crate) fn short_rates(&self, width: Duration, bins: u32) -> Vec<f64> {
        self.short.rates(width, bins)
    }

    /// Returns the same rates for the flow from the far server.
    pub(crate) fn long_rates(&self, width: Duration, bins: u32) -> Vec<f64> {
        self.long.rates(width, bins)
    }

    /// Returns when the last byte of either flow arrived.
    pub(crate) fn end(&self) -> Duration {
        let ends = [&self.short, &self.long].map(|flow| flow.active().map(|(_, end)| end));
        ends.into_iter().flatten().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Returns arrivals of `bytes` every 10 ms, from `from` to `to` (in ms).
    fn steady(from: u64, to: u64, bytes: usize) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for at in (from..=to).step_by(10) {
            arrivals.note(ms(at), bytes);
        }
        arrivals
    }

    #[test]
    fn only_the_time_that_both_are_active_counts() {
        // In its first and last second the short flow is alone and takes any rate.
        let short = steady(0, 3_000, 9_000);
        let long = steady(1_000, 2_000, 3_000);
        let contest = Contest { short, long };
        assert!((contest.long_share() - 0.25).abs() < 1e-9);
        assert!((contest.jain() - 0.8).abs() < 1e-9, "{}", contest.jain());
        assert_eq!(contest.end(), ms(3_000));
    }

    #[test]
    fn flows_one_after_the_other_have_not_shared() {
        let contest = Contest {
            short: steady(0, 500, 1_000),
            long: steady(600, 900, 1_000),
        };
        assert_eq!((contest.jain(), contest.long_share()), (0.5, 0.0));
    }
}
