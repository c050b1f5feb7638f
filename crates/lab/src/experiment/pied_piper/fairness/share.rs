//! How two flows shared a bottleneck, computed from the arrival times of their bytes.

use std::time::Duration;

/// The arrivals of one flow in order: the time since the start of the contest, and the number of
/// bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals(Vec<(Duration, usize)>);

/// The two flows of one contest.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    /// The flow from the near relay's host.
    pub(super) short: Arrivals,
    /// The flow from the far server.
    pub(super) long: Arrivals,
}

/// Returns Jain's index of fairness of `rates`: `(sum x)^2 / (n * sum x^2)`. It ranges from 1/n if
/// one flow has everything to 1 if all flows have the same rate (R. Jain, D. Chiu, W. Hawe, "A
/// Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer
/// Systems", DEC-TR-301, 1984). Returns `None` if all rates are zero.
pub(super) fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

// === impl Arrivals ===

impl Arrivals {
    /// Records that `bytes` arrived `after` the start. `after` must not decrease from call to call.
    pub(super) fn note(&mut self, after: Duration, bytes: usize) {
        self.0.push((after, bytes));
    }

    /// Returns the times of the first byte and of the last.
    fn active(&self) -> Option<(Duration, Duration)> {
        Some((self.0.first()?.0, self.0.last()?.0))
    }

    /// Returns the number of bytes that arrived at `from` or later, and before `to`.
    fn between(&self, from: Duration, to: Duration) -> usize {
        let inside = self.0.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, bytes)| bytes).sum()
    }

    /// Returns the rate between two moments, in Mbit/s.
    fn rate(&self, from: Duration, to: Duration) -> f64 {
        let seconds = to.saturating_sub(from).as_secs_f64();
        self.between(from, to) as f64 * 8.0 / 1e6 / seconds
    }

    /// Returns the rates in `bins` parts of `width` each, from the start, in Mbit/s.
    fn rates(&self, width: Duration, bins: u32) -> Vec<f64> {
        (0..bins)
            .map(|i| self.rate(width * i, width * (i + 1)))
            .collect()
    }
}

// === impl Contest ===

impl Contest {
    /// Returns the time in which both flows were active: from the later first byte to the earlier
    /// last byte. Returns `None` if they were never active at the same time.
    fn both(&self) -> Option<(Duration, Duration)> {
        let (a, b) = (self.short.active()?, self.long.active()?);
        let (from, to) = (a.0.max(b.0), a.1.min(b.1));
        (from < to).then_some((from, to))
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
    use proptest::prelude::*;

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
    fn equal_rates_are_fair_and_one_that_has_all_is_one_in_n() {
        assert_eq!(jain(&[3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        // The paper of 1984 gives this example: 10 of 100 users who have everything are 10 % fair.
        let ten_of_a_hundred: Vec<f64> = (0..100).map(|i| f64::from(i < 10)).collect();
        assert!((jain(&ten_of_a_hundred).unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[]), None);
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

    #[test]
    fn rates_are_megabits_in_each_bin() {
        let mut arrivals = Arrivals::default();
        arrivals.note(ms(0), 125_000);
        arrivals.note(ms(999), 125_000);
        arrivals.note(ms(1_000), 250_000);
        assert_eq!(arrivals.rates(ms(1_000), 3), [2.0, 2.0, 0.0]);
    }

    proptest! {
        #[test]
        fn the_index_is_from_one_in_n_to_one_and_knows_no_unit(
            rates in prop::collection::vec(0.0f64..1e9, 1..20),
            factor in 1e-3f64..1e3,
        ) {
            let Some(index) = jain(&rates) else { return Ok(()) };
            let least = 1.0 / rates.len() as f64;
            prop_assert!((least - 1e-9..=1.0 + 1e-9).contains(&index), "{index}");
            let scaled: Vec<f64> = rates.iter().map(|x| x * factor).collect();
            prop_assert!((jain(&scaled).unwrap_or(f64::NAN) - index).abs() < 1e-6);
        }
    }
}
