//! The addresses of a destination, refreshed periodically.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::net::addr::{Destination, UpstreamAddr};

/// A destination and its present addresses; never without one.
#[derive(Debug)]
pub(crate) struct Targets {
    destination: Destination,
    addrs: ArcSwap<Addrs>,
}

pub(crate) type Addrs = Arc<[UpstreamAddr]>;

/// The reason why a destination has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The look-up failed.
    #[error("cannot look up `{destination}`: {source}")]
    Lookup {
        /// The destination.
        destination: Destination,
        /// The error of the resolver.
        source: std::io::Error,
    },
    /// The look-up found no address.
    #[error("`{0}` resolves to no address")]
    Nothing(Destination),
}

// === impl Targets ===

impl Targets {
    /// Looks up the destination. Blocks for as long as the system's resolver takes.
    pub(crate) fn resolve(destination: Destination) -> Result<Self, ResolveError> {
        let addrs = look_up(&destination)?;
        Ok(Self {
            destination,
            addrs: ArcSwap::from_pointee(addrs),
        })
    }

    /// Replaces the addresses.
    pub(crate) fn replace(&self, addrs: Addrs) {
        let before = self.addrs.swap(Arc::new(addrs.clone()));
        // A resolver may rotate the same addresses, which is no change.
        let same = before.len() == addrs.len() && before.iter().all(|a| addrs.contains(a));
        if !same {
            tracing::info!(destination = %self.destination, ?addrs, "destination has new addresses");
        }
    }

    /// Returns the addresses in the order in which they are tried.
    pub(crate) fn current(&self) -> Addrs {
        (**self.addrs.load()).clone()
    }

    /// Returns whether the destination requires a look-up.
    pub(crate) fn is_a_name(&self) -> bool {
        self.destination.host.parse::<std::net::IpAddr>().is_err()
    }

    pub(crate) fn destination(&self) -> &Destination {
        &self.destination
    }
}

/// Returns the addresses of a destination. Blocks for as long as the system's resolver takes.
pub(crate) fn look_up(destination: &Destination) -> Result<Addrs, ResolveError> {
    let lookup = (destination.host.as_str(), destination.port).to_socket_addrs();
    let found = lookup.map_err(|source| ResolveError::Lookup {
        destination: destination.clone(),
        source,
    })?;
    // The resolver sorts by RFC 6724 and may return an address twice.
    let mut addrs: Vec<UpstreamAddr> = Vec::new();
    for addr in found.map(UpstreamAddr) {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    if addrs.is_empty() {
        return Err(ResolveError::Nothing(destination.clone()));
    }
    Ok(addrs.into())
}
