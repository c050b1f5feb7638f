//! `taut guest` as a process: connections have what it loads, and it leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "shared/host.rs"]
mod host;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use serde_json::Value;
use taut_sys::probe::{Answer, bpf};

use host::Host;

const TAUT: &str = env!("CARGO_BIN_EXE_taut");
const ALL: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A host with a BPF file system of its own, which is gone with it.
struct Machine {
    host: Host,
    /// A process in it, which ends when nobody writes to it any more.
    holder: Child,
}

// === impl Machine ===

impl Machine {
    fn new() -> Self {
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
        Self { host, holder }
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.holder.id().to_string(), "--mount"])
            .arg(program)
            .args(args)
            .env_remove("TAUT_LOG");
        self.host.0.run(|| command.output().unwrap()).unwrap()
    }

    fn guest(&self, args: &[&str]) -> String {
        let output = self.run(TAUT, &[&["guest"], args].concat());
        let said = said(&output);
        assert!(output.status.success(), "taut guest {args:?}: {said}");
        said
    }

    fn default(&self) -> String {
        let read = || fs::read_to_string(DEFAULT).unwrap();
        self.host.0.run(read).unwrap().trim().to_owned()
    }

    fn pinned(&self) -> String {
        let found = self.run("find", &["/sys/fs/bpf", "-path", "*taut*"]);
        String::from_utf8(found.stdout).unwrap()
    }

    /// Sends bytes to itself by this congestion control, or the default.
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
        // Whatever has failed: what is registered is the whole kernel's.
        let _ = self.run(TAUT, &["guest", "down"]);
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn registered() -> String {
    fs::read_to_string(ALL).unwrap()
}

#[test]
fn connections_have_what_it_loads_and_nothing_is_left_behind() {
    if let Answer::No(why) = bpf::tcp_congestion_ops() {
        println!("SKIPPED: this kernel takes no congestion controls in BPF: {why}");
        return;
    }
    let machine = Machine::new();
    let default = machine.default();
    machine.guest(&["up"]);
    for control in ["taut_bbr", "taut_cubic"] {
        assert!(registered().contains(control), "{}", registered());
        assert_eq!(machine.transfer(Some(control)), control);
    }
    assert_eq!(machine.default(), default, "nobody has asked for another");

    // Twice is once.
    machine.guest(&["up", "--default", "bbr"]);
    machine.guest(&["up", "--default", "bbr"]);
    assert_eq!(machine.default(), "taut_bbr");
    assert_eq!(machine.transfer(None), "taut_bbr");
    machine.guest(&["up", "--default", "cubic"]);
    assert_eq!(machine.transfer(None), "taut_cubic");

    let status = machine.run(TAUT, &["guest", "status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["is_up"], true);
    assert_eq!(status["default"], "taut_cubic");
    assert_eq!(status["counts"]["not_followed"], 0);

    machine.guest(&["down"]);
    assert_eq!(machine.default(), default);
    assert!(!registered().contains("taut_"), "{}", registered());
    assert_eq!(machine.pinned(), "");
    let said = machine.guest(&["down"]);
    assert!(said.contains("nothing was loaded"), "{said}");

    // What somebody else has chosen stays; and one that still sends keeps what it has.
    machine.guest(&["up", "--default", "bbr"]);
    let listener = machine.host.listener();
    let (mut client, mut server) = machine.host.connection(&listener);
    assert_eq!(tcp_congestion(&client).unwrap(), "taut_bbr");
    let choose = || fs::write(DEFAULT, "reno").unwrap();
    machine.host.0.run(choose).unwrap();
    let said = machine.guest(&["down"]);
    assert!(said.contains("the default was made reno"), "{said}");
    assert_eq!(machine.default(), "reno");
    client.write_all(b"still").unwrap();
    let mut five = [0; 5];
    server.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"still");
}

#[test]
fn without_a_bpf_file_system_it_says_how_there_is_one() {
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
fn without_privileges_it_says_so() {
    for args in [&["up"][..], &["down"], &["status", "--for", "10ms"]] {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("taut");
        // Where the tests were built others may not look.
        fs::copy(TAUT, &copy).unwrap();
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
        assert!(said.contains("run this as root"), "{args:?}: {said}");
    }
}
