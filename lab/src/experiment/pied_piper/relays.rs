//! The relay processes of a world, and their configurations for the ways.
//!
//! | process | near | far |
//! |---|---|---|
//! | `relay` | dials the far one | dials the server |
//! | `pool` | a node of a mesh, without turbo start | its peer |
//! | `turbo` | a node of another, with it | its peer |
//!
//! Turbo start is a setting of a node, not of a forward, so there are two meshes.

use std::net::SocketAddr;
use std::path::Path;

use super::download::Way;
use super::route;
use crate::peer::mesh_pair::{MeshLeg, MeshPair};
use crate::peer::relay::{self, Forward, Node};
use crate::peer::{PeerError, Service};
use taut_netlab::world::{Host, World};

/// The number of connections that the near relay keeps ready. Downloads run one after the other,
/// and the relay replaces a used connection before the next download begins.
const POOL: u32 = 4;

/// The relay processes, and the entry addresses of the ways. Dropping this ends the processes.
#[derive(Default)]
pub(super) struct Relays {
    pub(super) entrances: Vec<(Way, SocketAddr)>,
    services: Vec<Service>,
}

/// The settings of the relays.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) world: &'a World,
    /// The `taut` binary.
    pub(super) taut: &'a Path,
    /// The destination of sessions.
    pub(super) server: SocketAddr,
}

/// A mesh of two nodes.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static str,
    turbo: bool,
    /// The address at which the far node listens for the near one.
    mesh_port: u16,
    /// The port offset of each node's metrics from [`relay::METRICS`].
    metrics: u16,
    ways: &'static [Way],
}

const PAIRS: [Pair; 2] = [
    Pair {
        name: "pool",
        turbo: false,
        mesh_port: 7001,
        metrics: 1,
        ways: &[Way::Pool],
    },
    Pair {
        name: "turbo",
        turbo: true,
        mesh_port: 7000,
        metrics: 2,
        ways: &[Way::Taut, Way::TautBbr],
    },
];

impl Relays {
    /// Starts the relays that `ways` need, the far relays first, and waits until the pools are
    /// filled.
    pub(super) fn start(site: Site<'_>, ways: &[Way]) -> Result<Self, PeerError> {
        let of = |candidates: &[Way]| -> Vec<Way> {
            let wanted = candidates.iter().filter(|way| ways.contains(way));
            wanted.copied().collect()
        };
        let mut relays = Self::default();
        relays.chain(site, &of(&[Way::Split, Way::EarlySyn]))?;
        for pair in PAIRS {
            relays.mesh(site, pair, &of(pair.ways))?;
        }
        Ok(relays)
    }

    /// Starts two relays that dial the next hop after accepting a client, with a forward for each
    /// way.
    fn chain(&mut self, site: Site<'_>, ways: &[Way]) -> Result<(), PeerError> {
        let mut to = vec![site.server; ways.len()];
        for host in ["far", "near"] {
            let host = site.world.host(host);
            let entrances: Vec<SocketAddr> = ways.iter().map(|way| entrance(host, *way)).collect();
            let Some(&first) = entrances.first() else {
                return Ok(());
            };
            let forward = |(i, way): (usize, &Way)| Forward {
                early_syn: *way == Way::EarlySyn,
                ..Forward::new(entrances[i], to[i])
            };
            let forwards = ways.iter().enumerate().map(forward).collect();
            let node = Node::new(relay::METRICS, None, forwards);
            self.run(site, host, "relay", node, first)?;
            to = entrances;
        }
        self.entrances.extend(ways.iter().copied().zip(to));
        Ok(())
    }

    /// Starts two nodes of a mesh, with a forward for each way on the near one.
    fn mesh(&mut self, site: Site<'_>, pair: Pair, ways: &[Way]) -> Result<(), PeerError> {
        if ways.is_empty() {
            return Ok(());
        }
        let (near, far) = (site.world.host("near"), site.world.host("far"));
        let mut metrics = relay::METRICS;
        metrics.set_port(metrics.port() + pair.metrics);
        let forward = |way: &Way| Forward {
            via: vec![far.name().to_owned()],
            early_syn: true,
            client_congestion: (*way == Way::TautBbr).then(|| "bbr".to_owned()),
            ..Forward::new(entrance(near, *way), site.server)
        };
        let mesh = MeshPair {
            name: pair.name,
            near,
            far,
            server: site.server,
            mesh_port: pair.mesh_port,
            metrics,
            pool: POOL,
            leg: MeshLeg {
                turbo: pair.turbo,
                congestion_control: None,
                rate: route::LEGS[1].rate(),
            },
            forwards: ways.iter().map(forward).collect(),
        };
        let running = mesh.start(site.world, site.taut)?;
        self.services.extend([running.near, running.far]);
        let entrances = ways.iter().map(|way| (*way, entrance(near, *way)));
        self.entrances.extend(entrances);
        Ok(())
    }

    fn run(
        &mut self,
        site: Site<'_>,
        host: &Host,
        name: &str,
        node: Node,
        addr: SocketAddr,
    ) -> Result<(), PeerError> {
        let service = relay::start(host, site.taut, name, node, addr, site.world.dir())?;
        self.services.push(service);
        Ok(())
    }
}

/// Returns the listening address of a way's forward on `host`. Each way has its own port.
fn entrance(host: &Host, way: Way) -> SocketAddr {
    SocketAddr::from((host.addr(), relay::PORT + way as u16))
}
