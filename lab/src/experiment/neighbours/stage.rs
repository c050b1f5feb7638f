//! The world: two relays, and two hosts of others behind them, with one link for both.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::case::{Case, Kind, LINK, Path};
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::Digest;
use crate::peer::mesh_pair::{MeshLeg, MeshPair, RunningPair};
use crate::peer::relay::{self, Forward};
use crate::peer::{Service, nginx};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{World, WorldBuilder, WorldError};

/// The round trip of each other link.
const SHORT_RTT: Duration = Duration::from_millis(2);
/// The rate of the other links, which limit no flow.
const WIDE: BitsPerSecond = BitsPerSecond::giga(1);
/// A delivery that is late by more than this disturbs a contest.
const TOLERANCE: Duration = Duration::from_millis(5);
/// The port at which the far relay listens for the near one.
const MESH_PORT: u16 = 7000;
/// The name of the file that all flows download.
pub(super) const FILE: &str = "file";

/// A world with its programs. The programs are dropped before the world that they run in.
pub(super) struct Stage {
    /// Where the flows of the mesh, or those in their place, connect.
    pub(super) mesh: SocketAddr,
    /// Where the Cubic flows of others connect.
    pub(super) others: SocketAddr,
    /// The file that all flows download.
    pub(super) digest: Digest,
    _pair: Option<RunningPair>,
    _servers: [Service; 2],
    pub(super) world: World,
}

impl Stage {
    /// Builds the world of a case, in which each flow downloads `bytes`.
    pub(super) fn build(
        case: Case,
        bytes: usize,
        seed: u64,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let world = build(case.path, seed)?;
        let digest = write_file(&world, bytes, seed)
            .map_err(ExperimentError::machine("write the file for downloads"))?;
        let server = nginx::serve(world.host("server"), world.dir())?;
        let other = nginx::serve(world.host("right"), world.dir())?;
        let near = world.host("near");
        let entrance = SocketAddr::from((near.addr(), relay::PORT));
        let leg = match case.kind {
            Kind::Cubic => None,
            Kind::Bbr => Some((false, Some("bbr"), LINK)),
            Kind::Turbo => Some((true, None, LINK)),
            Kind::TurboTooFast => Some((true, None, WIDE)),
        };
        let far = world.host("far");
        let pair = leg.map(|(turbo, congestion, rate)| MeshPair {
            name: "mesh",
            near,
            far,
            server: server.addr,
            mesh_port: MESH_PORT,
            metrics: relay::METRICS,
            pool: case.flows as u32,
            leg: MeshLeg {
                turbo,
                congestion_control: congestion.map(str::to_owned),
                rate,
            },
            forwards: vec![Forward {
                via: vec![far.name().to_owned()],
                ..Forward::new(entrance, server.addr)
            }],
        });
        let pair = pair.map(|pair| pair.start(&world, &request.taut));
        let pair = pair.transpose()?;
        Ok(Self {
            mesh: pair.as_ref().map_or(server.addr, |_| entrance),
            others: other.addr,
            digest,
            _pair: pair,
            _servers: [server, other],
            world,
        })
    }
}

fn build(path: Path, seed: u64) -> Result<World, WorldError> {
    let shape = |rtt: Duration, rate, queue: Bytes| {
        Shape::delay(rtt / 2)
            .rate(rate)
            .queue(queue)
            .tolerance(TOLERANCE)
    };
    let short = LinkSpec::both(shape(SHORT_RTT, WIDE, Bytes::kilo(6_250)));
    let shared = LinkSpec::both(shape(path.rtt(), LINK, path.queue()));
    let mut builder = WorldBuilder::new("neighbours");
    for host in ["client", "left", "near", "far", "server", "right"] {
        builder = builder.host(host);
    }
    builder
        .link("near", "far", shared.seed(seed))
        .link("client", "near", short)
        .link("left", "near", short)
        .link("far", "server", short)
        .link("far", "right", short)
        .build()
}

fn write_file(world: &World, bytes: usize, seed: u64) -> std::io::Result<Digest> {
    let dir = world.dir().join("www");
    fs::create_dir(&dir)?;
    let mut content = vec![0; bytes];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut content);
    let file = dir.join(FILE);
    fs::write(&file, content)?;
    Digest::of(&file)
}
