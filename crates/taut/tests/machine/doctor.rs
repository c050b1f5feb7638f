//! `taut doctor` run as a command: its output, its exit status, and that it changes nothing.
// Clippy lets tests unwrap, but not their helpers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taut"))
        .arg("doctor")
        .args(args)
        .output()
        .unwrap()
}

/// Reads everything that a probe could leave behind: sysctls, links, modules, cgroups. Namespaces are
/// unnamed here and end with the process.
fn traces() -> BTreeMap<String, String> {
    let mut traces = BTreeMap::new();
    for folder in ["/proc/sys/net/core", "/proc/sys/net/ipv4", "/proc/sys/fs"] {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            // Counters of the whole machine, which change while the test runs.
            let counts = [
                "dentry-state",
                "file-nr",
                "inode-nr",
                "inode-state",
                "aio-nr",
            ];
            if counts.iter().any(|c| path.ends_with(c)) {
                continue;
            }
            if let Ok(value) = fs::read_to_string(&path) {
                traces.insert(path.display().to_string(), value);
            }
        }
    }
    for folder in ["/sys/class/net", "/sys/module", "/sys/fs/cgroup"] {
        traces.insert(folder.to_owned(), names(Path::new(folder)).join(" "));
    }
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let loaded = modules
        .lines()
        .filter_map(|l| l.split(' ').next())
        .collect::<Vec<_>>();
    traces.insert("/proc/modules".to_owned(), loaded.join(" "));
    traces
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect::<Vec<_>>();
    names.sort();
    names
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
        println!("not tested: the programs do not load here: {of_snoop:?}");
        return;
    }
    for part in ["sched_cls", "clone_redirect", "bpf_loop", "bpf_ringbuf"] {
        assert_eq!(of_snoop[part], "yes", "{part} of {of_snoop:?}");
    }
}

#[test]
fn the_doctor_leaves_the_host_unchanged() {
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
