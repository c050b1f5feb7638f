//! Runs `taut-lab` as a process: the short forms of the experiments, their JSON, the report, bad
//! input.
//!
//! Times are not asserted here. The experiments check them and report the result in their exit
//! status.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "shared/binaries.rs"]
mod binaries;

fn lab(args: &[&str]) -> Output {
    binaries::lab().args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs an experiment in its short form and returns its outcome. Checks that the exit status agrees
/// with the outcome.
fn outcome(name: &str, file: &Path) -> Value {
    let json = file.to_str().unwrap();
    let output = lab(&["run", name, "--quick", "--runs", "1", "--json", json]);
    let text = fs::read_to_string(file).unwrap_or_default();
    assert!(
        !text.is_empty(),
        "{name} measured nothing: {}",
        said(&output)
    );
    let outcome: Value = serde_json::from_str(&text).unwrap();
    let held = outcome["calibration"]["ok"].as_bool().unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(!held)),
        "{}",
        said(&output)
    );
    for key in [
        "experiment",
        "version",
        "seed",
        "quick",
        "environment",
        "headline",
        "series",
    ] {
        assert!(!outcome[key].is_null(), "{name} has no {key}");
    }
    assert_eq!(outcome["experiment"], name);
    outcome
}

#[test]
fn every_download_of_pied_piper_is_exact_and_its_report_can_be_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("pied-piper", &dir.path().join("pied-piper.json"));
    // The experiment would have failed if a file differed from the server's.
    let series = outcome["series"].as_array().unwrap();
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
                let one = |s: &&Value| s["name"] == name.as_str() && s["metric"] == metric;
                let found = series.iter().find(one);
                assert!(found.is_some_and(|s| s["n"] == 1), "{metric} of {name}");
            }
        }
    }
    for key in [
        "ttfb_over_floor_ms",
        "speedup_1mb",
        "speedup_10mb_loss_0p1",
        "speedup_1mb_64k_window",
        "jain_two_flows",
        "jain_two_flows_routed",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
    let window = &outcome["calibration"]["client_window_seen_by_server_bytes"];
    assert_eq!(window["measured"], 65_535.0, "{outcome}");

    let report = lab(&["report", dir.path().to_str().unwrap()]);
    assert!(report.status.success(), "{}", said(&report));
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("<svg"));
}

#[test]
fn every_stream_to_a_guest_is_exact_and_each_configuration_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("consolidate", &dir.path().join("consolidate.json"));
    // The experiment would have failed if a received stream differed from the sent one.
    let series = outcome["series"].as_array().unwrap();
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
                let one = |s: &&Value| s["name"] == name.as_str() && s["metric"] == metric;
                let found = series.iter().find(one);
                assert!(found.is_some_and(|s| s["n"] == 1), "{metric} of {name}");
            }
        }
    }
    for key in [
        "baseline_100kb_mb_s",
        "tuned_gain_100kb",
        "snoop_gain_100kb",
        "snoop_grow_gain_100kb",
        "worst_cell_ratio",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
    for check in ["lost_after_early_ack", "segments_dropped_by_guests"] {
        let check = &outcome["calibration"][check];
        assert_eq!(check["measured"], check["most"], "{outcome}");
    }

    let report = lab(&["report", dir.path().to_str().unwrap()]);
    assert!(report.status.success(), "{}", said(&report));
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("A guest that waits for its core"));
}

#[test]
fn idle_sessions_leave_no_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("idle-sessions", &dir.path().join("idle.json"));
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    assert_eq!(outcome["headline"]["descriptors_left"], 0.0);
}

#[test]
fn looks_at_many_connections_see_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("observe-cost", &dir.path().join("observe-cost.json"));
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    // Four configurations, each at two numbers of idle connections and one of busy connections.
    assert_eq!(outcome["series"].as_array().unwrap().len(), 12);
}

#[test]
fn many_connections_that_rest_are_tuned_by_each_way() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("tune-cost", &dir.path().join("tune-cost.json"));
    assert_eq!(outcome["calibration"]["ok"], true, "{outcome}");
    assert_eq!(outcome["series"].as_array().unwrap().len(), 8);
}

#[test]
fn what_limits_a_connection_is_said_of_each_cause() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("verdicts", &dir.path().join("verdicts.json"));
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
fn every_relay_beside_taut_relays_exactly_and_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("relay-peers", &dir.path().join("relay-peers.json"));
    for check in [
        "contenders_that_relayed_exactly",
        "bulk_bytes_missing",
        "connections_failed",
    ] {
        let check = &outcome["calibration"][check];
        assert_eq!(check["measured"], check["least"], "{outcome}");
    }
    let series = outcome["series"].as_array().unwrap();
    for relay in ["taut", "haproxy", "nginx", "socat", "ssh"] {
        for (what, metric) in [
            ("bulk", "throughput"),
            ("bulk", "cpu per GB"),
            ("connections", "new connections"),
            ("echo", "added p99"),
            ("idle", "resident memory per session"),
        ] {
            let name = format!("{relay}/{what}");
            let one = |s: &&Value| s["name"] == name.as_str() && s["metric"] == metric;
            assert!(series.iter().any(|s| one(&s)), "{metric} of {name}");
        }
    }
    for key in [
        "bulk_throughput_over_best_of_haproxy_nginx",
        "cpu_per_gb_over_haproxy",
        "connections_over_haproxy",
        "idle_memory_over_haproxy",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
}

#[test]
fn every_pair_of_relays_carries_exactly_and_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("mesh-peers", &dir.path().join("mesh-peers.json"));
    for check in [
        "contenders_that_relayed_exactly",
        "bulk_bytes_missing",
        "connections_failed",
        "legs_tapped",
        "legs_with_readable_bytes",
    ] {
        let check = &outcome["calibration"][check];
        assert_eq!(check["measured"], check["least"], "{outcome}");
    }
    let series = outcome["series"].as_array().unwrap();
    for relay in ["taut", "haproxy-tls", "nginx-tls", "stunnel"] {
        for (what, metric) in [
            ("flow", "throughput"),
            ("flow", "cpu per GB"),
            ("connections", "new connections"),
            ("echo", "round trip p99"),
            ("idle session", "resident memory"),
        ] {
            let name = format!("{relay}/{what}");
            let one = |s: &&Value| s["name"] == name.as_str() && s["metric"] == metric;
            assert!(series.iter().any(|s| one(&s)), "{metric} of {name}");
        }
    }
    for key in [
        "flow_over_haproxy_tls",
        "connections_over_haproxy_tls",
        "connections_without_pool_over_haproxy_tls",
        "cpu_per_gb_over_haproxy_tls",
        "echo_p99_over_haproxy_tls",
        "pooled_connection_bytes",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
}

#[test]
fn an_experiment_that_is_not_there_is_a_usage_error_that_names_those_that_are() {
    let output = lab(&["run", "pied-pipper"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains(
            "pied-piper, internet, neighbours, consolidate, applications, idle-sessions, observe-cost, tune-cost, verdicts, gains, long-fat, budget, incast, descheduled, relay-peers, mesh-peers, failover, routes, soak, snoop-soak, snoop-hazards"
        ),
        "{}",
        said(&output)
    );
    let list = lab(&["list"]);
    assert!(
        String::from_utf8(list.stdout)
            .unwrap()
            .lines()
            .any(|l| l.starts_with("pied-piper"))
    );
}

#[test]
fn a_budget_is_kept_to_and_the_machines_bound_is_set_back() {
    let bound = || fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap();
    let before = bound();
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("budget", &dir.path().join("budget.json"));
    let peak = outcome["headline"]["peak_over_budget"].as_f64().unwrap();
    assert!(peak > 0.1 && peak <= 1.05, "{peak}");
    for key in ["jain", "goodput_over_kernel", "least_satisfied"] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
    assert_eq!(bound(), before);
}

#[test]
fn every_congestion_control_of_a_guest_that_is_away_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("descheduled", &dir.path().join("descheduled.json"));
    for key in [
        "cubic_mbit_share25",
        "bbr_mbit_share25",
        "taut_bbr_over_cubic_share25",
        "taut_bbr_over_bbr_share100",
    ] {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn blocks_of_a_guest_that_is_away_are_read_with_and_without_the_module() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("incast", &dir.path().join("incast.json"));
    for key in [
        "goodput_over_rto200_1_sender",
        "goodput_over_small_rto_20_senders",
    ] {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn a_file_takes_every_way_over_the_internet() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("internet", &dir.path().join("internet.json"));
    // The experiment would have failed if a file differed from the server's.
    for key in [
        "speedup_4mb",
        "speedup_4mb_over_e2e_turbo",
        "baseline_speedup_4mb",
        "relays_turbo_over_cubic_4mb",
        "times_ideal_4mb_taut",
    ] {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn every_way_over_a_long_fat_path_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = outcome("long-fat", &dir.path().join("long-fat.json"));
    for key in [
        "locked_rcvbuf_before_mbit",
        "locked_rcvbuf_after_share",
        "locked_sndbuf_after_share",
        "locked_rcvbuf_after_share_narrow",
        "kernel_alone_share",
    ] {
        assert!(outcome["headline"][key].is_f64(), "{key}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_found_out_before_the_measuring() {
    let output = lab(&["run", "pied-piper", "--json", "/nonexistent/out.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("/nonexistent/out.json"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_folder_without_outcomes_has_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let output = lab(&["report", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!dir.path().join("report.html").exists());
}

#[test]
fn taut_lab_executes_this_binary() {
    let ours = lab(&["list"]);
    let through_taut = Command::new(binaries::taut())
        .args(["lab", "list"])
        .output()
        .unwrap();
    assert_eq!(through_taut.status.code(), Some(0));
    assert_eq!(through_taut.stdout, ours.stdout);
}

#[test]
fn help_shows_the_command_that_was_typed() {
    let help = Command::new(binaries::taut())
        .args(["lab", "run", "--help"])
        .output()
        .unwrap();
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(
        text.contains("Usage: taut lab run [OPTIONS] <NAME>"),
        "{text}"
    );
}

#[test]
fn a_taut_that_is_not_there_is_a_usage_error() {
    let output = lab(&["run", "pied-piper", "--taut", "/nonexistent/taut"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("--taut /nonexistent/taut"),
        "{}",
        said(&output)
    );
}
