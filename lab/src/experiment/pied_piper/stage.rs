//! A world with its programs running, and the entry address of each way.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::download::{Size, Way};
use super::relays::{Relays, Site};
use super::route::{self, Setting};
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::{self, Digest, Times};
use crate::peer::{PeerError, Service, nginx, ssh};
use taut_netlab::world::World;

/// A world with the running programs that the ways need. The programs are dropped before the world
/// that they run in.
pub(super) struct Stage {
    entrances: Vec<(Way, SocketAddr)>,
    _programs: Programs,
    digests: Vec<(Size, Digest)>,
    world: World,
}

/// Services that run until this is dropped.
#[derive(Default)]
struct Programs {
    servers: Vec<Service>,
    splitters: Vec<ssh::Splitter>,
    relays: Option<Relays>,
}

impl Stage {
    /// Builds the world of `setting`. `number` distinguishes the world from others of the same run.
    pub(super) fn build(
        setting: Setting,
        ways: &[Way],
        sizes: &[Size],
        number: usize,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let seed = request.seed.wrapping_mul(1_000).wrapping_add(number as u64);
        let world = route::build(setting, seed)?;
        let digests = make_files(&world.dir().join("www"), sizes, request.seed)
            .map_err(ExperimentError::machine("write the files for downloads"))?;
        let (entrances, programs) = cast(&world, ways, &request.taut)?;
        Ok(Self {
            entrances,
            _programs: programs,
            digests,
            world,
        })
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Downloads one file and compares it with the server's file.
    pub(super) fn download(&self, way: Way, size: Size) -> Result<Times, ExperimentError> {
        Ok(curl::fetch(
            self.world.host("client"),
            self.entrance(way)?,
            &size.file(),
            self.digest(size)?,
            &self.world.dir().join("download"),
        )?)
    }

    /// Returns the address that the client connects to.
    pub(super) fn entrance(&self, way: Way) -> Result<SocketAddr, ExperimentError> {
        let mut entrances = self.entrances.iter();
        entrances
            .find_map(|(w, addr)| (*w == way).then_some(*addr))
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine(
                "find the entry address of the way",
            ))
    }

    /// Returns the expected hash of a file.
    pub(super) fn digest(&self, size: Size) -> Result<Digest, ExperimentError> {
        let mut digests = self.digests.iter();
        digests
            .find_map(|(s, digest)| (*s == size).then_some(*digest))
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine(
                "find the expected hash of the file",
            ))
    }
}

/// Starts the programs that `ways` need, from the server towards the client.
fn cast(
    world: &World,
    ways: &[Way],
    taut: &Path,
) -> Result<(Vec<(Way, SocketAddr)>, Programs), PeerError> {
    let dir = world.dir();
    let (near, far) = (world.host("near"), world.host("far"));
    let server = nginx::serve(world.host("server"), dir)?;
    let to = server.addr;
    let mut entrances = vec![(Way::Routed, to)];
    let mut programs = Programs::default();
    programs.servers.push(server);
    if ways.contains(&Way::EndToEnd) {
        let origin = nginx::serve(world.host("origin"), dir)?;
        entrances.push((Way::EndToEnd, origin.addr));
        programs.servers.push(origin);
    }
    if ways.contains(&Way::Ssh) {
        let keys = ssh::Keys::generate(dir)?;
        let second = ssh::Splitter::start(far, &keys, to, dir)?;
        let first = ssh::Splitter::start(near, &keys, second.addr(), dir)?;
        entrances.push((Way::Ssh, first.addr()));
        programs.splitters.extend([first, second]);
    }
    let site = Site {
        world,
        taut,
        server: to,
    };
    let relays = Relays::start(site, ways)?;
    entrances.extend(&relays.entrances);
    programs.relays = Some(relays);
    Ok((entrances, programs))
}

fn make_files(dir: &Path, sizes: &[Size], seed: u64) -> std::io::Result<Vec<(Size, Digest)>> {
    fs::create_dir(dir)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut digests = Vec::new();
    for &size in sizes {
        let mut bytes = vec![0; size.bytes()];
        random.fill_bytes(&mut bytes);
        let path = dir.join(size.file());
        fs::write(&path, bytes)?;
        digests.push((size, Digest::of(&path)?));
    }
    Ok(digests)
}
