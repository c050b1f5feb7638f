//! Two relays on one host, one behind the other.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use taut_netlab::world::Host;

use super::{PeerError, Service};

/// The two relays of a pair. Dropping them ends both.
#[derive(Debug)]
pub struct TwoRelays {
    /// The relay that clients connect to.
    pub near: Service,
    /// The relay that connects to the destination.
    pub far: Service,
}

/// Where the relays of a pair listen, and what they may use.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The host of both.
    pub host: &'a Host,
    /// The address for clients.
    pub near: SocketAddr,
    /// The address at which the far relay listens for the near one.
    pub between: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
    /// The number of CPUs, for relays that must be told.
    pub cpus: usize,
    /// The directory for configurations and logs.
    pub dir: &'a Path,
}

// === impl Layout ===

impl Layout<'_> {
    /// Writes the configuration of the relay called `name`.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, PeerError> {
        let file = self.dir.join(format!("{name}.conf"));
        match fs::write(&file, text) {
            Ok(()) => Ok(file),
            Err(source) => Err(PeerError::Prepare {
                what: format!("the configuration of {name}"),
                source,
            }),
        }
    }
}

// === impl TwoRelays ===

impl TwoRelays {
    /// Returns the process ids.
    pub fn ids(&self) -> [u32; 2] {
        [self.near.id(), self.far.id()]
    }
}
