//! Who listens for ends, in each namespace.

use std::collections::HashMap;
use std::sync::Arc;

use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::{Connection, DestroyedSockets};

use crate::namespaces::Namespace;

/// Listeners of the namespaces that there are. One keeps its namespace, which its owner may have given up: it is let
/// go when the namespace is not found any more ([`crate::scan::FIND_EVERY`]).
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
    /// Listens in these, and in no other any more. Where it may not, ends are seen by their absence.
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

    /// Hands over what has ended, and says how often the kernel had no room for it.
    pub(super) fn hear(&mut self, mut each: impl FnMut(&Arc<str>, Connection)) -> u64 {
        let mut missed = 0;
        self.by_netns.retain(|_, listener| {
            let netns = &listener.netns;
            match listener.ends.read(|connection| each(netns, connection)) {
                Ok(ended) => {
                    missed += ended.missed as u64;
                    true
                }
                // It is opened anew at the next look.
                Err(_) => false,
            }
        });
        missed
    }
}
