use proptest::prelude::*;

use super::*;

fn web() -> Condition {
    Condition::Destination {
        forward: "web".into(),
        to: "192.0.2.1:80".into(),
    }
}

/// Totals that a test counts up.
#[derive(Clone, Copy, Default)]
struct Totals {
    refused: u64,
    timed_out: u64,
    succeeded: u64,
}

impl Totals {
    fn seen(self) -> Observation {
        Observation {
            failed: vec![
                ("connect_refused", self.refused),
                ("connect_timed_out", self.timed_out),
            ],
            succeeded: self.succeeded,
            affected: None,
        }
    }
}

/// A tracker in virtual time.
struct Rig {
    tracker: Tracker,
    now: Instant,
    totals: Totals,
}

impl Rig {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            tracker: Tracker::new(now),
            now,
            totals: Totals::default(),
        }
    }

    /// A second passes in which this many attempts fail and succeed.
    fn second(&mut self, failed: u64, succeeded: u64) -> Option<Change> {
        self.now += Duration::from_secs(1);
        self.totals.refused += failed;
        self.totals.succeeded += succeeded;
        let change = self.tracker.observe(web(), self.totals.seen(), self.now);
        self.tracker.end_round();
        change
    }
}

fn warning(change: Option<Change>) -> (&'static str, u64) {
    match change {
        Some(Change::Broken {
            cause, affected, ..
        }) => (cause, affected),
        other => panic!("no warning but {other:?}"),
    }
}

#[test]
fn an_outage_is_two_lines_with_its_length_and_count() {
    let mut rig = Rig::new();
    assert_eq!(rig.second(0, 3), None);
    assert_eq!(warning(rig.second(2, 0)), ("connect_refused", 2));
    assert_eq!(rig.second(5, 0), None);
    // Without an attempt nothing is known.
    assert_eq!(rig.second(0, 0), None);
    assert_eq!(rig.tracker.broken()[0].affected, 7);
    let well = Change::Well {
        condition: web(),
        lasted: Duration::from_secs(3),
        affected: 7,
    };
    assert_eq!(rig.second(0, 1), Some(well));
    assert_eq!(rig.tracker.broken(), []);
}

#[test]
fn a_few_failures_among_many_successes_are_no_outage_and_do_not_prolong_one() {
    let mut rig = Rig::new();
    assert_eq!(rig.second(4, 5), None);
    warning(rig.second(5, 5));
    assert_eq!(rig.second(1, 5), None);
    assert!(matches!(rig.second(1, 6), Some(Change::Well { .. })));
}

#[test]
fn the_cause_is_the_most_frequent_one_of_the_round() {
    let mut rig = Rig::new();
    rig.totals.timed_out = 3;
    assert_eq!(warning(rig.second(2, 0)), ("connect_timed_out", 5));
}

#[test]
fn a_destination_that_flaps_is_reported_once_a_minute_with_the_whole_count() {
    let mut rig = Rig::new();
    warning(rig.second(1, 0));
    assert!(rig.second(0, 1).is_some());
    // Another 57 seconds of it, 28 outages.
    for _ in 0..28 {
        assert_eq!(rig.second(1, 0), None);
        assert_eq!(rig.second(0, 1), None);
    }
    assert_eq!(rig.second(0, 1), None);
    assert_eq!(rig.second(0, 1), None);
    assert_eq!(warning(rig.second(1, 0)), ("connect_refused", 29));
}

#[test]
fn a_condition_without_a_success_ends_when_it_has_been_quiet() {
    let start = Instant::now();
    let mut tracker = Tracker::new(start);
    let mut at = |second, refused| {
        let seen = Observation {
            failed: vec![("full", refused)],
            ..Observation::default()
        };
        let now = start + Duration::from_secs(second);
        tracker.observe(Condition::MaxSessions, seen, now)
    };
    warning(at(1, 4));
    assert_eq!(at(20, 9), None);
    assert_eq!(at(49, 9), None);
    let well = Change::Well {
        condition: Condition::MaxSessions,
        lasted: Duration::from_secs(49),
        affected: 9,
    };
    assert_eq!(at(50, 9), Some(well));
}

#[test]
fn one_wrong_destination_of_a_client_is_no_outage() {
    let now = Instant::now();
    let mut tracker = Tracker::new(now);
    let condition = Condition::Destinations {
        forward: "router".into(),
    };
    let mut seen = |refused| {
        let totals = Totals {
            refused,
            ..Totals::default()
        };
        tracker.observe(condition.clone(), totals.seen(), now)
    };
    assert_eq!(seen(9), None);
    assert_eq!(warning(seen(19)), ("connect_refused", 10));
}

#[test]
fn many_warnings_at_once_are_spread_over_time_and_none_is_lost() {
    let start = Instant::now();
    let mut tracker = Tracker::new(start);
    let mut warnings = 0;
    for second in 0..600 {
        for i in 0..100 {
            let condition = Condition::Peer {
                peer: format!("relay{i}"),
            };
            let seen = Observation {
                failed: vec![("refused", second + 1)],
                ..Observation::default()
            };
            let now = start + Duration::from_secs(second);
            warnings += u32::from(tracker.observe(condition, seen, now).is_some());
        }
        let most = BURST + u32::try_from(second).unwrap() / 3;
        assert_eq!(warnings, most.min(100), "after {second} s");
    }
}

#[test]
fn a_condition_whose_forward_is_gone_is_forgotten() {
    let mut rig = Rig::new();
    warning(rig.second(1, 0));
    rig.tracker.end_round();
    assert_eq!(rig.tracker.broken(), []);
}

#[test]
fn the_table_is_bounded() {
    let now = Instant::now();
    let mut tracker = Tracker::new(now);
    for i in 0..MAX_CONDITIONS + 10 {
        let condition = Condition::LookUp {
            name: format!("host{i}"),
        };
        tracker.observe(condition, Totals::default().seen(), now);
    }
    assert_eq!(tracker.states.len(), MAX_CONDITIONS);
}

proptest! {
    /// Whatever happens, warnings and recoveries of a condition alternate, warnings keep their
    /// distance, and the counts of the log and of the open episode add up to the failures.
    #[test]
    fn lines_alternate_and_no_failure_is_missing_from_their_counts(
        seconds in proptest::collection::vec((0u64..4, 0u64..8), 1..300),
    ) {
        let mut rig = Rig::new();
        let mut open = false;
        let mut warned: Option<Instant> = None;
        let mut logged = 0;
        for (failed, succeeded) in seconds {
            match rig.second(failed, succeeded) {
                Some(Change::Broken { .. }) => {
                    prop_assert!(!open);
                    prop_assert!(warned.is_none_or(|at| rig.now >= at + Duration::from_secs(60)));
                    warned = Some(rig.now);
                    open = true;
                }
                Some(Change::Well { affected, .. }) => {
                    prop_assert!(open);
                    logged += affected;
                    open = false;
                }
                None => {}
            }
        }
        let state = &rig.tracker.states[&web()];
        let pending = state.carried + state.episode.as_ref().map_or(0, |e| e.affected);
        prop_assert!(logged + pending <= rig.totals.refused);
        if open {
            prop_assert!(state.episode.is_some());
        }
    }
}
