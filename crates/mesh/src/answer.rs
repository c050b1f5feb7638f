//! What the silence or the reset of a relay means for a session that has sent it a hello.
//!
//! [`Answer`] decides when the relay is taken for broken, and when the session dials again: only while no byte of the
//! session can have arrived, so that nothing is sent twice.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The answer that a session expects on its connection to another relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The connection was made before the session needed it, and may have died since without notice.
    is_made_before: bool,
    /// The time for the acknowledgement of the hello, and its end.
    by: Option<(Duration, Instant)>,
}

/// What follows from silence, or from the end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consequence {
    /// The relay does not work, since this time.
    pub broken_since: Option<Instant>,
    /// Whether the session dials again. If not, it goes on after silence, and ends after the end of its connection.
    pub redials: bool,
}

// === impl Answer ===

impl Answer {
    /// Begins with another connection.
    pub fn joined(&mut self, is_made_before: bool) {
        self.is_made_before = is_made_before;
    }

    /// Expects the hello to be acknowledged within `patience`.
    pub fn expect(&mut self, patience: Duration, now: Instant) {
        self.by = Some((patience, now + patience));
    }

    /// Returns when the relay must have acknowledged the hello.
    pub fn deadline(&self) -> Option<Instant> {
        self.by.map(|(_, until)| until)
    }

    /// Returns the patience, once, if it has run out. Call [`on_silence`](Self::on_silence) if nothing has been
    /// acknowledged within it.
    pub fn take_due(&mut self, now: Instant) -> Option<(Duration, Instant)> {
        self.by.take_if(|(_, until)| now >= *until)
    }

    /// Decides about a relay that has been silent since `since`. `is_untouched` says that no byte of the session has
    /// been sent or has come.
    pub fn on_silence(&mut self, since: Instant, is_untouched: bool) -> Consequence {
        self.is_made_before &= !is_untouched;
        Consequence {
            broken_since: Some(since),
            redials: is_untouched,
        }
    }

    /// Decides about a connection that has ended with this error. `is_untouched` says that no byte of the session
    /// can have arrived, and none has come.
    pub fn on_end(&mut self, error: Errno, is_untouched: bool, now: Instant) -> Consequence {
        let redials = self.is_made_before && is_untouched;
        if redials {
            *self = Self::default();
        }
        Consequence {
            // It refuses this relay's key. A reset may be the refusal of this one session.
            broken_since: (error == Errno::ACCESS).then_some(now),
            redials,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[test]
    fn a_relay_has_its_time_to_answer_once() {
        let now = Instant::now();
        let mut answer = Answer::default();
        assert_eq!((answer.deadline(), answer.take_due(now)), (None, None));
        answer.expect(PATIENCE, now);
        assert_eq!(answer.deadline(), Some(now + PATIENCE));
        assert_eq!(answer.take_due(now), None);
        let due = Some((PATIENCE, now + PATIENCE));
        assert_eq!(answer.take_due(now + PATIENCE), due);
        assert_eq!(answer.take_due(now + PATIENCE), None);
    }

    #[test]
    fn a_silent_relay_is_broken_and_keeps_a_session_that_has_sent() {
        let now = Instant::now();
        for is_untouched in [false, true] {
            let consequence = Answer::default().on_silence(now, is_untouched);
            assert_eq!(consequence.broken_since, Some(now));
            assert_eq!(consequence.redials, is_untouched);
        }
    }

    #[test]
    fn a_session_is_never_sent_twice() {
        let now = Instant::now();
        for is_made_before in [false, true] {
            for is_untouched in [false, true] {
                let mut answer = Answer::default();
                answer.joined(is_made_before);
                answer.expect(PATIENCE, now);
                let consequence = answer.on_end(Errno::CONNRESET, is_untouched, now);
                assert_eq!(consequence.redials, is_made_before && is_untouched);
                assert_eq!(consequence.broken_since, None);
                // The next connection has a time of its own.
                assert_eq!(answer.deadline().is_none(), consequence.redials);
            }
        }
    }

    #[test]
    fn only_a_refused_key_makes_a_relay_broken_that_ends_a_connection() {
        let now = Instant::now();
        for (error, is_broken) in [
            (Errno::ACCESS, true),
            (Errno::CONNRESET, false),
            (Errno::PIPE, false),
            (Errno::TIMEDOUT, false),
        ] {
            let consequence = Answer::default().on_end(error, true, now);
            assert_eq!(consequence.broken_since.is_some(), is_broken, "{error}");
        }
    }
}
