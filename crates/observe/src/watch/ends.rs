//! Receives the kernel's reports of ended connections in each network namespace.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller};
use taut_sys::netns::NetnsId;
use taut_sys::sock_diag::{Connection, DestroyedSockets};

use crate::namespaces::Namespace;

/// The listeners, by the inode of their namespace. A listener keeps its namespace alive even if its owner has released
/// it, so no other one has its inode. The listener is closed once a scan no longer finds the namespace
/// ([`crate::scan::FIND_EVERY`]).
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_inode: HashMap<u64, Listener>,
    /// Which of them have reports; `None` before the first one. Most have none.
    poller: Option<Poller>,
}

#[derive(Debug)]
struct Listener {
    id: NetnsId,
    netns: Arc<str>,
    ends: DestroyedSockets,
}

// === impl Listeners ===

impl Listeners {
    /// Listens in exactly these namespaces. In a namespace that the caller may not enter, only
    /// scans detect ended connections.
    pub(super) fn listen(&mut self, namespaces: &[Namespace]) {
        let known: HashSet<_> = namespaces.iter().map(|namespace| namespace.id).collect();
        self.by_inode
            .retain(|_, listener| known.contains(&listener.id));
        for namespace in namespaces {
            if !self.by_inode.contains_key(&namespace.id.inode())
                && let Ok(Some(Ok(ends))) = namespace.run(DestroyedSockets::open)
                && let Err(error) = self.add(namespace, ends)
            {
                tracing::debug!(%error, netns = %namespace.name, "only scans find out which connections have ended");
            }
        }
    }

    fn add(&mut self, namespace: &Namespace, ends: DestroyedSockets) -> Result<(), Errno> {
        let poller = match &self.poller {
            Some(poller) => poller,
            None => self.poller.insert(Poller::new()?),
        };
        let inode = namespace.id.inode();
        poller.add(&ends, inode, Interest::Read)?;
        let (id, netns) = (namespace.id, namespace.name.clone());
        self.by_inode.insert(inode, Listener { id, netns, ends });
        Ok(())
    }

    /// Passes each ended connection to `each`. Returns how often the kernel dropped reports.
    pub(super) fn poll(&mut self, mut each: impl FnMut(&Arc<str>, Connection)) -> u64 {
        let mut missed = 0;
        let mut reports = Vec::new();
        let Some(poller) = &self.poller else { return 0 };
        // Each is read until it has no more; connections that end meanwhile wait for the next call.
        for _ in 0..=self.by_inode.len() {
            if poller.wait(Some(Duration::ZERO), &mut reports).is_err() || reports.is_empty() {
                break;
            }
            for (inode, _) in &reports {
                let Some(listener) = self.by_inode.get_mut(inode) else {
                    continue;
                };
                let netns = &listener.netns;
                match listener.ends.read(|connection| each(netns, connection)) {
                    Ok(ended) => missed += ended.missed as u64,
                    // The next scan opens it again.
                    Err(_) => drop(self.by_inode.remove(inode)),
                }
            }
        }
        missed
    }
}
