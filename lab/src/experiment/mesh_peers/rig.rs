//! The world and its processes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use super::contender::Contender;
use crate::experiment::process_tree::ProcessTree;
use crate::experiment::workload::{Alive, Entrance};
use crate::experiment::{ExperimentError, Request};
use crate::peer::PeerError;
use crate::peer::relay_pair::{self, Pool};
use crate::peer::tls::certificates::Certificates;
use crate::peer::tls::haproxy::Buffers;
use crate::peer::tls::{haproxy, nginx, stunnel};
use crate::peer::two_relays::Layout;
use taut_netlab::world::{Host, World, WorldBuilder};

/// The world: one host, without a relay yet.
pub(super) struct Rig {
    world: World,
    certificates: Certificates,
    taut: PathBuf,
    cpus: usize,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(request: &Request) -> Result<Self, ExperimentError> {
        let host = "relays";
        let world = WorldBuilder::new("mesh-peers")
            .host(host)
            // Ephemeral ports start above every listening port.
            .sysctl(host, "net.ipv4.ip_local_port_range", "16384 65535")
            // No TIME_WAIT: one pair of addresses would run out of ports.
            .sysctl(host, "net.ipv4.tcp_max_tw_buckets", "0")
            .build()?;
        let certificates = Certificates::generate(world.dir())?;
        Ok(Self {
            world,
            certificates,
            taut: request.taut.clone(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    /// Starts the relays of `contender`. `pool` applies to Taut with a pool only.
    pub(super) fn start(
        &self,
        contender: Contender,
        pool: Pool,
    ) -> Result<Entrance, ExperimentError> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let to = local(contender.server_port());
        let layout = Layout {
            host: self.host(),
            near: local(contender.near_port()),
            between: local(contender.between_port()),
            to,
            cpus: self.cpus,
            dir: self.world.dir(),
        };
        let server = self.inside("listen", || TcpListener::bind(to))?;
        let (addr, ids, relays) = self.relays(contender, &layout, pool)?;
        Ok(Entrance {
            addr,
            server,
            processes: ProcessTree::of(&ids),
            _relays: relays,
        })
    }

    fn relays(
        &self,
        contender: Contender,
        layout: &Layout<'_>,
        pool: Pool,
    ) -> Result<(SocketAddr, Vec<u32>, Alive), PeerError> {
        let certificates = &self.certificates;
        let two = match contender {
            Contender::Direct => return Ok((layout.to, Vec::new(), Box::new(()))),
            Contender::Taut => relay_pair::pair(&self.taut, layout, pool)?,
            Contender::TautNoPool => relay_pair::pair(&self.taut, layout, Pool::None)?,
            Contender::Haproxy => haproxy::pair(layout, certificates, Buffers::Default)?,
            Contender::HaproxyLarge => haproxy::pair(layout, certificates, Buffers::Large)?,
            Contender::Nginx => nginx::pair(layout, certificates)?,
            Contender::Stunnel => stunnel::pair(layout, certificates)?,
        };
        Ok((layout.near, two.ids().to_vec(), Box::new(two)))
    }

    /// Runs `job` on the host.
    pub(super) fn inside<T: Send>(
        &self,
        what: &str,
        job: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, ExperimentError> {
        self.host()
            .run(job)?
            .map_err(ExperimentError::machine(what))
    }

    fn host(&self) -> &Host {
        self.world.host("relays")
    }
}
