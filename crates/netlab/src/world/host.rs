//! A host of a world.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;

use taut_sys::child::Child;
use taut_sys::netns::Netns;

use super::plan::Addresses;
use super::{WorldError, sysctl};

/// A host: a network namespace with its links' devices in it.
#[derive(Debug, Clone)]
pub struct Host {
    pub(super) name: String,
    pub(super) netns: Arc<Netns>,
    pub(super) addresses: Addresses,
    pub(super) devices: Vec<String>,
}

// === impl Host ===

impl Host {
    /// Its name in the world.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its own IPv4 address, on `lo`; it does not depend on its links.
    pub fn addr(&self) -> Ipv4Addr {
        self.addresses.v4
    }

    /// Its own IPv6 address.
    pub fn addr6(&self) -> Ipv6Addr {
        self.addresses.v6
    }

    /// The devices of its links, in the order in which those were named: `to-PEER`.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Starts a process on it. It is killed when the returned value is dropped, when the world goes,
    /// and when this process ends.
    ///
    /// # Errors
    /// What starting it returned.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        Child::spawn(Arc::clone(&self.netns), command)
    }

    /// Runs `job` on a thread inside it; sockets opened there are the host's. Processes are for
    /// [`Host::spawn`].
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, WorldError> {
        Ok(self.netns.run(job)?)
    }

    /// Sets one of its `net.*` sysctls.
    ///
    /// # Errors
    /// When the kernel has none of that name, or not for a namespace, or refuses the value.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), WorldError> {
        sysctl::set(&self.netns, std::iter::once((key, value)))
    }

    /// Reads one of its `net.*` sysctls, with single spaces between values.
    ///
    /// # Errors
    /// When the kernel has none of that name.
    pub fn sysctl(&self, key: &str) -> Result<String, WorldError> {
        sysctl::get(&self.netns, key)
    }
}
