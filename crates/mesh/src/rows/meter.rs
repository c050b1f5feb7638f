//! The round-trip time and loss of one path, from samples.

use std::time::{Duration, Instant};

use super::figure::Figure;

/// The time for which a least round-trip time counts, at least; it counts for at most twice as
/// long. Routes change, and the least of all times would hide that.
const WINDOW: Duration = Duration::from_secs(150);

/// The time after which a path without a sample is unknown.
const STALE: Duration = Duration::from_secs(900);

/// The weight of a sample in the smoothed round-trip time (RFC 6298).
const GAIN: f64 = 1.0 / 8.0;

/// The time in which what is known of loss loses half of its weight.
const HALF_LIFE: Duration = Duration::from_secs(300);

/// The number of segments below which loss is taken to be unknown, so 0: one lost segment of few
/// says little.
const FEW: f64 = 100.0;

/// Computes from the samples of one path the least round-trip time of the last minutes, a smoothed
/// one, and the share of segments that were lost.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// The least of the current window, and of the one before.
    least: [Duration; 2],
    /// When the current window began.
    since: Instant,
    smoothed: f64,
    /// The time of the last sample.
    at: Instant,
    sent: f64,
    lost: f64,
    decayed: Instant,
}

// === impl Meter ===

impl Meter {
    /// Returns the meter after a first sample.
    pub fn new(rtt: Duration, now: Instant) -> Self {
        Self {
            least: [rtt; 2],
            since: now,
            smoothed: rtt.as_secs_f64(),
            at: now,
            sent: 0.0,
            lost: 0.0,
            decayed: now,
        }
    }

    /// Adds a sample: a connection's least round-trip time and its smoothed one.
    pub fn sample(&mut self, least: Duration, smoothed: Duration, now: Instant) {
        self.at = now;
        let [current, before] = &mut self.least;
        if now.saturating_duration_since(self.since) >= WINDOW {
            (*before, *current, self.since) = (*current, least, now);
        }
        *current = (*current).min(least);
        self.smoothed += GAIN * (smoothed.as_secs_f64() - self.smoothed);
    }

    /// Adds segments that were sent, and those of them that were sent again.
    pub fn segments(&mut self, sent: u32, lost: u32, now: Instant) {
        let halvings =
            now.saturating_duration_since(self.decayed).as_secs_f64() / HALF_LIFE.as_secs_f64();
        let left = (-halvings).exp2();
        self.decayed = now;
        self.sent = self.sent * left + f64::from(sent);
        self.lost = self.lost * left + f64::from(lost.min(sent));
    }

    /// Returns the figure of the path, or `None` if there was no sample for 15 minutes.
    pub fn figure(&self, now: Instant) -> Option<Figure> {
        if now.saturating_duration_since(self.at) >= STALE {
            return None;
        }
        let least = self.least[0].min(self.least[1]);
        let loss = match self.sent >= FEW {
            true => self.lost / self.sent,
            false => 0.0,
        };
        Some(Figure::new(
            least,
            Duration::from_secs_f64(self.smoothed),
            loss,
        ))
    }

    /// Returns the time since the last sample.
    pub fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_least_time_is_forgotten_when_the_route_has_become_longer() {
        let start = Instant::now();
        let mut meter = Meter::new(20 * MS, start);
        let mut now = start;
        while now < start + 3 * WINDOW {
            now += Duration::from_secs(10);
            meter.sample(50 * MS, 52 * MS, now);
            let least = meter.figure(now).unwrap().rtt();
            assert!(least == 20 * MS || now >= start + WINDOW);
        }
        assert_eq!(meter.figure(now).unwrap().rtt(), 50 * MS);
        let smoothed = meter.figure(now).unwrap().smoothed();
        assert!((51 * MS..=52 * MS).contains(&smoothed), "{smoothed:?}");
    }

    #[test]
    fn loss_is_a_share_of_many_segments_and_fades() {
        let start = Instant::now();
        let mut meter = Meter::new(20 * MS, start);
        meter.segments(50, 5, start);
        assert_eq!(meter.figure(start).unwrap().loss(), 0.0);
        meter.segments(950, 5, start);
        assert_eq!(meter.figure(start).unwrap().loss(), 0.01);
        let later = start + HALF_LIFE;
        meter.segments(500, 0, later);
        assert_eq!(meter.figure(later), None.or(meter.figure(later)));
        meter.sample(20 * MS, 20 * MS, later);
        assert_eq!(meter.figure(later).unwrap().loss(), 0.005);
    }

    #[test]
    fn a_path_without_samples_becomes_unknown() {
        let start = Instant::now();
        let meter = Meter::new(20 * MS, start);
        assert!(meter.figure(start + STALE - MS).is_some());
        assert!(meter.figure(start + STALE).is_none());
    }
}
