//! The world and its processes.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use super::contender::Contender;
use crate::experiment::process_tree::ProcessTree;
use crate::experiment::workload::{Alive, Entrance};
use crate::experiment::{ExperimentError, Request};
use crate::peer::haproxy::{self, Splice};
use crate::peer::{PeerError, nginx_stream, relay, socat, ssh};
use taut_netlab::world::{Host, World, WorldBuilder};

/// The world: one host, without a relay yet.
pub(super) struct Rig {
    world: World,
    keys: ssh::Keys,
    taut: PathBuf,
    cpus: usize,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(request: &Request) -> Result<Self, ExperimentError> {
        let host = "relay";
        let world = WorldBuilder::new("relay-peers")
            .host(host)
            // Ephemeral ports start above every listening port.
            .sysctl(host, "net.ipv4.ip_local_port_range", "16384 65535")
            // No TIME_WAIT. In practice connections come from many addresses. Here one pair of
            // addresses would run out of ports, and the search for a free port would slow down the
            // relay that had the most connections before.
            .sysctl(host, "net.ipv4.tcp_max_tw_buckets", "0")
            .build()?;
        let keys = ssh::Keys::generate(world.dir())?;
        Ok(Self {
            world,
            keys,
            taut: request.taut.clone(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    /// Starts each of `contenders`. Each contender has its own ports.
    pub(super) fn start_all(
        &self,
        contenders: &[Contender],
    ) -> Result<BTreeMap<Contender, Entrance>, ExperimentError> {
        contenders
            .iter()
            .map(|&contender| Ok((contender, self.start(contender)?)))
            .collect()
    }

    /// Starts one contender.
    pub(super) fn start(&self, contender: Contender) -> Result<Entrance, ExperimentError> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, contender.server_port()));
        let server = self.inside("listen", || TcpListener::bind(to))?;
        let (addr, roots, running) = self.relay(contender, to)?;
        Ok(Entrance {
            addr,
            server,
            processes: ProcessTree::of(&roots),
            _relays: running,
        })
    }

    fn relay(
        &self,
        contender: Contender,
        to: SocketAddr,
    ) -> Result<(SocketAddr, Vec<u32>, Alive), PeerError> {
        let (host, dir, cpus) = (self.host(), self.world.dir(), self.cpus);
        let service = match contender {
            Contender::Direct => return Ok((to, Vec::new(), Box::new(()))),
            Contender::Ssh => {
                let splitter = ssh::Splitter::start(host, &self.keys, to, dir)?;
                let (addr, ids) = (splitter.addr(), splitter.ids());
                return Ok((addr, ids.to_vec(), Box::new(splitter)));
            }
            Contender::Taut => relay::relay(host, &self.taut, to, dir)?,
            Contender::TautNoSandbox => relay::relay_without_sandbox(host, &self.taut, to, dir)?,
            Contender::Haproxy => haproxy::relay(host, to, Splice::Auto, cpus, dir)?,
            Contender::HaproxySplice => haproxy::relay(host, to, Splice::Always, cpus, dir)?,
            Contender::Nginx => nginx_stream::relay(host, to, cpus, dir)?,
            Contender::Socat => socat::relay(host, to, dir)?,
        };
        Ok((service.addr, vec![service.id()], Box::new(service)))
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
        self.world.host("relay")
    }
}
