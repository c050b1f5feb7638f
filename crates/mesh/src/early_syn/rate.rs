//! A token bucket.

use std::time::{Duration, Instant};

/// A rate: an average per second, and a burst that is allowed after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    interval: Duration,
    depth: Duration,
}

impl Rate {
    /// Returns a rate of `per_second` on average and `burst` at once. A rate of 0 refuses
    /// everything; a burst of 0 counts as 1.
    pub const fn new(per_second: u32, burst: u32) -> Self {
        if per_second == 0 {
            return Self {
                interval: Duration::ZERO,
                depth: Duration::ZERO,
            };
        }
        // Instants have a resolution of a nanosecond, so no interval is shorter.
        let nanos = 1_000_000_000 / per_second as u64;
        let interval = Duration::from_nanos(if nanos == 0 { 1 } else { nanos });
        let burst = if burst == 0 { 1 } else { burst };
        Self {
            interval,
            depth: interval.saturating_mul(burst),
        }
    }

    /// Takes a token from a bucket that is full at `full_at` (if that is in the past, it is full
    /// now). Returns the time at which the bucket is full again, or `None` if there is no token.
    ///
    /// This is the generic cell rate algorithm (ITU-T I.371): a token bucket whose whole state is
    /// one instant. A full bucket needs no entry.
    pub(super) fn take(&self, full_at: Instant, now: Instant) -> Option<Instant> {
        let full_at = full_at.max(now).checked_add(self.interval)?;
        (full_at.duration_since(now) <= self.depth && !self.interval.is_zero()).then_some(full_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of `tries` that succeed at once.
    fn at_once(rate: Rate, full_at: &mut Instant, now: Instant, tries: u32) -> u32 {
        (0..tries)
            .filter(|_| match rate.take(*full_at, now) {
                Some(then) => {
                    *full_at = then;
                    true
                }
                None => false,
            })
            .count() as u32
    }

    #[test]
    fn a_burst_goes_through_at_once_and_then_the_rate() {
        let rate = Rate::new(10, 5);
        let start = Instant::now();
        let mut bucket = start;
        assert_eq!(at_once(rate, &mut bucket, start, 100), 5);
        let later = start + Duration::from_millis(300);
        assert_eq!(at_once(rate, &mut bucket, later, 100), 3);
        let much_later = start + Duration::from_secs(100);
        assert_eq!(at_once(rate, &mut bucket, much_later, 100), 5);
    }

    #[test]
    fn a_rate_of_zero_refuses_everything() {
        let now = Instant::now();
        assert_eq!(at_once(Rate::new(0, 5), &mut now.clone(), now, 10), 0);
        assert_eq!(at_once(Rate::new(5, 0), &mut now.clone(), now, 10), 1);
        assert_eq!(
            at_once(Rate::new(u32::MAX, 3), &mut now.clone(), now, 10),
            3
        );
    }
}
