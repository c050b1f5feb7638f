//! The start of a node: bind and look up everything, create the workers, start the helper threads, and start the
//! workers last, so that no session exists if a step fails.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use taut_mesh::members::MemberName;
use taut_sys::listen::Listen;
use taut_sys::socket::can_limit_windows;
use tokio::sync::{Notify, mpsc};

use super::Node;
use super::assemble::{Assembly, Names, assemble};
use super::descriptors::{Ceilings, ceilings};
use super::ended::{Ended, Report};
use super::error::StartError;
use super::handle::{Present, SharedHandle};
use super::holdings::Holdings;
use super::kernel_tls::TlsPlace;
use super::look_ups::named_relays;
use super::next_hop::note_relays;
use super::threads::{early_reader, plan, route_metrics};
use super::windows_thread::WindowsThread;
use crate::access::session_quota::SessionQuota;
use crate::condition::Tracker;
use crate::config::Config;
use crate::counters::registry::Registry;
use crate::early_syn::PendingTable;
use crate::etcd::ListStatus;
use crate::handover::{Inherited, Passed};
use crate::intercept::Interception;
use crate::metrics::Metrics;
use crate::route::listener::NewListener;
use crate::route::table::{Route, Setup};
use crate::rows;
use crate::rows_mailbox::RowsMailbox;
use crate::session_log::{self, SessionLog};
use crate::turbo::TurboStart;
use crate::turbo::route_metrics;
use crate::worker::{Queue, Shared, Worker};

impl Node {
    /// Acquires the resources of `config` and starts the node.
    ///
    /// # Errors
    /// [`StartError`]; what has been started is stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, Inherited::default())
    }

    /// Like [`Node::start`], but with sockets that another process has bound. The node listens on
    /// those whose addresses are in the configuration and closes the others. With the lock of interception of
    /// a running process, it intercepts beside that one, which stays in force until it drains or ends.
    ///
    /// # Errors
    /// [`StartError`]; what has been started is stopped again.
    pub fn start_with(config: &Config, inherited: Inherited) -> Result<Self, StartError> {
        let workers = config.workers.map_or_else(available_cpus, usize::from);
        let ceilings = ceilings(config, workers)?;
        let turbo = Arc::new(TurboStart::begin(config.mesh.as_ref()));
        log_features(config, &turbo);
        let registry = Arc::new(Registry::new(workers));
        let Assembly {
            setup,
            listeners,
            holdings,
            unused,
        } = assemble(
            config,
            workers,
            &turbo,
            &Holdings::default(),
            &registry,
            inherited.sockets,
            &Names::checked(),
        )?;
        for Passed { addr, .. } in unused {
            tracing::warn!(%addr, "no listener is configured at the address of an inherited socket; closing it resets the clients in its queue");
        }
        note_relays(&holdings.relays, &setup);
        let parts = Parts::new(config, setup, &ceilings, &holdings, turbo, registry)?;
        let ready = parts.workers(config, listeners)?;
        let (report, ended) = mpsc::unbounded_channel();
        let mut node = Self::without_workers(
            config,
            parts,
            holdings,
            &ready,
            inherited.interception,
            ended,
        )?;
        node.start_workers(ready, &report)?;
        tracing::info!(workers, max_sessions = ceilings.sessions, "relaying");
        announce(config, &node.handle.shared.setup(), None);
        Ok(node)
    }

    /// Starts the helper threads: early SYN, interception, route metrics, rows, windows. Messages may already be posted
    /// to the workers, which do not run yet.
    fn without_workers(
        config: &Config,
        parts: Parts,
        mut holdings: Holdings,
        workers: &[Worker],
        interception: Option<OwnedFd>,
        ended: mpsc::UnboundedReceiver<Ended>,
    ) -> Result<Self, StartError> {
        let Parts {
            shared,
            metrics,
            log,
            list,
            tracker,
            turbo,
            registry,
        } = parts;
        let setup = shared.setup();
        let mailboxes: Vec<_> = workers.iter().map(Worker::mailbox).collect();
        shared.introduce(mailboxes.clone());
        let early = match &shared.early {
            Some(table) => {
                let table = table.clone();
                Some(early_reader(config, &setup, table, mailboxes.clone())?)
            }
            None => None,
        };
        let intercept = match plan(config, &setup) {
            Some(plan) => {
                let counters = metrics.intercept();
                Some(Interception::start(plan, counters, interception)?)
            }
            None => None,
        };
        // Before the pools dial: a connection reads its initial window from the route when it is created.
        let routes = route_metrics(&shared, &metrics);
        if routes.is_none() && config.mesh.is_some() {
            route_metrics::remove_stale();
        }
        holdings.setup = Some(setup.clone());
        let rows = shared.rows.clone();
        let lock = intercept.as_ref().map(Interception::lock);
        let handle = Arc::new(SharedHandle {
            shared,
            mailboxes,
            own: holdings.own.clone(),
            relays: holdings.relays.clone(),
            present: Mutex::new(Present {
                config: config.clone(),
                holdings,
                drained: BTreeSet::new(),
                drained_peers: BTreeSet::new(),
            }),
            early: Mutex::new(early),
            log: Mutex::new(log),
            changed: Notify::new(),
            unknown: Notify::new(),
            list,
            registry,
            tracker,
            turbo,
            rows: rows.clone(),
            interception: lock.unwrap_or_default(),
            started: Instant::now(),
        });
        handle.start_legs(config, &setup);
        let rows_thread = match &rows {
            Some(rows) => rows::start(rows, &handle.shared, handle.mailboxes.clone())
                .map_err(StartError::Rows)?,
            None => None,
        };
        // From here on, dropping the node stops the threads that have started.
        let mut node = Self {
            handle,
            metrics,
            threads: rows_thread.into_iter().collect(),
            windows: None,
            routes,
            intercept,
            ended,
        };
        if config.mesh.is_some() {
            let windows = WindowsThread::start(node.handle.clone());
            node.windows = Some(windows.map_err(StartError::Windows)?);
        }
        Ok(node)
    }

    /// Starts the workers.
    fn start_workers(
        &mut self,
        ready: Vec<Worker>,
        report: &mpsc::UnboundedSender<Ended>,
    ) -> Result<(), StartError> {
        for (i, worker) in ready.into_iter().enumerate() {
            let report = Report {
                to: report.clone(),
                what: Ended::Panicked,
            };
            let run = move || {
                report.set(match worker.run() {
                    Ok(()) => Ended::AsOrdered,
                    Err(e) => Ended::Failed(e),
                });
            };
            let thread = std::thread::Builder::new().name(format!("relay-{i}"));
            let thread = thread.spawn(run);
            let thread = thread.map_err(|source| StartError::Worker { worker: i, source })?;
            self.threads.push(thread);
        }
        Ok(())
    }
}

/// Logs what the legs between relays use, and what the kernel lacks.
fn log_features(config: &Config, turbo: &TurboStart) {
    if let Some(mesh) = &config.mesh {
        if let Some(in_words) = turbo.in_words(&mesh.leg()) {
            tracing::info!("legs between relays {in_words}");
        }
        tracing::info!("{}", TlsPlace::of(config));
    }
    // Probed now, so that no worker blocks on the probe.
    if !can_limit_windows() {
        tracing::info!(
            "this kernel may not reopen a window after it was limited, so the relay does not limit fast senders for slow readers"
        );
    }
}

/// What the node's threads share. Only the session log's thread runs already.
struct Parts {
    shared: Arc<Shared>,
    metrics: Metrics,
    log: Option<SessionLog>,
    list: Arc<ListStatus>,
    tracker: Arc<Mutex<Tracker>>,
    turbo: Arc<TurboStart>,
    registry: Arc<Registry>,
}

// === impl Parts ===

impl Parts {
    fn new(
        config: &Config,
        setup: Setup,
        ceilings: &Ceilings,
        holdings: &Holdings,
        turbo: Arc<TurboStart>,
        registry: Arc<Registry>,
    ) -> Result<Self, StartError> {
        let workers = registry.workers();
        let early = setup.routes.iter().any(|route| route.early_syn);
        let early = early.then(|| Arc::new(PendingTable::new(config.early_syn.limits)));
        let log = match config.session_log.clone() {
            Some(target) => Some(SessionLog::start(target, session_log::CAPACITY)?),
            None => None,
        };
        let recorder = log.as_ref().map(SessionLog::recorder);
        let rows = match &config.mesh {
            Some(_) => Some(RowsMailbox::new().map_err(|e| StartError::Rows(e.into()))?),
            None => None,
        };
        let rows = rows.map(Arc::new);
        let queue = Arc::new(Queue::default());
        queue.set_max(ceilings.queued);
        let tracker = Arc::new(Mutex::new(Tracker::new(Instant::now())));
        let list = Arc::<ListStatus>::default();
        let metrics = Metrics::new(workers, early.clone(), turbo.clone())
            .with_list(list.clone())
            .with_log(recorder.clone())
            .with_backends(holdings.backends.clone())
            .with_registry(registry.clone())
            .with_conditions(tracker.clone())
            .with_queue(queue.clone())
            .with_rows(rows.clone());
        let per_source = config.per_source(ceilings.sessions);
        let sources = SessionQuota::new(per_source);
        sources.set_limits(per_source, config.per_shared_source());
        let relays = metrics.route_segments().map(|_| Arc::default());
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let shared = Shared::new(
            workers,
            ceilings.sessions,
            sources,
            setup,
            recorder,
            early,
            relays,
        )
        .with_rate(config.max_connects_per_source)
        .with_backends(holdings.backends.clone())
        .with_rows(rows)
        .with_queue(queue);
        Ok(Self {
            shared: Arc::new(shared),
            metrics,
            log,
            list,
            tracker,
            turbo,
            registry,
        })
    }

    /// Returns the workers with their listeners.
    fn workers(
        &self,
        config: &Config,
        listeners: Vec<Vec<NewListener>>,
    ) -> Result<Vec<Worker>, StartError> {
        let workers = listeners.len();
        let worker = |(i, listeners)| {
            let pipes = share_of(config.data.max_pipes as usize, workers, i);
            let (metrics, shared) = (self.metrics.worker(i), self.shared.clone());
            Worker::new(i, listeners, &config.data, pipes, metrics, shared).map_err(|e| {
                StartError::Worker {
                    worker: i,
                    source: e.into(),
                }
            })
        };
        listeners.into_iter().enumerate().map(worker).collect()
    }
}

/// Logs the listeners and destinations that `before` did not have, and the forwards that are gone.
pub(super) fn announce(config: &Config, setup: &Setup, before: Option<&Setup>) {
    let is_in = |setup: Option<&Setup>, route: &Route| {
        setup.is_some_and(|setup| setup.routes.iter().any(|r| r.id == route.id))
    };
    let gone = before.iter().flat_map(|before| &before.routes);
    for route in gone.filter(|route| !is_in(Some(setup), route)) {
        for listen in listens(route.listen.iter().map(|listen| listen.0)) {
            tracing::info!(%listen, to = %route.destination, "no longer forwarding");
        }
    }
    for (forward, route) in config.forwards.iter().zip(&setup.routes) {
        if is_in(before, route) {
            continue;
        }
        for listen in listens(route.listen.iter().map(|listen| listen.0)) {
            let to = &route.destination;
            if forward.auto {
                tracing::info!(%listen, %to, via = "auto", "forwarding");
            } else if forward.via.is_empty() {
                tracing::info!(%listen, %to, "forwarding");
            } else {
                let route = |relays: &Vec<MemberName>| {
                    let names: Vec<_> = relays.iter().map(MemberName::as_str).collect();
                    names.join(" > ")
                };
                let routes: Vec<_> = forward.via.iter().map(route).collect();
                tracing::info!(%listen, %to, via = %routes.join(", or "), "forwarding");
            }
        }
    }
    let known = before.and_then(|before| before.mesh.as_ref());
    for listen in setup.mesh.iter().flat_map(|mesh| &mesh.listen) {
        if !known.is_some_and(|known| known.listen.contains(listen)) {
            tracing::info!(listen = %listen.0, "taking sessions from the mesh");
        }
    }
    for doubt in doubts(config) {
        tracing::warn!("{doubt}");
    }
}

/// Returns addresses as the configuration names them: those of both families that `:PORT` stands for are one.
fn listens(addrs: impl Iterator<Item = SocketAddr>) -> Vec<Listen> {
    let addrs: Vec<_> = addrs.collect();
    let mut listens = Vec::new();
    for addr in &addrs {
        let all = Listen::All(addr.port());
        let of_all = all.addrs();
        let listen = match of_all.contains(addr) && of_all.iter().all(|of| addrs.contains(of)) {
            true => all,
            false => Listen::At(*addr),
        };
        if !listens.contains(&listen) {
            listens.push(listen);
        }
    }
    listens
}

/// Returns warnings about settings that are valid and probably not intended, one sentence each.
pub(super) fn doubts(config: &Config) -> Vec<String> {
    let refuses_all = config.mesh.as_ref().is_some_and(|mesh| {
        !mesh.listen.is_empty()
            && mesh.allow.is_empty()
            && named_relays(config).is_empty()
            && !mesh.pass_to_all
    });
    let mut doubts = Vec::new();
    if refuses_all {
        doubts.push(
            "relay.mesh.listen without relay.mesh.allow and relay.mesh.peers: every session from another \
             relay will be refused; list the destinations in `allow`, or in `peers` the relays to which \
             sessions may go on"
                .to_owned(),
        );
    }
    doubts
}

pub(super) fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns part `i` of `total` split into `n` parts whose sizes differ by 1 or 0.
fn share_of(total: usize, n: usize, i: usize) -> usize {
    total / n + usize::from(i < total % n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_total() {
        for (total, n) in [(128, 3), (2, 4), (0, 2), (7, 7)] {
            assert_eq!((0..n).map(|i| share_of(total, n, i)).sum::<usize>(), total);
        }
    }

    #[test]
    fn a_port_of_all_addresses_is_announced_once() {
        let of = |addrs: &[&str]| {
            let all = listens(addrs.iter().map(|addr| addr.parse().unwrap()));
            let all: Vec<_> = all.iter().map(Listen::to_string).collect();
            all.join(" ")
        };
        let both = ["0.0.0.0:80", "[::]:80", "127.0.0.5:81"];
        assert_eq!(of(&both), ":80 127.0.0.5:81");
        assert_eq!(of(&["0.0.0.0:80", "[::]:82"]), "0.0.0.0:80 [::]:82");
    }
}
