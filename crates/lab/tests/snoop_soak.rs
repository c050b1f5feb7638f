//! The short form of `taut lab run snoop-soak`. It has its own file, so that no other experiment
//! runs at the same time.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn whatever_happens_every_stream_arrives_and_no_promise_could_be_broken() {
    let outcome = short_form("snoop-soak");
    // Checks only what holds however slow the machine is.
    let none = [
        "streams_wrong",
        "streams_hung",
        "violations",
        "lost_after_early_ack",
        "process_faults",
        "guest_refused",
        "acked_early_control",
    ];
    assert_none(&outcome, &none);
    // `taut snoop` must have been active, and the faults must have occurred.
    let some = [
        "transfers",
        "acked_early_share",
        "restarts",
        "pauses",
        "ring_drops",
    ];
    assert_some(&outcome, &some);
}
