//! A few seconds of each experiment (`--smoke`): that it builds its world, measures its smallest part,
//! takes everything down, and writes an outcome that a report can be made of.
//!
//! How fast the machine is does not matter here, so these tests run beside each other and beside all
//! others: of a figure that is nothing on a slow machine, such as a ratio of bytes in 50 ms, only the series
//! is required. `long` has the short forms.

use std::collections::BTreeSet;
use std::str;

use taut_sys_testing::skip;

use crate::binaries::{kernels, lab};
use crate::outcome::{assert_figures, assert_least, assert_some, measure, report, series};

/// What an outcome of the smallest part must have.
#[derive(Default)]
struct Shape {
    /// The programs without which the test is skipped.
    needs: &'static [&'static str],
    /// Whether the experiment boots a guest under QEMU, whose kernel `make guests` fetches.
    boots_qemu: bool,
    /// The figures that are greater than 0.
    some: &'static [&'static str],
    /// Further figures that are numbers.
    figures: &'static [&'static str],
    /// The names and metrics of series; there may be others.
    series: &'static [(&'static str, &'static str)],
    /// The checks that measure exactly what they have to, such as no byte too few.
    exact: &'static [&'static str],
}

/// Defines a test for each experiment.
macro_rules! smoke {
    ($($test:ident => $experiment:literal { $($field:ident: $value:expr),* $(,)? })*) => {
        const TESTED: &[&str] = &[$($experiment),*];
        $(
            #[test]
            fn $test() {
                #[allow(clippy::needless_update, reason = "one experiment may need every field")]
                check($experiment, &Shape { $($field: $value,)* ..Shape::default() });
            }
        )*
    };
}

smoke! {
    pied_piper_downloads_a_file_end_to_end_and_over_relays => "pied-piper" {
        needs: &["nginx", "curl", "ssh", "sshd", "ss"],
        // A download whose bytes differ from the server's fails an experiment: this one and others.
        some: &["jain_two_flows", "jain_two_flows_routed"],
        figures: &["ttfb_over_floor_ms", "long_flow_share", "long_flow_share_routed"],
        series: &[
            ("e2e/10 kB", "ttfb"),
            ("e2e/10 kB", "total"),
            ("taut/10 kB", "total"),
            ("e2e/10 kB/64 kB window", "total"),
            ("taut/two flows", "jain"),
        ],
    }
    internet_downloads_a_file_by_each_way => "internet" {
        needs: &["nginx", "curl", "ssh", "sshd", "ip"],
        some: &["speedup_10kb", "speedup_10kb_over_e2e_turbo", "baseline_speedup_10kb", "times_ideal_10kb_taut"],
        series: &[
            ("e2e/10 kB/Europe - US East", "ttfb"),
            ("ssh/10 kB/Europe - US East", "total"),
            ("taut/10 kB/Europe - US East", "total"),
        ],
    }
    neighbours_share_a_link => "neighbours" {
        needs: &["nginx", "curl"],
        series: &[
            ("Cubic/0 s/cubic 2 + 2 Cubic", "throughput"),
            ("joined/3 s/turbo 2 + 2 Cubic", "throughput"),
        ],
    }
    routes_compares_every_route_of_a_pair => "routes" {
        needs: &["nginx", "curl"],
        some: &["pairs", "choice_over_best"],
        series: &[
            ("e2e/dallas-dallas/turbo", "ttfb"),
            ("washington/dallas-dallas/turbo", "total"),
        ],
    }
    consolidate_sends_to_a_guest_behind_snoop => "consolidate" {
        needs: &["linux.uml"],
        figures: &["cells_below"],
        series: &[
            ("snoop --grow/100 kB/1 guest", "sender_data_phase"),
            ("snoop --grow/100 kB/1 guest", "receiver_with_handshake"),
        ],
        exact: &["lost_after_early_ack", "segments_dropped_by_guests"],
    }
    applications_serves_pages_from_guests => "applications" {
        needs: &["linux.uml", "nginx", "php-cgi", "mariadbd", "wrk"],
        some: &["web_requests_s_snoop"],
        series: &[("snoop/8 browsers", "web_requests"), ("snoop/8 browsers", "web_latency_p90")],
        exact: &["pages_failed", "lost_after_early_ack"],
    }
    idle_sessions_leave_no_descriptor_of_their_own => "idle-sessions" {
        some: &["sessions"],
        figures: &["resident_bytes_per_session", "kernel_bytes_per_session"],
        series: &[("relay", "resident memory per session")],
        exact: &["descriptors_per_session", "descriptors_left"],
    }
    observe_cost_scans_idle_and_busy_connections => "observe-cost" {
        needs: &["ss"],
        figures: &["top_batch_100_core_share", "top_json_100_busy_core_share", "ss_100_core_share"],
        series: &[
            ("taut top --batch/100 idle connections", "CPU"),
            ("ss -tinem/100 busy connections", "CPU"),
        ],
        exact: &["connections_seen"],
    }
    tune_cost_tunes_by_each_way => "tune-cost" {
        figures: &["advise_core_share", "apply_core_share", "apply_one_talks_core_share", "budget_core_share"],
        series: &[
            ("taut tune", "CPU at rest"),
            ("taut tune --apply --budget 1GiB", "CPU of the start"),
        ],
        exact: &["connections_seen"],
    }
    verdicts_asks_each_command_about_a_connection => "verdicts" {
        needs: &["nginx", "curl", "socat", "iperf3", "nft"],
        some: &["runs", "both_ends_runs", "no_events_runs", "top_runs", "watch_runs"],
        series: &[("used/cubic (tuned on): idle", "bottleneck")],
    }
    gains_runs_a_world_with_its_limit_and_without => "gains" {
        needs: &["nginx", "curl", "socat", "iperf3"],
        some: &["runs"],
        series: &[("carried/cubic (tuned on): send buffer", "goodput")],
    }
    long_fat_tunes_a_connection => "long-fat" {
        needs: &["socat"],
        some: &["locked_rcvbuf_before_mbit", "locked_rcvbuf_after_share"],
        series: &[
            ("taut/100 ms/receiver fixed", "before"),
            ("taut/100 ms/receiver fixed", "after"),
        ],
    }
    budget_limits_the_memory_of_connections => "budget" {
        needs: &["nginx", "curl"],
        some: &["peak_over_budget"],
        figures: &["jain", "least_satisfied"],
        series: &[("taut", "memory, most"), ("taut/200 ms/all", "rate")],
    }
    incast_reads_blocks_from_a_guest => "incast" {
        needs: &["qemu-system-x86_64", "cpio", "ip"],
        boots_qemu: true,
        some: &["goodput_over_rto200_1_sender"],
        series: &[
            ("256 kB/1 senders/tcp 200 ms", "goodput"),
            ("256 kB/1 senders/pvtcp short", "goodput"),
            ("undisturbed", "goodput"),
        ],
    }
    descheduled_receives_from_a_guest => "descheduled" {
        needs: &["qemu-system-x86_64", "cpio"],
        boots_qemu: true,
        figures: &["cubic_mbit_share25"],
        series: &[
            ("100 Mbit x 20 ms/25 %/cubic", "goodput"),
            ("100 Mbit x 20 ms/25 %/taut_bbr", "goodput"),
        ],
    }
    relay_peers_measures_each_relay => "relay-peers" {
        needs: &["haproxy", "nginx", "socat", "ssh", "sshd"],
        series: &[
            ("taut/bulk", "throughput"),
            ("haproxy/connections", "new connections"),
            ("nginx/echo", "added p99"),
            ("socat/bulk", "throughput"),
            ("ssh/idle", "resident memory per session"),
        ],
        exact: &["contenders_that_relayed_exactly", "bulk_bytes_missing", "connections_failed"],
    }
    mesh_peers_measures_each_pair_of_relays => "mesh-peers" {
        needs: &["haproxy", "nginx", "stunnel", "openssl"],
        figures: &["pooled_connection_bytes"],
        series: &[
            ("taut/flow", "throughput"),
            ("haproxy-tls/connections", "new connections"),
            ("nginx-tls/echo", "round trip p99"),
            ("stunnel/idle session", "resident memory"),
        ],
        exact: &[
            "contenders_that_relayed_exactly",
            "bulk_bytes_missing",
            "connections_failed",
            "legs_tapped",
            "legs_with_readable_bytes",
        ],
    }
    failover_cuts_a_relay_off_under_load => "failover" {
        some: &["sessions", "exact"],
        figures: &["failed_seconds_after_blackhole", "failed_sessions_after_return"],
        series: &[("blackhole", "new sessions failed"), ("blackhole", "open sessions failed")],
        exact: &["wrong_transfers", "relay_problems", "faults"],
    }
    soak_leaves_nothing_of_a_mesh => "soak" {
        some: &["sessions", "exact", "outsider_connections"],
        series: &[("near", "descriptors"), ("relays", "time to come to rest")],
        exact: &[
            "silently_wrong",
            "leaked_descriptors",
            "sessions_left",
            "pipes_in_use_left",
            "kernel_leftovers",
            "relay_faults",
            "outsider_dialled",
            "outsider_heard_bytes",
        ],
    }
    snoop_soak_breaks_no_promise => "snoop-soak" {
        needs: &["ip"],
        some: &["transfers", "acked_early_share"],
        series: &[("off", "time"), ("plain", "acked early"), ("grow", "time")],
        exact: &[
            "streams_wrong",
            "streams_hung",
            "violations",
            "lost_after_early_ack",
            "process_faults",
            "guest_refused",
            "acked_early_control",
        ],
    }
    snoop_hazards_costs_no_transfer => "snoop-hazards" {
        needs: &["ip", "nft"],
        some: &["complete", "rcvbuf_acked_early", "ttl_kept_acked_early"],
        series: &[("forwarding/IPv4/snoop", "time"), ("rcvbuf/IPv4/snoop", "incomplete")],
        exact: &[
            "complete",
            "controls_incomplete",
            "forwarding_incomplete",
            "forwarding_ttl_kept_incomplete",
            "rcvbuf_incomplete",
        ],
    }
}

/// Runs the smallest part of an experiment and checks its outcome, unless the machine lacks what it needs.
fn check(experiment: &str, shape: &Shape) {
    let has_guest = !shape.boots_qemu || has_kernel();
    if !skip::has_programs(shape.needs) || !has_guest {
        return;
    }
    let outcome = measure(experiment, &["--smoke"]);
    assert_least(&outcome, shape.exact);
    assert_some(&outcome, shape.some);
    assert_figures(&outcome, shape.figures);
    for (name, metric) in shape.series {
        series(&outcome, name, metric);
    }
    for series in outcome["series"].as_array().unwrap() {
        let samples = series["samples"].as_array().unwrap();
        assert!(
            !samples.is_empty() && series["n"] == samples.len(),
            "{series}"
        );
    }
    let page = report(&outcome);
    assert!(page.contains("<svg") && page.contains(experiment), "{page}");
}

/// Returns whether `make guests` has fetched the guests' kernel and built their module; otherwise reports
/// the test as skipped.
fn has_kernel() -> bool {
    let kernel = kernels().join("6.12");
    let missing = ["base-with-virtio.cpio", "taut_pvtcp.ko"].map(|file| kernel.join(file));
    let missing = missing.iter().find(|file| !file.is_file());
    if let Some(file) = missing {
        skip::skip(&format!("no {} (make guests)", file.display()));
    }
    missing.is_none()
}

#[test]
fn every_experiment_has_a_test() {
    let list = lab(&["list"]).stdout;
    let listed = str::from_utf8(&list).unwrap().lines();
    let listed: BTreeSet<_> = listed
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(listed, TESTED.iter().copied().collect());
}
