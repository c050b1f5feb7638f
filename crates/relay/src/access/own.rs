//! The addresses of this machine and of the mesh, which change while a relay runs.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::blocks;

/// The present addresses of this machine. Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses(Addresses);

/// The present addresses of the relays of the mesh. Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshAddresses(Addresses);

/// A sorted list of addresses, none of them IPv4-mapped.
#[derive(Clone, Debug, Default)]
struct Addresses(Arc<ArcSwap<Vec<IpAddr>>>);

// === impl OwnAddresses ===

impl OwnAddresses {
    /// Replaces the addresses. Addresses that are denied anyway (127.0.0.1) may be included. Returns whether
    /// they differ from the former ones.
    pub fn replace(&self, own: impl IntoIterator<Item = IpAddr>) -> bool {
        // If 127.0.0.1 were "own" as well as loopback, a rule for 127.0.0.0/8 would not allow it.
        let is_open = |addr: &IpAddr| blocks::denied(addr.to_canonical()).next().is_none();
        self.0.replace(own.into_iter().filter(is_open))
    }

    /// Returns whether `addr` is one of them.
    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(addr)
    }
}

// === impl MeshAddresses ===

impl MeshAddresses {
    /// Replaces the addresses.
    pub fn replace(&self, relays: impl IntoIterator<Item = IpAddr>) {
        self.0.replace(relays);
    }

    /// Returns whether `addr` is one of them.
    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(addr)
    }
}

// === impl Addresses ===

impl Addresses {
    /// Replaces the addresses. Returns whether they differ from the former ones.
    fn replace(&self, addrs: impl IntoIterator<Item = IpAddr>) -> bool {
        let addrs = addrs.into_iter().map(|addr| addr.to_canonical());
        let mut addrs: Vec<_> = addrs.collect();
        addrs.sort_unstable();
        addrs.dedup();
        let differ = **self.0.load() != addrs;
        if differ {
            self.0.store(Arc::new(addrs));
        }
        differ
    }

    fn contains(&self, addr: IpAddr) -> bool {
        self.0.load().binary_search(&addr).is_ok()
    }
}

impl PartialEq for Addresses {
    fn eq(&self, other: &Self) -> bool {
        **self.0.load() == **other.0.load()
    }
}

impl Eq for Addresses {}
