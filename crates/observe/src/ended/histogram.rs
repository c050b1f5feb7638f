//! A bounded histogram of durations.

use std::collections::BTreeMap;
use std::time::Duration;

/// Buckets for each doubling of the duration: a quantile is within 5 % of the true one.
const PER_DOUBLING: f64 = 8.0;

/// Counts durations in buckets of equal ratio, from a microsecond on: at most 512 of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram(BTreeMap<u16, u64>);

// === impl Histogram ===

impl Histogram {
    pub(super) fn add(&mut self, time: Duration) {
        let micros = (time.as_secs_f64() * 1e6).max(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the logarithm of a duration in microseconds is between 0 and 84"
        )]
        let bucket = (micros.log2() * PER_DOUBLING).round() as u16;
        *self.0.entry(bucket).or_default() += 1;
    }

    /// Returns the duration that this share of all durations does not exceed; `None` without any.
    pub(super) fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.0.values().sum();
        let rank = (all as f64 * share).ceil().max(1.0);
        let mut below = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            below += **count;
            below as f64 >= rank
        });
        let (bucket, _) = bucket?;
        let micros = (f64::from(*bucket) / PER_DOUBLING).exp2();
        Some(Duration::from_secs_f64(micros / 1e6))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_median_is_within_five_percent(mut micros in prop::collection::vec(1u64..100_000_000, 1..60)) {
            let mut histogram = Histogram::default();
            for one in &micros {
                histogram.add(Duration::from_micros(*one));
            }
            micros.sort_unstable();
            let median = micros[(micros.len() - 1) / 2] as f64;
            let told = histogram.quantile(0.5).unwrap().as_secs_f64() * 1e6;
            prop_assert!((told / median - 1.0).abs() < 0.05, "{told} {median}");
        }
    }

    #[test]
    fn any_duration_has_a_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for time in [Duration::ZERO, Duration::MAX] {
            histogram.add(time);
        }
        assert_eq!(histogram.quantile(0.5), Some(Duration::from_micros(1)));
        assert!(histogram.quantile(1.0).is_some());
    }
}
