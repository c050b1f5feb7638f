//! Runs the short form of an experiment, and checks what holds however slow the machine is.

use std::fs;

use serde_json::Value;

use crate::binaries;

/// Runs the experiment; its calibration may fail.
pub(crate) fn short_form(experiment: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outcome.json");
    let output = binaries::lab()
        .args(["run", experiment, "--quick", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let text = fs::read(&file)
        .unwrap_or_else(|e| panic!("{experiment} has measured nothing ({e}): {said}"));
    serde_json::from_slice(&text).expect(&said)
}

/// Asserts that these checks of the calibration measured 0.
pub(crate) fn assert_none(outcome: &Value, checks: &[&str]) {
    for check in checks {
        let measured = &outcome["calibration"][check]["measured"];
        assert_eq!(*measured, 0.0, "{check}: {:#}", outcome["notes"]);
    }
}

/// Asserts that these figures of the headline are greater than 0.
pub(crate) fn assert_some(outcome: &Value, keys: &[&str]) {
    for key in keys {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}
