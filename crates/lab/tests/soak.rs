//! The short form of `taut lab run soak`. It has its own file, so that no other experiment runs at
//! the same time: it needs the whole machine.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn what_a_soaked_mesh_carries_is_exact_or_visibly_broken_and_nothing_is_left_of_it() {
    let outcome = short_form("soak");
    // Checks only what holds however slow the machine is. A session that takes too long breaks.
    let none = [
        "silently_wrong",
        "leaked_descriptors",
        "sessions_left",
        "pipes_in_use_left",
        "kernel_leftovers",
        "relay_faults",
        "outsider_dialled",
        "outsider_heard_bytes",
    ];
    assert_none(&outcome, &none);
    let some = [
        "sessions",
        "exact",
        "broken_visibly",
        "outsider_connections",
    ];
    assert_some(&outcome, &some);
}
