//! The short form of each experiment. They take minutes, and need the machine for themselves:
//! `make test-all` runs them, one after the other.
//!
//! Times are not asserted here. The experiments check them and report the result in their exit
//! status. A session that takes too long breaks, or fails.

use std::fs;

use serde_json::Value;

use crate::outcome::{
    assert_figures, assert_least, assert_none, assert_some, measure, report, series,
};

/// Runs the short form of an experiment.
fn whole(experiment: &str) -> Value {
    measure(experiment, &["--quick"])
}

/// Runs the short form of an experiment, and measures each configuration once.
fn once(experiment: &str) -> Value {
    measure(experiment, &["--quick", "--runs", "1"])
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_download_of_pied_piper_is_exact_and_its_report_can_be_drawn() {
    let outcome = once("pied-piper");
    // The experiment would have failed if a file differed from the server's.
    for (way, sizes) in [
        (
            "e2e",
            &[
                "10 kB",
                "1 MB",
                "10 MB",
                "10 MB/0.1 % loss",
                "1 MB/64 kB window",
            ][..],
        ),
        ("split", &["10 kB", "1 MB", "10 MB", "10 MB/0.1 % loss"]),
        (
            "taut",
            &[
                "10 kB",
                "1 MB",
                "10 MB",
                "10 MB/0.1 % loss",
                "1 MB/64 kB window",
            ],
        ),
    ] {
        for size in sizes {
            for metric in ["ttfb", "total"] {
                let name = format!("{way}/{size}");
                assert_eq!(
                    series(&outcome, &name, metric)["n"],
                    1,
                    "{metric} of {name}"
                );
            }
        }
    }
    assert_figures(
        &outcome,
        &[
            "ttfb_over_floor_ms",
            "speedup_1mb",
            "speedup_10mb_loss_0p1",
            "speedup_1mb_64k_window",
            "jain_two_flows",
            "jain_two_flows_routed",
        ],
    );
    let window = &outcome["calibration"]["client_window_seen_by_server_bytes"];
    assert_eq!(window["measured"], 65_535.0, "{outcome}");

    let page = report(&outcome);
    assert!(page.contains("<svg"));
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn what_turbo_flows_leave_to_flows_of_cubic_is_measured() {
    let outcome = once("neighbours");
    assert_some(&outcome, &["cubic_share_left"]);
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_stream_to_a_guest_is_exact_and_each_configuration_is_measured() {
    let outcome = once("consolidate");
    // The experiment would have failed if a received stream differed from the sent one.
    for configuration in [
        "as it comes",
        "tuned",
        "snoop",
        "snoop --grow",
        "snoop --grow --start-early",
    ] {
        for size in ["100 kB", "1 MB"] {
            for metric in ["sender_data_phase", "receiver_with_handshake"] {
                let name = format!("{configuration}/{size}");
                assert_eq!(
                    series(&outcome, &name, metric)["n"],
                    1,
                    "{metric} of {name}"
                );
            }
        }
    }
    assert_figures(
        &outcome,
        &[
            "baseline_100kb_mb_s",
            "tuned_gain_100kb",
            "snoop_gain_100kb",
            "snoop_grow_gain_100kb",
            "worst_cell_ratio",
        ],
    );
    for check in ["lost_after_early_ack", "segments_dropped_by_guests"] {
        let check = &outcome["calibration"][check];
        assert_eq!(check["measured"], check["most"], "{outcome}");
    }

    let page = report(&outcome);
    assert!(page.contains("<svg") && page.contains("A guest that waits for its core"));
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn idle_sessions_leave_no_descriptor() {
    let outcome = once("idle-sessions");
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    assert_eq!(outcome["headline"]["descriptors_left"], 0.0);
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn looks_at_many_connections_see_all_of_them() {
    let outcome = once("observe-cost");
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    // Four configurations, each at two numbers of idle connections and one of busy connections.
    assert_eq!(outcome["series"].as_array().unwrap().len(), 12);
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn many_connections_that_rest_are_tuned_by_each_way() {
    let outcome = once("tune-cost");
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    assert_eq!(outcome["series"].as_array().unwrap().len(), 8);
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn what_limits_a_connection_is_said_of_each_cause() {
    let outcome = once("verdicts");
    let series = outcome["series"].as_array().unwrap();
    let used = series.iter().filter(|s| s["metric"] == "bottleneck");
    assert_eq!(
        used.count() as f64,
        outcome["headline"]["runs"],
        "{outcome}"
    );
    // One run of each cause cannot show how often verdicts are right. A majority of right verdicts
    // is not chance.
    let right = outcome["headline"]["accuracy"].as_f64().unwrap();
    assert!(right > 0.5, "{outcome}");
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_relay_beside_taut_relays_exactly_and_is_measured() {
    let outcome = once("relay-peers");
    assert_least(
        &outcome,
        &[
            "contenders_that_relayed_exactly",
            "bulk_bytes_missing",
            "connections_failed",
        ],
    );
    for relay in ["taut", "haproxy", "nginx", "socat", "ssh"] {
        for (what, metric) in [
            ("bulk", "throughput"),
            ("bulk", "cpu per GB"),
            ("connections", "new connections"),
            ("echo", "added p99"),
            ("idle", "resident memory per session"),
        ] {
            series(&outcome, &format!("{relay}/{what}"), metric);
        }
    }
    assert_figures(
        &outcome,
        &[
            "bulk_throughput_over_best_of_haproxy_nginx",
            "cpu_per_gb_over_haproxy",
            "connections_over_haproxy",
            "idle_memory_over_haproxy",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_pair_of_relays_carries_exactly_and_is_measured() {
    let outcome = once("mesh-peers");
    assert_least(
        &outcome,
        &[
            "contenders_that_relayed_exactly",
            "bulk_bytes_missing",
            "connections_failed",
            "legs_tapped",
            "legs_with_readable_bytes",
        ],
    );
    for relay in ["taut", "haproxy-tls", "nginx-tls", "stunnel"] {
        for (what, metric) in [
            ("flow", "throughput"),
            ("flow", "cpu per GB"),
            ("connections", "new connections"),
            ("echo", "round trip p99"),
            ("idle session", "resident memory"),
        ] {
            series(&outcome, &format!("{relay}/{what}"), metric);
        }
    }
    assert_figures(
        &outcome,
        &[
            "flow_over_haproxy_tls",
            "connections_over_haproxy_tls",
            "connections_without_pool_over_haproxy_tls",
            "cpu_per_gb_over_haproxy_tls",
            "echo_p99_over_haproxy_tls",
            "pooled_connection_bytes",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn a_budget_is_kept_to_and_the_machines_bound_is_set_back() {
    let bound = || fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap();
    let before = bound();
    let outcome = once("budget");
    let peak = outcome["headline"]["peak_over_budget"].as_f64().unwrap();
    assert!(peak > 0.1 && peak <= 1.05, "{peak}");
    assert_figures(
        &outcome,
        &["jain", "goodput_over_kernel", "least_satisfied"],
    );
    assert_eq!(bound(), before);
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_congestion_control_of_a_guest_that_is_away_is_measured() {
    let outcome = once("descheduled");
    assert_some(
        &outcome,
        &[
            "cubic_mbit_share25",
            "bbr_mbit_share25",
            "taut_bbr_over_cubic_share25",
            "taut_bbr_over_bbr_share100",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn blocks_of_a_guest_that_is_away_are_read_with_and_without_the_module() {
    let outcome = once("incast");
    assert_some(
        &outcome,
        &[
            "goodput_over_rto200_1_sender",
            "goodput_over_small_rto_20_senders",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn a_file_takes_every_way_over_the_internet() {
    let outcome = once("internet");
    // The experiment would have failed if a file differed from the server's.
    assert_some(
        &outcome,
        &[
            "speedup_4mb",
            "speedup_4mb_over_e2e_turbo",
            "baseline_speedup_4mb",
            "relays_turbo_over_cubic_4mb",
            "times_ideal_4mb_taut",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn every_way_over_a_long_fat_path_is_measured() {
    let outcome = once("long-fat");
    assert_figures(
        &outcome,
        &[
            "locked_rcvbuf_before_mbit",
            "locked_rcvbuf_after_share",
            "locked_sndbuf_after_share",
            "locked_rcvbuf_after_share_narrow",
            "kernel_alone_share",
        ],
    );
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn what_goes_over_relays_that_fail_is_exact_or_visibly_broken() {
    let outcome = whole("failover");
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
    assert_figures(
        &outcome,
        &[
            "failed_seconds_after_kill",
            "failed_seconds_after_blackhole",
            "failed_seconds_after_one_way_partition",
            "failed_seconds_after_slow_down",
            "failed_sessions_after_drain",
        ],
    );
    let faults = &outcome["calibration"]["faults"];
    assert_eq!(faults["measured"], faults["least"], "{outcome}");
}

#[test]
#[ignore = "minutes: make test-all runs it"]
fn what_a_soaked_mesh_carries_is_exact_or_visibly_broken_and_nothing_is_left_of_it() {
    let outcome = whole("soak");
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

#[test]
#[ignore = "minutes: make test-all runs it"]
fn whatever_happens_every_stream_arrives_and_no_promise_could_be_broken() {
    let outcome = whole("snoop-soak");
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
#[ignore = "minutes: make test-all runs it"]
fn a_guest_that_forwards_or_drops_what_it_offered_to_take_costs_no_transfer() {
    let outcome = whole("snoop-hazards");
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
#[ignore = "minutes: make test-all runs it"]
fn real_servers_and_a_real_mpi_run_in_guests_and_no_promise_is_broken() {
    let outcome = whole("applications");
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
