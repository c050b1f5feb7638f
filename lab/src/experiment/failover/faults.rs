//! Makes the faults of the plan happen, one after the other.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::aftermath::Happened;
use super::plan::{Fault, Plan};
use super::rig::{DRAIN, Relay, Rig};
use crate::experiment::ExperimentError;
use crate::experiment::sessions::ends::Run;
use crate::peer::Service;

/// How long a process may take to end after a signal, besides its drain timeout.
const END: Duration = Duration::from_secs(5);
/// A slow relay runs for `RUNS` in each `ROUND`.
const ROUND: Duration = Duration::from_millis(100);
const RUNS: Duration = Duration::from_millis(10);

/// How often the relays' sessions are counted before a fault, and the pause after each time.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// What was done.
#[derive(Default)]
pub(super) struct Done {
    pub(super) happened: Vec<Happened>,
    /// The sum of the sessions that each fault's relay carried at [`LOOKS`] moments before it.
    pub(super) carried: Vec<u64>,
    /// A sentence for each unexpected result.
    pub(super) problems: Vec<String>,
}

/// The relays, running, in the order of [`Relay::ALL`].
pub(super) struct Faults<'a> {
    rig: &'a Rig,
    relays: Vec<Service>,
    lives: u32,
    pub(super) done: Done,
}

// === impl Faults ===

impl<'a> Faults<'a> {
    /// Starts all relays.
    pub(super) fn start(rig: &'a Rig) -> Result<Self, ExperimentError> {
        // The near relay fills its pool with connections to the others.
        let far = Relay::ALTERNATIVES.map(|relay| rig.start(relay, 0));
        let near = rig.start(Relay::Near, 0)?;
        let [first, second] = far;
        Ok(Self {
            rig,
            relays: vec![near, first?, second?],
            lives: 0,
            done: Done::default(),
        })
    }

    /// Makes all faults of the plan happen, each at its time.
    pub(super) fn wreak(&mut self, plan: &Plan, run: &Run) -> Result<(), ExperimentError> {
        for event in &plan.events {
            std::thread::sleep(event.at.saturating_sub(run.now()));
            if run.is_over_early() {
                break;
            }
            let victim = self.busiest()?;
            let (from, to) = self.happen(event.fault, victim, plan.fault, run)?;
            run.ledger.disrupted(from, to);
            let fault = event.fault;
            self.done.happened.push(Happened { fault, from, to });
        }
        Ok(())
    }

    /// Returns the alternative that carries more sessions.
    fn busiest(&mut self) -> Result<Relay, ExperimentError> {
        let action = "read the number of a relay's sessions";
        let (mut first, mut second) = (0, 0);
        // A session is short, so that there may be none at one moment.
        for _ in 0..LOOKS {
            let both = Relay::ALTERNATIVES.map(|relay| self.rig.sessions(relay));
            for (sum, sessions) in [&mut first, &mut second].into_iter().zip(both) {
                *sum += sessions.map_err(ExperimentError::machine(action))?;
            }
            std::thread::sleep(PAUSE);
        }
        self.done.carried.push(first.max(second));
        Ok(match second > first {
            true => Relay::Second,
            false => Relay::First,
        })
    }

    /// Makes a fault happen for `time`. Returns when it began and ended.
    fn happen(
        &mut self,
        fault: Fault,
        victim: Relay,
        time: Duration,
        run: &Run,
    ) -> Result<(Duration, Duration), ExperimentError> {
        let (near, name) = (Relay::Near.name(), victim.name());
        let world = &self.rig.world;
        let from = run.now();
        let end = Instant::now() + time;
        let rest = || std::thread::sleep(end.saturating_duration_since(Instant::now()));
        match fault {
            Fault::Kill => {
                self.signal(victim, Signal::KILL)?;
                rest();
                self.restart(victim, END)?;
            }
            Fault::Drain => {
                self.signal(victim, Signal::TERM)?;
                rest();
                self.restart(victim, DRAIN + END)?;
            }
            Fault::Blackhole => {
                world.cut(near, name, true);
                rest();
                world.cut(near, name, false);
            }
            Fault::Deaf => {
                world.cut_one_way(near, name, true);
                rest();
                world.cut_one_way(near, name, false);
            }
            Fault::Mute => {
                world.cut_one_way(name, near, true);
                rest();
                world.cut_one_way(name, near, false);
            }
            Fault::Slow => {
                while Instant::now() < end {
                    self.signal(victim, Signal::STOP)?;
                    std::thread::sleep(ROUND - RUNS);
                    self.signal(victim, Signal::CONT)?;
                    std::thread::sleep(RUNS);
                }
            }
        }
        Ok((from, run.now()))
    }

    fn signal(&self, relay: Relay, signal: Signal) -> Result<(), ExperimentError> {
        let sent = self.relays[relay as usize].signal(signal);
        sent.map_err(ExperimentError::machine("send a signal to a relay"))
    }

    /// Waits until a relay has ended, and starts it again.
    fn restart(&mut self, relay: Relay, limit: Duration) -> Result<(), ExperimentError> {
        self.ended(relay, limit)?;
        self.lives += 1;
        self.relays[relay as usize] = self.rig.start(relay, self.lives)?;
        Ok(())
    }

    /// Ends all relays as an operator would.
    pub(super) fn finish(mut self) -> Result<Done, ExperimentError> {
        for relay in Relay::ALL {
            self.signal(relay, Signal::TERM)?;
            self.ended(relay, DRAIN + END)?;
        }
        Ok(self.done)
    }

    /// Waits until a relay has ended after a signal, and checks its exit.
    fn ended(&mut self, relay: Relay, limit: Duration) -> Result<(), ExperimentError> {
        use std::os::unix::process::ExitStatusExt as _;
        let service = &mut self.relays[relay as usize];
        let waited = service
            .wait_for(limit)
            .and_then(|status| Ok((status, service.said()?)));
        let (status, said) = waited.map_err(ExperimentError::machine("wait for a relay's end"))?;
        let name = relay.name();
        let problem = match status {
            None => Some(format!("had not ended {limit:?} after the signal")),
            Some(status) if status.success() => None,
            Some(status) if status.signal() == Some(Signal::KILL.as_raw()) => None,
            Some(status) => Some(format!("ended with {status}")),
        };
        let panic = said.lines().find(|line| line.contains("panicked"));
        let panic = panic.map(|line| format!("logged: {line}"));
        let problems = problem.into_iter().chain(panic);
        self.done
            .problems
            .extend(problems.map(|problem| format!("the {name} relay {problem}")));
        Ok(())
    }
}
