//! `taut snoop` on the host of the guests.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::Value;
use taut_sys::child::Child;

use crate::snoop_guests::wait_until;
use crate::snoop_guests::world::World;

pub(crate) struct Snoop {
    child: Child,
    control: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
}

// === impl Snoop ===

impl Snoop {
    /// Serves the taps of all guests, whose monitors it knows.
    pub(crate) fn start(world: &World) -> Self {
        let sockets = world.dir.path().join("{tap}.qmp");
        Self::with(world, &["--qmp", &format!("guest*={}", sockets.display())])
    }

    /// The same without their monitors.
    pub(crate) fn without_qmp(world: &World) -> Self {
        Self::with(world, &[])
    }

    fn with(world: &World, args: &[&str]) -> Self {
        let control = world.dir.path().join("control");
        let mut command = taut();
        command.args(["--tap", "guest*"]).args(args);
        command.arg("--control").arg(&control);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.env_remove("TAUT_LOG");
        let mut child = Child::spawn(world.host.clone(), command).unwrap();
        let stderr = child.pipes().stderr.take().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let said = said.clone();
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    said.lock().unwrap().push(line);
                }
            }
        });
        let snoop = Self {
            child,
            control,
            said,
        };
        snoop.says("serving");
        snoop
    }

    /// Waits until it has said this, at any time.
    pub(crate) fn says(&self, words: &str) {
        wait_until(words, || {
            let said = self.said.lock().unwrap();
            said.iter().any(|line| line.contains(words)).then_some(())
        });
    }

    /// The taps that are served.
    pub(crate) fn taps(&self) -> Vec<Value> {
        let mut command = taut();
        command.args(["status", "--json", "--control"]);
        let output = command.arg(&self.control).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut status: Value = serde_json::from_slice(&output.stdout).unwrap();
        serde_json::from_value(status["taps"].take()).unwrap()
    }

    /// The status of a tap.
    pub(crate) fn status(&self, tap: &str) -> Value {
        let mut taps = self.taps().into_iter();
        taps.find(|status| status["tap"] == tap).unwrap()
    }

    /// Waits until a tap is `on`, or is not.
    pub(crate) fn is_on(&self, tap: &str, on: bool) {
        wait_until("the tap's state", || {
            ((self.status(tap)["state"] == "on") == on).then_some(())
        });
    }

    /// Turns a tap off, as an operator does. Returns whether it was drained in time.
    pub(crate) fn off(&self, tap: &str, wait: &str) -> bool {
        let mut command = taut();
        command.args(["--off", tap, "--wait", wait, "--control"]);
        let output = command.arg(&self.control).output().unwrap();
        output.status.success()
    }

    /// Waits until the host has retransmitted something to a guest.
    pub(crate) fn repairs(&self, tap: &str) {
        wait_until("a retransmission", || self.repaired(tap).then_some(()));
    }

    /// Whether the host has retransmitted a lost segment to the tap's guest.
    pub(crate) fn repaired(&self, tap: &str) -> bool {
        self.status(tap)["repaired"] != 0
    }

    /// Segments that were acknowledged early at a tap.
    pub(crate) fn acked(&self, tap: &str) -> u64 {
        let status = self.status(tap);
        let exits = status["to_guest"].as_array().unwrap();
        let acked = exits.iter().find(|exit| exit[0] == "acked");
        acked.map_or(0, |exit| exit[1].as_u64().unwrap())
    }

    /// Waits until more segments were acknowledged early than `before`.
    pub(crate) fn acks_more_than(&self, tap: &str, before: u64) {
        wait_until("an early ACK", || (self.acked(tap) > before).then_some(()));
    }

    /// Bytes that were acknowledged early and that the guest has not acknowledged, of all connections.
    pub(crate) fn owes(&self, tap: &str) -> u64 {
        self.status(tap)["exposure"].as_u64().unwrap()
    }

    /// Ends it, as systemd would.
    pub(crate) fn stop(mut self) {
        self.child.signal(Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Snoop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in self.said.lock().unwrap().iter() {
                eprintln!("{line}");
            }
            // What each connection has come to.
            let mut command = taut();
            command.args(["status", "--json", "--control"]);
            if let Ok(output) = command.arg(&self.control).output() {
                eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            }
        }
    }
}

fn taut() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.arg("snoop");
    command
}
