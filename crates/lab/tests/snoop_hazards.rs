//! The short form of `taut lab run snoop-hazards`. It has its own file, so that no other experiment
//! runs at the same time.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn a_guest_that_forwards_or_drops_what_it_offered_to_take_costs_no_transfer() {
    let outcome = short_form("snoop-hazards");
    // Checks only what holds however slow the machine is.
    let none = [
        "controls_incomplete",
        "forwarding_incomplete",
        "forwarding_ttl_kept_incomplete",
        "rcvbuf_incomplete",
    ];
    assert_none(&outcome, &none);
    // The hazards must have occurred.
    let some = [
        "complete",
        "forwarding_lost_behind",
        "rcvbuf_acked_early",
        "ttl_kept_acked_early",
    ];
    assert_some(&outcome, &some);
}
