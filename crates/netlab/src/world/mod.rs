//! Worlds: hosts joined by links, which disappear without a trace. The [crate's page](crate) has an
//! example.
//!
//! A host is a network namespace, named `taut-ID-HOST` under `/run/netns`, so that `ip netns exec`
//! works on it. A world is torn down when its value is dropped, and on a signal if
//! [`crate::interrupt`] is installed. If its process ends in any other way, the next world that is
//! built, or [`World::sweep`], tears it down.

mod builder;
mod congestion;
mod cpu_quota;
mod devices;
mod host;
mod plan;
mod reaper;
pub(crate) mod record;
mod sysctl;
mod tcp_memory;

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use builder::WorldBuilder;
pub use congestion::keep_allowed as keep_allowed_congestion_controls;
pub use cpu_quota::CpuQuota;
pub use host::Host;
use record::Record;
pub use tcp_memory::TcpMemory;

use crate::link::LinkError;
use crate::link::counters::LinkReport;
use crate::link::running::Link;

/// An error of building or using a world.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The description of the world is invalid.
    #[error("world {world}: {why}")]
    Impossible {
        /// The world's name.
        world: String,
        /// What is wrong with it.
        why: String,
    },
    /// A part of the world cannot be created.
    #[error("world {world}: cannot {action}: {source} (worlds need root)")]
    Make {
        /// The world's name.
        world: String,
        /// What was being done.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// A host's network cannot be configured or read.
    #[error("{netns}: {source}")]
    Configure {
        /// The host's namespace.
        netns: String,
        /// The kernel's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A sysctl cannot be set or read.
    #[error(
        "{netns}: sysctl {setting}: {source}; only `net.*` sysctls that namespaces have of their own \
         can be used"
    )]
    Sysctl {
        /// The host's namespace.
        netns: String,
        /// `key=value`.
        setting: String,
        /// The system's error.
        source: io::Error,
    },
    /// A host's namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] taut_sys::netns::NetnsError),
    /// A link cannot be created.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A running world. Dropping it kills every process in its namespaces and removes them.
#[derive(Debug)]
pub struct World {
    name: String,
    // Dropped first: an open TAP keeps its namespace alive.
    links: Vec<Link>,
    hosts: Vec<Host>,
    dir: PathBuf,
    record: Arc<Record>,
}

// === impl World ===

impl World {
    /// Removes what worlds whose process has ended have left on this machine, and returns their
    /// identifiers. Running worlds, and everything that no world has recorded, are left alone.
    ///
    /// # Errors
    /// If the records cannot be read. A dead world that cannot be removed is logged and left to the
    /// next sweep.
    pub fn sweep() -> io::Result<Vec<String>> {
        congestion::recover()?;
        record::sweep()
    }

    /// Returns the world's name, as given to its builder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the world's identifier: six characters, unique on this machine.
    pub fn id(&self) -> &str {
        self.record.id()
    }

    /// Returns a directory for files. It is removed with the world.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns all hosts, in the order in which they were added.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns the host called `name`.
    ///
    /// # Panics
    /// If there is none: the names are in the same program.
    #[track_caller]
    pub fn host(&self, name: &str) -> &Host {
        match self.hosts.iter().find(|host| host.name() == name) {
            Some(host) => host,
            None => panic!("world {} has no host {name}", self.name),
        }
    }

    /// Returns the IPv4 address of the host called `name`; it does not depend on its links.
    ///
    /// # Panics
    /// If there is no such host.
    #[track_caller]
    pub fn addr(&self, name: &str) -> Ipv4Addr {
        self.host(name).addr()
    }

    /// Sets the seed from which every link draws its losses from now on, each from its own stream. Two
    /// measurements that begin with the same seed on an idle world meet the same losses: the n-th
    /// segment is lost in both or in neither. Has no effect on links of netem.
    pub fn reseed(&self, seed: u64) {
        for (i, link) in self.links.iter().enumerate() {
            // In the high bits, so that links of neighbouring seeds do not share streams.
            link.reseed(seed ^ (i as u64 + 1) << 48);
        }
    }

    /// Cuts every link between the hosts called `a` and `b`, or restores them. A cut link drops everything
    /// in both directions. TCP sees silence, as on a dead line: the devices stay up and the routes stay.
    ///
    /// # Panics
    /// If there is no such host, if no link joins the two, or if their link is one of netem.
    #[track_caller]
    pub fn cut(&self, a: &str, b: &str, is_cut: bool) {
        self.cut_directions(a, b, [true; 2], is_cut);
    }

    /// Cuts the direction from the host called `from` to the one called `to` of every link between them,
    /// or restores it. The other direction stays as it is.
    ///
    /// # Panics
    /// As [`Self::cut`].
    #[track_caller]
    pub fn cut_one_way(&self, from: &str, to: &str, is_cut: bool) {
        self.cut_directions(from, to, [true, false], is_cut);
    }

    /// Cuts or restores directions of the links between `a` and `b`: from `a` to `b`, and back.
    #[track_caller]
    fn cut_directions(&self, a: &str, b: &str, [there, back]: [bool; 2], is_cut: bool) {
        let number = |name: &str| self.hosts.iter().position(|host| host.name() == name);
        let ends = [a, b].map(number);
        let cut = self.links.iter().filter_map(|link| {
            let [one, other] = link.ends().each_ref().map(|end| Some(end.host));
            match ends {
                _ if ends == [one, other] => Some(link.cut([there, back], is_cut)),
                _ if ends == [other, one] => Some(link.cut([back, there], is_cut)),
                _ => None,
            }
        });
        let cut = cut.collect::<Vec<_>>();
        assert!(
            !cut.is_empty() && cut.iter().all(|done| *done),
            "world {}: there is no link {a}-{b} that can be cut",
            self.name
        );
    }

    /// Bounds the memory of all TCP sockets of the *machine* while this world exists. `bounds` are those
    /// of `net.ipv4.tcp_mem`, in pages: low, pressure, high. No namespace has bounds of its own.
    ///
    /// # Errors
    /// If the sysctl cannot be read or set.
    pub fn bound_tcp_memory(&self, bounds: [u64; 3]) -> io::Result<()> {
        self.record.bound_tcp_memory(bounds)
    }

    /// Creates a group of threads whose sockets share a bound on TCP memory. Returns `None` if this machine
    /// has no memory cgroups of version 1. The group is removed with the world, which its threads must
    /// not outlive.
    ///
    /// # Errors
    /// If the group cannot be created.
    pub fn tcp_memory(&self) -> io::Result<Option<TcpMemory>> {
        self.record.create_tcp_memory()
    }

    /// Creates a group of processes that together have this share of a CPU. Returns `None` if this machine
    /// has no CPU controller for cgroups. The group is removed with the world.
    ///
    /// # Errors
    /// If the group cannot be created.
    pub fn cpu_quota(&self, cpus: f64) -> io::Result<Option<CpuQuota>> {
        self.record.create_cpu_quota(cpus)
    }

    /// Returns the counters of each link. Those of a busy link may be 10 ms old.
    ///
    /// # Errors
    /// If a device's counters cannot be read.
    pub fn link_reports(&self) -> Result<Vec<LinkReport>, WorldError> {
        self.links.iter().map(|link| self.report(link)).collect()
    }

    /// Returns the counters of the link between the hosts `a` and `b`. The report's first end is
    /// the host that was named first when the link was added, not necessarily `a`.
    ///
    /// # Errors
    /// If a device's counters cannot be read.
    ///
    /// # Panics
    /// If no link joins the two, or several do.
    #[track_caller]
    pub fn link_report(&self, a: &str, b: &str) -> Result<LinkReport, WorldError> {
        let joins = |link: &&Link| {
            let [one, other] = link
                .ends()
                .each_ref()
                .map(|end| self.hosts[end.host].name());
            [one, other] == [a, b] || [other, one] == [a, b]
        };
        let mut links = self.links.iter().filter(joins);
        match (links.next(), links.next()) {
            (Some(link), None) => self.report(link),
            _ => panic!(
                "world {}: there must be exactly one link {a}-{b}",
                self.name
            ),
        }
    }

    fn report(&self, link: &Link) -> Result<LinkReport, WorldError> {
        let mut report = link.report();
        if !link.has_taps() {
            return Ok(report);
        }
        let [a, b] = link.ends();
        for (end, direction) in [(a, &mut report.a_to_b), (b, &mut report.b_to_a)] {
            let stats = devices::statistics(self.hosts[end.host].netns(), &end.device)?;
            // `tx` is what the host sends to the link: dropped if the link's thread is too slow.
            direction.device.not_taken = stats.tx_dropped;
        }
        Ok(report)
    }

    /// Tears the world down, as dropping it does, and reports failure.
    ///
    /// # Errors
    /// The first thing that could not be removed; the next sweep will try again.
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
                "world {}: cannot tear it down, the next sweep will try again: {e}",
                self.name
            );
        }
    }
}
