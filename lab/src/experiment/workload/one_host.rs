//! A world of one host, for relays that run beside each other.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use taut_netlab::world::{Host, World, WorldBuilder};

use crate::experiment::process_tree::ProcessTree;
use crate::experiment::workload::{Alive, Entrance};
use crate::experiment::{ExperimentError, Request};
use crate::peer::PeerError;

const NAME: &str = "relays";

/// The world, without a relay yet.
pub(in crate::experiment) struct OneHost {
    world: World,
    /// The `taut` binary to measure.
    pub(in crate::experiment) taut: PathBuf,
    /// The processors of this machine.
    pub(in crate::experiment) cpus: usize,
}

// === impl OneHost ===

impl OneHost {
    pub(in crate::experiment) fn build(
        world: &str,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let world = WorldBuilder::new(world)
            .host(NAME)
            // Ephemeral ports start above every listening port.
            .sysctl(NAME, "net.ipv4.ip_local_port_range", "16384 65535")
            // No TIME_WAIT. In practice connections come from many addresses. Here one pair of
            // addresses would run out of ports, and the search for a free port would slow down the
            // relay that had the most connections before.
            .sysctl(NAME, "net.ipv4.tcp_max_tw_buckets", "0")
            .build()?;
        Ok(Self {
            world,
            taut: request.taut.clone(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    pub(in crate::experiment) fn host(&self) -> &Host {
        self.world.host(NAME)
    }

    pub(in crate::experiment) fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// Listens at `to`, and then starts relays that lead there. `start` returns the address for a
    /// client, the relays' processes, and what keeps them alive.
    pub(in crate::experiment) fn enter(
        &self,
        to: SocketAddr,
        start: impl FnOnce() -> Result<(SocketAddr, Vec<u32>, Alive), PeerError>,
    ) -> Result<Entrance, ExperimentError> {
        let server = self.inside("listen", || TcpListener::bind(to))?;
        let (addr, processes, relays) = start()?;
        Ok(Entrance {
            addr,
            server,
            processes: ProcessTree::of(&processes),
            _relays: relays,
        })
    }

    /// Runs `job` on the host.
    pub(in crate::experiment) fn inside<T: Send>(
        &self,
        what: &str,
        job: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, ExperimentError> {
        self.host()
            .run(job)?
            .map_err(ExperimentError::machine(what))
    }
}
