//! The addresses of this machine, which change while a relay runs.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::blocks;

/// The present addresses of this machine. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OwnAddresses(Arc<ArcSwap<Vec<IpAddr>>>);

// === impl OwnAddresses ===

impl OwnAddresses {
    /// Replaces the addresses. Addresses that are denied anyway (127.0.0.1) may be included. Returns whether
    /// they differ from the former ones.
    pub fn replace(&self, own: impl IntoIterator<Item = IpAddr>) -> bool {
        // If 127.0.0.1 were "own" as well as loopback, a rule for 127.0.0.0/8 would not allow it.
        let own = own.into_iter().map(|addr| addr.to_canonical());
        let mut own: Vec<_> = own
            .filter(|&addr| blocks::denied(addr).next().is_none())
            .collect();
        own.sort_unstable();
        own.dedup();
        let differ = **self.0.load() != own;
        if differ {
            self.0.store(Arc::new(own));
        }
        differ
    }

    /// Returns whether `addr` is one of them.
    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        self.0.load().binary_search(&addr).is_ok()
    }
}

impl PartialEq for OwnAddresses {
    fn eq(&self, other: &Self) -> bool {
        **self.0.load() == **other.0.load()
    }
}

impl Eq for OwnAddresses {}
