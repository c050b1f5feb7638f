//! Worlds: hosts joined by links, on one machine, gone without a trace when done.
//!
//! ```no_run
//! use std::time::Duration;
//! use taut_netlab::link::shape::{LinkSpec, Shape};
//! use taut_netlab::units::BitsPerSecond;
//! use taut_netlab::world::WorldBuilder;
//!
//! let near = Shape::delay(Duration::from_millis(5)).rate(BitsPerSecond::mega(100));
//! let world = WorldBuilder::new("example")
//!     .host("client")
//!     .host("server")
//!     .link("client", "server", LinkSpec::both(near))
//!     .build()?;
//! let mut ping = std::process::Command::new("ping");
//! ping.args(["-c", "1", &world.addr("server").to_string()]);
//! world.host("client").spawn(ping)?.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A host is a network namespace, named `taut-ID-HOST` under `/run/netns`, so that `ip netns exec` works
//! on it. A world is torn down when its value is dropped, and on a signal where
//! [`crate::interrupt`] is installed; whatever else ends its process, the next world's building, or
//! [`World::sweep`], tears it down.

mod builder;
mod congestion;
mod devices;
mod host;
mod plan;
mod reaper;
mod record;
mod sysctl;
mod tcp_memory;

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use builder::WorldBuilder;
pub use host::Host;
pub(crate) use record::Record;
pub use tcp_memory::TcpMemory;

use crate::link::LinkError;
use crate::link::counters::LinkReport;
use crate::link::joint::Link;

/// Why a world could not be built or used.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The world as described cannot be.
    #[error("world {world}: {why}")]
    Impossible {
        /// The world's name.
        world: String,
        /// What to change.
        why: String,
    },
    /// Its record or its namespaces could not be made.
    #[error("world {world}: could not {action}: {source} (worlds need root)")]
    Make {
        /// The world's name.
        world: String,
        /// What was being made.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// A host's network could not be configured or read.
    #[error("{netns}: {source}")]
    Configure {
        /// The host's namespace.
        netns: String,
        /// The kernel's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A sysctl could not be set or read; only `net.*` can.
    #[error("{netns}: sysctl {setting}: {source} (is it there, is it a namespace's own?)")]
    Sysctl {
        /// The host's namespace.
        netns: String,
        /// `key=value`.
        setting: String,
        /// The system's error.
        source: io::Error,
    },
    /// A host's namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] taut_sys::netns::NetnsError),
    /// A link could not be made.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Hosts and links that exist. Dropping it kills every process that lives in it and takes it down.
#[derive(Debug)]
pub struct World {
    name: String,
    // Links go first: a namespace lives for as long as a TAP of it is open.
    links: Vec<Link>,
    hosts: Vec<Host>,
    dir: PathBuf,
    record: Arc<Record>,
}

// === impl World ===

impl World {
    /// Undoes what worlds whose process is gone have left on this machine, and returns their
    /// identifiers. Living worlds, and whatever no world wrote down as its own, are left alone.
    ///
    /// # Errors
    /// When the records cannot be read. A dead world that cannot be undone is logged, and left to
    /// the next sweep.
    pub fn sweep() -> io::Result<Vec<String>> {
        congestion::recover()?;
        record::sweep()
    }

    /// The world's name, as given to its builder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The world's identifier: six characters that no other world on this machine has.
    pub fn id(&self) -> &str {
        self.record.id()
    }

    /// A directory for files, gone with the world.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All hosts, in the order in which they were named.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host called `name`.
    ///
    /// # Panics
    /// When there is none: the names are in the same program.
    #[track_caller]
    pub fn host(&self, name: &str) -> &Host {
        match self.hosts.iter().find(|host| host.name() == name) {
            Some(host) => host,
            None => panic!("world {} has no host {name}", self.name),
        }
    }

    /// The IPv4 address of the host called `name`, the same whichever links it has.
    ///
    /// # Panics
    /// When there is no such host.
    #[track_caller]
    pub fn addr(&self, name: &str) -> Ipv4Addr {
        self.host(name).addr()
    }

    /// Has every link draw its losses from `seed` from now on, each from a stream of its own. Two
    /// measurements that begin with the same seed on an idle world meet the same losses: the n-th
    /// segment is lost in both, or in neither. (Links of netem draw as they like.)
    pub fn reseed(&self, seed: u64) {
        for (i, link) in self.links.iter().enumerate() {
            // Far apart, so that the links of neighbouring seeds do not share streams.
            link.reseed(seed ^ (i as u64 + 1) << 48);
        }
    }

    /// Cuts every link between the hosts called `a` and `b`, or mends it: nothing gets through in either
    /// direction. To TCP a cut is silence, as of a dead line; the devices stay up and no route goes.
    ///
    /// # Panics
    /// When there is no such host, when no link joins the two, or when theirs is one of netem.
    #[track_caller]
    pub fn cut(&self, a: &str, b: &str, is_cut: bool) {
        let number = |name: &str| self.hosts.iter().position(|host| host.name() == name);
        let ends = [a, b].map(number);
        let joins = |link: &&Link| {
            let [one, other] = link.ends().each_ref().map(|end| Some(end.host));
            ends == [one, other] || ends == [other, one]
        };
        let cut = self.links.iter().filter(joins);
        let cut = cut.map(|link| link.cut(is_cut)).collect::<Vec<_>>();
        assert!(
            !cut.is_empty() && cut.iter().all(|done| *done),
            "world {}: no link {a}-{b} that can be cut",
            self.name
        );
    }

    /// Has all TCP sockets of the *machine* hold no more than so much, in pages (`net.ipv4.tcp_mem`: low, pressure, most), for as long as this
    /// world lives. No namespace has one of its own.
    ///
    /// # Errors
    /// When it cannot be set.
    pub fn bound_tcp_memory(&self, bounds: [u64; 3]) -> io::Result<()> {
        self.record.bound_tcp_memory(bounds)
    }

    /// Makes a group of threads whose sockets share a bound on TCP memory; `None` if this machine has no
    /// memory cgroups of version 1. The group goes with the world, which its threads must not outlive.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn tcp_memory(&self) -> io::Result<Option<TcpMemory>> {
        self.record.make_tcp_memory()
    }

    /// What each link has carried and dropped up to now (a busy link's figures may be 10 ms old).
    ///
    /// # Errors
    /// When a device's counters cannot be read.
    pub fn link_reports(&self) -> Result<Vec<LinkReport>, WorldError> {
        self.links.iter().map(|link| self.report(link)).collect()
    }

    fn report(&self, link: &Link) -> Result<LinkReport, WorldError> {
        let mut report = link.report();
        if !link.has_taps() {
            return Ok(report);
        }
        let [a, b] = link.ends();
        for (end, direction) in [(a, &mut report.a_to_b), (b, &mut report.b_to_a)] {
            let stats = devices::statistics(self.hosts[end.host].netns(), &end.device)?;
            // The host sends, the device drops when nobody takes it; `rx` is what the link hands in.
            direction.device.not_taken = stats.tx_dropped;
        }
        Ok(report)
    }

    /// Tears the world down, as dropping it does, and says when something could not be undone.
    ///
    /// # Errors
    /// The first thing that could not be undone; the next sweep tries again.
    pub fn tear_down(mut self) -> io::Result<()> {
        self.links.clear();
        self.record.undo()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.links.clear();
        if let Err(e) = self.record.undo() {
            tracing::warn!(
                "world {} could not be torn down and is left to a sweep: {e}",
                self.name
            );
        }
    }
}
