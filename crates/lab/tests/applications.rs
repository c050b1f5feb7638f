//! The short form of `taut lab run applications`. It has its own file, so that no other experiment
//! runs at the same time.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/binaries.rs"]
mod binaries;
#[path = "shared/short_form.rs"]
mod short_form;

use short_form::{assert_none, assert_some, short_form};

#[test]
fn real_servers_and_a_real_mpi_run_in_guests_and_no_promise_is_broken() {
    let outcome = short_form("applications");
    // Checks only what holds however slow the machine is.
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
