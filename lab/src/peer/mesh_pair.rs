//! Two `taut relay` of a mesh, on two hosts of a world: sessions enter at the near one, and the far
//! one connects to the server.

use std::net::SocketAddr;
use std::path::Path;

use super::relay::{self, Forward, Member, Mesh, Node};
use super::{PeerError, Service};
use taut_netlab::units::BitsPerSecond;
use taut_netlab::world::{Host, World};

/// The two nodes, and how they use the leg between them.
#[derive(Clone, Debug)]
pub struct MeshPair<'a> {
    /// The name of their files and processes.
    pub name: &'a str,
    /// The host of the node that clients connect to.
    pub near: &'a Host,
    /// The host of the node that connects to the server.
    pub far: &'a Host,
    /// The destination of sessions.
    pub server: SocketAddr,
    /// The port at which the far node listens for the near one.
    pub mesh_port: u16,
    /// The address of each node's metrics.
    pub metrics: SocketAddr,
    /// The number of connections that the near node keeps ready.
    pub pool: u32,
    /// The leg between the nodes.
    pub leg: MeshLeg,
    /// The near node's forwards. The name of the far one is its host's.
    pub forwards: Vec<Forward>,
}

/// How a leg between two nodes is used.
#[derive(Clone, Debug)]
pub struct MeshLeg {
    /// Whether it skips slow start and has large windows.
    pub turbo: bool,
    /// The congestion control; `None` for the default of `turbo`.
    pub congestion_control: Option<String>,
    /// The rate at which it starts, with `turbo`.
    pub rate: BitsPerSecond,
}

/// The running nodes. Dropping this ends them.
#[derive(Debug)]
pub struct RunningPair {
    /// The node that clients connect to.
    pub near: Service,
    /// The node that connects to the server.
    pub far: Service,
}

impl MeshPair<'_> {
    /// Starts both nodes, and waits until the pool is filled. `taut` is the path of the binary.
    ///
    /// # Errors
    /// [`PeerError`].
    ///
    /// # Panics
    /// Without a forward.
    pub fn start(&self, world: &World, taut: &Path) -> Result<RunningPair, PeerError> {
        let first = self.forwards.first().map(|forward| forward.listen);
        let Some(entrance) = first else {
            panic!("a pair of relays without a forward has no use");
        };
        let (near, far, dir) = (self.near, self.far, world.dir());
        let listen = SocketAddr::from((far.addr(), self.mesh_port));
        let file = |what: &str| dir.join(format!("{}-{what}", self.name));
        let (near_key, far_key) = (file("near.key"), file("far.key"));
        let members_file = file("members.toml");
        let member = |host: &Host, key: &Path, addresses| -> Result<Member, PeerError> {
            Ok(Member {
                name: host.name().to_owned(),
                keys: vec![relay::make_key(key)?],
                addresses,
            })
        };
        let members = [
            member(near, &near_key, Vec::new())?,
            member(far, &far_key, vec![listen])?,
        ];
        relay::write_members(&members_file, &members)?;
        let mesh = Mesh {
            private_key_file: near_key,
            members_file,
            listen: None,
            allow: Vec::new(),
            pool_min: self.pool,
            turbo: self.leg.turbo,
            congestion_control: self.leg.congestion_control.clone(),
            rate: self.leg.rate,
            measure: false,
        };
        let far_mesh = Mesh {
            private_key_file: far_key,
            listen: Some(listen),
            allow: vec![format!("{}/32:{}", self.server.ip(), self.server.port())],
            ..mesh.clone()
        };
        let far_node = Node::new(self.metrics, Some(far_mesh), Vec::new());
        let far = relay::start(far, taut, self.name, far_node, listen, dir)?;
        let near_node = Node::new(self.metrics, Some(mesh), self.forwards.clone());
        let service = relay::start(near, taut, self.name, near_node, entrance, dir)?;
        relay::wait_for_pool(&service, near, self.metrics, self.pool)?;
        Ok(RunningPair { near: service, far })
    }
}
