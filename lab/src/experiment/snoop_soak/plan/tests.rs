//! Tests that a run covers all cases and depends only on its seed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::experiment::Form;

fn plan(quick: bool) -> Plan {
    Plan::of(&Request {
        form: Form::of(quick),
        seed: 1,
        runs: None,
        only: None,
        taut: PathBuf::new(),
    })
}

#[test]
fn every_set_of_options_meets_frames_of_both_kinds_and_all_transfers_are_planned() {
    let plan = plan(false);
    let kinds: BTreeSet<_> = plan.phases.iter().map(|p| (p.options, p.single)).collect();
    assert_eq!(kinds.len(), 2 * Options::ALL.len());
    assert_eq!(plan.phases.iter().map(|p| p.transfers).sum::<u64>(), 5_000);
    for pair in plan.phases.windows(2) {
        assert_eq!(pair[0].first + pair[0].transfers, pair[1].first);
    }
}

#[test]
fn the_short_form_has_every_set_of_options_too() {
    let plan = plan(true);
    let kinds: BTreeSet<_> = plan.phases.iter().map(|p| p.options).collect();
    assert_eq!(kinds.len(), Options::ALL.len());
    assert!(plan.phases.iter().any(|p| p.single));
    assert!(plan.phases.iter().any(|p| !p.single));
}

#[test]
fn transfers_are_of_every_kind_and_the_same_for_a_seed() {
    let phase = plan(false).phases[0];
    let all: Vec<_> = (0..1_000).map(|n| phase.transfer(n)).collect();
    assert_eq!(all[7], phase.transfer(7));
    let has = |what: fn(&Transfer) -> bool| assert!(all.iter().any(what));
    has(|t| t.v6);
    has(|t| !t.v6);
    has(|t| t.opener == Side::Guest);
    has(|t| t.peer.bytes > 0 && t.guest.bytes > 0);
    has(|t| t.peer.bytes == 0);
    has(|t| t.peer.bytes > 1_000_000);
    has(|t| (1..10).contains(&t.peer.bytes));
    has(|t| t.peer.writing == Writing::Pieces);
    has(|t| matches!(t.guest.reading, Reading::Late(_)));
    has(|t| t.guest.reading == Reading::Slowly);
    has(|t| t.offer == Offer::FastOpen);
    assert!(all.iter().all(|t| t.peer.bytes + t.guest.bytes > 0));
}

#[test]
fn every_fault_comes_in_the_short_form_too_and_so_does_a_phase_without_any() {
    for quick in [true, false] {
        let plan = plan(quick);
        let on = || plan.phases.iter().filter(|p| p.options != Options::Off);
        let has = |what: fn(Faults) -> bool| assert!(on().any(|phase| what(phase.faults)));
        has(|faults| faults.forwards);
        has(|faults| faults.resizes);
        has(|faults| faults.exhausts);
        has(|faults| faults.shrinks);
        has(|faults| faults == Faults::default());
        assert!(on().any(|phase| phase.kills));
    }
}

#[test]
fn a_process_is_killed_beside_a_guest_that_drops_data_in_one_phase_of_a_long_run() {
    let count = |quick| plan(quick).phases.iter().filter(|p| p.may_lose()).count();
    assert_eq!([count(true), count(false)], [0, 1]);
}

#[test]
fn transfers_go_behind_the_guest_and_buffers_change_where_the_phase_has_it() {
    let mut phase = plan(false).phases[0];
    let count = |phase: Phase, of: fn(&Transfer) -> bool| {
        (0..300).filter(|n| of(&phase.transfer(*n))).count()
    };
    phase.faults = Faults::default();
    assert_eq!(count(phase, |t| t.behind), 0);
    assert_eq!(count(phase, |t| t.guest.reading == Reading::Resizing), 0);
    phase.faults.forwards = true;
    phase.faults.resizes = true;
    assert!(count(phase, |t| t.behind) > 50);
    assert!(count(phase, |t| t.guest.reading == Reading::Resizing) > 30);
}

#[test]
fn every_kind_of_act_comes_before_any_comes_again() {
    let plan = plan(false);
    let phase = plan.phases.iter().find(|phase| phase.kills).unwrap();
    let acts: Vec<_> = phase.acts().take(3).collect();
    let has = |what: fn(&Act) -> bool| assert!(acts.iter().any(|(_, act)| what(act)));
    has(|act| matches!(act, Act::Kill(_)));
    has(|act| matches!(act, Act::Stop(_)));
    has(|act| matches!(act, Act::Off(_)));
}
