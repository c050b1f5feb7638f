//! What each fault did to the sessions: pure bookkeeping of times and results.

use std::time::Duration;

use super::plan::Fault;
use crate::experiment::sessions::ledger::{Record, SessionOutcome};

/// A fault that has happened. Times are since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) fault: Fault,
    pub(super) from: Duration,
    /// When the relay began to work as before again.
    pub(super) to: Duration,
}

/// What one fault did.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Aftermath {
    pub(super) fault: Fault,
    /// The time from the fault to the start of the last session that began during it and failed.
    pub(super) failed_for: Duration,
    /// The number of sessions that began during the fault and failed.
    pub(super) failed_new: u64,
    /// The number of sessions that had begun before the fault, were open then, and failed.
    pub(super) failed_open: u64,
    /// The number of sessions that began after the fault and before the next one, and failed.
    pub(super) failed_later: u64,
    /// The longest time that an exact session took which began during the fault.
    pub(super) longest: Duration,
}

/// Returns what each of `faults` did, in their order, and the number of failures that belong to none of
/// them: those of sessions that had ended before the first fault.
pub(super) fn aftermaths(faults: &[Happened], sessions: &[Record]) -> (Vec<Aftermath>, u64) {
    let mut all: Vec<_> = faults.iter().map(Aftermath::of).collect();
    let mut unexplained = 0;
    for session in sessions {
        let failed = session.outcome != SessionOutcome::Exact;
        // The last fault that had begun when the session began.
        let earlier = faults.iter().rposition(|fault| fault.from <= session.begun);
        if let Some(index) = earlier {
            let (fault, sum) = (&faults[index], &mut all[index]);
            let during = session.begun < fault.to;
            match failed {
                false if during => {
                    let took = session.ended.saturating_sub(session.begun);
                    sum.longest = sum.longest.max(took);
                }
                true if during => {
                    sum.failed_new += 1;
                    sum.failed_for = sum.failed_for.max(session.begun - fault.from);
                }
                _ => {}
            }
            if failed && during {
                continue;
            }
        }
        if !failed {
            continue;
        }
        // The session was open when a fault began, or there was none.
        let open_at = |fault: &&Happened| session.begun < fault.from && fault.from <= session.ended;
        match faults.iter().position(|fault| open_at(&fault)) {
            Some(index) => all[index].failed_open += 1,
            None => match earlier {
                Some(index) => all[index].failed_later += 1,
                None => unexplained += 1,
            },
        }
    }
    (all, unexplained)
}

// === impl Aftermath ===

impl Aftermath {
    fn of(happened: &Happened) -> Self {
        Self {
            fault: happened.fault,
            failed_for: Duration::ZERO,
            failed_new: 0,
            failed_open: 0,
            failed_later: 0,
            longest: Duration::ZERO,
        }
    }

    /// Returns the number of all sessions that failed because of the fault.
    pub(super) fn failed(&self) -> u64 {
        self.failed_new + self.failed_open + self.failed_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::sessions::ledger::Break;

    const BROKEN: SessionOutcome = SessionOutcome::Broken(Break::Reset);

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn session(begun: u64, ended: u64, outcome: SessionOutcome) -> Record {
        Record {
            begun: ms(begun),
            ended: ms(ended),
            outcome,
        }
    }

    /// Two faults, from 1 s to 2 s and from 3 s to 4 s.
    fn faults() -> [Happened; 2] {
        [(Fault::Kill, 1_000), (Fault::Drain, 3_000)].map(|(fault, from)| Happened {
            fault,
            from: ms(from),
            to: ms(from + 1_000),
        })
    }

    #[test]
    fn a_fault_lasts_to_the_start_of_the_last_session_that_failed() {
        let sessions = [
            session(1_000, 1_100, BROKEN),
            session(1_300, 1_900, BROKEN),
            session(1_500, 1_750, SessionOutcome::Exact),
            session(2_000, 2_100, SessionOutcome::Exact),
        ];
        let (all, unexplained) = aftermaths(&faults(), &sessions);
        assert_eq!(all[0].failed_for, ms(300));
        assert_eq!((all[0].failed_new, all[0].failed()), (2, 2));
        assert_eq!(all[0].longest, ms(250));
        assert_eq!((all[1].failed(), unexplained), (0, 0));
    }

    #[test]
    fn an_open_session_and_a_later_one_are_no_new_ones() {
        let sessions = [
            // Open at the first fault, and at the second one.
            session(900, 1_000, BROKEN),
            session(2_900, 3_500, BROKEN),
            // After each of them.
            session(2_000, 2_100, BROKEN),
            session(4_000, 4_100, BROKEN),
        ];
        let (all, unexplained) = aftermaths(&faults(), &sessions);
        for of in &all {
            assert_eq!((of.failed_new, of.failed_open, of.failed_later), (0, 1, 1));
            assert_eq!(of.failed_for, Duration::ZERO);
        }
        assert_eq!(unexplained, 0);
    }

    #[test]
    fn a_failure_before_every_fault_is_not_explained() {
        let sessions = [session(100, 200, BROKEN)];
        assert_eq!(aftermaths(&faults(), &sessions).1, 1);
        assert_eq!(aftermaths(&[], &sessions).1, 1);
    }
}
