#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::Value;

use super::policy::HoldReason;
use super::*;

/// QEMU's end of a socket.
struct Qemu(BufReader<UnixStream>);

impl Qemu {
    /// Accepts a client and greets it.
    fn accept(listener: &UnixListener) -> Self {
        let qemu = Self(BufReader::new(listener.accept().unwrap().0));
        qemu.say(r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 10}}}}"#);
        qemu
    }

    fn say(&self, line: &str) {
        let mut stream = self.0.get_ref();
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// Answers commands up to one of this name.
    fn answer(&mut self, last: &str, returned: &str) {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it is closed");
            let command: Value = serde_json::from_str(&line).unwrap();
            let done = command["execute"] == last;
            let returned = if done { returned } else { "{}" };
            self.say(&format!(
                r#"{{"return": {returned}, "id": {}}}"#,
                command["id"]
            ));
            if done {
                return;
            }
        }
    }
}

struct Rig {
    // Dropped before the folder, whose sockets it connects to.
    monitors: Monitors,
    restrictions: Receiver<(String, Restriction)>,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self::of("tap*={dir}/{tap}")
    }

    /// Starts monitors with this source, in which `{dir}` is replaced by a folder.
    fn of(source: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = source.replace("{dir}", dir.path().to_str().unwrap());
        let (tell, restrictions) = sync_channel(16);
        let tell = move |tap, restriction| tell.send((tap, restriction)).is_ok();
        Self {
            monitors: Monitors::watch(vec![source.parse().unwrap()], tell).unwrap(),
            restrictions,
            dir,
        }
    }

    fn listen(&self, tap: &str) -> UnixListener {
        UnixListener::bind(self.dir.path().join(tap)).unwrap()
    }

    /// Waits for the next restriction.
    fn restriction(&self) -> (String, Option<HoldReason>, Option<HoldReason>) {
        let (tap, restriction) = self.restrictions.recv().unwrap();
        (tap, restriction.hold, restriction.until_heard)
    }
}

#[test]
fn the_state_of_a_machine_becomes_a_restriction_of_its_tap() {
    let rig = Rig::new();
    let listener = rig.listen("tap1");
    rig.monitors.set_taps(vec!["eth0".into(), "tap1".into()]);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-status", r#"{"running": true}"#);
    qemu.answer("query-migrate", "{}");
    let tap = || "tap1".to_owned();
    assert_eq!(rig.restriction(), (tap(), None, None));
    let migration =
        |status: &str| format!(r#"{{"event": "MIGRATION", "data": {{"status": "{status}"}}}}"#);
    qemu.say(&migration("setup"));
    assert_eq!(
        rig.restriction(),
        (tap(), Some(HoldReason::Migrating), None)
    );
    qemu.say(&migration("cancelled"));
    assert_eq!(rig.restriction(), (tap(), None, None));
    // Queries also report it.
    qemu.answer("query-migrate", r#"{"status": "active"}"#);
    assert_eq!(
        rig.restriction(),
        (tap(), Some(HoldReason::Migrating), None)
    );
}

#[test]
fn a_broken_connection_is_reestablished() {
    let rig = Rig::new();
    let listener = rig.listen("tap1");
    rig.monitors.set_taps(vec!["tap1".into()]);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-migrate", r#"{"status": "active"}"#);
    let tap = || "tap1".to_owned();
    assert_eq!(
        rig.restriction(),
        (tap(), Some(HoldReason::Migrating), None)
    );
    drop(qemu);
    assert_eq!(
        rig.restriction(),
        (tap(), None, Some(HoldReason::Disconnected))
    );
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-status", r#"{"running": false}"#);
    qemu.answer("query-migrate", "{}");
    assert_eq!(rig.restriction(), (tap(), Some(HoldReason::Stopped), None));
}

#[test]
fn a_socket_without_qmp_is_closed_and_retried() {
    let rig = Rig::new();
    let listener = rig.listen("tap1");
    rig.monitors.set_taps(vec!["tap1".into()]);
    let mut stranger = listener.accept().unwrap().0;
    stranger.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    // The connection was closed.
    assert_eq!(stranger.read(&mut [0; 16]).unwrap(), 0);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-status", r#"{"running": false}"#);
    qemu.answer("query-migrate", "{}");
    assert_eq!(rig.restriction().1, Some(HoldReason::Stopped));
}

#[test]
fn all_taps_of_a_machine_have_its_restriction_and_one_connection() {
    let rig = Rig::of("tap*i*={dir}/{1}");
    let listener = rig.listen("7");
    rig.monitors
        .set_taps(vec!["tap7i0".into(), "tap7i1".into()]);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-migrate", "{}");
    assert_eq!(rig.restriction().0, "tap7i0");
    assert_eq!(rig.restriction().0, "tap7i1");
    // A later tap gets a restriction, too.
    rig.monitors
        .set_taps(vec!["tap7i0".into(), "tap7i1".into(), "tap7i2".into()]);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-migrate", "{}");
    let taps = [
        rig.restriction().0,
        rig.restriction().0,
        rig.restriction().0,
    ];
    assert_eq!(taps, ["tap7i0", "tap7i1", "tap7i2"]);
}

#[test]
fn the_connection_of_a_vanished_tap_is_closed() {
    let rig = Rig::new();
    let listener = rig.listen("tap1");
    rig.monitors.set_taps(vec!["tap1".into()]);
    let mut qemu = Qemu::accept(&listener);
    qemu.answer("query-status", r#"{"running": true}"#);
    rig.monitors.set_taps(Vec::new());
    // The connection is closed, whether or not there is unread input.
    while matches!(qemu.0.read_line(&mut String::new()), Ok(1..)) {}
}

#[test]
fn a_busy_listener_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full");
    let listener = UnixListener::bind(&path).unwrap();
    // The listener accepts one client at a time, as QEMU does.
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        match connect_to(&path) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
}
