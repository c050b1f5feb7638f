//! The world with its processes: guests, driver domain, gates, and `taut snoop` if configured.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use taut_sys::child::Child;
use taut_sys::schedule;

use super::measured::{Ended, Sample};
use super::network::{self, CLIENT, HOST, SENDER, Who};
use super::plan::{Cell, Machine, Scenario};
use crate::experiment::guests::configuration::Configuration;
use crate::experiment::guests::cores::{self, Cores};
use crate::experiment::guests::driver;
use crate::experiment::guests::gate::{Gate, Sharers};
use crate::experiment::guests::guest::Guest;
use crate::experiment::guests::guest::talk::{self, Sent};
use crate::experiment::guests::network::{tap, tune};
use crate::experiment::guests::slices::{Shape, Slices};
use crate::experiment::guests::snooping::Snooping;
use crate::experiment::guests::transfer;
use crate::experiment::guests::uml::{self, Booting, Uml};
use crate::experiment::{ExperimentError, Request};
use taut_netlab::world::World;

/// The number of guests that share the other host's core. Only the sender exists; no process runs
/// in the other guests' slices.
const SENDERS_HOST: usize = 3;

/// A machine that guests share.
pub(super) struct Rig {
    // Fields are dropped in this order: a guest's tap must outlive the guest, and a gate lets every
    // guest run when it ends.
    snooping: Option<Snooping>,
    gate: Gate,
    sender: Option<(Gate, Uml)>,
    guests: Vec<Uml>,
    driver: Arc<Child>,
    world: World,
    cores: Cores,
    machine: Machine,
    taut: PathBuf,
    /// The random number generator for phases and slices.
    random: Pcg64Mcg,
    /// The number of the next stream.
    stream: u64,
}

// === impl Rig ===

impl Rig {
    /// Builds the world and boots its guests; the core is not shared yet.
    pub(super) fn build(
        request: &Request,
        machine: Machine,
        sender: bool,
        cores: Cores,
    ) -> Result<Self, ExperimentError> {
        let failed = ExperimentError::machine;
        let (world, ends) = network::build(machine.guests, sender)?;
        let driver = driver::start(world.host(HOST), world.dir(), ends)
            .map_err(failed("start the driver domain"))?;
        cores
            .share(driver.id())
            .map_err(failed("place the driver domain"))?;
        let everybody: Vec<Who> = [Who::Client, Who::Sender]
            .into_iter()
            .chain((0..machine.guests).map(Who::Guest))
            .collect();
        let boot = |host: &str, tap: &str, who: Who| {
            let neighbours = everybody.iter().filter(|other| **other != who);
            let guest = Guest {
                address: who.address(),
                mac: who.mac(),
                load: machine.load,
                device: uml::DEVICE.to_owned(),
                neighbours: neighbours.map(|who| (who.address(), who.mac())).collect(),
            };
            let start = || {
                let booting = Booting::start(world.host(host), tap, guest, world.dir())?;
                // The guest's later processes inherit the CPU affinity that is set here.
                match who {
                    Who::Guest(_) => cores.share(booting.id())?,
                    Who::Client | Who::Sender => cores.set_apart(booting.id())?,
                }
                Ok(booting)
            };
            start().map_err(failed("start a guest"))
        };
        let mut booting = Vec::new();
        for guest in 0..machine.guests {
            booting.push(boot(HOST, &tap(guest), Who::Guest(guest))?);
        }
        let sending = sender
            .then(|| boot(SENDER, SENDER, Who::Sender))
            .transpose()?;
        let ready = |guest: Booting| {
            let up = guest.ready(world.host(CLIENT));
            up.map_err(failed("boot a guest"))
        };
        let guests = booting
            .into_iter()
            .map(ready)
            .collect::<Result<Vec<_>, _>>()?;
        let sending = sending.map(ready).transpose()?;
        for guest in &guests {
            cores.share(guest.id()).map_err(failed("place a guest"))?;
        }
        let gate = Gate::start(Sharers {
            driver: Some(Arc::clone(&driver)),
            guests: guests
                .iter()
                .map(|guest| Some(Arc::clone(&guest.process)))
                .collect(),
        });
        let sender = sending.map(|guest| {
            cores.set_apart(guest.id())?;
            let mut guests = vec![None; SENDERS_HOST];
            guests[0] = Some(Arc::clone(&guest.process));
            let gate = Gate::start(Sharers {
                driver: None,
                guests,
            })?;
            Ok((gate, guest))
        });
        Ok(Self {
            gate: gate.map_err(failed("start the gate"))?,
            sender: sender
                .transpose()
                .map_err(failed("start the sender's gate"))?,
            snooping: None,
            guests,
            driver,
            world,
            cores,
            machine,
            taut: request.taut.clone(),
            random: Pcg64Mcg::seed_from_u64(request.seed),
            stream: request.seed << 32,
        })
    }

    /// Sets up a configuration. The gates are open during this.
    pub(super) fn configure(&mut self, configuration: Configuration) -> io::Result<()> {
        self.open();
        let began = Instant::now();
        self.snooping = None;
        tracing::debug!("taut snoop has ended after {:?}", began.elapsed());
        self.guests[0].set(configuration.settings())?;
        let tap = tap(0);
        tune(self.world.host(HOST), &tap, configuration.is_tuned())?;
        if let Some(args) = configuration.snoop() {
            // Stop the guests: running idle guests would only delay the loading of `taut snoop`'s
            // programs.
            self.gate.halt();
            let (host, dir) = (self.world.host(HOST), self.world.dir());
            tracing::debug!("the guest and its tap are set after {:?}", began.elapsed());
            self.snooping = Some(Snooping::start(
                host,
                &self.taut,
                "snoop",
                &[tap],
                &args,
                dir,
            )?);
            tracing::debug!("taut snoop serves after {:?}", began.elapsed());
            self.gate.open();
        }
        Ok(())
    }

    /// Returns the number of segments lost after an early ACK, from the running `taut snoop`.
    pub(super) fn lost_after_early_ack(&self) -> io::Result<u64> {
        self.snooping
            .as_ref()
            .map_or(Ok(0), Snooping::lost_after_early_ack)
    }

    /// Returns the counters of the running `taut snoop`.
    pub(super) fn snoop_says(&self) -> Option<io::Result<Vec<Value>>> {
        self.snooping.as_ref().map(Snooping::counts)
    }

    /// Runs the transfers of one cell, one after the other, with the core shared.
    pub(super) fn transfers(
        &mut self,
        cell: &Cell,
        often: usize,
        mut each: impl FnMut(Sample),
    ) -> io::Result<()> {
        self.open();
        self.guests[0].expect(cell.condition.scenario.connections(), cell.size)?;
        let apart = cell.condition.scenario == Scenario::DriverApart;
        match apart {
            true => self.cores.set_apart(self.driver.id())?,
            false => self.cores.share(self.driver.id())?,
        }
        let shape = Shape::of(self.machine.guests, !apart);
        self.gate.close(Slices::new(shape, self.random.next_u64()));
        if cell.condition.scenario.is_sent_by_guest()
            && let Some((gate, _)) = &self.sender
        {
            let shape = Shape::of(SENDERS_HOST, true);
            gate.close(Slices::new(shape, self.random.next_u64()));
        }
        for _ in 0..often {
            let phase = self.random.next_u64() as f64 / u64::MAX as f64;
            std::thread::sleep(shape.cycle().mul_f64(phase));
            match self.transfer(cell) {
                Ok(sample) => each(sample),
                Err(e) => return Err(self.explained(&e)),
            }
        }
        self.open();
        Ok(())
    }

    /// Adds the counters of the guest and of `taut snoop` to an error.
    fn explained(&mut self, e: &io::Error) -> io::Error {
        self.open();
        let counters = self.guests[0].counters();
        let snooping = self.snooping.as_ref().map(Snooping::counts);
        io::Error::other(format!(
            "{e}; the guest has counted {counters:?}; taut snoop says {snooping:?}"
        ))
    }

    fn open(&self) {
        self.gate.open();
        if let Some((gate, _)) = &self.sender {
            gate.open();
        }
    }

    fn transfer(&mut self, cell: &Cell) -> io::Result<Sample> {
        let to = SocketAddr::from((self.guests[0].address, talk::STREAMS));
        let first = self.stream;
        self.stream += cell.condition.scenario.connections() as u64;
        let seeds = first..self.stream;
        let streams: Vec<Vec<u8>> = seeds.map(|seed| transfer::bytes(seed, cell.size)).collect();
        let mut sent = match (cell.condition.scenario, &mut self.sender) {
            (scenario, Some((_, guest))) if scenario.is_sent_by_guest() => {
                let (seed, bytes) = (first, cell.size);
                let mut sent = guest.send(talk::Send {
                    to,
                    seed,
                    bytes,
                    hystart: scenario != Scenario::NoHyStart,
                })?;
                for time in [&mut sent.connect, &mut sent.write, &mut sent.acked] {
                    *time = guest.on_host(*time);
                }
                vec![sent]
            }
            _ => self.send_all(to, &streams)?,
        };
        for (sent, stream) in sent.iter_mut().zip(&streams) {
            let received = &mut sent.received;
            if received.bytes != stream.len()
                || received.digest != <[u8; 32]>::from(Sha256::digest(stream))
            {
                return Err(io::Error::other(format!(
                    "a stream of {} bytes reached the guest as {} bytes that are not the same: {}",
                    stream.len(),
                    received.bytes,
                    cell.condition
                )));
            }
            let guest = &self.guests[0];
            for time in [
                &mut received.accepted,
                &mut received.first,
                &mut received.last,
            ] {
                *time = guest.on_host(*time);
            }
        }
        Ok(Sample::of(cell.size, &sent))
    }

    /// Sends all streams at once from the client.
    fn send_all(&self, to: SocketAddr, streams: &[Vec<u8>]) -> io::Result<Vec<Sent>> {
        let client = self.world.host(CLIENT);
        let sent = client.run(|| {
            std::thread::scope(|scope| {
                let senders: Vec<_> = streams
                    .iter()
                    .map(|stream| {
                        scope.spawn(move || {
                            // The sender must read the acknowledged bytes on time; a late read is
                            // reported.
                            let _ = schedule::minimize_timer_slack();
                            if schedule::set_fifo_priority(1).is_err() {
                                let _ = schedule::set_niceness(-15);
                            }
                            transfer::send(to, stream)
                        })
                    })
                    .collect();
                let sent = senders.into_iter().map(|sender| sender.join());
                sent.map(|sent| sent.unwrap_or_else(|_| Err(io::Error::other("a sender panicked"))))
                    .collect::<io::Result<Vec<_>>>()
            })
        });
        sent.map_err(io::Error::other)?
    }

    /// Returns the share of a core that stopped guests still use: a load runs in processes of its
    /// own, which the gate does not stop.
    pub(super) fn stopped_share(&self) -> io::Result<f64> {
        self.gate.halt();
        // A computing process runs until its next system call.
        std::thread::sleep(Duration::from_millis(10));
        let began = Instant::now();
        let used = || {
            self.guests
                .iter()
                .map(|guest| cores::used(guest.id()))
                .sum::<io::Result<u64>>()
        };
        let before = used()?;
        std::thread::sleep(Duration::from_millis(200));
        let share = (used()? - before) as f64 / began.elapsed().as_nanos() as f64;
        self.gate.open();
        Ok(share)
    }

    /// Ends all processes and removes the world.
    pub(super) fn end(mut self) -> Result<Ended, ExperimentError> {
        self.open();
        let counters = self.guests[0].counters();
        let counters =
            counters.map_err(ExperimentError::machine("ask the guest what it has lost"))?;
        let links = self.world.link_reports()?;
        let mut kept = vec![self.gate.end()];
        if let Some((gate, _)) = self.sender.take() {
            kept.push(gate.end());
        }
        Ok(Ended {
            kept,
            counters,
            links,
        })
    }
}
