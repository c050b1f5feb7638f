//! The addresses of a destination, refreshed periodically.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::net::addr::{Destination, UpstreamAddr};
use crate::net::backend::{BackendTable, Backends};

/// The maximum number of addresses of a name; further ones are not used.
const MAX_ADDRS: usize = 32;

/// A destination and its present addresses. Only a relay that the configuration does not name may be without
/// an address, until its name has been looked up.
#[derive(Debug)]
pub(crate) struct Targets {
    destination: Destination,
    backends: ArcSwap<Backends>,
    /// Look-ups after the first one that failed, and that succeeded.
    look_ups: [AtomicU64; 2],
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
    pub(crate) fn resolve(
        destination: Destination,
        table: &BackendTable,
    ) -> Result<Self, ResolveError> {
        let addrs = look_up(&destination)?;
        Ok(Self {
            destination,
            backends: ArcSwap::from_pointee(table.of(addrs.iter().copied())),
            look_ups: Default::default(),
        })
    }

    /// Returns the destination without an address if it is a name, which is looked up later.
    pub(crate) fn without_look_up(destination: Destination, table: &BackendTable) -> Self {
        let ip = destination.host.parse().ok();
        let addr = ip.map(|ip| UpstreamAddr(SocketAddr::new(ip, destination.port)));
        Self {
            destination,
            backends: ArcSwap::from_pointee(table.of(addr)),
            look_ups: Default::default(),
        }
    }

    /// Returns whether the destination has an address.
    pub(crate) fn has_address(&self) -> bool {
        !self.backends.load().is_empty()
    }

    /// Replaces the addresses.
    pub(crate) fn replace(&self, addrs: &Addrs, table: &BackendTable) {
        let backends = table.of(addrs.iter().copied());
        let before = self.backends.swap(Arc::new(backends));
        // A resolver may rotate the same addresses, which is no change.
        let same = before.len() == addrs.len() && before.iter().all(|b| addrs.contains(&b.addr));
        if !same {
            let what = if before.is_empty() { "the" } else { "new" };
            tracing::info!("{} has {what} addresses: {}", self.destination, list(addrs));
        }
    }

    /// Returns the addresses in the order of the resolver.
    pub(crate) fn current(&self) -> Addrs {
        self.backends.load().iter().map(|b| b.addr).collect()
    }

    /// Returns the addresses with what the node knows about them, in the order of the resolver.
    pub(crate) fn backends(&self) -> Backends {
        (**self.backends.load()).clone()
    }

    pub(crate) fn look_up_failed(&self) {
        self.look_ups[0].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn look_up_succeeded(&self) {
        self.look_ups[1].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of look-ups that failed and that succeeded, after the first one.
    pub(crate) fn look_ups(&self) -> (u64, u64) {
        let [failed, succeeded] = &self.look_ups;
        (
            failed.load(Ordering::Relaxed),
            succeeded.load(Ordering::Relaxed),
        )
    }

    /// Returns whether the destination requires a look-up.
    pub(crate) fn is_a_name(&self) -> bool {
        self.destination.host.parse::<std::net::IpAddr>().is_err()
    }

    pub(crate) fn destination(&self) -> &Destination {
        &self.destination
    }
}

/// Returns the addresses as text.
pub(crate) fn list(addrs: &Addrs) -> String {
    let texts: Vec<_> = addrs.iter().map(|addr| addr.0.to_string()).collect();
    texts.join(", ")
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
        if !addrs.contains(&addr) && addrs.len() < MAX_ADDRS {
            addrs.push(addr);
        }
    }
    if addrs.is_empty() {
        return Err(ResolveError::Nothing(destination.clone()));
    }
    Ok(addrs.into())
}
