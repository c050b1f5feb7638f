//! A guest under QEMU that sends to a server over a path. Its processor can be taken away in
//! slices.

use std::io;
use std::path::PathBuf;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::cores::Cores;
use super::guest::Guest;
use super::guest::talk::Start;
use super::hog::{Hog, Share};
use super::network::{ALONE, SERVER, SERVER_MAC, TAP, lay_out_alone};
use super::qemu::{self, Files, Kernel};
use super::uml::Uml;
use crate::experiment::{ExperimentError, Request};
use taut_netlab::link::shape::LinkSpec;
use taut_netlab::world::{World, WorldBuilder};

/// The number of attempts to boot a guest.
const BOOTS: usize = 3;

/// The guest with its path.
pub(in crate::experiment) struct Sender {
    // Fields are dropped in this order: the tap must outlive the guest.
    pub(in crate::experiment) guest: Uml,
    pub(in crate::experiment) world: World,
    cores: Cores,
    taut: PathBuf,
    /// The random number generator for slices.
    random: Pcg64Mcg,
}

// === impl Sender ===

impl Sender {
    /// Boots a guest behind this link; the link's first direction is from the guest. Moves the
    /// calling thread, and the processes that it starts later, off the core of the guest's
    /// processor.
    pub(in crate::experiment) fn boot(
        name: &str,
        link: LinkSpec,
        kernel: &Kernel,
        files: &Files,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let failed = ExperimentError::machine;
        let cores = Cores::choose().map_err(failed("choose a core for the guest"))?;
        cores
            .keep_off()
            .map_err(failed("stay off the guest's core"))?;
        let world = WorldBuilder::new(name)
            .host("client")
            .host("server")
            .link("client", "server", link.seed(request.seed))
            .build()?;
        lay_out_alone(world.host("server"), world.host("client"))
            .map_err(failed("lay out the guest's network"))?;
        let guest = Guest {
            address: ALONE.0,
            mac: ALONE.1,
            load: 0,
            device: qemu::DEVICE.to_owned(),
            neighbours: vec![(SERVER, SERVER_MAC)],
        };
        let once = || {
            let host = world.host("client");
            let (guest, dir) = (guest.clone(), world.dir());
            let booting = qemu::start(kernel, host, &request.taut, TAP, guest, files, dir)?;
            cores.set_apart(booting.id())?;
            let guest = booting.ready(world.host("server"))?;
            cores.set_apart(guest.id())?;
            qemu::pin_processor(guest.id(), cores.shared)?;
            Ok(guest)
        };
        let boot = || {
            // QEMU 7.2 sometimes corrupts a processor's flags in the first second of Linux 6.12.
            // The measurement does not depend on that failure.
            for _ in 1..BOOTS {
                match once() {
                    Ok(guest) => return Ok(guest),
                    Err(e) => tracing::warn!("{e}; booting it again"),
                }
            }
            once()
        };
        Ok(Self {
            guest: boot().map_err(failed("boot the guest"))?,
            world,
            cores,
            taut: request.taut.clone(),
            random: Pcg64Mcg::seed_from_u64(request.seed),
        })
    }

    /// Runs a program in the guest until it ends, and returns its output.
    pub(in crate::experiment) fn run(
        &mut self,
        program: &str,
        args: &[&str],
    ) -> Result<String, ExperimentError> {
        let failed = ExperimentError::machine;
        let ran = self.guest.run(Start {
            name: program.to_owned(),
            program: program.to_owned(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
        });
        let action = format!("run {program} {} in the guest", args.join(" "));
        let ran = ran.map_err(failed(&action))?;
        match ran.status {
            Some(0) => Ok(ran.said),
            _ => Err(failed(&action)(io::Error::other(ran.said))),
        }
    }

    /// Runs `taut` in the guest.
    pub(in crate::experiment) fn taut(&mut self, args: &[&str]) -> Result<String, ExperimentError> {
        let taut = self.taut.display().to_string();
        self.run(&taut, args)
    }

    /// Writes one of the guest's sysctls.
    pub(in crate::experiment) fn set(
        &mut self,
        path: &str,
        text: &str,
    ) -> Result<(), ExperimentError> {
        let set = self.guest.write(path, text);
        set.map_err(ExperimentError::machine("write a sysctl of the guest"))
    }

    /// Leaves the guest this share of its core from now on; `None` leaves it the whole core.
    pub(in crate::experiment) fn take(
        &mut self,
        share: Option<Share>,
    ) -> Result<Option<Hog>, ExperimentError> {
        let hog = share
            .map(|share| Hog::start(self.cores.shared, share, self.random.next_u64()))
            .transpose();
        hog.map_err(ExperimentError::machine("take the guest's core"))
    }
}
