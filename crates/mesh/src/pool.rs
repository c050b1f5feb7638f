//! How many connections to a relay are held ready, and when to dial.
//!
//! A connection that is taken is replaced at once, which takes the set-up time S. With arrivals at
//! random at a rate of λ, the replacements under way at any moment are Poisson distributed with the
//! mean a = λS, however S is distributed (Palm's theorem; the "(s-1, s) policy" of Feeney and
//! Sherbrooke, Management Science 12/5, 1966). An arrival finds the pool empty when all of its n
//! connections are under way, so that n is the mean and a few standard deviations, √a each:
//!
//! ```text
//! n = ⌈a + 3√a⌉ + 1            P(empty) = P(Poisson(a) ≥ n) < 0.5 %  for every a
//! ```
//!
//! λ follows the arrivals within seconds when it rises, and takes a minute to sink; what fell is
//! never dialled again, for nothing is closed because the target sank: connections are used, or
//! come of age. Every miss raises the target by one at once: arrivals in bursts are not Poisson.

mod backoff;

use std::time::{Duration, Instant};

use self::backoff::Backoff;
use crate::acceptor::{FOREVER, after};

/// The rate follows arrivals that increase with this time constant.
const RISE: Duration = Duration::from_secs(2);

/// What was needed is given up with this time constant.
const DECAY: Duration = Duration::from_secs(60);

/// Without an arrival for so long, traffic has ended.
const QUIET: Duration = Duration::from_secs(300);

/// Standard deviations of the replacements under way that are held above their mean.
const DEVIATIONS: f64 = 3.0;

/// What a set-up takes until one has been measured.
const FIRST_SETUP: Duration = Duration::from_millis(200);

/// No set-up counts for longer: one lost SYN is not the path's round trip.
const MAX_SETUP: Duration = Duration::from_secs(3);

/// Part of a new measurement in the smoothed set-up time (RFC 6298 section 2).
const ALPHA: f64 = 1.0 / 8.0;

/// How many connections may be held ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least so many, also without traffic.
    pub floor: u32,
    /// At most so many, whatever the traffic; the floor, if that is more. It bounds the dials under
    /// way too.
    pub ceiling: u32,
}

/// Decides how many connections to one relay are held ready.
#[derive(Debug)]
pub struct Sizer {
    bounds: Bounds,
    /// Arrivals in a second, as of `seen`.
    rate: f64,
    /// The highest rate of late, as of `seen`.
    peak: f64,
    /// The size that would have been enough at misses of late, as of `seen`.
    enough: f64,
    /// When the three were brought up to date.
    seen: Instant,
    /// When the last session came; `None` before the first.
    last_arrival: Option<Instant>,
    /// Seconds from a dial to a connection that is ready, smoothed; `None` before the first.
    setup: Option<f64>,
    backoff: Backoff,
}

// === impl Bounds ===

impl Default for Bounds {
    fn default() -> Self {
        Self {
            floor: 2,
            ceiling: 64,
        }
    }
}

impl Bounds {
    fn clamp(self, n: f64) -> u32 {
        // A cast of a float saturates.
        (n as u32).min(self.ceiling).max(self.floor)
    }
}

// === impl Sizer ===

impl Sizer {
    /// For a pool that is made at `now`. `seed` makes its waits after failures unlike those of other
    /// pools.
    pub fn new(bounds: Bounds, now: Instant, seed: u64) -> Self {
        Self {
            bounds,
            rate: 0.0,
            peak: 0.0,
            enough: 0.0,
            seen: now,
            last_arrival: None,
            setup: None,
            backoff: Backoff::new(seed),
        }
    }

    /// Sets other bounds. What has been learnt of the traffic stays.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// A session came that needs a connection, at `now`; whether it found one or not.
    pub fn arrived(&mut self, now: Instant) {
        self.bring_up_to(now);
        // A rate that fades by e in the time constant, and gets one arrival's worth on each.
        self.rate += 1.0 / RISE.as_secs_f64();
        self.peak = self.peak.max(self.rate);
        self.last_arrival = Some(now);
    }

    /// The session that came found no connection ready, at `now`. To be called after
    /// [`arrived`](Sizer::arrived).
    pub fn missed(&mut self, now: Instant) {
        // While the relay cannot be reached the pool is empty, of whatever size.
        if self.backoff.is_failing() {
            return;
        }
        self.bring_up_to(now);
        // Not more than one on top: the rate may be about to show the same need.
        self.enough = f64::from(self.target(now).saturating_add(1).min(self.bounds.ceiling));
    }

    /// A connection became ready, `setup` after it was dialled.
    pub fn dial_succeeded(&mut self, setup: Duration) {
        let sample = setup.min(MAX_SETUP).as_secs_f64();
        self.setup = Some(match self.setup {
            Some(mean) => mean + ALPHA * (sample - mean),
            None => sample,
        });
        self.backoff.succeeded();
    }

    /// A dial failed at `now`: refused, timed out, or turned away.
    pub fn dial_failed(&mut self, now: Instant) {
        self.backoff.failed(now);
    }

    /// How many connections are to be ready or under way at `now`. Between calls of the other
    /// functions it only sinks.
    pub fn target(&self, now: Instant) -> u32 {
        let is_quiet = self
            .last_arrival
            .is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        if is_quiet {
            return self.bounds.clamp(0.0);
        }
        let fade = self.fade(now, DECAY);
        let setup = self.setup.unwrap_or(FIRST_SETUP.as_secs_f64());
        let under_way = self.peak * fade * setup;
        let needed = (under_way + DEVIATIONS * under_way.sqrt()).ceil() + 1.0;
        self.bounds.clamp(needed.max((self.enough * fade).ceil()))
    }

    /// How many connections to dial at `now`, `ready` being held and `under_way` being dialled. After
    /// a failure none until [`retry_at`](Sizer::retry_at), and then one at a time until one
    /// succeeds.
    pub fn dials_wanted(&self, ready: u32, under_way: u32, now: Instant) -> u32 {
        let missing = self
            .target(now)
            .saturating_sub(ready.saturating_add(under_way));
        match self.backoff.retry_at() {
            None => missing,
            Some(at) if now >= at && under_way == 0 => missing.min(1),
            Some(_) => 0,
        }
    }

    /// When to dial again after a failure; `None` when the last dial succeeded.
    pub fn retry_at(&self) -> Option<Instant> {
        self.backoff.retry_at()
    }

    fn bring_up_to(&mut self, now: Instant) {
        self.rate *= self.fade(now, RISE);
        let fade = self.fade(now, DECAY);
        self.peak = (self.peak * fade).max(self.rate);
        self.enough *= fade;
        self.seen = self.seen.max(now);
    }

    /// What is left at `now` of 1 that fades by e in `constant`.
    fn fade(&self, now: Instant, constant: Duration) -> f64 {
        let elapsed = now.saturating_duration_since(self.seen);
        (-elapsed.as_secs_f64() / constant.as_secs_f64()).exp()
    }
}

/// When a connection that became ready at `now` is too old to be used: after `max_age`, ±20 % by
/// `random`, so that connections made together do not all go together.
pub fn expiry(now: Instant, max_age: Duration, random: u64) -> Instant {
    // Bounded before it is multiplied, which could overflow.
    let max_age = max_age.min(FOREVER);
    after(now, max_age.mul_f64(0.8 + 0.4 * unit(random)))
}

/// A random number from 0 to 1 out of random bits.
fn unit(random: u64) -> f64 {
    random as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests;
