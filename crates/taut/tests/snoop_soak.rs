//! The short form of `taut lab run snoop-soak`. In a file of its own, so that no other experiment runs
//! beside it.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn whatever_happens_every_stream_arrives_and_no_promise_could_be_broken() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("snoop-soak.json");
    let output = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(["lab", "run", "snoop-soak", "--quick", "--json"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let outcome: Value = serde_json::from_slice(&fs::read(&file).unwrap()).expect(&said);
    // Only what holds however slow the machine is.
    for check in [
        "streams_wrong",
        "streams_hung",
        "violations",
        "broken_promises",
        "process_faults",
        "guest_refused",
        "acked_early_control",
    ] {
        let measured = &outcome["calibration"][check]["measured"];
        assert_eq!(*measured, 0.0, "{check}: {:#}", outcome["notes"]);
    }
    // And that it was at work, while things were done to it.
    for key in [
        "transfers",
        "acked_early_share",
        "restarts",
        "pauses",
        "ring_drops",
    ] {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}
