//! `taut lab` finds and executes `taut-lab`. What that does is tested in its own package.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// A file that is open for writing cannot be executed, and a process that another test starts at that
/// moment has it open until its own `exec`.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Prints its arguments, one a line, and exits with 7.
const PROGRAM: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n";

/// Runs `taut lab` as a copy in a folder of its own. `beside` and `in_path` say where a `taut-lab` is.
fn lab(beside: bool, in_path: bool, args: &[&str]) -> Output {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if beside {
        put(&dir.path().join("taut-lab"));
    }
    if in_path {
        put(&path.path().join("taut-lab"));
    }
    let taut = dir.path().join("taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &taut).unwrap();
    Command::new(taut)
        .env("PATH", path.path())
        .arg("lab")
        .args(args)
        .output()
        .unwrap()
}

fn put(program: &Path) {
    fs::write(program, PROGRAM).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn every_argument_is_passed_on_and_the_exit_status_is_taut_labs() {
    for args in [
        &["run", "pied-piper", "--json", "out file.json", "--quick"][..],
        &["--help"],
        &["-h", "--version"],
        &["kernel", "--", "mem=1G"],
    ] {
        let output = lab(true, false, args);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let got = String::from_utf8(output.stdout).unwrap();
        assert_eq!(got.lines().collect::<Vec<_>>(), args);
    }
}

#[test]
fn a_taut_lab_of_path_is_executed_if_none_is_beside_taut() {
    let output = lab(false, true, &["list"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(output.stdout, b"list\n");
}

#[test]
fn without_taut_lab_the_error_names_the_command_that_builds_it() {
    let output = lab(false, false, &["list"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("taut: there is no `taut-lab`")
            && said.contains("cargo build --release --package taut-lab"),
        "{said}"
    );
}

#[test]
fn the_list_of_commands_names_it() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let help = Command::new(env!("CARGO_BIN_EXE_taut"))
        .arg("--help")
        .output()
        .unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.lines().any(|l| l.trim().starts_with("lab ")), "{text}");
}
