//! What ends, changes and refreshes a node that runs.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taut_mesh::key::Keys;
use taut_sys::Errno;
use taut_sys::socket::LegOptions;

use super::early_syn_thread::Reader;
use super::holdings::Holdings;
use super::loops::find_loop;
use crate::config::Config;
use crate::net::targets::{Targets, look_up};
use crate::route::table::NextHop;
use crate::session_log::SessionLog;
use crate::worker::mailbox::{Mailbox, Message};
use crate::worker::{Order, Shared};

/// What ends and refreshes a node from any thread.
pub(crate) struct SharedHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    pub(super) present: Mutex<Present>,
    /// Apart from the above, which a look-up may hold for long.
    pub(super) early: Mutex<Option<Reader>>,
    pub(super) log: Mutex<Option<SessionLog>>,
}

/// The configuration at work, and what is held for it.
pub(super) struct Present {
    pub(super) config: Config,
    pub(super) holdings: Holdings,
    /// What legs between relays ask of their sockets.
    pub(super) mesh_leg: LegOptions,
}

// === impl SharedHandle ===

impl SharedHandle {
    pub(super) fn order(&self, order: Order) {
        self.shared.order(order);
        self.mailboxes
            .iter()
            .for_each(|mailbox| mailbox.waker().wake());
    }

    /// The names that are looked up here: those of forwards, then those of peers.
    pub(crate) fn names(&self) -> Vec<Arc<Targets>> {
        let setup = self.shared.setup();
        let forwards = setup.routes.iter().filter_map(|r| match &r.next_hop {
            NextHop::Direct { targets, .. } => Some(targets),
            NextHop::Mesh { .. } | NextHop::OriginalDst(_) => None,
        });
        let peers = setup.mesh.iter().flat_map(|mesh| &mesh.peers);
        let all = forwards.chain(peers.map(|peer| &peer.targets));
        let mut names: Vec<Arc<Targets>> = Vec::new();
        for targets in all.filter(|t| t.is_a_name()) {
            // Forwards to one destination may share what is known of it.
            if !names.iter().any(|known| Arc::ptr_eq(known, targets)) {
                names.push(targets.clone());
            }
        }
        names
    }

    /// How often they are.
    pub(crate) fn resolve_interval(&self) -> Duration {
        self.shared.setup().timeouts.resolve
    }

    /// SYNs are no longer watched.
    pub(super) fn forget_early(&self) {
        // Its thread is waited for, and not with the lock held.
        let reader = self.early().take();
        drop(reader);
    }

    /// The listening sockets, by descriptors of their own.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn sockets(&self) -> Result<Vec<OwnedFd>, Errno> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.holdings.duplicates()
    }

    /// The session log's file is opened anew by its path.
    pub(super) fn reopen_log(&self) {
        if let Some(log) = &*self.log() {
            log.reopen();
        }
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Option<SessionLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn early(&self) -> MutexGuard<'_, Option<Reader>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts others in place of the mesh's keys. Connections that were made with one that is no
    /// longer among them are closed unless a session uses them.
    pub(crate) fn replace_keys(&self, keys: Keys) {
        if let Some(mesh) = &self.shared.setup().mesh {
            mesh.keys.store(Arc::new(keys));
            for mailbox in &self.mailboxes {
                let _ = mailbox.post(Message::NewKeys);
            }
        }
    }

    /// Looks one of them up again. What it had stays when that gives nothing, or a way back to
    /// this node. Blocks for as long as the resolver does.
    pub(crate) fn refresh(&self, targets: &Arc<Targets>) {
        let addrs = match look_up(targets.destination()) {
            Ok(addrs) => addrs,
            Err(error) => {
                tracing::warn!(%error, "keeping the addresses it had");
                return;
            }
        };
        if find_loop(&self.shared.setup().routes, Some((targets, &addrs))).is_some() {
            let destination = targets.destination();
            tracing::warn!(
                %destination, ?addrs,
                "its new addresses lead back to this relay; keeping the ones it had"
            );
            return;
        }
        targets.replace(addrs);
        self.shared.relays_may_differ();
    }
}

impl std::fmt::Debug for SharedHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHandle").finish_non_exhaustive()
    }
}
