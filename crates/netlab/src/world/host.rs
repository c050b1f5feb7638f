//! A host of a world.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;

use taut_sys::child::Child;
use taut_sys::netns::Netns;

use super::plan::Addresses;
use super::{WorldError, sysctl};

/// A host: a network namespace with the devices of its links.
#[derive(Debug, Clone)]
pub struct Host {
    pub(super) name: String,
    pub(super) netns: Arc<Netns>,
    pub(super) addresses: Addresses,
    pub(super) devices: Vec<String>,
}

// === impl Host ===

impl Host {
    /// Returns its name in the world.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its IPv4 address, which is on `lo` and does not depend on its links.
    pub fn addr(&self) -> Ipv4Addr {
        self.addresses.v4
    }

    /// Returns its IPv6 address.
    pub fn addr6(&self) -> Ipv6Addr {
        self.addresses.v6
    }

    /// Returns the devices of its links, `to-PEER`, in the order in which the links were added.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns its network namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Starts a process on the host. It is killed when the returned value or the world is dropped, and
    /// when this process ends.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        Child::spawn(Arc::clone(&self.netns), command)
    }

    /// Runs `job` on a thread inside the host; sockets that it opens belong to the host. To start
    /// processes, use [`Host::spawn`].
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, WorldError> {
        Ok(self.netns.run(job)?)
    }

    /// Sets one of the host's `net.*` sysctls.
    ///
    /// # Errors
    /// If there is no such sysctl, if namespaces have none of their own, or if the kernel rejects the
    /// value.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), WorldError> {
        sysctl::set(&self.netns, std::iter::once((key, value)))
    }

    /// Reads one of the host's `net.*` sysctls. Values are separated by single spaces.
    ///
    /// # Errors
    /// If there is no such sysctl.
    pub fn sysctl(&self, key: &str) -> Result<String, WorldError> {
        sysctl::get(&self.netns, key)
    }
}
