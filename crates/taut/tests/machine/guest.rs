//! `taut guest` as a process: connections use the loaded congestion controls, and `down` removes all.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use serde_json::Value;
use taut_sys::probe::{Answer, bpf};
use taut_sys_testing::skip::skip;

use crate::host::Host;
use crate::rig::{TAUT, congestion_controls};

const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A network namespace with a BPF file system of its own, both removed on drop.
struct Machine {
    host: Host,
    /// A process in the mount namespace, which ends when its standard input is closed.
    holder: Child,
    _loads: fs::File,
}

// === impl Machine ===

impl Machine {
    /// Returns `None` if this kernel lacks congestion controls in BPF.
    fn new() -> Option<Self> {
        if let Answer::No(why) = bpf::tcp_congestion_ops() {
            skip(&format!(
                "this kernel lacks congestion controls in BPF: {why}"
            ));
            return None;
        }
        let loads = crate::programs::alone();
        let host = Host::new("guest");
        let mut holder = Command::new("unshare");
        holder
            .args(["--mount", "sh", "-c"])
            .arg("mount -t bpf bpf /sys/fs/bpf && echo ready && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = host.0.run(|| holder.spawn().unwrap()).unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(holder.stdout.as_mut().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "a BPF file system can be mounted");
        Some(Self {
            host,
            holder,
            _loads: loads,
        })
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.run_in(&self.host, program, args)
    }

    /// Runs a program in another network namespace with the same mounts.
    fn run_in(&self, host: &Host, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.holder.id().to_string(), "--mount"])
            .arg(program)
            .args(args)
            .env_remove("TAUT_LOG");
        let _allowed = args.contains(&"up").then(crate::programs::keep_allowed);
        host.0.run(|| command.output().unwrap()).unwrap()
    }

    fn sh(&self, script: &str) {
        let output = self.run("sh", &["-ec", script]);
        assert!(output.status.success(), "{script}: {}", said(&output));
    }

    /// Runs a command that must fail and returns its error message.
    fn fails(&self, args: &[&str]) -> String {
        let output = self.run(TAUT, &[&["guest"], args].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "taut guest {args:?}: {said}");
        said
    }

    fn status(&self, args: &[&str]) -> Value {
        let args = [&["guest", "status", "--json"], args].concat();
        let status = self.run(TAUT, &args);
        assert!(status.status.success(), "{args:?}: {}", said(&status));
        serde_json::from_slice(&status.stdout).unwrap()
    }

    fn guest(&self, args: &[&str]) -> String {
        let output = self.run(TAUT, &[&["guest"], args].concat());
        let said = said(&output);
        assert!(output.status.success(), "taut guest {args:?}: {said}");
        said
    }

    fn default(&self) -> String {
        default(&self.host)
    }

    fn pinned(&self) -> String {
        let found = self.run("find", &["/sys/fs/bpf", "-path", "*taut*"]);
        String::from_utf8(found.stdout).unwrap()
    }

    /// Transfers data over a connection with this congestion control or the default. Returns the
    /// connection's congestion control.
    fn transfer(&self, control: Option<&str>) -> String {
        let listener = self.host.listener();
        let (client, mut server) = self.host.connection(&listener);
        if let Some(control) = control {
            set_tcp_congestion(&client, control).unwrap();
        }
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
        let sent = bytes.clone();
        let has = tcp_congestion(&client).unwrap();
        let sender = std::thread::spawn(move || {
            let mut client = client;
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        sender.join().unwrap();
        assert!(received == bytes, "all bytes have arrived in their order");
        has
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Also after a failure, because congestion controls are registered for the whole kernel.
        let _ = self.run(TAUT, &["guest", "down"]);
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Keeps a CPU busy, because an idle CPU has no timer ticks.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let busy = Self(Arc::clone(&is_over));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn default(host: &Host) -> String {
    let read = || fs::read_to_string(DEFAULT).unwrap();
    host.0.run(read).unwrap().trim().to_owned()
}

#[test]
fn connections_use_the_loaded_congestion_controls_and_down_removes_all() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let default = machine.default();
    machine.guest(&["up"]);
    for control in ["taut_bbr", "taut_cubic"] {
        assert!(congestion_controls().contains(control), "{control}");
        assert_eq!(machine.transfer(Some(control)), control);
    }
    assert_eq!(machine.default(), default, "no other default was requested");

    // A second `up` has no further effect.
    machine.guest(&["up", "--default", "bbr"]);
    machine.guest(&["up", "--default", "bbr"]);
    assert_eq!(machine.default(), "taut_bbr");
    assert_eq!(machine.transfer(None), "taut_bbr");
    machine.guest(&["up", "--default", "cubic"]);
    assert_eq!(machine.transfer(None), "taut_cubic");

    let status = machine.status(&[]);
    assert_eq!(status["is_up"], true);
    assert_eq!(status["default"], "taut_cubic");
    assert_eq!(status["counts"]["not_followed"], 0);

    machine.guest(&["down"]);
    assert_eq!(machine.default(), default);
    assert_eq!(congestion_controls(), "");
    assert_eq!(machine.pinned(), "");
    let said = machine.guest(&["down"]);
    assert!(said.contains("nothing was loaded"), "{said}");

    // A default set by another program stays, and an open connection keeps its congestion control.
    machine.guest(&["up", "--default", "bbr"]);
    let listener = machine.host.listener();
    let (mut client, mut server) = machine.host.connection(&listener);
    assert_eq!(tcp_congestion(&client).unwrap(), "taut_bbr");
    let choose = || fs::write(DEFAULT, "reno").unwrap();
    machine.host.0.run(choose).unwrap();
    let said = machine.guest(&["down"]);
    assert!(
        said.contains("the default congestion control stays reno"),
        "{said}"
    );
    assert_eq!(machine.default(), "reno");
    client.write_all(b"still").unwrap();
    let mut five = [0; 5];
    server.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"still");
}

#[test]
fn a_congestion_control_that_the_kernel_does_not_support_leaves_the_other() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let default = machine.default();
    let folder = tempfile::tempdir().unwrap();
    // The kernel's types, without a function that the control calls, as those of a kernel with BBRv3.
    let hide = |function: &str, module: &str| {
        let folder = folder.path().display();
        machine.sh(&format!(
            "cd /sys/kernel/btf; for types in vmlinux {module}; do [ -e $types ] || continue; \
             LC_ALL=C sed s/{function}/X{}/g $types >{folder}/$types.{function}; \
             mount --bind {folder}/$types.{function} $types; done",
            &function[1..]
        ));
    };
    hide("bbr_min_tso_segs", "tcp_bbr");
    let said = machine.fails(&["up", "--default", "bbr"]);
    assert!(
        said.contains("no bbr_min_tso_segs() that BPF can call"),
        "{said}"
    );
    assert_eq!(
        (machine.pinned(), machine.default()),
        (String::new(), default.clone())
    );

    let said = machine.guest(&["up"]);
    assert!(said.contains("taut_cubic is loaded, until"), "{said}");
    assert!(
        said.contains("taut_bbr cannot be loaded: the kernel's bbr has no"),
        "{said}"
    );
    assert_eq!(machine.transfer(Some("taut_cubic")), "taut_cubic");
    assert!(!congestion_controls().contains("taut_bbr"));
    let said = machine.fails(&["up", "--default", "bbr"]);
    assert!(said.contains("bbr_min_tso_segs()"), "{said}");
    assert_eq!(machine.default(), default);
    machine.guest(&["up", "--default", "cubic"]);
    assert_eq!(machine.transfer(None), "taut_cubic");
    let status = machine.status(&[]);
    assert_eq!(status["is_up"], true);
    assert_eq!(status["controls"], serde_json::json!(["cubic"]));

    // Loaded as soon as the kernel supports it, as once the user has loaded its module.
    machine.sh("cd /sys/kernel/btf; umount vmlinux; ! [ -e tcp_bbr ] || umount tcp_bbr");
    let said = machine.guest(&["up"]);
    assert!(said.contains("taut_cubic is already loaded"), "{said}");
    assert!(said.contains("taut_bbr is loaded, until"), "{said}");
    assert_eq!(machine.transfer(Some("taut_bbr")), "taut_bbr");
    machine.guest(&["down"]);
    assert_eq!(
        (machine.pinned(), machine.default()),
        (String::new(), default)
    );

    hide("cubictcp_acked", "tcp_cubic");
    let said = machine.guest(&["up"]);
    assert!(said.contains("taut_bbr is loaded, until"), "{said}");
    assert!(said.contains("taut_cubic cannot be loaded"), "{said}");
    machine.guest(&["down"]);
    hide("bbr_main", "tcp_bbr");
    let said = machine.fails(&["up"]);
    assert!(said.contains("no bbr_main() that BPF can call"), "{said}");
    assert_eq!(machine.pinned(), "");
    assert_eq!(congestion_controls(), "");
}

#[test]
fn the_pins_of_a_killed_command_are_replaced_or_removed() {
    let Some(machine) = Machine::new() else {
        return;
    };
    machine.guest(&["up"]);
    let all = machine.pinned();
    assert!(all.contains("/taut/guest/since"), "{all}");
    // The last pin of `up`, which `down` removes first; then several pins from either end.
    for gone in ["since", "since gaps counts", "since tick beats", "beats"] {
        machine.sh(&format!("cd /sys/fs/bpf/taut/guest && rm {gone}"));
        assert_eq!(machine.status(&["--for", "10ms"])["is_up"], false, "{gone}");
        let said = machine.guest(&["up"]);
        assert!(said.contains("are loaded, until"), "{gone}: {said}");
        assert_eq!(machine.pinned(), all, "{gone}");
        assert_eq!(machine.transfer(Some("taut_bbr")), "taut_bbr");
    }
    for gone in ["since", "since gaps counts", "since tick beats"] {
        machine.sh(&format!("cd /sys/fs/bpf/taut/guest && rm {gone}"));
        let said = machine.guest(&["down"]);
        assert!(said.contains("are unloaded"), "{gone}: {said}");
        assert_eq!(machine.pinned(), "", "{gone}");
        assert_eq!(congestion_controls(), "", "{gone}");
        machine.guest(&["up"]);
    }
    machine.guest(&["down"]);
    // Directories of an `up` that was killed before its first pin.
    machine.sh("mkdir -m 700 /sys/fs/bpf/taut /sys/fs/bpf/taut/guest");
    let said = machine.guest(&["down"]);
    assert!(said.contains("nothing was loaded"), "{said}");
    assert_eq!(machine.pinned(), "");
}

#[test]
fn a_directory_that_other_users_can_change_is_not_touched() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("guest").join("since");
    fs::create_dir(precious.parent().unwrap()).unwrap();
    fs::write(&precious, "precious").unwrap();
    let link = format!("ln -s {} /sys/fs/bpf/taut", folder.path().display());
    let taut = "/sys/fs/bpf/taut";
    let guest = "/sys/fs/bpf/taut/guest";
    for (made, which) in [
        (link.as_str(), taut),
        (
            "mkdir -m 755 /sys/fs/bpf/taut; chown 65534 /sys/fs/bpf/taut",
            taut,
        ),
        ("mkdir -m 775 /sys/fs/bpf/taut", taut),
        (
            "mkdir -p -m 700 /sys/fs/bpf/taut; mkdir -m 707 /sys/fs/bpf/taut/guest",
            guest,
        ),
        (
            "mkdir -m 700 /sys/fs/bpf/taut; ln -s / /sys/fs/bpf/taut/guest",
            guest,
        ),
    ] {
        machine.sh(made);
        let before = machine.pinned();
        for args in [&["up"][..], &["down"], &["status", "--for", "10ms"]] {
            let said = machine.fails(args);
            let command = format!("  ls -ld {which}");
            assert!(
                said.lines().any(|line| line == command),
                "{made}: {args:?}: {said}"
            );
        }
        assert_eq!(machine.pinned(), before, "{made}");
        assert_eq!(congestion_controls(), "", "{made}");
        machine.sh("rm -r /sys/fs/bpf/taut");
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    machine.guest(&["up"]);
    let modes = machine.run("stat", &["-c", "%u %a", taut, guest]);
    assert_eq!(modes.stdout, b"0 700\n0 700\n");
    machine.guest(&["down"]);
}

#[test]
fn the_default_of_one_namespace_is_protected_from_another() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let other = Host::new("guest-other");
    let in_other = |args: &[&str]| machine.run_in(&other, TAUT, &[&["guest"], args].concat());
    let (here, there) = (machine.default(), default(&other));
    machine.guest(&["up", "--default", "bbr"]);
    for args in [&["up", "--default", "cubic"][..], &["down"]] {
        let output = in_other(args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains("in network namespace net:["),
            "{args:?}: {said}"
        );
        assert_eq!(default(&other), there, "{args:?}");
        assert_eq!(machine.default(), "taut_bbr", "{args:?}");
        assert!(congestion_controls().contains("taut_bbr"), "{args:?}");
    }
    machine.guest(&["down"]);
    assert_eq!(machine.default(), here);
    assert!(in_other(&["up", "--default", "cubic"]).status.success());
    assert_eq!(default(&other), "taut_cubic");
    assert!(in_other(&["down"]).status.success());
    assert_eq!(default(&other), there);
}

#[test]
fn status_counts_ticks_and_has_a_verdict() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let _busy = Busy::new();
    let by_itself = machine.status(&["--for", "500ms"]);
    machine.guest(&["up"]);
    let since_up = machine.status(&[]);
    let since_then = machine.status(&["--for", "500ms"]);
    for (status, is_up) in [(by_itself, false), (since_up, true), (since_then, true)] {
        assert_eq!(status["is_up"], is_up, "{status}");
        assert!(status["gaps"]["ticks"].as_u64() > Some(0), "{status}");
        assert!(status["watched_s"].as_f64() > Some(0.0), "{status}");
        assert!(status["verdict"].is_string(), "{status}");
        let share = status["steal_share"].as_f64();
        assert!(
            share.is_none_or(|share| (0.0..=1.0).contains(&share)),
            "{status}"
        );
    }
}

#[test]
fn without_a_bpf_file_system_the_error_names_the_mount_command() {
    let host = Host::new("guest-nofs");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs none /sys/fs/bpf && {TAUT} guest up"
        ))
        .env_remove("TAUT_LOG");
    let output = host.0.run(|| command.output().unwrap()).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("mount -t bpf bpf /sys/fs/bpf"), "{said}");
}

#[test]
fn without_privileges_the_error_says_run_as_root() {
    for args in [&["up"][..], &["down"], &["status", "--for", "10ms"]] {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("taut");
        // Other users may not have access to the build directory. Not fs::copy: a child of another test may
        // inherit the descriptor, and then this is "text file busy".
        let copied = Command::new("cp")
            .args([TAUT.as_ref(), copy.as_path()])
            .status();
        assert!(copied.unwrap().success());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let output = Command::new(&copy)
            .arg("guest")
            .args(args)
            .uid(65534)
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = said(&output);
        assert!(said.contains("must run as root"), "{args:?}: {said}");
    }
}
