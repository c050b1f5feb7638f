//! `scripts/setup`, which root runs, opens nothing by a name that any user can take first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories in which every user may place files.
const OPEN: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the lines of a script that write to a file of a fixed name in one of the directories.
fn writes(script: &str) -> Vec<&str> {
    let writes = |line: &&str| {
        let targets = line.split('>').skip(1);
        let mut targets = targets.map(|to| to.trim_start_matches(['>', '|', ' ', '"']));
        targets.any(|to| {
            OPEN.iter()
                .any(|open| to.strip_prefix(open).is_some_and(|to| to.starts_with('/')))
        })
    };
    script.lines().filter(writes).collect()
}

#[test]
fn no_script_writes_to_a_fixed_name_in_a_directory_of_everybody() {
    assert_eq!(writes("exec 9>/run/lock/taut-setup").len(), 1);
    assert_eq!(writes("echo x >> \"/tmp/x\"").len(), 1);
    assert_eq!(writes("exec 9>/run/taut-setup.lock"), Vec::<&str>::new());
    let mut seen = 0;
    for folder in ["scripts", "packaging/hooks", "packaging/debian"] {
        for file in fs::read_dir(root().join(folder)).unwrap() {
            let path = file.unwrap().path();
            let Ok(script) = fs::read_to_string(&path) else {
                continue;
            };
            seen += 1;
            assert_eq!(writes(&script), Vec::<&str>::new(), "{}", path.display());
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn set_up_empties_no_file_that_a_planted_link_names() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a mount namespace and must run as root, as `make test` does"
    );
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    let programs = dir.path().join("bin");
    let script = r#"
        for open in /var/tmp /dev/shm /run/lock; do
            [ -d "$open" ] || continue
            mount -t tmpfs -o mode=1777 tmpfs "$open"
            for name in taut taut-setup taut-setup.lock; do ln -s "$1" "$open/$name"; done
        done
        # All packages are there, so that nothing is installed.
        mkdir "$2"
        printf '#!/bin/sh\nprintf installed\n' >"$2/dpkg-query"
        chmod 755 "$2/dpkg-query"
        PATH="$2:$PATH" "$3/scripts/setup"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]);
    let output = command.args([&precious, &programs, &root()]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}
