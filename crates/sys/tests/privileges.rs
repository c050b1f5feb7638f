//! Dropping privileges and entering a sandbox. Each case runs in its own single-threaded process: the
//! usual test harness starts threads.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use taut_sys::privileges::{
    Capability, PrivilegesError, Unprivileged, become_unprivileged, drop_to, limit_to,
    with_inherited,
};
use taut_sys::sandbox::{Calls, Files, Sandbox, SandboxError};

/// CAP_NET_BIND_SERVICE is number 10 (linux/capability.h).
const NET_BIND_SERVICE: u64 = 1 << 10;

/// The environment variable with the case that a process runs.
const CASE: &str = "TAUT_CASE";

/// A list of cases with their names.
macro_rules! cases {
    ($($case:ident,)*) => { [$((stringify!($case), $case as fn())),*] };
}

const CASES: [(&str, fn()); 13] = cases![
    a_user_without_capabilities,
    a_user_with_one_capability,
    the_same_user_with_one_capability,
    threads_inherit_the_privileges,
    other_threads_are_an_error,
    an_unknown_user_is_an_error,
    what_is_missing_is_not_kept,
    an_unprivileged_user_has_nothing,
    a_program_inherits_what_it_is_given_alone,
    system_calls_outside_the_sandbox_are_refused,
    executed_programs_stay_in_the_sandbox,
    files_outside_the_sandbox_are_refused,
    a_sandbox_is_for_all_threads_or_none,
];

fn main() {
    if let Ok(name) = std::env::var(CASE) {
        let case = CASES.iter().find(|(n, _)| *n == name).unwrap();
        return case.1();
    }
    let trials = CASES.map(|(name, _)| Trial::test(name, move || run_apart(name)));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

/// Runs a case in another process of this program.
fn run_apart(name: &str) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        taut_sys_testing::skip::skip(&format!("{name}: only root can drop privileges"));
        return Ok(());
    }
    let this = std::env::current_exe()?;
    let output = Command::new(this).env(CASE, name).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// Returns a field of this thread's /proc status.
fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(field)).unwrap();
    line.trim_start_matches(':')
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn set(field: &str) -> u64 {
    u64::from_str_radix(&status(field), 16).unwrap()
}

fn assert_left(left: u64) {
    assert_eq!(set("CapEff"), left);
    assert_eq!(set("CapPrm"), left);
    assert_eq!(set("CapBnd"), left);
    assert_eq!((set("CapInh"), set("CapAmb")), (0, 0));
    assert_eq!(status("NoNewPrivs"), "1");
}

fn a_user_without_capabilities() {
    drop_to(Some("nobody"), &[]).unwrap();
    assert_eq!(status("Uid"), "65534 65534 65534 65534");
    assert_eq!(status("Gid"), "65534 65534 65534 65534");
    assert_eq!(status("Groups"), "65534");
    assert_left(0);
    assert!(std::fs::File::open("/etc/shadow").is_err());
    // The privileges cannot be regained.
    assert!(drop_to(Some("root"), &[]).is_err());
    let root = Command::new("id").arg("-u").output().unwrap();
    assert_eq!(root.stdout, b"65534\n");
}

fn a_user_with_one_capability() {
    drop_to(Some("nobody"), &[Capability::NetBindService]).unwrap();
    assert_eq!(status("Uid"), "65534 65534 65534 65534");
    assert_left(NET_BIND_SERVICE);
    // Any free port below 1024 is enough.
    assert!((1..1024).any(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()));
}

fn the_same_user_with_one_capability() {
    drop_to(None, &[Capability::NetBindService]).unwrap();
    assert_eq!(status("Uid"), "0 0 0 0");
    assert_left(NET_BIND_SERVICE);
    // A dropped capability cannot be kept later.
    let again = drop_to(None, &[Capability::NetAdmin]);
    assert!(matches!(
        again,
        Err(PrivilegesError::Missing("CAP_NET_ADMIN"))
    ));
    drop_to(None, &[]).unwrap();
    assert_eq!(set("CapEff"), 0);
}

fn threads_inherit_the_privileges() {
    drop_to(Some("nobody"), &[Capability::NetBindService]).unwrap();
    let thread = std::thread::spawn(|| {
        assert_eq!(status("Uid"), "65534 65534 65534 65534");
        assert_left(NET_BIND_SERVICE);
    });
    thread.join().unwrap();
}

fn other_threads_are_an_error() {
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv().is_err());
    let error = drop_to(Some("nobody"), &[]).unwrap_err();
    assert!(matches!(error, PrivilegesError::Threads(2)), "{error}");
    // No privilege was changed.
    assert_eq!(status("Uid"), "0 0 0 0");
    assert_eq!(status("NoNewPrivs"), "0");
    drop(end);
    assert!(thread.join().unwrap());
}

fn an_unknown_user_is_an_error() {
    let error = drop_to(Some("no such user"), &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("there is no user `no such user`"),
        "{error}"
    );
    assert!(drop_to(Some("a\0b"), &[]).is_err());
    assert_eq!(status("Uid"), "0 0 0 0");
}

fn what_is_missing_is_not_kept() {
    limit_to(&[Capability::NetBindService]).unwrap();
    assert_left(NET_BIND_SERVICE);
    limit_to(&[Capability::NetBindService, Capability::SysAdmin]).unwrap();
    assert_left(NET_BIND_SERVICE);
    assert_eq!(status("Uid"), "0 0 0 0");
}

fn an_unprivileged_user_has_nothing() {
    let user = Unprivileged::choose().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(&file, 0o644);
    mode(dir.path(), 0o700);
    assert!(!user.can_read(&file));
    mode(dir.path(), 0o711);
    assert!(user.can_read(&file));
    mode(&file, 0o640);
    assert!(!user.can_read(&file));
    become_unprivileged(&user, &[Capability::NetBindService]).unwrap();
    let uid: u32 = status("Uid").split(' ').next().unwrap().parse().unwrap();
    assert!((60_578..=61_183).contains(&uid), "{uid}");
    assert_eq!(user.to_string(), format!("user {uid}"));
    assert_left(NET_BIND_SERVICE);
    assert!(std::fs::read(&file).is_err());
    assert!(Unprivileged::choose().is_none());
}

fn a_program_inherits_what_it_is_given_alone() {
    let kept = [Capability::NetBindService, Capability::NetRaw];
    drop_to(Some("nobody"), &kept).unwrap();
    let program = || {
        let output = Command::new("grep")
            .args(["CapEff", "/proc/self/status"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        u64::from_str_radix(text.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    assert_eq!(program(), 0);
    let given = [Capability::NetBindService, Capability::SysAdmin];
    assert_eq!(with_inherited(&given, program).unwrap(), NET_BIND_SERVICE);
    assert_eq!(program(), 0);
    assert_eq!((set("CapInh"), set("CapAmb")), (0, 0));
}

/// Enters a namespace, which takes setns(2).
fn enter_own_netns() -> Result<(), Errno> {
    let own = std::fs::File::open("/proc/self/ns/net").unwrap();
    move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&own),
        Some(LinkNameSpaceType::Network),
    )
}

fn system_calls_outside_the_sandbox_are_refused() {
    enter_own_netns().unwrap();
    let lacking = Sandbox::default().enter().unwrap();
    assert!(lacking.is_empty(), "{lacking:?}");
    assert_eq!(
        (status("Seccomp"), status("NoNewPrivs")),
        ("2".into(), "1".into())
    );
    assert_eq!(enter_own_netns(), Err(Errno::PERM));
    let error = Command::new("true").output().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    // Everything that any job does is allowed, in new threads too.
    let thread = std::thread::spawn(|| {
        assert_eq!(status("Seccomp"), "2");
        assert_eq!(enter_own_netns(), Err(Errno::PERM));
        TcpListener::bind("127.0.0.1:0").unwrap()
    });
    drop(thread.join().unwrap());
}

fn executed_programs_stay_in_the_sandbox() {
    let sandbox = Sandbox {
        calls: vec![Calls::Execute, Calls::EnterNamespaces],
        files: None,
    };
    sandbox.enter().unwrap();
    enter_own_netns().unwrap();
    assert!(Command::new("true").status().unwrap().success());
    // Neither by clone nor by unshare.
    for arguments in [["--user", "true"], ["--mount", "true"]] {
        let output = Command::new("unshare").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Operation not permitted"), "{said}");
    }
}

fn files_outside_the_sandbox_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["read", "write", "other", "sockets", "pins"];
    let [read, write, other, sockets, pins] = names.map(|name| dir.path().join(name));
    for sub in [&read, &write, &other, &sockets, &pins] {
        std::fs::create_dir(sub).unwrap();
        std::fs::write(sub.join("file"), "text").unwrap();
    }
    std::fs::write(read.join("log"), "text").unwrap();
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
    let parent = format!("/proc/{parent}/ns/net");
    std::fs::read_link(&parent).unwrap();
    let sandbox = Sandbox {
        calls: vec![Calls::Execute],
        files: Some(Files {
            read: vec![read.clone(), "/proc".into(), "/no/such/file".into()],
            write: vec![write.clone(), read.join("log"), "/dev/null".into()],
            sockets: vec![sockets.clone()],
            pins: vec![pins.clone()],
            ..Files::default()
        }),
    };
    assert!(sandbox.enter().unwrap().is_empty());
    let is_denied = |result: std::io::Result<()>| {
        result.is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
    };
    std::fs::read(read.join("file")).unwrap();
    std::fs::write(write.join("new"), "text").unwrap();
    std::fs::rename(write.join("new"), write.join("file")).unwrap();
    std::fs::remove_file(write.join("file")).unwrap();
    assert!(is_denied(std::fs::write(read.join("file"), "other")));
    // One file beside others.
    std::fs::write(read.join("log"), "other").unwrap();
    std::fs::write("/dev/null", "other").unwrap();
    assert!(is_denied(std::fs::remove_file(read.join("log"))));
    // Only sockets.
    let bind = |path| std::os::unix::net::UnixListener::bind(path).map(drop);
    bind(sockets.join("new")).unwrap();
    std::fs::rename(sockets.join("new"), sockets.join("socket")).unwrap();
    assert!(is_denied(bind(read.join("socket"))));
    assert!(is_denied(std::fs::write(sockets.join("file"), "other")));
    assert!(is_denied(std::fs::write(sockets.join("new"), "text")));
    // Only names, as those of pins.
    std::fs::create_dir(pins.join("new")).unwrap();
    std::fs::remove_dir(pins.join("new")).unwrap();
    assert!(is_denied(std::fs::write(pins.join("file"), "other")));
    std::fs::remove_file(pins.join("file")).unwrap();
    assert!(is_denied(std::fs::create_dir(write.join("new"))));
    assert!(is_denied(std::fs::read(other.join("file")).map(drop)));
    assert!(is_denied(std::fs::write(other.join("new"), "text")));
    assert!(is_denied(Command::new("true").status().map(drop)));
    // It cannot reach into a process outside, although the files are in /proc.
    assert!(is_denied(std::fs::read_link(&parent).map(drop)));
}

fn a_sandbox_is_for_all_threads_or_none() {
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv().is_err());
    let error = Sandbox::default().enter().unwrap_err();
    assert!(matches!(error, SandboxError::Threads(2)), "{error}");
    let error = limit_to(&[]).unwrap_err();
    assert!(matches!(error, PrivilegesError::Threads(2)), "{error}");
    assert_eq!(
        (status("Seccomp"), status("NoNewPrivs")),
        ("0".into(), "0".into())
    );
    drop(end);
    assert!(thread.join().unwrap());
}
