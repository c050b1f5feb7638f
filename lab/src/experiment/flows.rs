//! Flows that share a bottleneck: downloads that record when their bytes arrive, and how fair their
//! shares are.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::ExperimentError;
use crate::peer::curl::{self, Digest};
use taut_netlab::world::Host;

/// The source, the file and the start of a flow.
pub(super) struct Flow<'a> {
    pub(super) client: &'a Host,
    pub(super) at: SocketAddr,
    pub(super) file: String,
    pub(super) digest: Digest,
    /// The time from the common start to the start of the flow.
    pub(super) delay: Duration,
}

/// The arrivals of one flow in order: the time since the common start, and the number of bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals(Vec<(Duration, usize)>);

/// Returns Jain's index of fairness of `rates`: `(sum x)^2 / (n * sum x^2)`. It ranges from 1/n if
/// one flow has everything to 1 if all flows have the same rate (R. Jain, D. Chiu, W. Hawe, "A
/// Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer
/// Systems", DEC-TR-301, 1984). Returns `None` if all rates are zero.
pub(super) fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

/// Returns the time in which all flows were active: from the latest first byte to the earliest last
/// byte. Returns `None` if they were never all active at the same time.
pub(super) fn all_active<'a>(
    flows: impl IntoIterator<Item = &'a Arrivals>,
) -> Option<(Duration, Duration)> {
    let (mut from, mut to) = (Duration::ZERO, Duration::MAX);
    for flow in flows {
        let (first, last) = flow.active()?;
        (from, to) = (from.max(first), to.min(last));
    }
    (from < to).then_some((from, to))
}

// === impl Flow ===

impl Flow<'_> {
    /// Downloads the file, and returns how many bytes arrived at which times after `begin`.
    pub(super) fn run(&self, begin: Instant) -> Result<Arrivals, ExperimentError> {
        std::thread::sleep((begin + self.delay).saturating_duration_since(Instant::now()));
        let mut arrivals = Arrivals::default();
        curl::watch(self.client, self.at, &self.file, self.digest, |bytes| {
            arrivals.note(begin.elapsed(), bytes);
        })?;
        Ok(arrivals)
    }
}

// === impl Arrivals ===

impl Arrivals {
    /// Records that `bytes` arrived `after` the start. `after` must not decrease from call to call.
    pub(super) fn note(&mut self, after: Duration, bytes: usize) {
        self.0.push((after, bytes));
    }

    /// Returns the times of the first byte and of the last.
    pub(super) fn active(&self) -> Option<(Duration, Duration)> {
        Some((self.0.first()?.0, self.0.last()?.0))
    }

    /// Returns the number of bytes that arrived at `from` or later, and before `to`.
    fn between(&self, from: Duration, to: Duration) -> usize {
        let inside = self.0.iter().filter(|(at, _)| (from..to).contains(at));
        inside.map(|(_, bytes)| bytes).sum()
    }

    /// Returns the rate between two moments, in Mbit/s.
    pub(super) fn rate(&self, from: Duration, to: Duration) -> f64 {
        let seconds = to.saturating_sub(from).as_secs_f64();
        self.between(from, to) as f64 * 8.0 / 1e6 / seconds
    }

    /// Returns the rates in `bins` parts of `width` each, from the start, in Mbit/s.
    pub(super) fn rates(&self, width: Duration, bins: u32) -> Vec<f64> {
        (0..bins)
            .map(|i| self.rate(width * i, width * (i + 1)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
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
    fn rates_are_megabits_in_each_bin() {
        let mut arrivals = Arrivals::default();
        arrivals.note(ms(0), 125_000);
        arrivals.note(ms(999), 125_000);
        arrivals.note(ms(1_000), 250_000);
        assert_eq!(arrivals.rates(ms(1_000), 3), [2.0, 2.0, 0.0]);
    }

    #[test]
    fn all_are_active_between_the_latest_first_byte_and_the_earliest_last() {
        let flow = |from, to| {
            let mut arrivals = Arrivals::default();
            arrivals.note(ms(from), 1);
            arrivals.note(ms(to), 1);
            arrivals
        };
        let flows = [flow(0, 30), flow(10, 40), flow(5, 20)];
        assert_eq!(all_active(&flows), Some((ms(10), ms(20))));
        assert_eq!(all_active(&[flow(0, 10), flow(20, 30)]), None);
        assert_eq!(all_active(&[flow(0, 10), Arrivals::default()]), None);
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
