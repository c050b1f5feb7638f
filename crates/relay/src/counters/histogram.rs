//! Histograms of durations, in the form of OpenMetrics.

use std::time::Duration;

use super::counter::Counter;

/// Upper bounds of the buckets in seconds: from a connection within one machine to the time a
/// person would wait. One more bucket counts everything longer.
pub(crate) const BOUNDS: [f64; 14] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A histogram that one thread writes and any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    /// The sum in nanoseconds; it wraps after 584 years.
    sum: Counter,
}

/// The sum of several threads' histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) buckets: [u64; BOUNDS.len() + 1],
    pub(crate) nanos: u64,
}

// === impl Histogram ===

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        self.buckets[bucket].add(1);
        self.sum
            .add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

// === impl Totals ===

impl Totals {
    pub(crate) fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Self {
        let mut totals = Self::default();
        for histogram in histograms {
            for (total, counter) in totals.buckets.iter_mut().zip(&histogram.buckets) {
                *total = total.wrapping_add(counter.get());
            }
            totals.nanos = totals.nanos.wrapping_add(histogram.sum.get());
        }
        totals
    }

    /// Returns the number of observations.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        Duration::from_nanos(self.nanos).as_secs_f64()
    }

    /// Returns each bucket's upper bound and its own count; the last bound is infinity.
    pub(crate) fn bounded(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        bounds.zip(self.buckets).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::default();
        for micros in [0, 500, 501, 1000, 10_000_000, 10_000_001, 99_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let totals = Totals::of([&histogram, &Histogram::default()].into_iter());
        assert_eq!(totals.buckets[..3], [2, 2, 0]);
        assert_eq!(totals.buckets[BOUNDS.len() - 1..], [1, 2]);
        assert_eq!(totals.count(), 7);
        assert!((totals.seconds() - 119.002_002).abs() < 1e-9);
        assert!(BOUNDS.is_sorted());
    }
}
