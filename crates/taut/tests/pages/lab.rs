//! `taut lab` finds and executes `taut-lab`. What that does is tested in its own package.

use std::path::Path;
use std::process::{Command, Output};

/// Prints its arguments, one a line, and exits with 7.
const PROGRAM: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n";

/// Runs `taut lab` as a copy in a folder of its own. `beside` and `in_path` say where a `taut-lab` is.
fn lab(beside: bool, in_path: bool, args: &[&str]) -> Output {
    let (dir, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (is_there, dir) in [(beside, &dir), (in_path, &path)] {
        if is_there {
            sh(
                "printf %s \"$2\" >\"$1/taut-lab\" && chmod 755 \"$1/taut-lab\"",
                dir.path(),
                PROGRAM,
            );
        }
    }
    let taut = dir.path().join("taut");
    sh("cp \"$2\" \"$1\"", &taut, env!("CARGO_BIN_EXE_taut"));
    Command::new(taut)
        .env("PATH", path.path())
        .arg("lab")
        .args(args)
        .output()
        .unwrap()
}

/// Runs a script that writes a program: a child of another test may inherit a descriptor of this process, and a
/// program that is open for writing cannot be executed.
fn sh(script: &str, to: &Path, what: &str) {
    let mut sh = Command::new("sh");
    let written = sh.args(["-c", script, "sh"]).arg(to).arg(what).status();
    assert!(written.unwrap().success(), "{script}");
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
    let help = Command::new(env!("CARGO_BIN_EXE_taut"))
        .arg("--help")
        .output()
        .unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.lines().any(|l| l.trim().starts_with("lab ")), "{text}");
}
