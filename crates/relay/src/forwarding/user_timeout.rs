//! The user timeout (RFC 5482) of legs between relays: how long what was sent may stay unacknowledged.
//!
//! The kernel's TCP_USER_TIMEOUT is of no use here. It also ends a leg whose peer acknowledges everything and
//! offers no window (tcp_probe_timer), and a relay offers none for as long as the reader behind it pauses.

use std::time::{Duration, Instant};

/// The number of checks in a user timeout, which is exceeded by at most one interval between them.
pub(crate) const CHECKS: u32 = 8;

/// The retransmissions or probes that must have stayed unanswered. The kernel retransmits to a peer that has no room
/// for what it was sent as rarely as every two minutes, so silence alone says nothing, and one may get lost.
const UNANSWERED: u8 = 2;

/// What the kernel knows of a leg while something that it has sent, or has to send, is unacknowledged (TCP_INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    /// Segments received since the connection began.
    pub(crate) segs_in: u32,
    /// Retransmission time-outs since the last acknowledgement of new bytes.
    pub(crate) retransmits: u8,
    /// Probes of a closed window since the last acknowledgement.
    pub(crate) probes: u8,
}

/// How long a leg has been unanswered.
#[derive(Debug, Default)]
pub(crate) struct UserTimeout {
    /// Since when, and what was known then.
    waiting: Option<(Instant, Outstanding)>,
}

// === impl UserTimeout ===

impl UserTimeout {
    /// Takes what is outstanding on the leg at `now`, if anything is. Returns since when the peer has been
    /// silent if that is `limit` or longer.
    pub(crate) fn check(
        &mut self,
        outstanding: Option<Outstanding>,
        limit: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let Some(seen) = outstanding else {
            self.waiting = None;
            return None;
        };
        let (since, then) = match self.waiting {
            Some(waiting) if waiting.1.segs_in == seen.segs_in => waiting,
            _ => {
                self.waiting = Some((now, seen));
                return None;
            }
        };
        let unanswered = seen.retransmits.saturating_sub(then.retransmits);
        let is_lost = unanswered.max(seen.probes) >= UNANSWERED && now >= since + limit;
        is_lost.then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    fn outstanding(segs_in: u32, retransmits: u8, probes: u8) -> Option<Outstanding> {
        Some(Outstanding {
            segs_in,
            retransmits,
            probes,
        })
    }

    /// Checks once a second what `at` returns for the second. Returns the second at which the peer was taken
    /// for lost.
    fn lost_at(at: impl Fn(u32) -> Option<Outstanding>) -> Option<u32> {
        let (mut timeout, start) = (UserTimeout::default(), Instant::now());
        (0..600).find(|&s| timeout.check(at(s), LIMIT, start + s * SECOND).is_some())
    }

    #[test]
    fn a_leg_whose_retransmissions_are_unanswered_is_lost_after_the_limit() {
        let lost = lost_at(|s| outstanding(7, u8::try_from(s / 3).unwrap().min(15), 0));
        assert_eq!(lost, Some(10));
    }

    #[test]
    fn silence_counts_from_the_last_segment_of_the_peer() {
        let lost = lost_at(|s| outstanding(s.min(5), u8::try_from(s / 2).unwrap().min(15), 0));
        assert_eq!(lost, Some(15));
        let sent_at =
            |s| outstanding(7, u8::try_from(s / 2).unwrap().min(15), 0).filter(|_| s >= 4);
        assert_eq!(lost_at(sent_at), Some(14));
    }

    #[test]
    fn a_peer_that_answers_every_probe_of_its_closed_window_is_not_lost() {
        assert_eq!(lost_at(|s| outstanding(s / 120, 0, 0)), None);
        // One probe may get lost, or be under way.
        assert_eq!(lost_at(|_| outstanding(7, 0, 1)), None);
    }

    #[test]
    fn a_peer_that_answers_retransmissions_which_it_has_no_room_for_is_not_lost() {
        let lost = lost_at(|s| outstanding(s / 120, u8::try_from(5 + s / 120).unwrap(), 0));
        assert_eq!(lost, None);
    }

    #[test]
    fn a_peer_that_dies_with_a_closed_window_is_lost_when_two_probes_are_unanswered() {
        let lost = lost_at(|s| outstanding(7, 0, u8::try_from(s / 30).unwrap()));
        assert_eq!(lost, Some(60));
    }

    #[test]
    fn a_leg_on_which_nothing_is_outstanding_is_never_lost() {
        assert_eq!(lost_at(|_| None), None);
        // Bytes that this host holds back itself.
        assert_eq!(lost_at(|_| outstanding(7, 0, 0)), None);
    }
}
