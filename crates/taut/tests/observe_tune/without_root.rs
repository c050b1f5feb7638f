//! `taut` as a user without privileges.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tempfile::TempDir;

/// A directory with a copy of `taut` that every user may run.
pub(crate) struct WithoutRoot {
    pub(crate) dir: TempDir,
}

// === impl WithoutRoot ===

impl WithoutRoot {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("taut")
            .tempdir_in("/tmp")
            .unwrap();
        // Not fs::copy: a child of another test may inherit the descriptor, and then this is "text file busy".
        let mut copy = Command::new("cp");
        let copied = copy.arg(env!("CARGO_BIN_EXE_taut")).arg(dir.path());
        assert!(copied.status().unwrap().success());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    pub(crate) fn taut(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg("--bounding-set=-all")
            .arg(self.dir.path().join("taut"))
            .env_remove("TAUT_LOG");
        command
    }
}

#[test]
fn snoop_says_that_it_needs_root() {
    let without_root = WithoutRoot::new();
    let mut command = without_root.taut();
    let output = command.args(["snoop", "--tap", "tap0"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("taut: run taut snoop as root: "), "{said}");
}
