//! The short forms of the experiments with `taut snoop`. Their checks hold however slow the machine
//! is, so they may run at the same time. They have their own file, so that no other experiment runs
//! beside them.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn whatever_happens_every_stream_arrives_and_no_promise_could_be_broken() {
    let outcome = short_form("snoop-soak");
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

#[test]
fn a_guest_that_forwards_or_drops_what_it_offered_to_take_costs_no_transfer() {
    let outcome = short_form("snoop-hazards");
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

#[test]
fn real_servers_and_a_real_mpi_run_in_guests_and_no_promise_is_broken() {
    let outcome = short_form("applications");
    assert_none(&outcome, &["pages_failed", "lost_after_early_ack"]);
    let some = [
        "web_requests_s_tuned",
        "web_requests_s_snoop",
        "web_gain_snoop",
        "web_gain_grow",
        "mpi_bcast_gain",
        "mpi_alltoall_gain",
    ];
    assert_some(&outcome, &some);
    let series = outcome["series"].as_array().unwrap();
    for metric in [
        "web_requests",
        "web_latency_p50",
        "web_latency_p90",
        "mpi_broadcast",
        "mpi_alltoall",
    ] {
        let of_metric = series.iter().filter(|one| one["metric"] == metric);
        let names: Vec<_> = of_metric.filter_map(|one| one["name"].as_str()).collect();
        for configuration in [
            "cores not shared/",
            "tuned/",
            "snoop/",
            "snoop --grow --start-early/",
        ] {
            let is_there = names.iter().any(|name| name.starts_with(configuration));
            assert!(
                is_there,
                "{configuration} of {metric} is missing: {names:?}"
            );
        }
    }
}
