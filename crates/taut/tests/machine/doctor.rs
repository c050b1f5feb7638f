//! `taut doctor` run as a command: its output, its exit status, and that it changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::skip;

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taut"))
        .arg("doctor")
        .args(args)
        .output()
        .unwrap()
}

/// Reads what a probe could leave behind in this network namespace, and the settings of files. The namespaces
/// of the probes have no name and end with the process.
fn traces() -> BTreeMap<String, String> {
    let mut traces = BTreeMap::new();
    for folder in ["/proc/sys/net/core", "/proc/sys/net/ipv4", "/proc/sys/fs"] {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            // What changes while the test runs: counters and congestion controls of the whole machine, and
            // a key that is random while there is none.
            let others = [
                "dentry-state",
                "file-nr",
                "inode-nr",
                "inode-state",
                "aio-nr",
                "tcp_available_congestion_control",
                "tcp_allowed_congestion_control",
                "tcp_fastopen_key",
            ];
            if others.iter().any(|other| path.ends_with(other)) {
                continue;
            }
            if let Ok(value) = fs::read_to_string(&path) {
                traces.insert(path.display().to_string(), value);
            }
        }
    }
    for line in [
        "ip link",
        "ip rule",
        "ip route show table all",
        "tc qdisc",
        "nft list ruleset",
    ] {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output();
        let output = output.map_or_else(|_| "not here".to_owned(), |output| format!("{output:?}"));
        traces.insert(line.to_owned(), output);
    }
    traces
}

#[test]
fn the_json_is_one_object_and_the_exit_status_follows_its_verdict() {
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.stderr, b"", "only the object is printed");
    let status = match report["verdict"].as_str().unwrap() {
        "blocks" => 1,
        "slows" | "fine" => 0,
        other => panic!("verdict {other}"),
    };
    assert_eq!(output.status.code(), Some(status));

    for feature in report["features"].as_array().unwrap() {
        assert!(["yes", "no", "unknown"].contains(&feature["state"].as_str().unwrap()));
        for key in ["id", "group", "name", "severity", "used_for", "if_missing"] {
            assert!(feature[key].is_string(), "{key} of {feature}");
        }
    }
    for setting in report["settings"].as_array().unwrap() {
        let right = setting["severity"] == "fine";
        assert_eq!(setting["command"].is_null(), right, "{setting}");
    }
}

#[test]
fn only_the_parts_that_are_named_are_examined() {
    let sizes = |only: &str| {
        let output = doctor(&["--json", "--only", only]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        ["features", "settings"].map(|part| report[part].as_array().unwrap().len())
    };
    assert_eq!(sizes("leftovers"), [0, 0]);
    let [features, settings] = sizes("settings,leftovers");
    assert!(features == 0 && settings > 0, "{features} {settings}");
    assert!(sizes("features")[0] > 0);
}

#[test]
fn features_of_every_linux_are_found() {
    let report: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
    let features = report["features"].as_array().unwrap();
    for id in [
        "splice",
        "so_reuseport",
        "tcp_user_timeout",
        "cc_reno",
        "pidfd",
    ] {
        let feature = features.iter().find(|f| f["id"] == id).unwrap();
        assert_eq!(feature["state"], "yes", "{feature}");
    }
}

/// The features are probed one by one, so that the report names the missing one.
#[test]
fn where_snoops_programs_load_each_feature_that_they_need_is_found() {
    let report: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
    let features = report["features"].as_array().unwrap();
    let of_snoop = features.iter().filter(|f| f["group"] == "snoop");
    let of_snoop: BTreeMap<_, _> = of_snoop
        .map(|f| (f["id"].as_str().unwrap(), f["state"].as_str().unwrap()))
        .collect();
    if of_snoop["snoop_programs"] != "yes" {
        skip(&format!("snoop's programs do not load here: {of_snoop:?}"));
        return;
    }
    for part in ["sched_cls", "clone_redirect", "bpf_loop", "bpf_ringbuf"] {
        assert_eq!(of_snoop[part], "yes", "{part} of {of_snoop:?}");
    }
}

#[test]
fn the_doctor_leaves_the_host_unchanged() {
    // Nothing else changes this namespace.
    enter_private_network();
    let before = traces();
    doctor(&[]);
    let after = traces();
    for (what, value) in &before {
        assert_eq!(after.get(what), Some(value), "{what}");
    }
    assert_eq!(before.len(), after.len());
}

#[test]
fn too_few_descriptors_block_and_set_the_exit_status() {
    let shell = r#"ulimit -n 64 && exec "$0" doctor"#;
    let output = Command::new("sh")
        .args(["-c", shell, env!("CARGO_BIN_EXE_taut")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("blocks  RLIMIT_NOFILE = 64"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_wrong_argument_is_a_usage_error() {
    assert_eq!(doctor(&["--jsn"]).status.code(), Some(2));
}
