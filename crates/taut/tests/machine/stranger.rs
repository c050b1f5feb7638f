//! A local user without privileges tries to gain something from the jobs of root's, or to stop them.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use taut_sys_testing::skip::has_programs;

use crate::programs;
use crate::rig::{Machine, TAUT, jobs, start};

/// The user and group `nobody`.
const NOBODY: u32 = 65_534;

/// Names that any user can bind. Jobs of earlier versions began with the first two.
const NAMES: [&str; 4] = [
    "taut-interception",
    "taut-route-metrics",
    "taut",
    "taut-relay",
];

/// What the user tries with each path below these directories. It prints what has succeeded.
const TRIES: &str = r#"
job=$1
for directory in /run /run/taut /run/taut/guest /run/taut/snoop /sys/fs/bpf /sys/fs/bpf/taut /sys/fs/bpf/taut/guest; do
    [ -e "$directory" ] || continue
    for name in guest snoop relay tune.journal tune.log snoop.sock snoop/snoop.sock taut planted; do
        ln -s /etc/passwd "$directory/$name" && echo "linked $directory/$name"
        mkdir "$directory/$name" && echo "made $directory/$name"
    done
done
find /run/taut /sys/fs/bpf | while read -r path; do
    [ "$path" = /run/taut ] || [ "$path" = /sys/fs/bpf ] || { rm -rf "$path"; [ -e "$path" ] || echo "removed $path"; }
    mv "$path" "$path.moved" && echo "moved $path"
    chmod 777 "$path" && echo "changed the mode of $path"
    if [ -f "$path" ]; then
        dd if=/dev/zero of="$path" count=1 && echo "wrote $path"
        flock --nonblock "$path" true && echo "locked $path"
    fi
done
kill -STOP "$job" && echo "stopped the job"
cat "/proc/$job/environ" > /dev/null && echo "read the environment"
ls "/proc/$job/fd" > /dev/null && echo "listed the descriptors"
"$2" snoop status && echo "asked snoop"
"$2" snoop --off && echo "turned snoop off"
exit 0
"#;

/// Runs a script as the user. Returns what it has printed.
fn as_nobody(machine: &Machine, script: &str, args: &[&str]) -> String {
    let user = format!("--reuid={NOBODY}");
    let group = format!("--regid={NOBODY}");
    let begin = [&user, &group, "--clear-groups", "sh", "-c", script, "sh"];
    let output = machine.run("setpriv", &[&begin, args].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn end(mut job: Child) -> std::process::ExitStatus {
    // A job that has ended has its status already.
    let _ = kill_process(Pid::from_child(&job), Signal::TERM);
    job.wait().unwrap()
}

/// The jobs that run until they are ended, or end by themselves. `taut watch` says nothing when it is
/// ready, and has neither files nor sockets.
fn tried(machine: &Machine) -> Vec<Vec<String>> {
    let mut jobs = jobs(machine);
    jobs.retain(|job| job[0] != "watch" && job.last().unwrap() != "down");
    jobs
}

fn words(job: &[String]) -> Vec<&str> {
    job.iter().map(String::as_str).collect()
}

#[test]
fn a_user_without_privileges_gains_nothing_and_stops_no_job() {
    if !has_programs(&["nft"]) {
        return;
    }
    let machine = Machine::new("stranger");
    let taken: Vec<_> = machine
        .host
        .0
        .run(|| {
            NAMES.map(|name| {
                UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
            })
        })
        .unwrap()
        .into();
    for job in tried(&machine) {
        let before = as_nobody(&machine, TRIES, &["1", TAUT]);
        assert_eq!(before, "", "before {job:?}");
        let is_guest = job[0] == "guest";
        let _loads = is_guest.then(programs::alone);
        let (child, said) = start(&machine, &words(&job));
        let pid = child.id().to_string();
        let gained = as_nobody(&machine, TRIES, &[&pid, TAUT]);
        assert_eq!(gained, "", "{job:?}");
        let status = end(child);
        assert!(status.success(), "{job:?}: {status} {said:?}");
        if is_guest {
            let down = machine.run(TAUT, &["guest", "down"]);
            assert!(down.status.success(), "{down:?}");
        }
    }
    drop(taken);
}

#[test]
fn a_job_uses_no_directory_that_another_user_has_filled() {
    if !has_programs(&["nft"]) {
        return;
    }
    for names in [
        &["guest", "snoop", "tune.journal", "tune.log"][..],
        &["guest", "snoop", "tune.journal.new", "snoop.sock"],
    ] {
        let machine = Machine::new("planted");
        let victim = machine.dir.path().join("victim");
        fs::write(&victim, "theirs").unwrap();
        chown(machine.dir.path(), Some(0), Some(0)).unwrap();
        fs::set_permissions(machine.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let given = machine.run("chown", &[&NOBODY.to_string(), "/run/taut"]);
        assert!(given.status.success(), "{given:?}");
        let to = victim.to_str().unwrap();
        for name in names {
            let script = "ln -s \"$1\" \"/run/taut/$2\" && echo done";
            assert_eq!(as_nobody(&machine, script, &[to, name]), "done\n", "{name}");
        }
        for job in tried(&machine) {
            let _loads = (job[0] == "guest").then(programs::alone);
            let (child, said) = start(&machine, &words(&job));
            let status = end(child);
            // The relay of this test uses no directory.
            if job[0] != "relay" {
                assert_eq!(status.code(), Some(1), "{job:?}: {said:?}");
                let last = said.last().unwrap();
                assert!(last.contains("/run/taut"), "{job:?}: {said:?}");
            }
            assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs", "{job:?}");
        }
        let asked = machine.run(TAUT, &["snoop", "status"]);
        assert!(!asked.status.success(), "{asked:?}");
    }
}
