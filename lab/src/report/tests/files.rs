//! Folders with outcomes, and folders with other contents.

use std::{fs, path::Path};

use super::*;
use crate::report::{ReportError, write};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// Returns the error message for a folder with only this file.
fn complaint(content: &str) -> String {
    let dir = folder(&[("bad.json", content)]);
    let error = write(dir.path()).unwrap_err();
    assert!(!dir.path().join("report.html").exists());
    let said = error.to_string();
    assert!(said.contains("bad.json"), "{said}");
    said
}

#[test]
fn a_folder_of_outcomes_becomes_a_page_in_it() {
    let dir = folder(&[
        ("a.json", UNKNOWN),
        ("b.json", PIED_PIPER),
        ("notes.txt", "not an outcome"),
        (".c.json.swp", "an editor's"),
        (".d.json", "an editor's"),
    ]);
    let file = write(dir.path()).unwrap();
    assert_eq!(file, dir.path().join("report.html"));
    let page = fs::read_to_string(&file).unwrap();
    let (known, unknown) = (page.find("b.json").unwrap(), page.find("a.json").unwrap());
    assert!(known < unknown, "known experiments come first");
    // An existing page does not prevent writing it again.
    write(dir.path()).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), page);
}

#[test]
fn experiments_without_an_outcome_are_listed_with_the_reason() {
    let dir = folder(&[
        ("pied-piper.json", PIED_PIPER),
        ("incast.failed", "no guest\n<b>here</b>"),
    ]);
    let page = fs::read_to_string(write(dir.path()).unwrap()).unwrap();
    let text = text(&xml(&page));
    let after = text.split("Without an outcome").nth(1).unwrap();
    let after = after.split("A long path, split at relays").next().unwrap();
    let row = |experiment: &str| {
        let command = format!("taut lab run {experiment}");
        let squeezed = after.split_whitespace().collect::<Vec<_>>().join(" ");
        squeezed
            .split(&command)
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    };
    assert!(
        row("incast").starts_with(" no guest <b>here</b>"),
        "{after}"
    );
    // It was not run.
    assert!(row("soak").is_empty(), "{after}");
    assert!(row("pied-piper").is_empty(), "{after}");
}

#[test]
fn a_folder_without_outcomes_is_said_to_be_one() {
    let dir = folder(&[("notes.txt", "")]);
    let error = write(dir.path()).unwrap_err();
    assert!(matches!(error, ReportError::NoOutcomes { .. }));
    assert!(error.to_string().contains("no outcomes here"));
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = write(Path::new("/nonexistent/taut")).unwrap_err();
    assert!(matches!(error, ReportError::List { .. }));
    assert!(error.to_string().starts_with("/nonexistent/taut: "));
}

#[test]
fn a_malformed_file_is_named_with_its_line() {
    assert!(complaint("{\n\"experiment\": \"x\",\n}").contains("line 3"));
    assert!(complaint("").contains("line 1"));
    assert!(complaint("[]").contains("line 1"));
    assert!(complaint(&format!("{UNKNOWN}{{}}")).contains("trailing characters at line"));
}

#[test]
fn a_missing_field_is_named() {
    let fields = [
        "experiment",
        "seed",
        "environment",
        "calibration",
        "headline",
        "series",
        "notes",
    ];
    for field in fields {
        let mut outcome: serde_json::Value = serde_json::from_str(UNKNOWN).unwrap();
        outcome.as_object_mut().unwrap().remove(field);
        let said = complaint(&outcome.to_string());
        assert!(said.contains(&format!("missing field `{field}`")), "{said}");
    }
}

#[test]
fn a_wrong_field_is_named_with_its_place() {
    let mut outcome: serde_json::Value = serde_json::from_str(UNKNOWN).unwrap();
    outcome["series"][1]["median"] = serde_json::Value::Null;
    let said = complaint(&serde_json::to_string_pretty(&outcome).unwrap());
    assert!(said.contains("series[1].median: "), "{said}");
    assert!(said.contains("at line "), "{said}");
}

#[test]
fn one_bad_file_among_good_ones_stops_the_report() {
    let dir = folder(&[("good.json", UNKNOWN), ("worse.json", "nonsense")]);
    let said = write(dir.path()).unwrap_err().to_string();
    assert!(said.contains("worse.json"), "{said}");
    assert!(!dir.path().join("report.html").exists());
}
