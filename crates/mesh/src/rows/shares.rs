//! Each member's share of the rate at which a relay sends rows.

use std::collections::HashMap;
use std::time::Instant;

use super::key::MemberId;

/// The rows of one member may take this part of the rate while others wait.
const PART: f64 = 8.0;

/// The bytes of one member's rows that may be sent at once after a pause.
const BURST: f64 = 8_192.0;

/// The number of members above which those that have long been within their share are dropped.
const TIDY_ABOVE: usize = 64;

/// The bytes that rows of each member have lately taken. A row of a member that is over its share
/// waits as long as one of another member waits too: one relay with large rows that change all the
/// time cannot keep the rows of others from being sent.
#[derive(Debug)]
pub(super) struct Shares {
    /// The bytes a second that are forgiven: the share of one member.
    share: f64,
    taken: HashMap<MemberId, Taken>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    bytes: f64,
    at: Instant,
}

// === impl Shares ===

impl Shares {
    /// Returns the shares of a rate in bytes a second.
    pub(super) fn of(rate: u32) -> Self {
        Self {
            share: f64::from(rate) / PART,
            taken: HashMap::new(),
        }
    }

    /// Records that so many bytes of a row of `origin` have been sent.
    #[expect(clippy::cast_precision_loss, reason = "a frame is short")]
    pub(super) fn sent(&mut self, origin: MemberId, bytes: usize, now: Instant) {
        if self.taken.len() > TIDY_ABOVE {
            self.taken
                .retain(|_, taken| taken.left(self.share, now) > 0.0);
        }
        let taken = self.taken.entry(origin).or_insert(Taken {
            bytes: 0.0,
            at: now,
        });
        *taken = Taken {
            bytes: taken.left(self.share, now) + bytes as f64,
            at: now,
        };
    }

    /// Returns whether the rows of `origin` have taken more than their share.
    pub(super) fn is_over(&self, origin: MemberId, now: Instant) -> bool {
        let taken = self.taken.get(&origin);
        taken.is_some_and(|taken| taken.left(self.share, now) > BURST)
    }
}

// === impl Taken ===

impl Taken {
    /// Returns the bytes that are not forgiven yet.
    fn left(&self, share: f64, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.bytes - elapsed * share).max(0.0)
    }
}
