//! What the BPF programs have counted: `struct gaps` and `enum guest_count` of guest.h.

use std::time::Duration;

use serde::Serialize;

/// Buckets of lengths: `GAP_BUCKETS`. Bucket n has those of 2^n ms and more, the last all that are longer.
pub const BUCKETS: usize = 12;
/// Where in `struct gaps` they are, in words.
const COUNT: usize = 2;
const TOTAL: usize = 3;
const LONGEST: usize = 4;
const TICKS: usize = 5;
const LENGTHS: usize = 9;
const WORDS: usize = LENGTHS + BUCKETS;
/// Counters: `COUNTS`.
pub(crate) const COUNTS: u32 = 11;

/// Gaps of a CPU, or of all: times in which one did not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// How many.
    pub count: u64,
    /// All together.
    #[serde(rename = "total_ns", serialize_with = "nanoseconds")]
    pub total: Duration,
    /// The longest since the programs were loaded.
    #[serde(rename = "longest_ns", serialize_with = "nanoseconds")]
    pub longest: Duration,
    /// By length: the first are shorter than 2 ms, the next shorter than 4 ms, and so on.
    pub lengths: [u64; BUCKETS],
    /// Ticks of which it was seen whether they were late. Without any it is not known whether there were gaps.
    pub ticks: u64,
}

/// What the congestion controls did about gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Bandwidth samples across a gap that may not lower BBR's model.
    pub rate_samples_kept_out: u64,
    /// Those that were put right by the receiver's clock.
    pub rate_samples_corrected: u64,
    /// RTT samples across a gap from which the wait was taken away.
    pub rtt_samples_corrected: u64,
    /// RTT samples across a gap that may not renew BBR's minimum.
    pub rtt_samples_kept_out: u64,
    /// Gaps after which a connection was paced faster.
    pub catch_ups: u64,
    /// Reductions of Cubic's that followed a gap.
    pub reductions: u64,
    /// Those that were taken back: nothing had been lost.
    pub reductions_undone: u64,
    /// Those that the kernel took back by itself.
    pub reductions_undone_by_kernel: u64,
    /// Those that stayed: something may have been lost.
    pub reductions_kept: u64,
    /// Delays across a gap that HyStart was not told of.
    pub delays_kept_out: u64,
    /// Connections that could not be followed.
    pub not_followed: u64,
}

// === impl Gaps ===

impl Gaps {
    /// Those of one CPU; `None`: they are no such bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let words = words(bytes);
        let lengths = words.get(LENGTHS..WORDS)?;
        Some(Self {
            count: words[COUNT],
            total: Duration::from_nanos(words[TOTAL]),
            longest: Duration::from_nanos(words[LONGEST]),
            lengths: lengths.try_into().ok()?,
            ticks: words[TICKS],
        })
    }

    /// Of all these CPUs.
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

    /// Since `earlier`, of the same CPU. (Which was the longest of them only the buckets tell.)
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

    /// The share of the time of so many CPUs that they were away.
    pub fn share(&self, elapsed: Duration, cpus: usize) -> f64 {
        let all = elapsed.as_secs_f64() * cpus.max(1) as f64;
        match all > 0.0 {
            true => (self.total.as_secs_f64() / all).min(1.0),
            false => 0.0,
        }
    }

    /// How long one is on average.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        self.total.checked_div(count).unwrap_or_default()
    }
}

/// The length that a bucket's are shorter than; none of the last.
pub(crate) fn upper(bucket: usize) -> Option<Duration> {
    (bucket + 1 < BUCKETS).then(|| Duration::from_millis(2 << bucket))
}

// === impl Counts ===

impl Counts {
    /// Of `enum guest_count`, in its order.
    pub(crate) fn of(counts: [u64; COUNTS as usize]) -> Self {
        let [
            rate_samples_kept_out,
            rate_samples_corrected,
            rtt_samples_corrected,
            rtt_samples_kept_out,
            catch_ups,
            reductions,
            reductions_undone,
            reductions_undone_by_kernel,
            reductions_kept,
            delays_kept_out,
            not_followed,
        ] = counts;
        Self {
            rate_samples_kept_out,
            rate_samples_corrected,
            rtt_samples_corrected,
            rtt_samples_kept_out,
            catch_ups,
            reductions,
            reductions_undone,
            reductions_undone_by_kernel,
            reductions_kept,
            delays_kept_out,
            not_followed,
        }
    }

    fn all(self) -> [u64; COUNTS as usize] {
        [
            self.rate_samples_kept_out,
            self.rate_samples_corrected,
            self.rtt_samples_corrected,
            self.rtt_samples_kept_out,
            self.catch_ups,
            self.reductions,
            self.reductions_undone,
            self.reductions_undone_by_kernel,
            self.reductions_kept,
            self.delays_kept_out,
            self.not_followed,
        ]
    }

    /// Since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let mut counts = self.all();
        for (now, then) in counts.iter_mut().zip(earlier.all()) {
            *now = now.saturating_sub(then);
        }
        Self::of(counts)
    }
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// Of one CPU: some gaps of 30 ms.
    fn cpu(count: u64) -> Vec<u8> {
        let ms = 1_000_000;
        let mut words = vec![0, 0, count, count * 30 * ms, 30 * ms, 10 * count, 0, 0, 0];
        words.extend((0..BUCKETS).map(|bucket| if bucket == 4 { count } else { 0 }));
        words
            .iter()
            .flat_map(|word: &u64| word.to_ne_bytes())
            .collect()
    }

    fn gaps(counts: &[u64]) -> Gaps {
        let cpus = counts.iter().map(|count| Gaps::of(&cpu(*count)).unwrap());
        Gaps::sum(&cpus.collect::<Vec<_>>())
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
        assert_eq!(Gaps::of(&[0; 8 * WORDS - 1]), None);
    }

    #[test]
    fn what_was_before_is_taken_away() {
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
    fn no_time_has_no_share() {
        assert_eq!(gaps(&[1]).share(Duration::ZERO, 1), 0.0);
        assert_eq!(gaps(&[1]).share(Duration::from_millis(1), 1), 1.0);
    }

    const HEADER: &str = include_str!("bpf/guest.h");

    /// What stands in the braces after this, without comments.
    fn body(of: &str) -> String {
        let body = HEADER.split_once(of).unwrap().1.split_once("};").unwrap().0;
        let parts = body.split("/*");
        let parts = parts.map(|part| part.split_once("*/").map_or(part, |(_, code)| code));
        parts.collect()
    }

    #[test]
    fn a_cpus_gaps_stand_where_the_programs_keep_them() {
        let buckets = HEADER.split_once("#define GAP_BUCKETS").unwrap().1;
        let buckets = buckets.split_whitespace().next().unwrap();
        assert_eq!(buckets.parse(), Ok(BUCKETS));
        let body = body("struct gaps {");
        let fields = body.split(';').map(|field| field.trim());
        let fields: Vec<_> = fields.filter(|field| !field.is_empty()).collect();
        for (word, field) in [
            (COUNT, "count"),
            (TOTAL, "total_ns"),
            (LONGEST, "longest_ns"),
            (TICKS, "ticks"),
            (LENGTHS, "length[GAP_BUCKETS]"),
        ] {
            assert_eq!(fields[word], format!("__u64 {field}"));
        }
        assert!(
            fields.iter().all(|field| field.starts_with("__u64 ")),
            "{fields:?}"
        );
        assert_eq!(fields.len(), LENGTHS + 1);
    }

    #[test]
    fn every_counter_stands_where_the_programs_count_it() {
        let body = body("enum guest_count {");
        let names: Vec<_> = body.split(',').map(str::trim).collect();
        let (last, names) = names.split_last().unwrap();
        assert_eq!(*last, "COUNTS");
        assert_eq!(names.len(), COUNTS as usize);
        // In the order of Counts.
        let expected = [
            "RATE_KEPT_OUT",
            "RATE_CORRECTED",
            "RTT_CORRECTED",
            "RTT_KEPT_OUT",
            "CATCH_UP",
            "CUT",
            "CUT_UNDONE",
            "CUT_KERNEL",
            "CUT_KEPT",
            "DELAY_KEPT_OUT",
            "NO_STORAGE",
        ];
        assert_eq!(names, expected.map(|name| format!("COUNT_{name}")));
    }

    #[test]
    fn counters_keep_their_order() {
        let counts = Counts::of(std::array::from_fn(|index| index as u64));
        assert_eq!(counts.rate_samples_kept_out, 0);
        assert_eq!(counts.reductions_undone, 6);
        assert_eq!(counts.not_followed, 10);
        assert_eq!(counts.since(counts), Counts::default());
    }
}
