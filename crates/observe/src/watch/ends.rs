//! Receives the kernel's reports of ended connections in each network namespace.

use std::collections::HashMap;
use std::sync::Arc;

use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::{Connection, DestroyedSockets};

use crate::namespaces::Namespace;

/// The listeners, by namespace. A listener keeps its namespace alive even if its owner has released
/// it. The listener is closed once a scan no longer finds the namespace
/// ([`crate::scan::FIND_EVERY`]).
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_netns: HashMap<NetnsId, Listener>,
}

#[derive(Debug)]
struct Listener {
    netns: Arc<str>,
    ends: DestroyedSockets,
}

// === impl Listeners ===

impl Listeners {
    /// Listens in exactly these namespaces. In a namespace that the caller may not enter, only
    /// scans detect ended connections.
    pub(super) fn listen(&mut self, namespaces: &[Namespace]) {
        let known = |id: &NetnsId| namespaces.iter().any(|namespace| namespace.id == *id);
        self.by_netns.retain(|id, _| known(id));
        for namespace in namespaces {
            if self.by_netns.contains_key(&namespace.id) {
                continue;
            }
            if let Ok(Some(Ok(ends))) = namespace.run(DestroyedSockets::open) {
                let netns = namespace.name.clone();
                self.by_netns.insert(namespace.id, Listener { netns, ends });
            }
        }
    }

    /// Passes each ended connection to `each`. Returns how often the kernel dropped reports.
    pub(super) fn poll(&mut self, mut each: impl FnMut(&Arc<str>, Connection)) -> u64 {
        let mut missed = 0;
        self.by_netns.retain(|_, listener| {
            let netns = &listener.netns;
            match listener.ends.read(|connection| each(netns, connection)) {
                Ok(ended) => {
                    missed += ended.missed as u64;
                    true
                }
                // The next scan opens it again.
                Err(_) => false,
            }
        });
        missed
    }
}
