//! The counters of all forwards and peers, by name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::forward::ForwardStats;
use super::peer::PeerStats;

/// The counters of every forward, every peer and the mesh port, for as long as the configuration or
/// an open session uses them. Workers hold `Arc`s and never lock these tables; start, reload,
/// metrics and status do.
#[derive(Debug)]
pub(crate) struct Registry {
    workers: usize,
    forwards: Mutex<Vec<Arc<ForwardStats>>>,
    peers: Mutex<Vec<Arc<PeerStats>>>,
}

// === impl Registry ===

impl Registry {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers,
            forwards: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    /// Returns the number of workers that count.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the counters of the forward `name`: the existing ones if there are any.
    pub(crate) fn forward(&self, name: &str) -> Arc<ForwardStats> {
        let mut forwards = used(&self.forwards);
        if let Some(known) = forwards.iter().find(|known| &*known.name == name) {
            return known.clone();
        }
        let new = Arc::new(ForwardStats::new(name.into(), self.workers));
        forwards.push(new.clone());
        new
    }

    /// Returns the counters of the peer `name`: the existing ones if there are any.
    pub(crate) fn peer(&self, name: &str) -> Arc<PeerStats> {
        let mut peers = used(&self.peers);
        if let Some(known) = peers.iter().find(|known| known.name == name) {
            return known.clone();
        }
        let new = Arc::new(PeerStats::new(name.into(), self.workers));
        peers.push(new.clone());
        new
    }

    /// Returns the counters of every forward that is in use, in the order of their first use.
    pub(crate) fn forwards(&self) -> Vec<Arc<ForwardStats>> {
        used(&self.forwards).clone()
    }

    /// Returns the counters of every peer that is in use, in the order of their first use.
    pub(crate) fn peers(&self) -> Vec<Arc<PeerStats>> {
        used(&self.peers).clone()
    }
}

/// Locks a table and removes the entries that neither a configuration nor a session uses.
fn used<T>(table: &Mutex<Vec<Arc<T>>>) -> MutexGuard<'_, Vec<Arc<T>>> {
    let mut entries = table.lock().unwrap_or_else(PoisonError::into_inner);
    entries.retain(|entry| Arc::strong_count(entry) > 1);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_while_something_uses_them_and_are_forgotten_afterwards() {
        let registry = Registry::new(2);
        let first = registry.forward("web");
        first.worker(1).connected.add(3);
        let session = registry.forward("web");
        drop(first);
        assert_eq!(registry.forward("web").sum(|c| &c.connected), 3);
        assert_eq!(registry.forwards().len(), 1);
        drop(session);
        assert!(registry.forwards().is_empty());
        assert_eq!(registry.forward("web").sum(|c| &c.connected), 0);
    }
}
