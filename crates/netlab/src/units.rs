//! Quantities whose types are their units.

use std::fmt;
use std::time::Duration;

/// A rate on the wire, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct BitsPerSecond(pub u64);

/// A size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Bytes(pub u64);

// === impl BitsPerSecond ===

impl BitsPerSecond {
    /// Returns `n` kilobits (1000 bits) per second.
    pub const fn kilo(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// Returns `n` megabits per second.
    pub const fn mega(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// Returns `n` gigabits per second.
    pub const fn giga(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// Returns how many bytes this rate carries in `time`, rounded down: the bandwidth-delay product
    /// if `time` is a round trip.
    pub fn in_time(self, time: Duration) -> Bytes {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for BitsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{} Gbit/s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{} Mbit/s", n as f64 / 1e6),
            n => write!(f, "{} kbit/s", n as f64 / 1e3),
        }
    }
}

// === impl Bytes ===

impl Bytes {
    /// Returns `n` kilobytes (1000 bytes).
    pub const fn kilo(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// Returns `n` megabytes.
    pub const fn mega(n: u64) -> Self {
        Self(n * 1_000_000)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}
