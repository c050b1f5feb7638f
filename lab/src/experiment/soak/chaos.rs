//! Runs the plan's events on the relays, one after the other.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_mesh::identity::PublicKey;
use taut_sys::bpf::Object;

use super::plan::{Act, Plan, Side};
use super::rig::{DRAIN, RECORDED, Rig, Settings};
use super::watch::{Processes, accepted, bpf_objects};
use crate::experiment::ExperimentError;
use crate::experiment::sessions::ends::Run;
use crate::peer::Service;
use crate::peer::relay::{self, Member};

/// How much longer than `drain_timeout` a stop may take.
const STOP: Duration = Duration::from_secs(5);
/// How long a relay may take to answer SIGHUP.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a listener may take to open or close after a reload.
const RELOAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long a relay may take to end the sessions of a revoked member, and to refuse it.
const REVOCATION_PATIENCE: Duration = Duration::from_secs(5);
/// How long the relays may take to serve sessions again after a restart or a revocation. The
/// longest wait of a pool after a failed dial is 10 s.
const RETURN_PATIENCE: Duration = Duration::from_secs(15);
/// The pause between the switch to a new key and the removal of the old one from the lists. A hello
/// may be under way on a connection that was made with the old key.
const ROTATION_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two checks of a listener or of metrics.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The text that a relay logs at SIGHUP, whatever the result of the reload.
const HANGUP: &str = "SIGHUP";
/// The text that a relay logs if it cannot reload its configuration.
const CANNOT: &str = "read at the start only";

/// The events that were run, and their results.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) cuts: u64,
    pub(super) rotations: u64,
    pub(super) revocations: u64,
    /// For each revocation, the time until the last session of the revoked member had ended, in
    /// seconds.
    pub(super) ended_after: Vec<f64>,
    pub(super) reloads: u64,
    /// Events that were left out because the relay cannot reload its configuration.
    pub(super) left_out: u64,
    /// A sentence for each unexpected result.
    pub(super) faults: Vec<String>,
    /// The BPF programs and maps of all processes.
    pub(super) objects: BTreeSet<Object>,
    /// A log of what was done and when, for finding the cause of a failure.
    pub(super) log: Vec<String>,
}

/// A relay and its current configuration.
struct Relay {
    service: Service,
    settings: Settings,
    life: u32,
}

/// The relays, running.
pub(super) struct Chaos<'a> {
    rig: &'a Rig,
    processes: &'a Processes,
    /// The relays, in the order of [`Side::BOTH`].
    relays: [Relay; 2],
    /// The public keys of the relays.
    keys: [Vec<PublicKey>; 2],
    /// The public key of the member [`RECORDED`].
    recorded: PublicKey,
    reloads: bool,
    /// When the last session starts.
    load_ends: Instant,
    pub(super) done: Done,
}

/// A relay's reaction to SIGHUP.
enum Answer {
    Read,
    CannotReload,
    Refused(String),
}

// === impl Chaos ===

impl<'a> Chaos<'a> {
    /// Starts both relays, and finds out whether they can reload their configuration.
    pub(super) fn start(rig: &'a Rig, processes: &'a Processes) -> Result<Self, ExperimentError> {
        let make_key = |name| relay::make_key(&rig.key_file(name));
        let [near, far] = Side::BOTH.map(|side| make_key(side.name()));
        let keys = [vec![near?], vec![far?]];
        let recorded = make_key(RECORDED)?;
        let begin = |side| -> Result<Relay, ExperimentError> {
            let settings = Settings::default();
            let members = members(rig, &keys, recorded, &Side::BOTH);
            relay::write_members(&rig.members_file(side), &members)?;
            rig.write_config(side, settings)
                .map_err(ExperimentError::machine("write a relay's configuration"))?;
            Ok(Relay {
                service: rig.start(side, 0)?,
                settings,
                life: 0,
            })
        };
        let far = begin(Side::Far)?;
        let near = begin(Side::Near)?;
        let mut chaos = Self {
            rig,
            processes,
            relays: [near, far],
            keys,
            recorded,
            reloads: true,
            load_ends: Instant::now(),
            done: Done::default(),
        };
        for side in Side::BOTH {
            chaos.begun(side)?;
        }
        chaos.reloads = !matches!(chaos.hang_up(Side::Far)?, Answer::CannotReload);
        Ok(chaos)
    }

    pub(super) fn reloads(&self) -> bool {
        self.reloads
    }

    pub(super) fn process(&self, side: Side) -> u32 {
        self.relays[side as usize].service.id()
    }

    /// Runs all events, each at its time or as soon as the previous event has finished. On a slow machine
    /// the load may end before them: the others are left out, because no session would show their effect.
    pub(super) fn wreak(&mut self, plan: &Plan, run: &Run) -> Result<(), ExperimentError> {
        self.load_ends = run.began + plan.load;
        for event in &plan.events {
            std::thread::sleep(event.at.saturating_sub(run.now()));
            if run.is_over_early() || run.now() >= plan.load {
                break;
            }
            let from = run.now();
            let what = format!("{:?}", event.act);
            let breaks = self.act(event.act)?;
            let to = run.now();
            if breaks {
                run.ledger.disrupted(from, to);
            }
            let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
            self.done
                .log
                .push(format!("{from:.2} s to {to:.2} s: {what}"));
        }
        Ok(())
    }

    /// Runs one event; returns whether it may break sessions.
    fn act(&mut self, act: Act) -> Result<bool, ExperimentError> {
        match act {
            Act::Kill { side, pause } => {
                self.note_objects(side);
                self.relays[side as usize]
                    .service
                    .signal(Signal::KILL)
                    .map_err(ExperimentError::machine("kill a relay"))?;
                self.ended(side, DRAIN)?;
                std::thread::sleep(pause);
                self.restart(side)?;
                self.done.kills += 1;
                Ok(true)
            }
            Act::Stop(side) => {
                self.stop(side)?;
                self.restart(side)?;
                self.done.stops += 1;
                Ok(true)
            }
            Act::Cut { line, time } => {
                self.rig.cut(line, true);
                std::thread::sleep(time);
                self.rig.cut(line, false);
                self.done.cuts += 1;
                Ok(true)
            }
            Act::Rotate(_) | Act::Revoke { .. } | Act::Reload(_) if !self.reloads => {
                self.done.left_out += 1;
                Ok(false)
            }
            Act::Rotate(side) => {
                self.rotate(side)?;
                self.done.rotations += 1;
                Ok(false)
            }
            Act::Revoke { time } => {
                self.revoke(time)?;
                self.done.revocations += 1;
                Ok(true)
            }
            Act::Reload(side) => {
                self.reload(side)?;
                self.done.reloads += 1;
                Ok(false)
            }
        }
    }

    /// Ends both relays as an operator would.
    pub(super) fn finish(mut self) -> Result<Done, ExperimentError> {
        for side in Side::BOTH {
            self.stop(side)?;
        }
        Ok(self.done)
    }

    /// Restores both configurations to their state at the start.
    pub(super) fn settle(&mut self) -> Result<(), ExperimentError> {
        for side in Side::BOTH {
            if self.relays[side as usize].settings.changed {
                self.reload(side)?;
            }
        }
        Ok(())
    }

    /// Replaces the key of the relay of `side`. No session may break.
    fn rotate(&mut self, side: Side) -> Result<(), ExperimentError> {
        let file = self.rig.key_file(side.name());
        let new = file.with_extension("new");
        let key = relay::make_key(&new)?;
        self.keys[side as usize].push(key);
        self.list_all()?;
        fs::rename(&new, &file).map_err(ExperimentError::machine("replace a private key"))?;
        self.told(side)?;
        std::thread::sleep(ROTATION_PAUSE);
        self.keys[side as usize] = vec![key];
        self.list_all()
    }

    /// Removes the near relay from the far relay's list, and restores it. Meanwhile, its sessions
    /// and ready connections must end, it must be refused, and no session may reach the server.
    fn revoke(&mut self, time: Duration) -> Result<(), ExperimentError> {
        let refused = self.refused()?;
        self.list(Side::Far, &self.members(&[Side::Far]))?;
        let removed = Instant::now();
        let is_over = self.within(REVOCATION_PATIENCE, |chaos| {
            let held = ["taut_relay_sessions", "taut_relay_mesh_ready"];
            let held = held.map(|name| chaos.figure(Side::Far, name));
            let [sessions, ready] = held;
            Ok(sessions? + ready? == 0.0)
        })?;
        self.done.ended_after.push(removed.elapsed().as_secs_f64());
        let before = self.served()?;
        if !is_over {
            self.done.faults.push(format!(
                "the far relay still had sessions or connections of the near one \
                 {REVOCATION_PATIENCE:?} after its removal from the list"
            ));
        }
        std::thread::sleep(time);
        // Otherwise, it has not been shown that the near relay tried.
        let is_refused =
            self.within(REVOCATION_PATIENCE, |chaos| Ok(chaos.refused()? > refused))?;
        if !is_refused {
            self.done.faults.push(format!(
                "the far relay refused no connection of the near one within \
                 {REVOCATION_PATIENCE:?} of its removal from the list"
            ));
        }
        let served = self.served()?.saturating_sub(before);
        if served > 0 {
            self.done.faults.push(format!(
                "{served} sessions reached the server while the near relay was not a member"
            ));
        }
        self.list(Side::Far, &self.members(&Side::BOTH))?;
        self.is_back("the near relay's return to the list")
    }

    /// Waits until the server serves a new session after `what`, or until no more sessions start. A
    /// filled pool would be no sign of that: sessions that wait take its connections before they count as
    /// ready.
    fn is_back(&mut self, what: &str) -> Result<(), ExperimentError> {
        let before = self.served()?;
        let is_back = self.within(RETURN_PATIENCE, |chaos| {
            Ok(chaos.served()? > before || Instant::now() >= chaos.load_ends)
        })?;
        if !is_back {
            self.done.faults.push(format!(
                "no session reached the server within {RETURN_PATIENCE:?} of {what}"
            ));
        }
        Ok(())
    }

    /// Returns the number of connections that the far relay has refused for their key.
    fn refused(&self) -> Result<f64, ExperimentError> {
        self.figure(
            Side::Far,
            "taut_relay_mesh_rejected_total{cause=\"unknown_key\"}",
        )
    }

    /// Returns the number of connections that the server has accepted.
    fn served(&self) -> Result<u64, ExperimentError> {
        let accepted = self.rig.world.host("server").run(accepted)?;
        accepted.map_err(ExperimentError::machine("count the server's connections"))
    }

    /// Returns a figure of a relay's metrics.
    fn figure(&self, side: Side, name: &str) -> Result<f64, ExperimentError> {
        let said = self.rig.host(side).run(|| relay::scrape(relay::METRICS))?;
        let service = &self.relays[side as usize].service;
        let said =
            said.map_err(|e| service.not_serving(format!("its metrics cannot be read ({e})")))?;
        let lacks = || service.not_serving(format!("its metrics lack {name}"));
        Ok(relay::sum(&said, name).ok_or_else(lacks)?)
    }

    /// Waits until `done` for at most `limit`; returns whether it is.
    fn within(
        &self,
        limit: Duration,
        done: impl Fn(&Self) -> Result<bool, ExperimentError>,
    ) -> Result<bool, ExperimentError> {
        let deadline = Instant::now() + limit;
        while !done(self)? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }

    /// Writes the members and their current keys to both lists, and makes both relays read them.
    fn list_all(&mut self) -> Result<(), ExperimentError> {
        let members = self.members(&Side::BOTH);
        for side in Side::BOTH {
            self.list(side, &members)?;
        }
        Ok(())
    }

    /// Writes the list of the relay of `side`, and makes the relay read it.
    fn list(&mut self, side: Side, members: &[Member]) -> Result<(), ExperimentError> {
        relay::write_members(&self.rig.members_file(side), members)?;
        self.told(side)
    }

    /// Returns a list with these relays.
    fn members(&self, relays: &[Side]) -> Vec<Member> {
        members(self.rig, &self.keys, self.recorded, relays)
    }

    /// Toggles the configuration: the second forward must appear or disappear.
    fn reload(&mut self, side: Side) -> Result<(), ExperimentError> {
        let settings = &mut self.relays[side as usize].settings;
        settings.changed = !settings.changed;
        let settings = *settings;
        let written = self.rig.write_config(side, settings);
        written.map_err(ExperimentError::machine("write a relay's configuration"))?;
        self.told(side)?;
        let extra = self.rig.extra(side);
        // A silent connection must not reach the server as a session, so it is reset instead of
        // closed.
        let connect = || {
            TcpStream::connect(extra).and_then(|stream| {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                Ok(())
            })
        };
        // Each worker closes its own socket when it next returns from its sessions.
        let deadline = Instant::now() + RELOAD_PATIENCE;
        let listens = loop {
            let listens = self.rig.host(side).run(connect)?.is_ok();
            if listens == settings.changed || Instant::now() >= deadline {
                break listens;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if listens != settings.changed {
            let does = if listens {
                "still listens"
            } else {
                "does not listen"
            };
            let name = side.name();
            let fault = format!("after a reload the {name} relay {does} at {extra}");
            self.done.faults.push(fault);
        }
        Ok(())
    }

    /// Makes a relay reload its configuration.
    fn told(&mut self, side: Side) -> Result<(), ExperimentError> {
        let fault = match self.hang_up(side)? {
            Answer::Read => return Ok(()),
            Answer::CannotReload => "it cannot".to_owned(),
            Answer::Refused(why) => why,
        };
        let name = side.name();
        let fault = format!("the {name} relay did not read its configuration again: {fault}");
        self.done.faults.push(fault);
        Ok(())
    }

    fn hang_up(&mut self, side: Side) -> Result<Answer, ExperimentError> {
        let service = &self.relays[side as usize].service;
        let answers = || -> io::Result<Vec<String>> {
            let said = service.said()?;
            let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let lines = whole.lines().filter(|line| line.contains(HANGUP));
            Ok(lines.map(str::to_owned).collect())
        };
        let wait = || -> io::Result<Answer> {
            let before = answers()?.len();
            service.signal(Signal::HUP)?;
            let deadline = Instant::now() + ANSWER;
            while Instant::now() < deadline {
                if let Some(line) = answers()?.get(before) {
                    return Ok(match line {
                        line if line.contains(CANNOT) => Answer::CannotReload,
                        line if line.contains("ERROR") => Answer::Refused(line.clone()),
                        _ => Answer::Read,
                    });
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            Ok(Answer::Refused(format!("it logged nothing for {ANSWER:?}")))
        };
        wait().map_err(ExperimentError::machine("send SIGHUP to a relay"))
    }

    fn stop(&mut self, side: Side) -> Result<(), ExperimentError> {
        self.note_objects(side);
        let service = &self.relays[side as usize].service;
        service
            .signal(Signal::TERM)
            .map_err(ExperimentError::machine("stop a relay"))?;
        self.ended(side, DRAIN + STOP)
    }

    /// Waits until a relay has ended after a signal, and checks its exit.
    fn ended(&mut self, side: Side, limit: Duration) -> Result<(), ExperimentError> {
        self.processes.set(side, None);
        let Relay { service, life, .. } = &mut self.relays[side as usize];
        let look = |service: &mut Service| Ok((service.wait_for(limit)?, service.said()?));
        let (status, said) =
            look(service).map_err(ExperimentError::machine("wait for a relay's end"))?;
        let name = format!("the {} relay, process {life},", side.name());
        match status {
            None => {
                let fault = format!("{name} had not ended {limit:?} after the signal");
                self.done.faults.push(fault);
            }
            Some(status) => {
                use std::os::unix::process::ExitStatusExt as _;
                if !status.success() && status.signal() != Some(Signal::KILL.as_raw()) {
                    self.done.faults.push(format!("{name} ended with {status}"));
                }
            }
        }
        if let Some(line) = said.lines().find(|line| line.contains("panicked")) {
            self.done.faults.push(format!("{name} logged: {line}"));
        }
        Ok(())
    }

    fn restart(&mut self, side: Side) -> Result<(), ExperimentError> {
        let relay = &mut self.relays[side as usize];
        relay.life += 1;
        relay.service = self.rig.start(side, relay.life)?;
        self.begun(side)?;
        self.is_back(&format!("a restart of the {} relay", side.name()))
    }

    fn begun(&mut self, side: Side) -> Result<(), ExperimentError> {
        self.processes.set(side, Some(self.process(side)));
        self.note_objects(side);
        Ok(())
    }

    /// Records the relay's BPF objects, to look for them after the relay has ended.
    fn note_objects(&mut self, side: Side) {
        // A process that has ended has no objects.
        if let Ok(objects) = bpf_objects(self.process(side)) {
            self.done.objects.extend(objects);
        }
    }
}

/// Returns a list with these relays and the member [`RECORDED`].
fn members(
    rig: &Rig,
    keys: &[Vec<PublicKey>; 2],
    recorded: PublicKey,
    relays: &[Side],
) -> Vec<Member> {
    let relays = relays.iter();
    let mut members: Vec<Member> = relays
        .map(|&side| rig.member(side, keys[side as usize].clone()))
        .collect();
    members.push(Member {
        name: RECORDED.to_owned(),
        keys: vec![recorded],
        addresses: Vec::new(),
    });
    members
}
