//! The `[mesh.dns]` section of the configuration file.
//!
//! A mistake is reported in one sentence with the file, the line and the field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hickory_proto::rr::Name;
use ipnet::IpNet;
pub use taut_config::{ConfigError, ConfigFile};
use taut_sys::listen::Listen;

use crate::nearness::RelayId;
use crate::zone::{Node, Zone, ZoneError};

mod file;

/// The maximum number of relays, as in a list of members.
pub const MAX_RELAYS: usize = 4096;

/// The maximum number of names that lead to relays.
pub const MAX_NAMES: usize = 1024;

/// The maximum number of name servers.
pub const MAX_NAME_SERVERS: usize = 8;

/// The maximum number of addresses to listen on.
pub const MAX_LISTEN: usize = 16;

/// The server's figures.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses of its UDP and TCP ports.
    pub listen: Vec<Listen>,
    /// Threads that answer over UDP; `None`: one for each CPU that this process may run on.
    pub workers: Option<u16>,
    /// The user that the process switches to once its ports are bound; `None`: it keeps its own.
    pub user: Option<String>,
    /// The address of the OpenMetrics endpoint; `None`: off.
    pub metrics: Option<Listen>,
    /// The zone's name.
    pub zone: Name,
    /// The mail address of its operator, as the SOA record has it.
    pub contact: Name,
    /// The name servers, with their addresses if they are in the zone. The first is the primary.
    pub name_servers: Vec<(Name, Vec<IpAddr>)>,
    /// How long resolvers may keep the address of a relay, in seconds.
    pub ttl: u32,
    /// The relays, in the fallback order.
    pub relays: Vec<RelayConfig>,
    /// The names that lead to a relay, with their relays; none: all relays.
    pub names: Vec<(Name, Vec<RelayId>)>,
    /// The file with measured round-trip times.
    pub rtt_file: Option<PathBuf>,
    /// The control socket of a relay on this machine, which is asked for the round-trip times of its mesh.
    pub relay_control: Option<PathBuf>,
    /// How long the relay's times are used after it has last answered.
    pub relay_keep: Duration,
    /// The time between two probes of a relay.
    pub probe_interval: Duration,
    /// The time after which a probe has failed.
    pub probe_timeout: Duration,
    /// Answers over UDP to one network in a second; `None`: no limit.
    pub rate_limit: Option<f64>,
    /// Networks without that limit.
    pub unlimited: Vec<IpNet>,
}

/// A relay that clients can be led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// The name, as in the list of members and in the file of round-trip times.
    pub name: String,
    /// The address for clients over IPv4.
    pub v4: Option<Ipv4Addr>,
    /// The address for clients over IPv6.
    pub v6: Option<Ipv6Addr>,
    /// How to find out whether it is up; `None`: it counts as up.
    pub probe: Option<Probe>,
}

/// How to find out whether a relay is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It accepts a TCP connection.
    Connect(SocketAddr),
    /// It answers a GET with a status of 200 to 299.
    Http {
        /// Its address.
        address: SocketAddr,
        /// The path.
        path: String,
    },
}

// === impl Config ===

impl Config {
    /// Reads the `[mesh.dns]` section of `path`.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(&ConfigFile::load(path)?)
    }

    /// Reads the `[mesh.dns]` section of `text`; `path` is for error messages.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(&ConfigFile::new(path, text.to_owned()))
    }

    /// Reads the `[mesh.dns]` section of a file.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn of_file(file: &ConfigFile) -> Result<Self, ConfigError> {
        let mesh: Option<file::Mesh> = file.section("mesh")?;
        let Some(section) = mesh.and_then(|mesh| mesh.dns) else {
            return Err(
                file.lacks("no [mesh.dns]: add one with `zone`, `name_server`, `relay` and `name`")
            );
        };
        section
            .check()
            .map_err(|(offset, message)| file.invalid(offset, message))
    }

    /// Returns the zone with its names.
    ///
    /// # Errors
    /// [`ZoneError`] if a name is outside the zone or occurs twice.
    pub fn zone(&self, serial: u32) -> Result<Zone, ZoneError> {
        let (origin, contact) = (self.zone.clone(), self.contact.clone());
        let mut zone = Zone::new(origin, contact, serial, self.name_servers.clone())?;
        for (name, relays) in &self.names {
            zone.add(name.clone(), Node::Steered(relays.clone()))?;
        }
        Ok(zone)
    }

    /// Returns the relay with this name.
    pub fn relay(&self, name: &str) -> Option<RelayId> {
        let at = self.relays.iter().position(|relay| relay.name == name)?;
        RelayId::try_from(at).ok()
    }
}

#[cfg(test)]
mod tests;
