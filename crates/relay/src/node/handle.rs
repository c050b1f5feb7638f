//! Stops, reconfigures and refreshes a running node.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use taut_mesh::members::{MemberName, Members};
use taut_sys::Errno;
use taut_sys::netns_lock::NetnsLock;
use taut_sys::socket::LegOptions;
use tokio::sync::Notify;

use super::early_syn_thread::Reader;
use super::holdings::Holdings;
use super::loops::would_loop;
use super::next_hop::{note_relays, read_own};
use crate::access::{MeshAddresses, OwnAddresses};
use crate::condition::Tracker;
use crate::config::{Config, HealthCheck};
use crate::counters::registry::Registry;
use crate::etcd::{Host, ListStatus, Settings};
use crate::net::backend::Backend;
use crate::net::names::{Addrs, ResolveError};
use crate::net::targets::{Targets, list};
use crate::route::table::{NextHop, Setup};
use crate::rows_mailbox::RowsMailbox;
use crate::session_log::SessionLog;
use crate::turbo::TurboStart;
use crate::worker::mailbox::{Mailbox, Message};
use crate::worker::{Order, Shared};

/// Stops, reconfigures and refreshes a node from any thread.
pub(crate) struct SharedHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    pub(super) present: Mutex<Present>,
    /// Locked separately from `present`, which a look-up may lock for a long time.
    pub(super) early: Mutex<Option<Reader>>,
    pub(super) log: Mutex<Option<SessionLog>>,
    /// Notified when destinations or their addresses may have changed.
    pub(crate) changed: Notify,
    /// Notified when there may be names without an address.
    pub(crate) unknown: Notify,
    pub(super) started: Instant,
    /// What is broken.
    pub(super) tracker: Arc<Mutex<Tracker>>,
    /// The state of the list of members and of etcd.
    pub(super) list: Arc<ListStatus>,
    /// The counters of forwards and peers.
    pub(super) registry: Arc<Registry>,
    /// What legs between relays use.
    pub(super) turbo: Arc<TurboStart>,
    /// The thread that exchanges rows; `None` if the node started without a mesh.
    pub(super) rows: Option<Arc<RowsMailbox>>,
    /// The lock of interception, while the node intercepts.
    pub(super) interception: Weak<NetnsLock>,
    /// The addresses of this machine, which every configuration uses.
    pub(super) own: OwnAddresses,
    /// The addresses of the relays of the mesh, for the same checks.
    pub(super) relays: MeshAddresses,
}

/// The present configuration, and the resources held for it.
pub(super) struct Present {
    pub(super) config: Config,
    pub(super) holdings: Holdings,
    /// The names of the forwards that an operator has drained.
    pub(super) drained: BTreeSet<String>,
    /// The relays that an operator has drained: new sessions do not go there.
    pub(super) drained_peers: BTreeSet<MemberName>,
}

/// A health check of an address.
#[derive(Clone)]
pub(crate) struct Check {
    pub(crate) backend: Arc<Backend>,
    pub(crate) how: HealthCheck,
    pub(crate) timeout: Duration,
    pub(crate) options: Arc<LegOptions>,
}

// === impl SharedHandle ===

impl SharedHandle {
    pub(super) fn order(&self, order: Order) {
        self.shared.order(order);
        self.mailboxes
            .iter()
            .for_each(|mailbox| mailbox.waker().wake());
    }

    /// Returns the names that the configuration needs: those of forwards, then those of peers that it names.
    pub(crate) fn names(&self) -> Vec<Arc<Targets>> {
        let setup = self.shared.setup();
        let forwards = setup.routes.iter().flat_map(|r| r.targets());
        let peers = setup.mesh.iter().flat_map(|mesh| &mesh.peers);
        let peers = peers.filter(|peer| peer.is_named);
        names_in(forwards.chain(peers.flat_map(|peer| &peer.targets)))
    }

    /// Returns the names that have no address; with `all`, also those of all peers that the configuration does
    /// not name.
    pub(crate) fn names_without_address(&self, all: bool) -> Vec<Arc<Targets>> {
        let setup = self.shared.setup();
        let forwards = setup.routes.iter().flat_map(|r| r.targets());
        let forwards = forwards.map(|targets| (true, targets));
        let peers = setup.mesh.iter().flat_map(|mesh| &mesh.peers);
        let peers = peers.flat_map(|peer| peer.targets.iter().map(move |t| (peer.is_named, t)));
        let wanted = forwards.chain(peers);
        let wanted = wanted.filter(|(named, targets)| (all && !named) || !targets.has_address());
        names_in(wanted.map(|(_, targets)| targets))
    }

    /// Returns the addresses that are checked, each once.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let setup = self.shared.setup();
        let mut checks: Vec<Check> = Vec::new();
        for route in &setup.routes {
            let Some(how) = route.check else {
                continue;
            };
            let direct = route.next_hops().filter_map(|hop| match hop {
                NextHop::Direct(direct) => Some(direct),
                NextHop::Mesh { .. } | NextHop::OriginalDst(_) => None,
            });
            let all = direct.flat_map(|direct| {
                let backends = direct.targets.iter().flat_map(|t| t.backends().to_vec());
                backends.map(move |backend| (backend, &direct.options))
            });
            for (backend, options) in all {
                match checks.iter_mut().find(|c| c.backend.addr == backend.addr) {
                    Some(known) => {
                        known.how = HealthCheck {
                            interval: known.how.interval.min(how.interval),
                            rise: known.how.rise.min(how.rise),
                            fall: known.how.fall.min(how.fall),
                        };
                    }
                    None => checks.push(Check {
                        backend,
                        how,
                        timeout: route.timeouts(&setup.timeouts).connect.min(how.interval),
                        options: options.clone(),
                    }),
                }
            }
        }
        checks
    }

    /// Returns what is known of the list of members and of etcd.
    pub(crate) fn list(&self) -> &ListStatus {
        &self.list
    }

    /// Returns the members that the node knows.
    pub(crate) fn members(&self) -> Option<Arc<Members>> {
        let setup = self.shared.setup();
        setup.mesh.as_ref().map(|mesh| mesh.local.members.clone())
    }

    /// Counts a health check.
    pub(crate) fn count_check(&self, connected: bool) {
        self.shared.backends.count_check(connected);
    }

    /// Returns the interval between look-ups of names.
    pub(crate) fn resolve_interval(&self) -> Duration {
        self.shared.setup().timeouts.resolve
    }

    /// Reads the addresses of this machine again, which sessions from the mesh and intercepted clients must
    /// not reach. Returns whether that succeeded.
    pub(crate) fn read_own_addresses(&self) -> bool {
        match read_own(&self.own) {
            Ok(true) => tracing::info!("the addresses of this machine have changed"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    "cannot read the addresses of this machine: {error}; sessions may reach its new ones; \
                     trying again in a second"
                );
                return false;
            }
        }
        true
    }

    /// Stops early SYN. Legs that wait for a client are closed: another process may accept it.
    pub(super) fn forget_early(&self) {
        // Dropped outside the lock, because dropping joins a thread.
        let reader = self.early().take();
        drop(reader);
        let legs = self
            .shared
            .early
            .iter()
            .flat_map(|table| table.forget_all());
        for (connection, worker) in legs {
            let _ = self.mailboxes[worker].post(Message::NoClient { connection });
        }
    }

    /// Returns duplicates of the listening sockets.
    ///
    /// # Errors
    /// `EMFILE`, or another error of dup(2).
    pub(crate) fn sockets(&self) -> Result<Vec<OwnedFd>, Errno> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.holdings.duplicates()
    }

    /// Returns the lock of interception, for the process that replaces this one.
    pub(crate) fn interception(&self) -> Weak<NetnsLock> {
        self.interception.clone()
    }

    /// Reopens the session log by its path.
    pub(crate) fn reopen_log(&self) {
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

    /// Sets the rates and windows of legs to other relays.
    pub(super) fn start_legs(&self, config: &Config, setup: &Setup) {
        let (Some(mesh), Some(of_setup)) = (&config.mesh, &setup.mesh) else {
            return;
        };
        let addresses = of_setup.peers.iter().flat_map(|peer| {
            let addrs = peer.addrs().into_iter();
            addrs.map(|addr| (peer.name.clone(), addr.0.ip()))
        });
        let members = &of_setup.local.members;
        self.turbo.adopt(mesh, members, addresses.collect());
    }

    /// Adopts what was found for a destination. The destination keeps its addresses if the look-up has failed
    /// or the result leads back to this node. Blocks while a reload adopts a configuration.
    pub(crate) fn adopt_addresses(
        &self,
        targets: &Arc<Targets>,
        found: Result<Addrs, ResolveError>,
    ) {
        let addrs = match found {
            Ok(addrs) => addrs,
            Err(error) => {
                tracing::debug!(%error, "keeping the former addresses");
                targets.look_up_failed();
                return;
            }
        };
        // Most look-ups find what is known. What follows looks at all forwards.
        if targets.has_just(&addrs) {
            targets.look_up_succeeded();
            return;
        }
        if would_loop(&self.shared.setup().routes, targets, &addrs) {
            if targets.leads_back() {
                let destination = targets.destination();
                tracing::warn!(
                    "the new addresses of {destination} ({}) lead back to this relay and are not used",
                    list(&addrs)
                );
            }
            return;
        }
        targets.look_up_succeeded();
        targets.replace(&addrs, &self.shared.backends);
        self.shared.relays_may_differ();
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let setup = self.shared.setup();
        note_relays(&self.relays, &setup);
        self.start_legs(&present.config, &setup);
        drop(present);
        self.changed.notify_one();
    }
}

/// Returns the destinations that are names, each once: forwards with the same destination may share its
/// addresses.
fn names_in<'a>(all: impl Iterator<Item = &'a Arc<Targets>>) -> Vec<Arc<Targets>> {
    let mut known = HashSet::new();
    all.filter(|targets| targets.is_a_name() && known.insert(Arc::as_ptr(targets)))
        .cloned()
        .collect()
}

impl std::fmt::Debug for SharedHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHandle").finish_non_exhaustive()
    }
}

impl Host for SharedHandle {
    fn etcd_settings(&self) -> Option<Settings> {
        let name = self.shared.setup().mesh.as_ref()?.local.name.clone();
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let mesh = present.config.mesh.clone()?;
        let etcd = mesh.etcd.clone()?;
        Some(Settings { mesh, etcd, name })
    }

    fn members(&self) -> Option<Arc<Members>> {
        self.members()
    }

    fn accepts(&self) -> bool {
        self.accepts()
    }

    fn list(&self) -> &ListStatus {
        self.list()
    }
}
