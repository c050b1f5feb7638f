//! Runs an experiment, and checks what holds however slow the machine is.

use std::fs;

use serde_json::Value;

use crate::binaries::{lab, said};

/// Runs the experiment in this form and returns its outcome. Its calibration may fail, or its machine
/// be busy, which is no failure; checks that the exit status says so.
pub(crate) fn measure(experiment: &str, form: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outcome.json");
    let args = [&["run", experiment, "--json", file.to_str().unwrap()], form].concat();
    let output = lab(&args);
    let text = fs::read(&file)
        .unwrap_or_else(|e| panic!("{experiment} measured nothing ({e}): {}", said(&output)));
    let outcome: Value = serde_json::from_slice(&text).unwrap();
    let ok = outcome["calibration"]["ok"].as_bool().unwrap();
    // A busy machine excuses some checks, and the experiment says so.
    let is_busy = said(&output).contains("this machine was busy");
    assert!(!is_busy || !ok && outcome["calibration"]["busy"].is_array());
    let code = Some(i32::from(!ok && !is_busy));
    assert_eq!(output.status.code(), code, "{}", said(&output));
    for key in ["environment", "headline", "series"] {
        assert!(!outcome[key].is_null(), "{experiment} has no {key}");
    }
    assert_eq!(outcome["experiment"], experiment);
    assert_eq!(outcome["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(outcome["seed"], 1);
    assert_eq!(outcome["quick"], true);
    outcome
}

/// Returns the page that `taut lab report` makes of this outcome.
pub(crate) fn report(outcome: &Value) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("outcome.json"), outcome.to_string()).unwrap();
    let made = lab(&["report", dir.path().to_str().unwrap()]);
    assert!(made.status.success(), "{}", said(&made));
    fs::read_to_string(dir.path().join("report.html")).unwrap()
}

/// Returns the series of this name and metric.
pub(crate) fn series<'a>(outcome: &'a Value, name: &str, metric: &str) -> &'a Value {
    let all = outcome["series"].as_array().unwrap();
    let found = all
        .iter()
        .find(|one| one["name"] == name && one["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {metric} of {name}"))
}

/// Asserts that these checks of the calibration measured the least that they accept.
pub(crate) fn assert_least(outcome: &Value, checks: &[&str]) {
    for check in checks {
        let of = &outcome["calibration"][check];
        assert!(of["measured"].is_f64(), "{check}: {of}");
        assert_eq!(of["measured"], of["least"], "{check}: {outcome:#}");
    }
}

/// Asserts that these checks of the calibration measured 0.
pub(crate) fn assert_none(outcome: &Value, checks: &[&str]) {
    for check in checks {
        let measured = &outcome["calibration"][check]["measured"];
        assert_eq!(*measured, 0.0, "{check}: {:#}", outcome["notes"]);
    }
}

/// Asserts that these figures of the headline are numbers.
pub(crate) fn assert_figures(outcome: &Value, keys: &[&str]) {
    for key in keys {
        assert!(outcome["headline"][key].is_f64(), "{key}: {outcome:#}");
    }
}

/// Asserts that these figures of the headline are greater than 0.
pub(crate) fn assert_some(outcome: &Value, keys: &[&str]) {
    assert_figures(outcome, keys);
    for key in keys {
        assert!(outcome["headline"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}
