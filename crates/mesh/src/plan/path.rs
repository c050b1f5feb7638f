//! One path between two machines.

use std::time::Duration;

/// The unit of [`Path`]'s loss: a share of 1 is this many units.
const LOSS_UNITS: f64 = 100_000.0;

/// The unit of [`Path`]'s rate, in bit/s.
const RATE_UNIT: u64 = 100_000;

/// A path between two machines: its round trip, loss and rate, as far as they are known.
///
/// Eight bytes, because a mesh of n relays has n² of them. The round trip is kept in microseconds,
/// up to 71 minutes; loss in 1/100,000, up to 65 %; the rate in 100 kbit/s, up to 6.5 Gbit/s.
/// Larger values become the largest. A rate that is not zero is at least 100 kbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    rtt_us: u32,
    loss: u16,
    /// Zero if unknown.
    rate: u16,
}

// === impl Path ===

impl Path {
    /// A path that has not been measured. No route takes it.
    pub const UNKNOWN: Self = Self {
        rtt_us: u32::MAX,
        loss: 0,
        rate: 0,
    };

    /// The path from a machine to itself.
    pub const ZERO: Self = Self {
        rtt_us: 0,
        loss: 0,
        rate: 0,
    };

    /// Creates a path of this round trip, loss (a share from 0 to 1) and rate (bit/s, `None` if
    /// unknown).
    pub fn new(rtt: Duration, loss: f64, rate: Option<u64>) -> Self {
        let longest = u128::from(u32::MAX - 1);
        Self {
            rtt_us: rtt.as_micros().min(longest) as u32,
            // `as` saturates, and makes 0 of NaN.
            loss: (loss * LOSS_UNITS).round() as u16,
            rate: rate.map_or(0, |r| (r / RATE_UNIT).clamp(1, u64::from(u16::MAX)) as u16),
        }
    }

    /// Returns whether the round trip is known.
    pub fn is_known(self) -> bool {
        self.rtt_us != u32::MAX
    }

    /// Returns the round trip, if it is known.
    pub fn rtt(self) -> Option<Duration> {
        self.is_known()
            .then(|| Duration::from_micros(u64::from(self.rtt_us)))
    }

    /// Returns the share of segments that the path loses; 0 if none is known.
    pub fn loss(self) -> f64 {
        f64::from(self.loss) / LOSS_UNITS
    }

    /// Returns the path's rate in bit/s, if it is known.
    pub fn rate(self) -> Option<u64> {
        (self.rate > 0).then(|| u64::from(self.rate) * RATE_UNIT)
    }

    /// Returns the round trip in milliseconds, and infinity if it is unknown.
    pub(super) fn rtt_ms(self) -> f32 {
        if self.is_known() {
            (f64::from(self.rtt_us) / 1e3) as f32
        } else {
            f32::INFINITY
        }
    }

    /// Returns this path with another round trip.
    pub(super) fn with_rtt(self, rtt: Duration) -> Self {
        let rtt_us = Self::new(rtt, 0.0, None).rtt_us;
        Self { rtt_us, ..self }
    }
}
