//! The short form of `taut lab run failover`. It has its own file, so that no other experiment runs at
//! the same time: it needs the whole machine.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn what_goes_over_relays_that_fail_is_exact_or_visibly_broken() {
    let outcome = short_form("failover");
    // Checks only what holds however slow the machine is. A session that takes too long fails.
    assert_none(
        &outcome,
        &[
            "wrong_transfers",
            "relay_problems",
            "failed_before_every_fault",
        ],
    );
    assert_some(&outcome, &["sessions", "exact"]);
    for key in [
        "failed_seconds_after_kill",
        "failed_seconds_after_blackhole",
        "failed_seconds_after_one_way_partition",
        "failed_seconds_after_slow_down",
        "failed_sessions_after_drain",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
    let faults = &outcome["calibration"]["faults"];
    assert_eq!(faults["measured"], faults["least"], "{outcome}");
}
