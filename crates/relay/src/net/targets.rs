//! The addresses of a destination, refreshed periodically.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::net::addr::{Destination, UpstreamAddr};
use crate::net::backend::{BackendTable, Backends};
use crate::net::names::{Addrs, ResolveError, look_up};

/// A destination and its present addresses; none until a look-up of its name has succeeded.
#[derive(Debug)]
pub(crate) struct Targets {
    destination: Destination,
    backends: ArcSwap<Backends>,
    look_ups: LookUps,
    /// The last addresses that were found lead back to this relay.
    leads_back: AtomicBool,
}

/// The numbers of look-ups of a destination, after the first one if that succeeded.
#[derive(Debug, Default)]
pub(crate) struct LookUps {
    /// Failed, and the former addresses stay in use.
    pub(crate) failed: AtomicU64,
    /// Failed, and there is no address.
    pub(crate) without_address: AtomicU64,
    pub(crate) succeeded: AtomicU64,
}

// === impl Targets ===

impl Targets {
    /// Looks up the destination. Blocks until it is known, at most for 10 s.
    pub(crate) fn resolve(
        destination: Destination,
        table: &BackendTable,
    ) -> Result<Self, ResolveError> {
        let addrs = look_up(&destination)?;
        Ok(Self {
            destination,
            backends: ArcSwap::from_pointee(table.of(addrs.iter().copied())),
            look_ups: LookUps::default(),
            leads_back: AtomicBool::default(),
        })
    }

    /// Returns the destination without an address if it is a name, which is looked up later.
    pub(crate) fn without_look_up(destination: Destination, table: &BackendTable) -> Self {
        let ip = destination.host.parse().ok();
        let addr = ip.map(|ip| UpstreamAddr(SocketAddr::new(ip, destination.port)));
        Self {
            destination,
            backends: ArcSwap::from_pointee(table.of(addr)),
            look_ups: LookUps::default(),
            leads_back: AtomicBool::default(),
        }
    }

    /// Returns whether the destination has an address.
    pub(crate) fn has_address(&self) -> bool {
        !self.backends.load().is_empty()
    }

    /// Returns whether these are its addresses. A resolver may rotate them, which is no change.
    pub(crate) fn has_just(&self, addrs: &Addrs) -> bool {
        let before = self.backends.load();
        before.len() == addrs.len() && before.iter().all(|b| addrs.contains(&b.addr))
    }

    /// Replaces the addresses, which have changed.
    pub(crate) fn replace(&self, addrs: &Addrs, table: &BackendTable) {
        let backends = table.of(addrs.iter().copied());
        let before = self.backends.swap(Arc::new(backends));
        let what = if before.is_empty() { "the" } else { "new" };
        tracing::info!("{} has {what} addresses: {}", self.destination, list(addrs));
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
        let counter = match self.has_address() {
            true => &self.look_ups.failed,
            false => &self.look_ups.without_address,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a look-up whose addresses lead back to this relay as failed. Returns whether it is the first since
    /// one succeeded.
    pub(crate) fn leads_back(&self) -> bool {
        self.look_up_failed();
        !self.leads_back.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn look_up_succeeded(&self) {
        self.leads_back.store(false, Ordering::Relaxed);
        self.look_ups.succeeded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn look_ups(&self) -> &LookUps {
        &self.look_ups
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_back_are_a_failure_and_are_told_of_once() {
        let destination = "name.example:80".parse().unwrap();
        let targets = Targets::without_look_up(destination, &BackendTable::default());
        assert!(targets.leads_back() && !targets.leads_back());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&targets.look_ups().without_address), 2);
        assert_eq!(count(&targets.look_ups().succeeded), 0);
        targets.look_up_succeeded();
        assert!(targets.leads_back());
    }
}
