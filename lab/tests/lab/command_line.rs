//! The command line: its answers, bad input, and the report.

use std::process::Command;

use crate::binaries::{self, lab, said};

#[test]
fn an_experiment_that_is_not_there_is_a_usage_error_that_names_the_nearest() {
    for (name, hint) in [
        ("pied-pipper", "did you mean `pied-piper`?"),
        ("x", "`taut lab list` lists the experiments"),
    ] {
        let output = lab(&["run", name]);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(hint), "{}", said(&output));
    }
    let list = lab(&["list"]);
    assert!(
        String::from_utf8(list.stdout)
            .unwrap()
            .lines()
            .any(|l| l.starts_with("pied-piper"))
    );
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
