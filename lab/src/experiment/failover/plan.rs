//! The plan: the faults of relays, their order and times. The seed determines all of it.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;
use strum::IntoStaticStr;

use crate::experiment::Request;
use crate::experiment::workload::measured::shuffle;

/// The average number of sessions started per second.
pub(super) const RATE: u32 = 200;

/// What happens to the relay that carries the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Fault {
    /// The relay is killed (SIGKILL).
    Kill,
    /// SIGTERM: the relay finishes its sessions and takes no new ones.
    Drain,
    /// The link between it and the near relay drops everything.
    Blackhole,
    /// The same link drops what the near relay sends.
    Deaf,
    /// The same link drops what the relay sends.
    Mute,
    /// The relay's process runs for a tenth of the time.
    Slow,
}

/// A fault and its time since the start of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) fault: Fault,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The duration for which sessions are started.
    pub(super) load: Duration,
    /// How long each fault lasts.
    pub(super) fault: Duration,
    /// The events in order.
    pub(super) events: Vec<Event>,
}

// === impl Fault ===

impl Fault {
    pub(super) const ALL: [Self; 6] = [
        Self::Kill,
        Self::Drain,
        Self::Blackhole,
        Self::Deaf,
        Self::Mute,
        Self::Slow,
    ];

    /// Returns the name in figures.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        // Of six faults, the smallest form has one.
        let (rounds, kinds, fault, recovery) =
            request
                .form
                .pick((3, 6, 8_000, 5_000), (1, 6, 4_000, 3_000), (1, 1, 500, 500));
        let rounds = request.runs.unwrap_or(rounds);
        let (fault, recovery) = (
            Duration::from_millis(fault),
            Duration::from_millis(recovery),
        );
        let mut events = Vec::new();
        let mut at = recovery;
        for _ in 0..rounds {
            let mut faults = Fault::ALL;
            shuffle(&mut faults, &mut random);
            for fault_kind in faults.into_iter().take(kinds) {
                events.push(Event {
                    at,
                    fault: fault_kind,
                });
                at += fault + recovery;
            }
        }
        Self {
            seed: request.seed,
            load: at,
            fault,
            events,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Form;

    fn plan(quick: bool, seed: u64) -> Plan {
        Plan::of(&Request {
            seed,
            ..Request::of_test(Form::of(quick))
        })
    }

    #[test]
    fn every_fault_comes_equally_often_and_is_over_before_the_next() {
        for quick in [true, false] {
            let plan = plan(quick, 1);
            let count = |fault| plan.events.iter().filter(|e| e.fault == fault).count();
            for fault in Fault::ALL {
                assert_eq!(count(fault) * Fault::ALL.len(), plan.events.len());
            }
            let ends = plan.events.iter().map(|e| e.at + plan.fault);
            let next = plan.events.iter().skip(1).map(|e| e.at).chain([plan.load]);
            assert!(ends.zip(next).all(|(end, next)| end < next));
        }
    }

    #[test]
    fn the_short_form_leaves_time_for_the_start_within_a_minute() {
        assert!(plan(true, 1).load <= Duration::from_secs(50));
    }

    #[test]
    fn a_seed_is_an_order() {
        assert_eq!(plan(false, 1).events, plan(false, 1).events);
        assert_ne!(plan(false, 1).events, plan(false, 2).events);
    }
}
