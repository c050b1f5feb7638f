//! A world with its programs running, and the entry address of each way.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path as FilePath, PathBuf};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::download::{Size, Way};
use super::path::{self, Path};
use crate::experiment::{ExperimentError, Request, commands};
use crate::peer::curl::{self, Digest, Times};
use crate::peer::mesh_pair::{MeshLeg, MeshPair, RunningPair};
use crate::peer::relay::{self, Forward};
use crate::peer::{PeerError, Service, nginx, ssh};
use taut_netlab::units::Bytes;
use taut_netlab::world::{Host, World};

/// The number of connections that a near relay keeps ready. Downloads run one after the other.
const POOL: u32 = 4;
/// The buffers of [`Way::EndToEndTurbo`]: several times what its path holds, and room to grow.
const LARGE_BUFFERS: &str = "4096 8388608 67108864";
/// The first port of the meshes' far nodes.
const MESH_PORT: u16 = 7000;
/// The payload of a segment at an MTU of 1500, with time stamps.
const SEGMENT: u64 = 1448;

/// The files of all worlds, which link to them.
pub(super) struct Files {
    dir: tempfile::TempDir,
    digests: Vec<(Size, Digest)>,
}

/// A world with the running programs that its ways need. The programs are dropped before the world
/// that they run in.
pub(super) struct Stage {
    entrances: Vec<(Way, SocketAddr)>,
    _programs: Programs,
    world: World,
}

/// Services that run until this is dropped.
#[derive(Default)]
struct Programs {
    servers: Vec<Service>,
    splitters: Vec<ssh::Splitter>,
    pairs: Vec<RunningPair>,
}

impl Files {
    /// Writes files of random bytes.
    pub(super) fn write(
        sizes: impl IntoIterator<Item = Size>,
        seed: u64,
    ) -> Result<Self, ExperimentError> {
        let write = || -> io::Result<Self> {
            let dir = tempfile::tempdir()?;
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut digests = Vec::new();
            for size in sizes {
                let mut bytes = vec![0; size.0];
                random.fill_bytes(&mut bytes);
                let file = dir.path().join(size.file());
                fs::write(&file, bytes)?;
                digests.push((size, Digest::of(&file)?));
            }
            Ok(Self { dir, digests })
        };
        write().map_err(ExperimentError::machine("write the files for downloads"))
    }

    fn digest(&self, size: Size) -> Result<Digest, ExperimentError> {
        let of_size = |(s, digest): &(Size, Digest)| (*s == size).then_some(*digest);
        self.digests
            .iter()
            .find_map(of_size)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine("find the file of this size"))
    }
}

impl Stage {
    /// Builds a world of `path` for `ways`. `number` distinguishes it from others of the same run.
    pub(super) fn build(
        path: Path,
        ways: &[Way],
        files: &Files,
        number: usize,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let seed = request.seed.wrapping_mul(1_000).wrapping_add(number as u64);
        let over_relays = ways.iter().any(|way| way.is_over_relays());
        let world = path.build(over_relays, seed, &sysctls(ways))?;
        symlink(files.dir.path(), world.dir().join("www"))
            .map_err(ExperimentError::machine("link the files for downloads"))?;
        let mut programs = Programs::default();
        let entrances = if over_relays {
            cast_relays(&world, ways, &request.taut, &mut programs)?
        } else {
            let origin = world.host("origin");
            if ways.contains(&Way::EndToEndTurbo) {
                open_first_window(origin, world.host("client"), path.bdp())?;
            }
            let server = nginx::serve(origin, world.dir())?;
            let at = server.addr;
            programs.servers.push(server);
            ways.iter().map(|way| (*way, at)).collect()
        };
        Ok(Self {
            entrances,
            _programs: programs,
            world,
        })
    }

    /// Returns the world, for its seed and its links' counters.
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// Downloads one file, and compares its bytes with the server's.
    pub(super) fn download(
        &self,
        way: Way,
        size: Size,
        files: &Files,
    ) -> Result<Times, ExperimentError> {
        let of_way = |(w, addr): &(Way, SocketAddr)| (*w == way).then_some(*addr);
        let entrance = self.entrances.iter().find_map(of_way);
        let entrance = entrance
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine(
                "find the entry address of the way",
            ))?;
        let client = self.world.host("client");
        let digest = files.digest(size)?;
        Ok(curl::time(client, entrance, &size.file(), digest)?)
    }
}

/// Returns the settings of hosts' kernels for ways end to end: host, key and value.
fn sysctls(ways: &[Way]) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut all = Vec::new();
    if ways.contains(&Way::EndToEndBbr) {
        all.push(("origin", "net.ipv4.tcp_congestion_control", "bbr"));
    }
    if ways.contains(&Way::EndToEndTurbo) {
        all.push(("client", "net.ipv4.tcp_rmem", LARGE_BUFFERS));
        all.push(("origin", "net.ipv4.tcp_wmem", LARGE_BUFFERS));
    }
    all
}

/// Gives connections of `origin` to `client` a first window of `bytes`: what the path holds.
fn open_first_window(origin: &Host, client: &Host, bytes: Bytes) -> Result<(), ExperimentError> {
    let route = commands::ip(origin, &format!("route show {}/32", client.addr()))?;
    let segments = bytes.0.div_ceil(SEGMENT);
    commands::ip(
        origin,
        &format!("route replace {} initcwnd {segments}", route.trim()),
    )?;
    Ok(())
}

/// Starts the programs of ways over the relays, from the server towards the client.
fn cast_relays(
    world: &World,
    ways: &[Way],
    taut: &FilePath,
    programs: &mut Programs,
) -> Result<Vec<(Way, SocketAddr)>, PeerError> {
    let dir: PathBuf = world.dir().to_owned();
    let (near, far) = (world.host("near"), world.host("far"));
    let server = nginx::serve(world.host("server"), &dir)?;
    let to = server.addr;
    programs.servers.push(server);
    let mut entrances = Vec::new();
    for (i, &way) in (0..).zip(ways) {
        let (turbo, congestion_control) = match way {
            Way::Cubic => (false, Some("cubic")),
            Way::Bbr => (false, Some("bbr")),
            Way::TurboCubic => (true, Some("cubic")),
            Way::Taut => (true, None),
            _ => {
                let keys = ssh::Keys::generate(&dir)?;
                let second = ssh::Splitter::start(far, &keys, to, &dir)?;
                let first = ssh::Splitter::start(near, &keys, second.addr(), &dir)?;
                entrances.push((way, first.addr()));
                programs.splitters.extend([first, second]);
                continue;
            }
        };
        let mut metrics = relay::METRICS;
        metrics.set_port(metrics.port() + i);
        let entrance = SocketAddr::from((near.addr(), relay::PORT + i));
        let pair = MeshPair {
            name: way.label(),
            near,
            far,
            server: to,
            mesh_port: MESH_PORT + i,
            metrics,
            pool: POOL,
            leg: MeshLeg {
                turbo,
                congestion_control: congestion_control.map(str::to_owned),
                rate: path::CLOUD,
            },
            forwards: vec![Forward {
                via: vec![far.name().to_owned()],
                early_syn: true,
                ..Forward::new(entrance, to)
            }],
        };
        programs.pairs.push(pair.start(world, taut)?);
        entrances.push((way, entrance));
    }
    Ok(entrances)
}
