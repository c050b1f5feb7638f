//! The programs on the route, and the way in to each.

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

/// A world with everything running on it that the ways need. Programs go before the world they run
/// in.
pub(super) struct Stage {
    entrances: Vec<(Way, SocketAddr)>,
    _programs: Programs,
    digests: Vec<(Size, Digest)>,
    world: World,
}

/// They run for as long as this lives.
#[derive(Default)]
struct Programs {
    servers: Vec<Service>,
    splitters: Vec<ssh::Splitter>,
    relays: Option<Relays>,
}

impl Stage {
    /// Builds the world of `setting`; `number` tells it from others of the same run.
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
            .map_err(ExperimentError::machine("make the files to be downloaded"))?;
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

    /// Downloads one file and compares it with what the server has.
    pub(super) fn download(&self, way: Way, size: Size) -> Result<Times, ExperimentError> {
        Ok(curl::fetch(
            self.world.host("client"),
            self.entrance(way)?,
            &size.file(),
            self.digest(size)?,
            &self.world.dir().join("download"),
        )?)
    }

    /// What the client connects to.
    pub(super) fn entrance(&self, way: Way) -> Result<SocketAddr, ExperimentError> {
        let mut entrances = self.entrances.iter();
        entrances
            .find_map(|(w, addr)| (*w == way).then_some(*addr))
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine("find where the way begins"))
    }

    /// What a file should be.
    pub(super) fn digest(&self, size: Size) -> Result<Digest, ExperimentError> {
        let mut digests = self.digests.iter();
        digests
            .find_map(|(s, digest)| (*s == size).then_some(*digest))
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine("find what the file should be"))
    }
}

/// Starts what `ways` need, from the server towards the client.
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
