//! The short form of `taut lab run soak`. In a file of its own, so that no other experiment runs
//! beside it: it asks of the machine what it has.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn what_a_soaked_mesh_carries_is_exact_or_visibly_broken_and_nothing_is_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("soak.json");
    let output = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(["lab", "run", "soak", "--quick", "--json"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let outcome: Value = serde_json::from_slice(&fs::read(&file).unwrap()).expect(&said);
    // Only what holds however slow the machine is. A session that takes too long breaks.
    for check in [
        "silently_wrong",
        "leaked_descriptors",
        "sessions_left",
        "pipes_in_use_left",
        "kernel_leftovers",
        "relay_faults",
        "outsider_dialled",
        "outsider_heard_bytes",
    ] {
        let measured = &outcome["calibration"][check]["measured"];
        assert_eq!(*measured, 0.0, "{check}: {:#}", outcome["notes"]);
    }
    for key in [
        "sessions",
        "exact",
        "broken_visibly",
        "outsider_connections",
    ] {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}
