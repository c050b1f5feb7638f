//! The current numbers of a flow, and its numbers a while ago.

use std::time::{Duration, Instant};

/// The maximum time between the observations of two frames that were sent at the same time. They
/// may wait in the queues of two CPUs, on a machine with other work.
pub(super) const REORDERED: Duration = Duration::from_secs(1);

/// A right edge that may move back. An edge that the guest takes back stays allowed for at least
/// [`REORDERED`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentEdge {
    latest: u32,
    /// The farthest edge since `turned`; `past` is the farthest edge in the period before.
    now: u32,
    past: u32,
    turned: Instant,
}

/// A growing number, and its value a while ago.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lagged {
    pub(super) high: u32,
    recent: Option<u32>,
    pub(super) past: Option<u32>,
    turned: Instant,
}

// === impl RecentEdge ===

impl RecentEdge {
    /// Records that the guest advertises `edge`; returns whether `edge` shrinks the guest's window.
    pub(super) fn state(recent: &mut Option<Self>, edge: u32, now: Instant) -> bool {
        let Some(known) = recent else {
            *recent = Some(Self {
                latest: edge,
                now: edge,
                past: edge,
                turned: now,
            });
            return false;
        };
        let retreats = is_after(known.latest, edge);
        *known = known.as_of(now);
        known.latest = edge;
        known.now = later(known.now, edge);
        retreats
    }

    pub(super) fn as_of(mut self, now: Instant) -> Self {
        let age = now.saturating_duration_since(self.turned);
        if age >= REORDERED {
            self.past = if age >= 2 * REORDERED {
                self.latest
            } else {
                self.now
            };
            self.now = self.latest;
            self.turned = now;
        }
        self
    }

    pub(super) fn farthest(self) -> u32 {
        later(later(self.now, self.past), self.latest)
    }
}

// === impl Lagged ===

impl Lagged {
    pub(super) fn raise(number: &mut Option<Self>, value: u32, now: Instant) {
        let Some(known) = number else {
            *number = Some(Self {
                high: value,
                recent: None,
                past: None,
                turned: now,
            });
            return;
        };
        *known = known.as_of(now);
        known.high = later(known.high, value);
    }

    /// Returns the number as of `now`. Its `past` is then at least [`REORDERED`] old; `None` if
    /// there is no value that old.
    pub(super) fn as_of(mut self, now: Instant) -> Self {
        if now.saturating_duration_since(self.turned) >= REORDERED {
            self.past = self.recent;
            self.recent = Some(self.high);
            self.turned = now;
        }
        self
    }
}

/// Compares by signed difference (RFC 9293 3.4).
pub(super) fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

pub(super) fn later(a: u32, b: u32) -> u32 {
    if is_after(b, a) { b } else { a }
}
