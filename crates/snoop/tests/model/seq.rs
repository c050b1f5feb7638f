//! Sequence numbers and timestamps, which wrap at 2^32 (RFC 9293 3.4, RFC 7323 5.2).

use std::ops::{Add, Sub};

/// A sequence number, or a timestamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub(crate) u32);

// === impl Seq ===

impl Seq {
    pub(crate) fn before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() < 0
    }

    pub(crate) fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// The later of both.
    pub(crate) fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// The earlier of both.
    pub(crate) fn min(self, other: Self) -> Self {
        if other.before(self) { other } else { self }
    }

    /// Bytes from here to `edge`; 0 if it is not after this.
    pub(crate) fn room(self, edge: Self) -> u32 {
        if self.before(edge) {
            edge.0.wrapping_sub(self.0)
        } else {
            0
        }
    }

    /// How far this is after `origin`; negative before it.
    pub(crate) fn from(self, origin: Self) -> i32 {
        self.0.wrapping_sub(origin.0).cast_signed()
    }

    /// This one, moved either way.
    pub(crate) fn moved(self, by: i32) -> Self {
        Self(self.0.wrapping_add_signed(by))
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}
