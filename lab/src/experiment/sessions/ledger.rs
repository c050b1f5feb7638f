//! The result of every session at both ends, and the events that can explain it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::transfer::Wrong;

/// How long after an event a break that it caused may appear. A connection whose RST was lost fails
/// at its next use, and a connection that waits for the next relay gives up after
/// `connect_timeout`.
const AFTERMATH: Duration = Duration::from_secs(5);

/// The number of faults that are described; further faults are only counted.
const TOLD: usize = 20;

/// How one end of a session saw it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::experiment) enum Break {
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// There was no progress for too long, and this end gave up.
    TimedOut,
    /// The system reported any other error.
    Other,
}

/// How one end of a session saw it end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum Observed {
    Exact,
    Broken(Break),
    Wrong(Wrong),
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum End {
    Client,
    Server,
}

/// The result of a session from both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum SessionOutcome {
    Exact,
    Broken(Break),
    Wrong(Wrong),
}

/// A period in which sessions may break.
#[derive(Clone, Copy, Debug)]
struct Disruption {
    from: Duration,
    to: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    begun: Duration,
    ended: Duration,
    client: Option<Observed>,
    server: Option<Observed>,
}

/// The times of a session since the start of the run, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) struct Record {
    pub(in crate::experiment) begun: Duration,
    /// When the last of its ends has seen it end.
    pub(in crate::experiment) ended: Duration,
    pub(in crate::experiment) outcome: SessionOutcome,
}

#[derive(Default)]
struct Entries {
    sessions: BTreeMap<u64, Session>,
    /// Connections at the server that ended before they named their session.
    nameless: Vec<Observed>,
    disruptions: Vec<Disruption>,
    /// Whether a session has been silently wrong.
    is_wrong: bool,
}

/// The ledger, which all observers share. Times are since the start of the run.
#[derive(Default)]
pub(in crate::experiment) struct Ledger(Mutex<Entries>);

/// The totals of a ledger.
#[derive(Debug, Default)]
pub(in crate::experiment) struct Sum {
    pub(in crate::experiment) sessions: u64,
    pub(in crate::experiment) exact: u64,
    pub(in crate::experiment) broken: BTreeMap<Break, u64>,
    /// Broken sessions that no event explains.
    pub(in crate::experiment) unexplained: u64,
    pub(in crate::experiment) wrong: u64,
    /// The durations of exact sessions, in seconds.
    pub(in crate::experiment) times: Vec<f64>,
    /// A sentence for each of the first faults.
    pub(in crate::experiment) faults: Vec<String>,
}

// === impl Ledger ===

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the client starts session `number`.
    pub(in crate::experiment) fn begin(&self, number: u64, now: Duration) {
        let session = Session {
            begun: now,
            ended: now,
            client: None,
            server: None,
        };
        self.entries().sessions.insert(number, session);
    }

    /// Records that one end has seen session `number` end.
    pub(in crate::experiment) fn end(&self, number: u64, end: End, seen: Observed, now: Duration) {
        let mut entries = self.entries();
        entries.is_wrong |= matches!(seen, Observed::Wrong(_));
        match entries.sessions.get_mut(&number) {
            Some(session) => {
                session.ended = session.ended.max(now);
                let place = match end {
                    End::Client => &mut session.client,
                    End::Server => &mut session.server,
                };
                // If a session arrives twice, a wrong result must not be replaced by a right one.
                *place = Some(match (*place, seen) {
                    (None, seen) => seen,
                    (Some(first @ Observed::Wrong(_)), _) => first,
                    (_, Observed::Wrong(wrong)) => Observed::Wrong(wrong),
                    (Some(Observed::Exact), Observed::Exact) => Observed::Wrong(Wrong::Unknown),
                    (Some(first), _) => first,
                });
            }
            None => entries.nameless.push(seen),
        }
    }

    /// Records that a connection arrived at the server and ended without naming its session.
    pub(in crate::experiment) fn nameless(&self, seen: Observed) {
        let mut entries = self.entries();
        entries.is_wrong |= !matches!(seen, Observed::Broken(_));
        entries.nameless.push(seen);
    }

    /// Records that sessions may break between `from` and `to`.
    pub(in crate::experiment) fn disrupted(&self, from: Duration, to: Duration) {
        self.entries().disruptions.push(Disruption { from, to });
    }

    /// Returns the totals. Must be called after all observers have finished.
    pub(in crate::experiment) fn sum(&self) -> Sum {
        let entries = self.entries();
        let mut sum = Sum::default();
        for (number, session) in &entries.sessions {
            sum.sessions += 1;
            match session.verdict() {
                SessionOutcome::Exact => {
                    sum.exact += 1;
                    let time = session.ended.saturating_sub(session.begun);
                    sum.times.push(time.as_secs_f64());
                }
                SessionOutcome::Broken(how) => {
                    *sum.broken.entry(how).or_default() += 1;
                    if !entries.disruptions.iter().any(|d| d.explains(session)) {
                        sum.unexplained += 1;
                        sum.tell(format!(
                            "session {number} broke, and no event explains it: {session}"
                        ));
                    }
                }
                SessionOutcome::Wrong(_) => {
                    sum.wrong += 1;
                    sum.tell(format!("session {number} is silently wrong: {session}"));
                }
            }
        }
        for seen in &entries.nameless {
            // A nameless connection that broke belongs to a session that the client has seen break.
            if let Observed::Exact | Observed::Wrong(_) = seen {
                sum.wrong += 1;
                sum.tell(format!(
                    "a connection without a session at the server: {seen:?}"
                ));
            }
        }
        sum
    }

    /// Returns the times and the result of every session.
    pub(in crate::experiment) fn records(&self) -> Vec<Record> {
        let entries = self.entries();
        let record = |session: &Session| Record {
            begun: session.begun,
            ended: session.ended,
            outcome: session.verdict(),
        };
        entries.sessions.values().map(record).collect()
    }

    /// Returns whether a session has been silently wrong.
    pub(in crate::experiment) fn is_wrong(&self) -> bool {
        self.entries().is_wrong
    }
}

// === impl Session ===

impl Session {
    fn verdict(&self) -> SessionOutcome {
        match (self.client, self.server) {
            (Some(Observed::Wrong(wrong)), _) | (_, Some(Observed::Wrong(wrong))) => {
                SessionOutcome::Wrong(wrong)
            }
            (Some(Observed::Exact), Some(Observed::Exact)) => SessionOutcome::Exact,
            // The client has received the trailer, but no server has served the session.
            (Some(Observed::Exact), None) => SessionOutcome::Wrong(Wrong::Unknown),
            (Some(Observed::Broken(how)), _) | (_, Some(Observed::Broken(how))) => {
                SessionOutcome::Broken(how)
            }
            (None, _) => SessionOutcome::Broken(Break::TimedOut),
        }
    }
}

impl std::fmt::Display for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { begun, ended, .. } = self;
        write!(
            f,
            "from {:.2} s to {:.2} s, client {:?}, server {:?}",
            begun.as_secs_f64(),
            ended.as_secs_f64(),
            self.client,
            self.server
        )
    }
}

// === impl Disruption ===

impl Disruption {
    fn explains(&self, session: &Session) -> bool {
        session.begun <= self.to + AFTERMATH && session.ended >= self.from
    }
}

// === impl Sum ===

impl Sum {
    pub(in crate::experiment) fn broken(&self) -> u64 {
        self.broken.values().sum()
    }

    fn tell(&mut self, fault: String) {
        if self.faults.len() < TOLD {
            self.faults.push(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Observed = Observed::Wrong(Wrong::Short {
        arrived: 1,
        missing: 1,
    });
    const RESET: Observed = Observed::Broken(Break::Reset);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the ledger of one session from 10 s to 12 s.
    fn one(client: Option<Observed>, server: Option<Observed>) -> Ledger {
        let ledger = Ledger::default();
        ledger.begin(1, at(10));
        for (end, seen) in [(End::Client, client), (End::Server, server)] {
            if let Some(seen) = seen {
                ledger.end(1, end, seen, at(12));
            }
        }
        ledger
    }

    #[test]
    fn a_session_is_exact_when_both_ends_say_so() {
        let sum = one(Some(Observed::Exact), Some(Observed::Exact)).sum();
        assert_eq!(
            (sum.sessions, sum.exact, sum.broken(), sum.wrong),
            (1, 1, 0, 0)
        );
        assert_eq!(sum.times, [2.0]);
        for (client, server) in [
            (Some(Observed::Exact), Some(RESET)),
            (Some(RESET), Some(Observed::Exact)),
            (Some(RESET), None),
            (None, None),
        ] {
            let sum = one(client, server).sum();
            assert_eq!(
                (sum.exact, sum.broken(), sum.wrong),
                (0, 1, 0),
                "{client:?} {server:?}"
            );
        }
    }

    #[test]
    fn what_one_end_sees_wrong_is_wrong_whatever_the_other_says() {
        for other in [None, Some(Observed::Exact), Some(RESET)] {
            assert_eq!(one(Some(SHORT), other).sum().wrong, 1);
            let ledger = one(other, Some(SHORT));
            assert!(ledger.is_wrong());
            assert_eq!(ledger.sum().wrong, 1);
        }
        assert!(!one(Some(Observed::Exact), Some(RESET)).is_wrong());
    }

    #[test]
    fn an_answer_that_no_server_gave_is_wrong() {
        assert_eq!(one(Some(Observed::Exact), None).sum().wrong, 1);
    }

    #[test]
    fn a_session_that_arrives_twice_is_wrong() {
        let ledger = one(Some(Observed::Exact), Some(Observed::Exact));
        ledger.end(1, End::Server, Observed::Exact, at(13));
        assert_eq!(ledger.sum().wrong, 1);
    }

    #[test]
    fn connections_without_a_session_may_break_and_may_not_end_in_order() {
        for (seen, wrong) in [(RESET, 0), (SHORT, 1), (Observed::Exact, 1)] {
            let ledger = Ledger::default();
            ledger.nameless(seen);
            assert_eq!(ledger.sum().wrong, wrong);
        }
    }

    #[test]
    fn only_what_happened_meanwhile_or_just_before_explains_a_break() {
        let explained = |from, to| {
            let ledger = one(Some(RESET), None);
            ledger.disrupted(at(from), at(to));
            ledger.sum().unexplained == 0
        };
        assert!(explained(11, 11));
        assert!(explained(2, 30));
        assert!(explained(4, 10 - AFTERMATH.as_secs()));
        assert!(!explained(1, 9 - AFTERMATH.as_secs()));
        assert!(!explained(13, 14), "it had ended");
        assert_eq!(one(Some(RESET), None).sum().faults.len(), 1);
    }
}
