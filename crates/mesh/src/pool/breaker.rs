//! Whether a peer works, as far as its dials and sessions have shown.
//!
//! ```text
//!           a failure                      a dial succeeds
//! Closed -------------> Open --------------------------------> Proving
//!    ^                    ^                                      |   |
//!    |                    +-------------- a failure -------------+   |
//!    +------------------------- as long as the dial took ------------+
//! ```

use std::time::{Duration, Instant};

/// Whether sessions should avoid a peer.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// A dial failed, or the peer left a session unanswered, and it has not been considered working since.
    broken: bool,
    /// When the peer is considered working again. A dial has succeeded, but a peer that refuses this relay's
    /// key says so a round trip later.
    whole_at: Option<Instant>,
}

/// The state of a [`Breaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The peer works.
    Closed,
    /// A dial has succeeded; the peer may still refuse this relay's key.
    Proving,
    /// The peer does not work.
    Open,
}

impl Breaker {
    /// Records a failed dial, or a session that the peer left unanswered.
    pub(super) fn failed(&mut self) {
        self.broken = true;
        self.whole_at = None;
    }

    /// Records a dial that has succeeded at `now`, `setup` after it began.
    pub(super) fn dial_succeeded(&mut self, setup: Duration, now: Instant) {
        if self.broken && self.whole_at.is_none() {
            self.whole_at = Some(now + setup);
        }
    }

    /// Returns the state at `now`.
    pub(super) fn state(&self, now: Instant) -> State {
        match self.whole_at {
            _ if !self.broken => State::Closed,
            None => State::Open,
            Some(at) if now < at => State::Proving,
            Some(_) => State::Closed,
        }
    }
}
