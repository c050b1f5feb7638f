//! The start of a node: all resources are acquired first, then the threads start.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use super::assemble::{Assembly, Names, assemble};
use super::descriptors::{Ceilings, ceilings};
use super::ended::{Ended, Report};
use super::handle::{Present, SharedHandle};
use super::holdings::Holdings;
use super::kernel_tls::TlsPlace;
use super::look_ups::named_relays;
use super::next_hop::note_relays;
use super::threads::{early_reader, plan, route_metrics};
use super::windows_thread::WindowsThread;
use super::{Node, StartError};
use crate::access::session_quota::SessionQuota;
use crate::condition::Tracker;
use crate::config::{Config, MeshConfig};
use crate::counters::registry::Registry;
use crate::early_syn::PendingTable;
use crate::etcd::ListStatus;
use crate::handover::{Inherited, Passed};
use crate::intercept::Interception;
use crate::metrics::Metrics;
use crate::route::table::{Route, Setup};
use crate::rows;
use crate::rows_mailbox::RowsMailbox;
use crate::session_log::{self, SessionLog};
use crate::turbo::TurboStart;
use crate::turbo::route_metrics;
use crate::worker::{Queue, Shared, Worker};
use taut_mesh::members::MemberName;
use taut_sys::socket::can_limit_windows;

impl Node {
    /// Acquires the resources of `config` and starts the node.
    ///
    /// # Errors
    /// [`StartError`]; nothing has been started then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, Inherited::default())
    }

    /// Like [`Node::start`], but with sockets that another process has bound. The node listens on
    /// those whose addresses are in the configuration and closes the others. With the lock of interception of
    /// a running process, it intercepts beside that one, which stays in force until it drains or ends.
    ///
    /// # Errors
    /// [`StartError`]; nothing has been started then.
    pub fn start_with(config: &Config, inherited: Inherited) -> Result<Self, StartError> {
        let Inherited {
            mut sockets,
            interception,
        } = inherited;
        let workers = config.workers.map_or_else(available_cpus, usize::from);
        let Ceilings {
            sessions: max_sessions,
            queued,
        } = ceilings(config, workers)?;

        let turbo = Arc::new(TurboStart::begin(config.mesh.as_ref()));
        let leg = config.mesh.as_ref().map(MeshConfig::leg);
        if let Some(in_words) = leg.and_then(|leg| turbo.in_words(&leg)) {
            tracing::info!("legs between relays {in_words}");
        }
        if config.mesh.is_some() {
            tracing::info!("{}", TlsPlace::of(config));
        }
        // Before a worker has to find it out.
        if !can_limit_windows() {
            tracing::info!(
                "this kernel may keep a window closed after a limit, so the windows of fast senders are not limited for slow readers"
            );
        }
        let registry = Arc::new(Registry::new(workers));
        let Assembly {
            setup,
            listeners: mut all_listeners,
            mut holdings,
        } = assemble(
            config,
            workers,
            &turbo,
            &Holdings::default(),
            &registry,
            &mut sockets,
            &Names::checked(),
        )?;
        for Passed { addr, .. } in sockets {
            tracing::warn!(%addr, "a socket that was handed over is not in the configuration; closing it");
        }

        note_relays(&holdings.relays, &setup);
        let early = setup.routes.iter().any(|route| route.early_syn);
        let early = early.then(|| Arc::new(PendingTable::new(config.early_syn.limits)));

        let log = match config.session_log.clone() {
            Some(target) => Some(SessionLog::start(target, session_log::CAPACITY)?),
            None => None,
        };
        let tracker = Arc::new(Mutex::new(Tracker::new(Instant::now())));
        let recorder = log.as_ref().map(SessionLog::recorder);
        let list = Arc::<ListStatus>::default();
        let metrics = Metrics::new(workers, early.clone(), turbo.clone())
            .with_list(list.clone())
            .with_log(recorder.clone())
            .with_backends(holdings.backends.clone())
            .with_registry(registry.clone())
            .with_conditions(tracker.clone());
        let queue = Arc::new(Queue::default());
        queue.set_max(queued);
        let metrics = metrics.with_queue(queue.clone());
        let relays = metrics.route_segments().map(|_| Arc::default());
        let rows = match &config.mesh {
            Some(_) => Some(Arc::new(
                RowsMailbox::new().map_err(|e| StartError::Rows(e.into()))?,
            )),
            None => None,
        };
        let metrics = metrics.with_rows(rows.clone());
        let sources = SessionQuota::new(config.per_source(max_sessions));
        sources.set_limits(config.per_source(max_sessions), config.per_shared_source());
        let shared = Shared::new(
            u32::try_from(workers).unwrap_or(u32::MAX),
            max_sessions,
            sources,
            setup,
            recorder,
            early.clone(),
            relays,
        )
        .with_rate(config.max_connects_per_source)
        .with_backends(holdings.backends.clone())
        .with_rows(rows.clone())
        .with_queue(queue);
        let shared = Arc::new(shared);
        let setup = shared.setup();
        let mut ready = Vec::with_capacity(workers);
        for i in 0..workers {
            let listeners = all_listeners.pop().unwrap_or_default();
            let pipes = share_of(config.data.max_pipes as usize, workers, i);
            let worker = Worker::new(
                i,
                listeners,
                &config.data,
                pipes,
                metrics.worker(i),
                shared.clone(),
            )
            .map_err(|e| StartError::Worker {
                worker: i,
                source: e.into(),
            })?;
            ready.push(worker);
        }
        let mailboxes: Vec<_> = ready.iter().map(Worker::mailbox).collect();
        shared.introduce(mailboxes.clone());
        let early = match early {
            Some(table) => Some(early_reader(config, &setup, table, mailboxes.clone())?),
            None => None,
        };
        let intercept = match plan(config, &setup) {
            Some(plan) => Some(Interception::start(
                plan,
                metrics.intercept(),
                interception,
            )?),
            None => None,
        };
        // Before the pools dial: a connection takes its first window from its route at that time.
        let routes = route_metrics(&shared, &metrics);
        if routes.is_none() && config.mesh.is_some() {
            route_metrics::remove_stale();
        }
        holdings.setup = Some(setup.clone());
        let shared = Arc::new(SharedHandle {
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
            interception: intercept
                .as_ref()
                .map_or_else(Weak::new, Interception::lock),
            started: Instant::now(),
        });
        shared.start_legs(config, &setup);
        let rows_thread = match &rows {
            Some(rows) => rows::start(rows, &shared.shared, shared.mailboxes.clone())
                .map_err(StartError::Rows)?,
            None => None,
        };
        let windows = match &config.mesh {
            Some(_) => Some(WindowsThread::start(shared.clone()).map_err(StartError::Windows)?),
            None => None,
        };
        let (report, ended) = mpsc::unbounded_channel();
        let mut node = Self {
            shared,
            metrics,
            threads: rows_thread.into_iter().collect(),
            windows,
            routes,
            intercept,
            ended,
        };
        for (i, worker) in ready.into_iter().enumerate() {
            let report = Report {
                to: report.clone(),
                what: Ended::Panicked,
            };
            let thread = std::thread::Builder::new()
                .name(format!("relay-{i}"))
                .spawn(move || {
                    report.set(match worker.run() {
                        Ok(()) => Ended::AsOrdered,
                        Err(e) => Ended::Failed(e),
                    });
                })
                // Dropping the node stops the threads that have started.
                .map_err(|source| StartError::Worker { worker: i, source })?;
            node.threads.push(thread);
        }
        tracing::info!(workers, max_sessions, "relaying");
        announce(config, &setup, None);
        Ok(node)
    }
}

/// Logs what the node listens on and where it forwards to, as far as `before` did not.
pub(super) fn announce(config: &Config, setup: &Setup, before: Option<&Setup>) {
    let is_in = |setup: Option<&Setup>, route: &Route| {
        setup.is_some_and(|setup| setup.routes.iter().any(|r| r.id == route.id))
    };
    let gone = before.iter().flat_map(|before| &before.routes);
    for route in gone.filter(|route| !is_in(Some(setup), route)) {
        for listen in &route.listen {
            tracing::info!(listen = %listen.0, to = %route.destination, "no longer forwarding");
        }
    }
    for (forward, route) in config.forwards.iter().zip(&setup.routes) {
        if is_in(before, route) {
            continue;
        }
        for listen in &route.listen {
            let (listen, to) = (listen.0, &route.destination);
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

/// Returns what a configuration says and probably does not mean, one sentence each.
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
}
