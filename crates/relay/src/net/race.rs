//! Happy Eyeballs (RFC 8305 section 5): when a session begins its next connection attempt while
//! earlier ones are in progress. Without sockets and clock.

use std::time::{Duration, Instant};

/// The time from one attempt to the next, if nothing is known about the address (RFC 8305 section 8: the
/// recommended value).
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The maximum number of attempts in progress for one session.
pub(crate) const AT_ONCE: usize = 4;

/// The attempts of one session to connect to one of several addresses.
#[derive(Debug)]
pub(crate) struct Race {
    candidates: usize,
    begun: usize,
    in_progress: usize,
    /// The time at which the next attempt may begin.
    next_at: Option<Instant>,
}

impl Race {
    /// Starts a race to `candidates` addresses, whose first attempt is due at once.
    pub(crate) fn new(candidates: usize) -> Self {
        Self {
            candidates,
            begun: 0,
            in_progress: 0,
            next_at: None,
        }
    }

    /// Returns whether the next attempt is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.may_begin() && self.next_at.is_none_or(|at| at <= now)
    }

    /// Begins the next attempt, after which the one after it is due after `delay`.
    pub(crate) fn begin(&mut self, now: Instant, delay: Duration) {
        self.begun += 1;
        self.in_progress += 1;
        self.next_at = Some(now + delay);
    }

    /// Puts the next attempt off by the attempt delay.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.next_at = Some(now + ATTEMPT_DELAY);
    }

    /// Records that an attempt has failed. The next one is due at once (RFC 8305 section 5).
    pub(crate) fn fail(&mut self) {
        self.in_progress -= 1;
        self.next_at = None;
    }

    /// Returns the time at which the next attempt is due, if the passage of time makes it due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.next_at.filter(|_| self.may_begin())
    }

    /// Returns the number of attempts so far.
    pub(crate) fn begun(&self) -> usize {
        self.begun
    }

    fn may_begin(&self) -> bool {
        self.begun < self.candidates && self.in_progress < AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_attempt_begins_after_the_delay_or_at_once_after_a_failure() {
        let start = Instant::now();
        let mut race = Race::new(3);
        assert!(race.is_due(start));
        race.begin(start, ATTEMPT_DELAY);
        assert!(!race.is_due(start + ATTEMPT_DELAY - Duration::from_nanos(1)));
        assert_eq!(race.next_at(), Some(start + ATTEMPT_DELAY));
        assert!(race.is_due(start + ATTEMPT_DELAY));
        race.begin(start + ATTEMPT_DELAY, ATTEMPT_DELAY);
        race.fail();
        assert!(race.is_due(start + ATTEMPT_DELAY));
        race.begin(start + ATTEMPT_DELAY, ATTEMPT_DELAY);
        assert_eq!((race.next_at(), race.begun()), (None, 3));
    }

    /// A server: answers after this time, with a connection or a refusal.
    type Server = (u64, bool);

    /// Runs a race in virtual time. Returns the time of the first connection and its address, and
    /// the largest number of attempts that were in progress together.
    fn run(servers: &[Server], timeout: u64) -> (Option<(Duration, usize)>, usize) {
        let start = Instant::now();
        let mut now = start;
        let mut race = Race::new(servers.len());
        let mut attempts: Vec<(Instant, usize)> = Vec::new();
        let mut most = 0;
        loop {
            attempts.sort_unstable();
            while let Some(&(at, i)) = attempts.first().filter(|(at, _)| *at <= now) {
                if servers[i].1 && servers[i].0 < timeout {
                    return (Some((at - start, i)), most);
                }
                attempts.remove(0);
                race.fail();
            }
            while race.is_due(now) {
                let i = race.begun();
                race.begin(now, ATTEMPT_DELAY);
                let answer = Duration::from_millis(servers[i].0.min(timeout));
                attempts.push((now + answer, i));
                most = most.max(attempts.len());
            }
            let ends = attempts.iter().map(|(at, _)| *at);
            match ends.chain(race.next_at()).min() {
                Some(next) => now = now.max(next),
                None => return (None, most),
            }
        }
    }

    proptest! {
        #[test]
        fn a_race_connects_if_any_server_does_and_is_bounded(
            servers in prop::collection::vec((1..2000_u64, any::<bool>()), 0..12),
        ) {
            let (won, most) = run(&servers, 1000);
            let answers = |(after, accepts): &Server| *accepts && *after < 1000;
            prop_assert_eq!(won.is_some(), servers.iter().any(answers));
            prop_assert!(most <= AT_ONCE);
        }

        #[test]
        fn up_to_three_silent_servers_cost_an_attempt_delay_each(
            silent in 0..AT_ONCE,
            answer in 1..200_u64,
        ) {
            let mut servers = vec![(10_000, false); silent];
            servers.push((answer, true));
            let (won, _) = run(&servers, 10_000);
            let expected = ATTEMPT_DELAY * u32::try_from(silent).unwrap() + Duration::from_millis(answer);
            prop_assert_eq!(won, Some((expected, silent)));
        }
    }
}
