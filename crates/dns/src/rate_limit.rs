//! Limits the answers to one source over UDP, where the source of a query is easily forged.
//!
//! The answers of this server are hardly larger than queries (`answer::AMPLIFICATION`), so it is of
//! little use for a flood. The limit also keeps it from reflecting one at its own rate: beyond it, half of
//! a network's queries get an empty answer that sends a real resolver to TCP, and the others none.
//! Queries whose cookie proves their address have a second, higher limit beyond it: they cannot be
//! reflected, but they still cost this server's time.
//!
//! The table has a fixed size. Two networks may share a bucket, and then share its rate. Which do is not
//! predictable from outside.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Duration;

/// The number of buckets of a table, half a MiB of memory.
const BUCKETS: usize = 1 << 16;

/// The time of unused rate that a source may use at once.
const BURST: Duration = Duration::from_secs(1);

/// The answers beyond the rate that a network gets to queries whose cookie proves their address, as a
/// multiple of the rate.
const PROVEN: f64 = 10.0;

/// The outcome of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered.
    Answer,
    /// It gets an empty answer with TC, which makes a resolver ask over TCP.
    Truncate,
    /// It gets no answer.
    Drop,
}

/// A rate for each IPv4 /24 and IPv6 /56.
#[derive(Debug)]
pub struct RateLimit {
    /// For each bucket, the time up to which its rate is used, in nanoseconds.
    buckets: Vec<u64>,
    hash: RandomState,
    /// Nanoseconds of one answer.
    cost: u64,
    burst: u64,
    over: u64,
}

/// The rates of queries without and with proof of their address.
#[derive(Debug)]
pub struct RateLimits {
    any: RateLimit,
    /// What queries with proof get beyond that.
    proven: RateLimit,
}

/// The outcome of a query, and the rate that it counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The outcome.
    pub verdict: Verdict,
    /// Whether it is answered only because its cookie proves its address.
    pub is_spared: bool,
}

// === impl RateLimits ===

impl RateLimits {
    /// Returns limits of `rate` answers a second (at least 1), and of ten times as many beyond it
    /// for queries with proof.
    pub fn new(rate: f64) -> Self {
        Self {
            any: RateLimit::new(rate),
            proven: RateLimit::new(rate.max(1.0) * PROVEN),
        }
    }

    /// Counts a query from `source` at `now`, a time since any fixed moment. Calls `is_proven`, whether
    /// its cookie proves the source, only if the rate of all queries is used.
    pub fn admit(
        &mut self,
        source: IpAddr,
        now: Duration,
        is_proven: impl FnOnce() -> bool,
    ) -> Admission {
        let mut verdict = self.any.admit(source, now);
        let is_over = verdict != Verdict::Answer;
        if is_over && is_proven() {
            verdict = self.proven.admit(source, now);
        }
        Admission {
            verdict,
            is_spared: is_over && verdict == Verdict::Answer,
        }
    }
}

// === impl RateLimit ===

impl RateLimit {
    /// Returns a limit of `rate` answers a second (at least 1).
    pub fn new(rate: f64) -> Self {
        let cost = Duration::from_secs_f64(1.0 / rate.max(1.0));
        Self {
            buckets: vec![0; BUCKETS],
            hash: RandomState::new(),
            cost: nanos(cost),
            burst: nanos(BURST.max(cost)),
            over: 0,
        }
    }

    /// Counts a query from `source` at `now`, a time since any fixed moment.
    pub fn admit(&mut self, source: IpAddr, now: Duration) -> Verdict {
        let bucket = self.hash.hash_one(network(source));
        let bucket = usize::try_from(bucket % (BUCKETS as u64)).unwrap_or(0);
        let used = &mut self.buckets[bucket];
        let now = nanos(now);
        let after = (*used).max(now) + self.cost;
        if after <= now + self.burst {
            *used = after;
            return Verdict::Answer;
        }
        self.over += 1;
        match self.over % 2 {
            0 => Verdict::Drop,
            _ => Verdict::Truncate,
        }
    }
}

/// Returns the network whose machines share a rate: who holds one of its addresses can use them all.
pub(crate) fn network(source: IpAddr) -> u64 {
    match source {
        IpAddr::V4(v4) => u64::from(v4.to_bits() >> 8),
        IpAddr::V6(v6) => u64::try_from(v6.to_bits() >> 72).unwrap_or(0) | 1 << 63,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(limit: &mut RateLimit, source: &str, queries: usize, at: Duration) -> usize {
        let source = source.parse().unwrap();
        let verdicts = (0..queries).map(|_| limit.admit(source, at));
        verdicts.filter(|v| *v == Verdict::Answer).count()
    }

    #[test]
    fn a_network_gets_its_rate_and_no_more() {
        let mut limit = RateLimit::new(100.0);
        let start = Duration::from_secs(10);
        assert_eq!(answered(&mut limit, "192.0.2.1", 500, start), 100);
        // Another address of the network has no rate of its own.
        assert_eq!(answered(&mut limit, "192.0.2.200", 10, start), 0);
        let later = start + Duration::from_millis(500);
        assert_eq!(answered(&mut limit, "192.0.2.1", 500, later), 50);
        let much_later = start + Duration::from_secs(100);
        assert_eq!(answered(&mut limit, "192.0.2.1", 500, much_later), 100);
    }

    #[test]
    fn a_network_gets_ten_times_its_rate_for_queries_with_proof_and_no_more() {
        let mut limits = RateLimits::new(100.0);
        let source = "192.0.2.1".parse().unwrap();
        let mut counts = |at, is_proven| {
            let admitted: Vec<_> = (0..5000)
                .map(|_| limits.admit(source, at, || is_proven))
                .collect();
            let count = |verdict| admitted.iter().filter(|a| a.verdict == verdict).count();
            let spared = admitted.iter().filter(|a| a.is_spared).count();
            (count(Verdict::Answer), spared, count(Verdict::Truncate))
        };
        let start = Duration::from_secs(10);
        assert_eq!(counts(start, true), (1100, 1000, 1950));
        // Without proof, the second rate is not available.
        let later = start + Duration::from_millis(500);
        assert_eq!(counts(later, false).0, 50);
        assert_eq!(counts(later, true), (500, 500, 2250));
    }

    #[test]
    fn queries_without_proof_do_not_use_up_the_rate_of_those_with_it() {
        let mut limits = RateLimits::new(1.0);
        let source = "2001:db8::1".parse().unwrap();
        for _ in 0..1000 {
            assert!(!limits.admit(source, Duration::ZERO, || false).is_spared);
        }
        assert!(limits.admit(source, Duration::ZERO, || true).is_spared);
    }

    #[test]
    fn half_of_the_queries_over_the_rate_are_sent_to_tcp() {
        let mut limit = RateLimit::new(1.0);
        let source = "2001:db8::1".parse().unwrap();
        assert_eq!(limit.admit(source, Duration::ZERO), Verdict::Answer);
        let over: Vec<_> = (0..10)
            .map(|_| limit.admit(source, Duration::ZERO))
            .collect();
        let sent = over.iter().filter(|v| **v == Verdict::Truncate).count();
        assert_eq!(sent, 5);
        assert!(!over.contains(&Verdict::Answer));
    }

    #[test]
    fn networks_of_different_families_do_not_share_a_key() {
        assert_ne!(
            network("0.0.1.0".parse().unwrap()),
            network("0:0:0:1::".parse().unwrap())
        );
    }
}
