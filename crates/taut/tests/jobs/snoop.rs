//! `taut snoop` as a process: taps in a network namespace, questions at its socket, its end.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use taut_sys::child::Child;
use taut_sys::netns::Netns;
use taut_sys::tap::Tap;

/// A namespace with a tap, and where a process of the test answers.
struct Host {
    netns: Arc<Netns>,
    dir: tempfile::TempDir,
    _tap: Tap,
}

impl Host {
    fn new(name: &str) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        let netns = Netns::create(&format!("taut-snoop-{}-{name}", std::process::id())).unwrap();
        let tap = netns.run(|| Tap::create("vnet0").unwrap()).unwrap();
        let host = Self {
            netns: Arc::new(netns),
            dir: tempfile::tempdir().unwrap(),
            _tap: tap,
        };
        host.ip("link set lo up");
        host
    }

    fn ip(&self, line: &str) -> String {
        self.command("ip", line)
    }

    fn tc(&self, line: &str) -> String {
        self.command("tc", line)
    }

    fn command(&self, program: &str, line: &str) -> String {
        let mut command = Command::new(program);
        command
            .args(["-n", self.netns.name()])
            .args(line.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program} {line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    fn taut(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.arg("snoop").args(args);
        command.arg("--control").arg(self.control());
        command.stdin(Stdio::null()).env_remove("TAUT_LOG");
        command
    }

    /// A process that has said `words`.
    fn serving(&self, args: &[&str], words: &str) -> Serving {
        let mut command = self.taut(args);
        command.stderr(Stdio::piped());
        let mut child = Child::spawn(self.netns.clone(), command).unwrap();
        let stderr = child.pipes().stderr.take().unwrap();
        let mut said = BufReader::new(stderr);
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(
                said.read_line(&mut line).unwrap() > 0,
                "it ended before `{words}`"
            );
        }
        Serving { child, said }
    }

    fn ask(&self, args: &[&str]) -> Output {
        self.taut(args).output().unwrap()
    }

    fn status(&self) -> Value {
        let output = self.ask(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["taps"].clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(self.netns.name());
    }
}

struct Serving {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Serving {
    fn wait_for(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(
                self.said.read_line(&mut line).unwrap() > 0,
                "it ended before `{words}`"
            );
        }
    }
}

/// One sentence, and the exit status.
fn refused(output: &Output, status: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert!(said.contains(part), "no `{part}` in: {said}");
}

#[test]
fn it_serves_what_comes_answers_and_leaves_the_tap_as_it_was() {
    let host = Host::new("serve");
    let before = host.tc("qdisc show dev vnet0");
    let mut serving = host.serving(&["--tap", "vnet*"], "serving");
    let status = host.status();
    assert_eq!(
        (&status[0]["tap"], &status[0]["state"]),
        (&"vnet0".into(), &"on".into())
    );
    host.ip("tuntap add vnet1 mode tap");
    serving.wait_for("vnet1");
    assert_eq!(host.status().as_array().unwrap().len(), 2);
    host.ip("link del vnet1");
    serving.wait_for("gone");

    let off = host.ask(&["--off", "vnet0"]);
    assert!(off.status.success(), "{off:?}");
    assert_eq!(host.status()[0]["state"], "off");
    serving.wait_for("drained");
    assert!(host.ask(&["--on", "vnet0"]).status.success());
    assert_eq!(host.status()[0]["state"], "on");
    let table = String::from_utf8(host.ask(&["status"]).stdout).unwrap();
    assert!(table.contains("vnet0: on"), "{table}");
    refused(&host.ask(&["--off", "vnet7"]), 1, "vnet7 is not served");
    refused(
        &host.ask(&["--tap", "vnet*"]),
        1,
        "another process answers there",
    );

    serving.child.signal(Signal::TERM).unwrap();
    assert!(serving.child.wait().unwrap().success());
    assert_eq!(host.tc("qdisc show dev vnet0"), before);
    assert!(!host.control().exists());
    refused(&host.ask(&["status"]), 1, "no `taut snoop` answers");
}

#[test]
fn a_start_that_names_only_devices_that_are_no_taps_ends_with_a_sentence() {
    let host = Host::new("none");
    host.ip("tuntap add dtun0 mode tun");
    let args = ["--tap", "lo", "--tap", "dtun0"];
    let output = host.netns.run(|| host.ask(&args)).unwrap();
    refused(
        &output,
        1,
        "lo is a hardware device or the loopback, not a tap",
    );
    // A tap, or a name that may appear, is served although another cannot be.
    for also in ["vnet0", "later0", "d*"] {
        let _serving = host.serving(&["--tap", "dtun0", "--tap", also], "not a tap");
        assert!(host.ask(&["status"]).status.success(), "{also}");
    }
}

#[test]
fn a_name_that_no_device_has_is_reported_and_the_device_is_served_when_it_appears() {
    let host = Host::new("none");
    let mut serving = host.serving(&["--tap", "later*"], "no device has this name");
    host.ip("tuntap add later0 mode tap");
    serving.wait_for("serving");
    serving.child.signal(Signal::TERM).unwrap();
    assert!(serving.child.wait().unwrap().success());
}

#[test]
fn killed_it_is_followed_by_another_which_puts_back_what_it_left() {
    let host = Host::new("kill");
    host.tc("qdisc replace dev vnet0 root pfifo limit 77");
    let before = host.tc("qdisc show dev vnet0");
    let mut serving = host.serving(&["--tap", "vnet0"], "serving");
    serving.child.kill().unwrap();
    assert!(host.tc("qdisc show dev vnet0").contains("noqueue"));
    let mut serving = host.serving(&["--tap", "vnet0"], "serving");
    serving.child.signal(Signal::INT).unwrap();
    assert!(serving.child.wait().unwrap().success());
    assert_eq!(host.tc("qdisc show dev vnet0"), before);
}

/// Sends a line as QEMU does.
fn say(qemu: &mut UnixStream, line: &str) {
    writeln!(qemu, "{line}\r").unwrap();
}

/// A connection of the process's to the monitor of a machine that runs.
fn accept_qmp(listener: &UnixListener) -> UnixStream {
    let mut qemu = listener.accept().unwrap().0;
    let mut commands = BufReader::new(qemu.try_clone().unwrap());
    say(
        &mut qemu,
        r#"{"QMP": {"version": {"qemu": {"major": 10, "minor": 2, "micro": 0}}}}"#,
    );
    let mut asked = String::new();
    while asked != "query-migrate" {
        let mut line = String::new();
        commands.read_line(&mut line).unwrap();
        let command: Value = serde_json::from_str(&line).unwrap();
        asked = command["execute"].as_str().unwrap().to_owned();
        let returned = match &*asked {
            "query-status" => r#"{"running": true, "status": "running"}"#,
            _ => "{}",
        };
        say(
            &mut qemu,
            &format!(r#"{{"return": {returned}, "id": {}}}"#, command["id"]),
        );
    }
    qemu
}

#[test]
fn early_acks_stop_while_qemu_says_so_and_an_operators_off_outlasts_it() {
    let host = Host::new("qmp");
    let socket = host.dir.path().join("vnet0.qmp");
    let listener = UnixListener::bind(&socket).unwrap();
    let source = format!("vnet*={}/{{tap}}.qmp", host.dir.path().display());
    let mut serving = host.serving(&["--tap", "vnet0", "--qmp", &source], "serving");
    let mut qemu = accept_qmp(&listener);
    let why = || host.status()[0]["why"].as_str().map(str::to_owned);

    say(
        &mut qemu,
        r#"{"event": "MIGRATION", "data": {"status": "setup"}}"#,
    );
    serving.wait_for("no early ACKs: the guest is being migrated or saved");
    serving.wait_for("drained");
    assert_eq!(host.status()[0]["state"], "off");
    assert!(why().unwrap().contains("migrated or saved"));
    say(
        &mut qemu,
        r#"{"event": "MIGRATION", "data": {"status": "cancelled"}}"#,
    );
    serving.wait_for("early ACKs again");
    assert_eq!((&host.status()[0]["state"], why()), (&"on".into(), None));

    assert!(host.ask(&["--off", "vnet0"]).status.success());
    serving.wait_for("drained");
    for event in ["STOP", "RESUME", "RESET"] {
        say(&mut qemu, &format!(r#"{{"event": "{event}"}}"#));
    }
    // What came before it has been dealt with.
    serving.wait_for("no early ACKs: the guest was reset");
    assert_eq!(host.status()[0]["state"], "off");
    assert!(host.ask(&["--on", "vnet0"]).status.success());
    assert_eq!(host.status()[0]["state"], "on");

    drop((qemu, listener));
    serving.wait_for("no early ACKs: QEMU closed its monitor");
    serving.wait_for("no QMP");
}

#[test]
fn a_scraper_is_told() {
    let host = Host::new("scrape");
    let _serving = host.serving(
        &["--tap", "vnet0", "--metrics", "127.0.0.1:9465"],
        "serving",
    );
    let addr: SocketAddr = "127.0.0.1:9465".parse().unwrap();
    let text = host.netns.run(|| {
        let mut stream = TcpStream::connect(addr).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: taut\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let text = text.unwrap();
    assert!(
        text.contains("taut_snoop_tap_state{tap=\"vnet0\",state=\"on\"} 1"),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_touched() {
    let host = Host::new("bad");
    let file = host.dir.path().join("taut.toml");
    std::fs::write(&file, "[snoop]\ntaps = [\"a\"]\nrings = 1\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, part) in [
        (&["--config", "/dev/null"][..], "no tap is named"),
        (&["--config", file], "unknown field `rings`"),
        (&["--config", "/nowhere"], "cannot read /nowhere"),
        (&["--tap", "a", "--grow"], "needs guest_rcvbuf"),
        (&["--tap", "a", "--buffer", "1GiB"], "must be below 1 GiB"),
        (&["--tap", "a", "--ring", "0"], "1 to 65,536"),
        (
            &["--tap", "a", "--qmp", "a=vm1.qmp"],
            "must be an absolute path",
        ),
    ] {
        let output = host.ask(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: no `{part}` in: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    refused(
        &host.ask(&["--tap", "a", "--metrics", "192.0.2.1:1"]),
        1,
        "cannot serve metrics at 192.0.2.1:1",
    );
    assert!(!host.control().exists());
}

#[test]
fn a_measurement_that_is_ended_leaves_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["snoop", "cost"]).stderr(Stdio::piped());
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("measuring"), "{line}");
    let of_it = format!("taut-snoop-cost-{}-", child.id());
    let namespaces = || {
        let entries = std::fs::read_dir("/run/netns").unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap_or_default());
        names.filter(|name| name.starts_with(&of_it)).count()
    };
    // It has begun to make them, or has ended for another reason.
    while namespaces() == 0 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{status}");
    said.read_to_string(&mut line).unwrap();
    assert!(line.contains("the measurement was interrupted"), "{line}");
    assert_eq!(namespaces(), 0);
}
