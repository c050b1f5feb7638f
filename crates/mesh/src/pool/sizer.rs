//! The size of a pool of ready connections to one relay, and the times of dials.
//!
//! A connection that a session takes is replaced at once, which takes the set-up time S. If sessions
//! arrive at random at rate λ, the number of dials in progress is Poisson distributed with mean a = λS,
//! whatever the distribution of S (Palm's theorem; the "(s-1, s) policy" of Feeney and Sherbrooke,
//! Management Science 12/5, 1966). An arrival finds the pool empty if all of its n connections are being
//! dialled, so n is the mean plus some standard deviations, √a each:
//!
//! ```text
//! n = ⌈a + 3√a⌉ + 1            P(empty) = P(Poisson(a) ≥ n) < 0.5 %  for every a
//! ```
//!
//! λ follows rising arrivals within seconds and takes a minute to fall. A falling target closes no
//! connection: connections are used or expire, so none is dialled a second time because the target
//! fluctuates. Every miss raises the target by one at once, because bursty arrivals are not Poisson.
//!
//! A connection may also be wanted for a client whose handshake is still under way (early SYN). That is a
//! demand of its own: the pool holds what sessions need and what such clients need, and the latter may
//! take a connection only while the former remains ([`Sizer::reserve`]). A client that gets none takes
//! part in the demand of sessions, so under a flood of handshakes that never end the reserve grows
//! to what the real clients need.

use std::time::{Duration, Instant};

use super::backoff::{Backoff, unit};
use crate::deadline::{FOREVER, after};

/// Time constant of the estimated arrival rate.
const RISE: Duration = Duration::from_secs(2);

/// Time constant of the decay of the peak rate and of the size learnt from misses.
const DECAY: Duration = Duration::from_secs(60);

/// Time without arrivals after which traffic counts as ended.
const QUIET: Duration = Duration::from_secs(300);

/// Standard deviations of the number of dials in progress that the pool holds above their mean.
const DEVIATIONS: f64 = 3.0;

/// The assumed set-up time before the first measurement.
const FIRST_SETUP: Duration = Duration::from_millis(200);

/// Upper limit of a measured set-up time: a lost SYN does not change the path's round trip.
const MAX_SETUP: Duration = Duration::from_secs(3);

/// Weight of a new measurement in the smoothed set-up time (RFC 6298 section 2).
const ALPHA: f64 = 1.0 / 8.0;

/// The limits of a pool's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Lower limit, also without traffic.
    pub floor: u32,
    /// Upper limit of connections, including dials in progress. The floor wins if it is larger.
    pub ceiling: u32,
}

/// Decides how many connections to one relay to hold ready.
#[derive(Debug)]
pub struct Sizer {
    bounds: Bounds,
    /// What sessions take.
    sessions: Demand,
    /// Connections taken for clients whose handshake is still under way.
    early: Demand,
    /// Smoothed time from dial to ready, in seconds; `None` before the first.
    setup: Option<f64>,
    backoff: Backoff,
}

/// The estimated demand for connections.
#[derive(Debug)]
struct Demand {
    /// Arrivals per second, at `updated`.
    rate: f64,
    /// The recent peak of the rate, at `updated`.
    peak: f64,
    /// The size that would have sufficed at recent misses, at `updated`.
    enough: f64,
    /// The time to which the three values above refer.
    updated: Instant,
    /// The last arrival; `None` before the first.
    last_arrival: Option<Instant>,
}

// === impl Bounds ===

impl Bounds {
    fn clamp(self, n: f64) -> u32 {
        // The cast of a float saturates.
        (n as u32).min(self.ceiling).max(self.floor)
    }
}

// === impl Sizer ===

impl Sizer {
    /// Creates the sizer of a pool at `now`. `seed` randomises the waits after failures; it should differ
    /// between pools.
    pub fn new(bounds: Bounds, now: Instant, seed: u64) -> Self {
        Self {
            bounds,
            sessions: Demand::new(now),
            early: Demand::new(now),
            setup: None,
            backoff: Backoff::new(seed),
        }
    }

    /// Sets other bounds. Keeps the estimates of the traffic.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Records a session that needs a connection at `now`, whether it found one or not.
    pub fn arrived(&mut self, now: Instant) {
        self.sessions.arrived(now);
    }

    /// Records a client that has completed its handshake, and for which a connection was wanted, and
    /// perhaps taken, before that. A client without one then needs one for its session, and
    /// [`arrived`](Sizer::arrived) counts it as well.
    ///
    /// Anyone can forge the segment with which a handshake begins. So what was wanted for clients that
    /// never complete it is not recorded.
    pub fn arrived_early(&mut self, now: Instant) {
        self.early.arrived(now);
    }

    /// Records that a session found no ready connection at `now`. Call it after
    /// [`arrived`](Sizer::arrived).
    pub fn missed(&mut self, now: Instant) {
        // While the relay is unreachable, the pool is empty whatever its size.
        if self.backoff.is_failing() {
            return;
        }
        let needed = self.bounds.clamp(self.sessions.size(self.setup(), now));
        // Only one more: the rate may be about to show the same need.
        let enough = needed.saturating_add(1).min(self.bounds.ceiling);
        self.sessions.missed(f64::from(enough), now);
    }

    /// Records that a connection became ready, `setup` after it was dialled.
    pub fn dial_succeeded(&mut self, setup: Duration) {
        let sample = setup.min(MAX_SETUP).as_secs_f64();
        self.setup = Some(match self.setup {
            Some(mean) => mean + ALPHA * (sample - mean),
            None => sample,
        });
        self.backoff.succeeded();
    }

    /// Records that a dial failed at `now`: refused, timed out, or turned away.
    pub fn dial_failed(&mut self, now: Instant) {
        self.backoff.failed(now);
    }

    /// Returns how many connections should be ready or being dialled at `now`. Between calls of the other
    /// functions the number only falls.
    pub fn target(&self, now: Instant) -> u32 {
        let setup = self.setup();
        self.bounds
            .clamp(self.sessions.size(setup, now) + self.early.size(setup, now))
    }

    /// Returns how many ready connections to leave to sessions when one is wanted at `now` for a
    /// client whose handshake is still under way: what sessions alone need, and at least half of the
    /// floor.
    ///
    /// So an arriving session finds the pool empty as seldom as the formula says, however many
    /// handshakes begin that never end.
    pub fn reserve(&self, now: Instant) -> u32 {
        let bounds = Bounds {
            floor: self.bounds.floor.div_ceil(2),
            ..self.bounds
        };
        bounds.clamp(self.sessions.size(self.setup(), now))
    }

    /// Returns how many connections to dial at `now`, with `ready` connections held and `dialling` in
    /// progress. After a failure it is 0 until [`retry_at`](Sizer::retry_at), then one at a time until
    /// one succeeds.
    pub fn dials_wanted(&self, ready: u32, dialling: u32, now: Instant) -> u32 {
        let missing = self
            .target(now)
            .saturating_sub(ready.saturating_add(dialling));
        match self.backoff.retry_at() {
            None => missing,
            Some(at) if now >= at && dialling == 0 => missing.min(1),
            Some(_) => 0,
        }
    }

    /// Returns when to dial again after a failure, or `None` if the last dial succeeded.
    pub fn retry_at(&self) -> Option<Instant> {
        self.backoff.retry_at()
    }

    /// Returns the time from dial to ready, in seconds.
    fn setup(&self) -> f64 {
        self.setup.unwrap_or(FIRST_SETUP.as_secs_f64())
    }
}

// === impl Demand ===

impl Demand {
    fn new(now: Instant) -> Self {
        Self {
            rate: 0.0,
            peak: 0.0,
            enough: 0.0,
            updated: now,
            last_arrival: None,
        }
    }

    fn arrived(&mut self, now: Instant) {
        self.decay(now);
        // An exponentially decaying average: each arrival adds its share of one time constant.
        self.rate += 1.0 / RISE.as_secs_f64();
        self.peak = self.peak.max(self.rate);
        self.last_arrival = Some(now);
    }

    fn missed(&mut self, enough: f64, now: Instant) {
        self.decay(now);
        self.enough = enough;
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.last_arrival
            .is_none_or(|at| now.saturating_duration_since(at) >= QUIET)
    }

    /// Returns the number of connections that meets the demand, a whole number, if one is ready
    /// `setup` seconds after it was dialled.
    fn size(&self, setup: f64, now: Instant) -> f64 {
        if self.is_quiet(now) {
            return 0.0;
        }
        let factor = self.decay_factor(now, DECAY);
        let dialling = self.peak * factor * setup;
        let needed = (dialling + DEVIATIONS * dialling.sqrt()).ceil() + 1.0;
        needed.max((self.enough * factor).ceil())
    }

    fn decay(&mut self, now: Instant) {
        self.rate *= self.decay_factor(now, RISE);
        let factor = self.decay_factor(now, DECAY);
        self.peak = (self.peak * factor).max(self.rate);
        self.enough *= factor;
        self.updated = self.updated.max(now);
    }

    /// Returns the factor of exponential decay from `updated` to `now` with this time constant.
    fn decay_factor(&self, now: Instant, constant: Duration) -> f64 {
        let elapsed = now.saturating_duration_since(self.updated);
        (-elapsed.as_secs_f64() / constant.as_secs_f64()).exp()
    }
}

/// Returns when a connection that became ready at `now` expires: after `max_age`, ±20 % by `random`, so
/// that connections made together do not all expire together.
pub fn expiry(now: Instant, max_age: Duration, random: u64) -> Instant {
    // Limited first, because the multiplication could overflow.
    let max_age = max_age.min(FOREVER);
    after(now, max_age.mul_f64(0.8 + 0.4 * unit(random)))
}

#[cfg(test)]
mod tests;
