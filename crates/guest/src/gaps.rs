//! Off-CPU gaps, as the BPF programs record them.

use std::time::Duration;

use serde::Serialize;

use crate::raw;

/// The number of length buckets. Bucket n counts gaps of 2^n ms and more, the last bucket all
/// longer gaps.
pub const BUCKETS: usize = raw::GAP_BUCKETS as usize;

/// The off-CPU gaps of one CPU, or of several: times in which the machine was descheduled from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// Number of gaps.
    pub count: u64,
    /// Their total length.
    #[serde(rename = "total_ns", serialize_with = "nanoseconds")]
    pub total: Duration,
    /// The longest gap since the programs were loaded.
    #[serde(rename = "longest_ns", serialize_with = "nanoseconds")]
    pub longest: Duration,
    /// Number of gaps by length: shorter than 2 ms, shorter than 4 ms, and so on.
    pub lengths: [u64; BUCKETS],
    /// Scheduler ticks that the programs observed. Without any, it is unknown whether there were
    /// gaps.
    pub ticks: u64,
}

// === impl Gaps ===

impl Gaps {
    /// Sums the gaps of these CPUs.
    pub fn sum(cpus: &[Self]) -> Self {
        let mut all = Self::default();
        for cpu in cpus {
            all.count += cpu.count;
            all.total += cpu.total;
            all.longest = all.longest.max(cpu.longest);
            for (sum, more) in all.lengths.iter_mut().zip(cpu.lengths) {
                *sum += more;
            }
            all.ticks += cpu.ticks;
        }
        all
    }

    /// Returns the gaps since `earlier` on the same CPU. Their longest is estimated from the
    /// buckets.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut lengths = self.lengths;
        for (now, then) in lengths.iter_mut().zip(earlier.lengths) {
            *now = now.saturating_sub(then);
        }
        let upper = lengths.iter().rposition(|count| *count > 0).map(upper);
        let total = self.total.saturating_sub(earlier.total);
        Self {
            count: self.count.saturating_sub(earlier.count),
            total,
            longest: match upper {
                None => Duration::ZERO,
                Some(upper) => upper.unwrap_or(self.longest).min(self.longest).min(total),
            },
            lengths,
            ticks: self.ticks.saturating_sub(earlier.ticks),
        }
    }

    /// Returns the share of the time of `cpus` CPUs that the gaps took, 0 to 1.
    pub fn share(&self, elapsed: Duration, cpus: usize) -> f64 {
        let all = elapsed.as_secs_f64() * cpus.max(1) as f64;
        match all > 0.0 {
            true => (self.total.as_secs_f64() / all).min(1.0),
            false => 0.0,
        }
    }

    /// Returns the average length of a gap.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        self.total.checked_div(count).unwrap_or_default()
    }
}

/// Returns the length that all gaps of a bucket are shorter than; `None` for the last bucket.
pub(crate) fn upper(bucket: usize) -> Option<Duration> {
    (bucket + 1 < BUCKETS).then(|| Duration::from_millis(2 << bucket))
}

impl From<raw::Gaps> for Gaps {
    fn from(gaps: raw::Gaps) -> Self {
        Self {
            count: gaps.count,
            total: Duration::from_nanos(gaps.total_ns),
            longest: Duration::from_nanos(gaps.longest_ns),
            lengths: gaps.length,
            ticks: gaps.ticks,
        }
    }
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum over CPUs that each have this number of gaps of 30 ms.
    fn gaps(counts: &[u64]) -> Gaps {
        let cpu = |count: &u64| {
            let ms = 1_000_000;
            let mut length = [0; BUCKETS];
            length[4] = *count;
            Gaps::from(raw::Gaps {
                count: *count,
                total_ns: count * 30 * ms,
                longest_ns: 30 * ms,
                ticks: 10 * count,
                length,
                ..raw::Gaps::default()
            })
        };
        Gaps::sum(&counts.iter().map(cpu).collect::<Vec<_>>())
    }

    #[test]
    fn gaps_of_all_cpus_are_added_up() {
        let both = gaps(&[2, 3]);
        assert_eq!(both.count, 5);
        assert_eq!(both.total, Duration::from_millis(150));
        assert_eq!(both.longest, Duration::from_millis(30));
        assert_eq!(both.lengths[4], 5);
        assert_eq!(both.ticks, 50);
        assert_eq!(both.mean(), Duration::from_millis(30));
        assert!((both.share(Duration::from_secs(1), 2) - 0.075).abs() < 1e-9);
    }

    #[test]
    fn gaps_since_an_earlier_sample_exclude_those_before_it() {
        let since = gaps(&[7]).since(&gaps(&[4]));
        assert_eq!(since.count, 3);
        assert_eq!(since.total, Duration::from_millis(90));
        assert_eq!(since.lengths[4], 3);
        assert_eq!(since.ticks, 30);
        assert_eq!(since.longest, Duration::from_millis(30));
        let none = gaps(&[7]).since(&gaps(&[7]));
        assert_eq!(none, Gaps::default());
    }

    #[test]
    fn the_share_of_no_time_is_zero() {
        assert_eq!(gaps(&[1]).share(Duration::ZERO, 1), 0.0);
        assert_eq!(gaps(&[1]).share(Duration::from_millis(1), 1), 1.0);
    }
}
