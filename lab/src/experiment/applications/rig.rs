//! The world with its processes: four guests on two hosts, driver domains, gates, and `taut snoop`
//! if configured.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use taut_sys::child::Child;

use super::network::{self, CLIENT, EACH, GUESTS, HOSTS, guests_of};
use super::plan::Arm;
use crate::experiment::guests::cores::{self, Cores};
use crate::experiment::guests::driver;
use crate::experiment::guests::gate::{Gate, Kept, Sharers};
use crate::experiment::guests::guest::{Guest, talk};
use crate::experiment::guests::network::{tap, tune};
use crate::experiment::guests::slices::{Shape, Slices};
use crate::experiment::guests::snooping::Snooping;
use crate::experiment::guests::uml::{self, Booting, Uml};
use crate::experiment::{ExperimentError, Request};
use taut_netlab::link::counters::LinkReport;
use taut_netlab::world::{Host, World};

/// How long the phase between the two hosts' rounds stays the same. The time that a packet waits
/// depends on this phase, and jitter alone would change the phase little within a run.
pub(super) const IN_STEP: Duration = Duration::from_secs(1);

/// Two machines that guests share.
pub(super) struct Rig {
    // Fields are dropped in this order: the taps must outlive `taut snoop`, and a gate lets every
    // guest run when it ends.
    snooping: Vec<Snooping>,
    gates: Vec<Gate>,
    guests: Vec<Uml>,
    /// Keeps the driver domains alive together with the gates, which hold references too.
    _drivers: Vec<Arc<Child>>,
    world: World,
    cores: [Cores; HOSTS.len()],
    taut: PathBuf,
    /// The random number generator for slices.
    random: Pcg64Mcg,
}

/// What the machines report when they end.
pub(super) struct Ended {
    pub(super) kept: Vec<Kept>,
    /// The counters of each guest.
    pub(super) counters: Vec<talk::Counters>,
    pub(super) links: Vec<LinkReport>,
}

// === impl Rig ===

impl Rig {
    /// Builds the world and boots its guests with these loads, in per cent. Cores are not shared
    /// yet.
    pub(super) fn build(
        request: &Request,
        loads: [u8; GUESTS],
        cores: Cores,
    ) -> Result<Self, ExperimentError> {
        let failed = ExperimentError::machine;
        let cores = [cores, cores.before()];
        let (world, ends) = network::build()?;
        let mut drivers = Vec::new();
        for (number, ends) in ends.into_iter().enumerate() {
            let host = world.host(HOSTS[number]);
            let driver =
                driver::start(host, world.dir(), ends).map_err(failed("start a driver domain"))?;
            let placed = cores[number].share(driver.id());
            placed.map_err(failed("place a driver domain"))?;
            drivers.push(driver);
        }
        let mut booting = Vec::new();
        for (number, load) in loads.into_iter().enumerate() {
            let guest = Guest {
                address: network::address(number),
                mac: network::mac(number),
                load,
                device: uml::DEVICE.to_owned(),
                neighbours: network::neighbours(number),
            };
            let on = number / EACH;
            let host = world.host(HOSTS[on]);
            let start = || {
                let booting = Booting::start(host, &tap(number), guest, world.dir())?;
                // The guest's later processes inherit the CPU affinity that is set here.
                cores[on].share(booting.id())?;
                Ok(booting)
            };
            booting.push(start().map_err(failed("start a guest"))?);
        }
        let mut guests = Vec::new();
        for (number, booting) in booting.into_iter().enumerate() {
            let guest = booting.ready(world.host(CLIENT));
            let mut guest = guest.map_err(failed("boot a guest"))?;
            let settings = Arm::SETTINGS.settings();
            let set = cores[number / EACH].share(guest.id());
            set.and_then(|()| guest.set(settings))
                .map_err(failed("place a guest and set it up"))?;
            guests.push(guest);
        }
        let mut gates = Vec::new();
        for (number, driver) in drivers.iter().enumerate() {
            let of_host = guests_of(number).map(|guest| Some(Arc::clone(&guests[guest].process)));
            let gate = Gate::start(Sharers {
                driver: Some(Arc::clone(driver)),
                guests: of_host.collect(),
            });
            gates.push(gate.map_err(failed("start a gate"))?);
        }
        Ok(Self {
            snooping: Vec::new(),
            gates,
            guests,
            _drivers: drivers,
            world,
            cores,
            taut: request.taut.clone(),
            random: Pcg64Mcg::seed_from_u64(request.seed),
        })
    }

    /// Sets up an arm. The gates are open during and after this.
    pub(super) fn configure(&mut self, arm: Arm) -> io::Result<()> {
        self.open();
        let began = Instant::now();
        self.snooping.clear();
        for (number, host) in HOSTS.into_iter().enumerate() {
            for guest in guests_of(number) {
                tune(self.world.host(host), &tap(guest), true)?;
            }
        }
        if let Some(args) = arm.configuration.snoop() {
            // Stop the guests: running idle guests would only delay the loading of `taut snoop`'s
            // programs.
            self.gates.iter().for_each(Gate::halt);
            for (number, host) in HOSTS.into_iter().enumerate() {
                let taps: Vec<String> = guests_of(number).map(tap).collect();
                let (at, dir) = (self.world.host(host), self.world.dir());
                let name = format!("snoop-{host}");
                let started = Snooping::start(at, &self.taut, &name, &taps, &args, dir);
                self.snooping.push(started?);
            }
            self.open();
        }
        tracing::debug!("`{}` is set up after {:?}", arm.label(), began.elapsed());
        Ok(())
    }

    /// Returns the number of segments lost after an early ACK, from the running `taut snoop`s.
    pub(super) fn lost_after_early_ack(&self) -> io::Result<u64> {
        self.snooping
            .iter()
            .map(Snooping::lost_after_early_ack)
            .sum()
    }

    /// Shares the cores from now on, if the arm does so, in rounds that begin at random moments
    /// relative to each other. Must be called again after [`IN_STEP`].
    pub(super) fn begin(&mut self, arm: Arm) {
        if !arm.shared {
            return;
        }
        for gate in &self.gates {
            let shape = Shape::of(EACH, true);
            let phase = self.random.next_u64() as f64 / u64::MAX as f64;
            std::thread::sleep(shape.cycle().mul_f64(phase));
            gate.close(Slices::new(shape, self.random.next_u64()));
        }
    }

    /// Lets every guest run from now on.
    pub(super) fn open(&self) {
        self.gates.iter().for_each(Gate::open);
    }

    pub(super) fn client(&self) -> &Host {
        self.world.host(CLIENT)
    }

    /// Returns the world's directory, which guests can read.
    pub(super) fn dir(&self) -> &Path {
        self.world.dir()
    }

    pub(super) fn guest(&mut self, number: usize) -> &mut Uml {
        &mut self.guests[number]
    }

    /// Moves a process of the client off the shared cores.
    pub(super) fn place(&self, client: &Child) -> io::Result<()> {
        self.cores[0].set_apart(client.id())
    }

    /// Returns the largest share of a core that a host's stopped guests still use: a load runs in
    /// processes of its own, which the gate does not stop.
    pub(super) fn stopped_share(&self) -> io::Result<f64> {
        self.gates.iter().for_each(Gate::halt);
        // A computing process runs until its next system call.
        std::thread::sleep(Duration::from_millis(10));
        let used = |host: usize| {
            guests_of(host)
                .map(|guest| cores::used(self.guests[guest].id()))
                .sum::<io::Result<u64>>()
        };
        let all = || (0..HOSTS.len()).map(used).collect::<io::Result<Vec<u64>>>();
        let (began, before) = (Instant::now(), all()?);
        std::thread::sleep(Duration::from_millis(200));
        let (took, after) = (began.elapsed().as_nanos() as f64, all()?);
        self.open();
        let shares = before.iter().zip(&after);
        Ok(shares
            .map(|(before, after)| after.saturating_sub(*before) as f64 / took)
            .fold(0.0, f64::max))
    }

    /// Adds the ends of the guests' consoles to an error.
    pub(super) fn explained(&self, e: &io::Error) -> io::Error {
        self.open();
        let consoles = (0..GUESTS).map(|guest| {
            let log = self.dir().join(format!("{}.log", tap(guest)));
            let text = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
            let end = lines[lines.len().saturating_sub(3)..].join(" | ");
            format!("; the end of guest {guest}'s console: {end}")
        });
        io::Error::other(format!("{e}{}", consoles.collect::<String>()))
    }

    /// Ends all processes and removes the world.
    pub(super) fn end(mut self) -> Result<Ended, ExperimentError> {
        self.open();
        let counters = self.guests.iter_mut().map(Uml::counters);
        let counters = counters
            .collect::<io::Result<_>>()
            .map_err(ExperimentError::machine("read the counters of the guests"))?;
        let links = self.world.link_reports()?;
        let kept = self.gates.drain(..).map(Gate::end).collect();
        Ok(Ended {
            kept,
            counters,
            links,
        })
    }
}
