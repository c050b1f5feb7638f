//! `taut snoop` at the guest's tap, and the faults injected into it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::plan::{Act, Options, Phase};
use super::rig::{Rig, TAP};
use crate::experiment::ExperimentError;
use crate::experiment::guests::snooping;
use crate::peer::Service;

/// The metrics address, which accepts connections once the process runs.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9477);
/// How long a process may take to serve the tap, or to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long `--off` may take. The guest waits up to one second for its CPU, delays an
/// acknowledgement for up to 0.5 s (RFC 9293 3.8.6.3), and may need a retransmission.
const DRAINED: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The injected faults and their results.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) kills: u64,
    /// The number of processes that replaced killed or stopped ones.
    pub(super) restarts: u64,
    pub(super) offs: u64,
    /// Losses after early ACKs that the processes detected.
    pub(super) broken: u64,
    /// Such losses detected while the guest dropped no segments.
    pub(super) doubts: u64,
    /// The exit counters of the processes' BPF programs.
    pub(super) to_guest: BTreeMap<String, u64>,
    pub(super) from_guest: BTreeMap<String, u64>,
    /// The longest duration of `--off`.
    pub(super) longest_off: Duration,
    /// A sentence for each unexpected result.
    pub(super) faults: Vec<String>,
}

/// The process that serves the guest's tap, if the phase has one.
pub(super) struct Chaos<'a> {
    rig: &'a Rig,
    phase: Phase,
    service: Option<Service>,
    done: &'a mut Done,
    lives: u32,
}

// === impl Chaos ===

impl<'a> Chaos<'a> {
    /// Starts the process with the phase's options.
    pub(super) fn start(
        rig: &'a Rig,
        phase: Phase,
        done: &'a mut Done,
    ) -> Result<Self, ExperimentError> {
        let mut chaos = Self {
            rig,
            phase,
            service: None,
            done,
            lives: 0,
        };
        if phase.options != Options::Off {
            chaos.begin()?;
        }
        Ok(chaos)
    }

    /// Injects the phase's faults until `over` signals the end, and then stops the process.
    pub(super) fn wreak(mut self, over: &Receiver<()>) -> Result<(), ExperimentError> {
        if self.service.is_none() {
            let _ = over.recv();
            return Ok(());
        }
        for (pause, act) in self.phase.acts() {
            match over.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => self.act(act)?,
                _ => break,
            }
        }
        self.stop()
    }

    fn act(&mut self, act: Act) -> Result<(), ExperimentError> {
        match act {
            Act::Kill(pause) => {
                self.note();
                self.end(Signal::KILL)?;
                std::thread::sleep(pause);
                self.begin()?;
                self.done.kills += 1;
                self.done.restarts += 1;
            }
            Act::Stop(pause) => {
                self.expect_on(&self.rig.status());
                // A process that ends waits 5 s for the guest to take what it had no memory for; `--off` waits
                // until it has.
                if self.phase.faults.drops() {
                    self.ask("--off")?;
                }
                self.add_counters(&self.rig.status());
                self.end(Signal::TERM)?;
                std::thread::sleep(pause);
                self.begin()?;
                self.done.restarts += 1;
            }
            Act::Off(pause) => {
                let began = Instant::now();
                if self.ask("--off")? {
                    self.done.offs += 1;
                }
                self.done.longest_off = self.done.longest_off.max(began.elapsed());
                std::thread::sleep(pause);
                self.ask("--on")?;
            }
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), ExperimentError> {
        self.note();
        self.end(Signal::TERM)
    }

    fn end(&mut self, signal: Signal) -> Result<(), ExperimentError> {
        let Some(mut service) = self.service.take() else {
            return Ok(());
        };
        let machine = ExperimentError::machine;
        service
            .signal(signal)
            .map_err(machine("signal taut snoop"))?;
        let ended = service
            .wait_for(PATIENCE)
            .map_err(machine("wait for its end"))?;
        match ended {
            None => self.fault(format!("taut snoop does not end at {signal:?}")),
            Some(status) if signal == Signal::TERM && !status.success() => {
                self.fault(format!("taut snoop ended with {status}"));
            }
            Some(_) => {}
        }
        let said = service.said().unwrap_or_default();
        for line in said.lines() {
            if line.contains("ERROR") || line.contains("panicked") {
                self.fault(format!("taut snoop logged: {line}"));
            }
        }
        Ok(())
    }

    /// Starts a process and waits until it serves the tap.
    fn begin(&mut self) -> Result<(), ExperimentError> {
        let mut command = Command::new(&self.rig.taut);
        command
            .args(["snoop", "--tap", TAP, "--metrics", &METRICS.to_string()])
            .arg("--control")
            .arg(self.rig.control())
            .args(self.phase.options.arguments());
        let host = self.rig.world.host("host");
        self.lives += 1;
        let name = format!("snoop-{}-{}", self.phase.number, self.lives);
        let service = Service::start(host, &name, command, METRICS, self.rig.world.dir())?;
        let deadline = Instant::now() + PATIENCE;
        while self.rig.status()["state"] != "on" {
            if Instant::now() > deadline {
                let said = service.said().unwrap_or_default();
                self.fault(format!(
                    "taut snoop does not serve {TAP}; its output: {said}"
                ));
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.service = Some(service);
        Ok(())
    }

    /// Runs `taut snoop --off` or `--on`. Records a fault if the command fails or does not return
    /// in time.
    fn ask(&mut self, what: &str) -> Result<bool, ExperimentError> {
        let machine = ExperimentError::machine;
        let mut command = Command::new(&self.rig.taut);
        command
            .args(["snoop", what, TAP, "--control"])
            .arg(self.rig.control())
            .stdin(Stdio::null());
        let host = self.rig.world.host("host");
        let asked = host.spawn(command);
        let mut asked = asked.map_err(machine("run taut snoop"))?;
        let ended = asked
            .wait_for(DRAINED)
            .map_err(machine("wait for an answer"))?;
        match ended {
            Some(status) if status.success() => return Ok(true),
            Some(status) => self.fault(format!("taut snoop {what} ended with {status}")),
            None => {
                let status = self.rig.status();
                self.fault(format!(
                    "taut snoop {what} has not returned after {DRAINED:?}: {status}"
                ));
            }
        }
        Ok(false)
    }

    /// Checks the state of the tap, and adds the counters of a process, before the process ends.
    fn note(&mut self) {
        let status = self.rig.status();
        self.add_counters(&status);
        self.expect_on(&status);
    }

    fn add_counters(&mut self, status: &Value) {
        self.done.broken += status["lost_after_early_ack"].as_u64().unwrap_or(0);
        snooping::add_exits(status, "to_guest", &mut self.done.to_guest);
        let mut from_guest = BTreeMap::new();
        snooping::add_exits(status, "from_guest", &mut from_guest);
        if !self.phase.faults.drops() {
            self.done.doubts += from_guest.get("doubt").copied().unwrap_or(0);
        }
        for (exit, count) in from_guest {
            *self.done.from_guest.entry(exit).or_default() += count;
        }
    }

    fn expect_on(&mut self, status: &Value) {
        if status["state"] != "on" {
            let (state, why) = (&status["state"], &status["why"]);
            self.fault(format!("{TAP} is {state} and should be on: {why}"));
        }
    }

    fn fault(&mut self, what: String) {
        let name = self.phase.name();
        let single = if self.phase.single {
            ", single segments"
        } else {
            ""
        };
        let ring = self.phase.ring;
        self.done
            .faults
            .push(format!("{what} (phase {name}{single}, ring of {ring})"));
    }
}
