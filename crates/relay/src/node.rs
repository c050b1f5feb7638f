//! A node: everything it needs is acquired before anything is started, so that a start either
//! succeeds or leaves nothing behind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use taut_sys::Errno;
use taut_sys::epoll::Waker;
use taut_sys::limits::raise_open_files;
use taut_sys::socket::{LegOptions, Listener, is_local};
use tokio::sync::mpsc;

use crate::addr::{Destination, ListenAddr};
use crate::config::{Config, Forward};
use crate::loops::{self, Edge};
use crate::metrics::Metrics;
use crate::targets::{Addrs, ResolveError, Targets, look_up};
use crate::worker::{BACKLOG, Door, Legs, Order, Shared, Worker};

/// Sessions of a node that was given no figure, at most.
const DEFAULT_MAX_SESSIONS: u64 = 65_536;

/// Descriptors besides those of sessions, pipes and listeners: standard streams, log, resolver,
/// metrics and a few to spare.
const OTHER_DESCRIPTORS: u64 = 64;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limit of open descriptors is too low for what was asked.
    #[error(
        "{sessions} sessions need {needed} file descriptors and this process may open {limit}: raise \
         the limit (`ulimit -n {needed}`, or LimitNOFILE={needed} in the systemd unit) or lower \
         relay.max_sessions, relay.max_pipes or relay.workers"
    )]
    TooFewDescriptors {
        /// Sessions asked for, or 1.
        sessions: u64,
        /// Descriptors that takes.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A destination has no address.
    #[error("{0}; check the name and /etc/resolv.conf")]
    Resolve(#[from] ResolveError),
    /// Something cannot be listened on.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why, and what to do.
        reason: ListenProblem,
    },
    /// There is no such congestion control for this process.
    #[error(
        "cannot use the congestion control `{name}`: {source}; \
         `sysctl net.ipv4.tcp_available_congestion_control` shows what is loaded, `modprobe tcp_{name}` \
         may load it"
    )]
    Congestion {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A forward leads back to itself.
    #[error(
        "forwarding to {destination} leads back to this relay's own listener for it: every connection \
         would go round until max_sessions are open"
    )]
    Loop {
        /// The destination.
        destination: Destination,
    },
    /// The kernel refused something else.
    #[error("cannot set up worker {worker}: {source}")]
    Worker {
        /// Which one.
        worker: usize,
        /// Why.
        source: std::io::Error,
    },
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenProblem {
    /// Somebody else has the port.
    #[error("the port is in use; `ss -ltnp 'sport = :{0}'` shows by whom")]
    InUse(u16),
    /// It is not an address of this machine.
    #[error("it is not an address of this machine; `ip address` shows those")]
    NotHere,
    /// Low ports are privileged.
    #[error("ports below net.ipv4.ip_unprivileged_port_start need root or CAP_NET_BIND_SERVICE")]
    Privileged,
    /// Anything else.
    #[error("{0}")]
    Other(std::io::Error),
}

/// A running relay node.
#[derive(Debug)]
pub struct Node {
    shared: Arc<SharedHandle>,
    metrics: Metrics,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

/// What ends and refreshes a node from any thread.
pub(crate) struct SharedHandle {
    shared: Arc<Shared>,
    wakers: Vec<Arc<Waker>>,
}

/// How a worker's thread ended.
#[derive(Debug)]
enum Ended {
    AsOrdered,
    Failed(Errno),
    Panicked,
}

/// A worker ended without having been told to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLost {
    /// It met a state that must not be.
    #[error("a worker thread panicked (a bug: please report what the log says)")]
    Panicked,
    /// Its poller failed.
    #[error("a worker thread cannot go on: {0}")]
    Failed(std::io::Error),
}

// === impl Node ===

impl Node {
    /// Acquires everything `config` asks for and starts to relay.
    ///
    /// # Errors
    /// [`StartError`], and then nothing has been started.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let workers = config.workers.map_or_else(available_cpus, usize::from);
        let max_sessions = session_ceiling(config, workers)?;

        let targets = resolve_all(&config.forwards)?;
        let legs = legs_of(config)?;
        let (listen, mut doors) = bind_all(&config.forwards, workers, &legs)?;
        let current: Vec<Addrs> = targets.iter().map(Targets::current).collect();
        if let Some(i) = find_loop(&listen, &current) {
            return Err(StartError::Loop {
                destination: config.forwards[i].to.clone(),
            });
        }

        let metrics = Metrics::new(workers);
        let shared = Shared::new(max_sessions, config.timeouts, legs, targets, listen);
        let shared = Arc::new(shared);
        let mut ready = Vec::with_capacity(workers);
        for i in 0..workers {
            let doors = doors.pop().unwrap_or_default();
            let pipes = share_of(config.data.max_pipes as usize, workers, i);
            let worker = Worker::new(
                doors,
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
        let wakers = ready.iter().map(Worker::waker).collect();
        let shared = Arc::new(SharedHandle { shared, wakers });
        let (report, ended) = mpsc::unbounded_channel();
        let mut node = Self {
            shared,
            metrics,
            threads: Vec::new(),
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
                // Dropping the node stops the threads that were started.
                .map_err(|source| StartError::Worker { worker: i, source })?;
            node.threads.push(thread);
        }
        tracing::info!(workers, max_sessions, "relaying");
        for (forward, listeners) in config.forwards.iter().zip(&node.shared.shared.listen) {
            for listen in listeners {
                tracing::info!(listen = %listen.0, to = %forward.to, "forwarding");
            }
        }
        Ok(node)
    }

    /// The addresses listened on, with the ports the kernel chose where it was asked to, in the
    /// order of the configuration.
    pub fn listen_addrs(&self) -> Vec<ListenAddr> {
        self.shared.shared.listen.concat()
    }

    /// What it counts.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    pub(crate) fn handle(&self) -> Arc<SharedHandle> {
        self.shared.clone()
    }

    /// Takes no more connections; [`Node::ended`] returns when the last session has ended.
    pub fn drain(&self) {
        self.shared.order(Order::Drain);
    }

    /// Resets what is still open.
    pub fn stop(&self) {
        self.shared.order(Order::Stop);
    }

    /// Waits until every worker has ended as it was ordered to.
    ///
    /// # Errors
    /// [`WorkerLost`] as soon as one has ended otherwise.
    pub async fn ended(&mut self) -> Result<(), WorkerLost> {
        while let Some(ended) = self.ended.recv().await {
            match ended {
                Ended::AsOrdered => {}
                Ended::Failed(e) => return Err(WorkerLost::Failed(e.into())),
                Ended::Panicked => return Err(WorkerLost::Panicked),
            }
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic has been reported by `ended` and by the panic hook.
            let _ = thread.join();
        }
    }
}

// === impl SharedHandle ===

impl SharedHandle {
    fn order(&self, order: Order) {
        self.shared.order(order);
        self.wakers.iter().for_each(|w| w.wake());
    }

    /// The forwards whose destinations are names.
    pub(crate) fn names(&self) -> Vec<usize> {
        let targets = self.shared.targets.iter().enumerate();
        targets
            .filter(|(_, t)| t.is_a_name())
            .map(|(i, _)| i)
            .collect()
    }

    /// Looks up again the destination of a forward. What it had stays when that gives nothing, or
    /// a way back to this node. Blocks for as long as the resolver does.
    pub(crate) fn refresh(&self, forward: usize) {
        let targets = &self.shared.targets[forward];
        let addrs = match look_up(targets.destination()) {
            Ok(addrs) => addrs,
            Err(error) => {
                tracing::warn!(%error, "keeping the addresses it had");
                return;
            }
        };
        let mut all: Vec<Addrs> = self.shared.targets.iter().map(Targets::current).collect();
        all[forward] = addrs.clone();
        if find_loop(&self.shared.listen, &all).is_some() {
            let destination = targets.destination();
            tracing::warn!(
                %destination, ?addrs,
                "its new addresses lead back to this relay; keeping the ones it had"
            );
            return;
        }
        targets.replace(addrs);
    }
}

impl std::fmt::Debug for SharedHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHandle").finish_non_exhaustive()
    }
}

// === impl Report ===

/// Tells the node how a worker ended, also when it unwinds.
struct Report {
    to: mpsc::UnboundedSender<Ended>,
    what: Ended,
}

impl Report {
    fn set(mut self, what: Ended) {
        self.what = what;
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let what = std::mem::replace(&mut self.what, Ended::Panicked);
        // The node may be gone; then nobody asks.
        let _ = self.to.send(what);
    }
}

fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The `i`-th of `n` parts of `total` that differ by one at most.
fn share_of(total: usize, n: usize, i: usize) -> usize {
    total / n + usize::from(i < total % n)
}

/// How many sessions the limit of open descriptors has room for, or what was asked.
fn session_ceiling(config: &Config, workers: usize) -> Result<u32, StartError> {
    let limit = raise_open_files().unwrap_or(0);
    let listeners: usize = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .map(|l| l.addrs.len())
        .sum();
    // A worker: its poller, its waker and its listeners.
    let fixed = OTHER_DESCRIPTORS
        + workers as u64 * (2 + listeners as u64)
        + 2 * u64::from(config.data.max_pipes);
    let sessions = match config.max_sessions {
        Some(asked) => u64::from(asked),
        None => (limit.saturating_sub(fixed) / 2).clamp(1, DEFAULT_MAX_SESSIONS),
    };
    let needed = fixed + 2 * sessions;
    if needed > limit {
        return Err(StartError::TooFewDescriptors {
            sessions,
            needed,
            limit,
        });
    }
    Ok(u32::try_from(sessions).unwrap_or(u32::MAX))
}

/// Looks every destination up, all at the same time: a resolver that does not answer costs its
/// time-out once.
fn resolve_all(forwards: &[Forward]) -> Result<Vec<Targets>, ResolveError> {
    std::thread::scope(|scope| {
        let start = |f: &Forward| {
            let to = f.to.clone();
            scope.spawn(move || Targets::resolve(to))
        };
        let all: Vec<_> = forwards.iter().map(start).collect();
        all.into_iter()
            .map(|one| {
                one.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// What each forward's legs ask of their sockets, having found out that they can have it.
fn legs_of(config: &Config) -> Result<Vec<Legs>, StartError> {
    let leg = |congestion: &Option<String>| -> Result<LegOptions, StartError> {
        let options = LegOptions {
            congestion: congestion.clone(),
            ..LegOptions::new(config.keepalive)
        };
        options.probe().map_err(|e| StartError::Congestion {
            name: congestion.clone().unwrap_or_default(),
            source: e.into(),
        })?;
        Ok(options)
    };
    let legs = |f: &Forward| {
        Ok(Legs {
            client: leg(&f.client_congestion)?,
            onward: leg(&f.onward_congestion)?,
        })
    };
    config.forwards.iter().map(legs).collect()
}

/// The addresses of each forward, and the listeners of each worker.
type Bound = (Vec<Vec<ListenAddr>>, Vec<Vec<Door>>);

/// Binds every address once for each worker.
fn bind_all(forwards: &[Forward], workers: usize, legs: &[Legs]) -> Result<Bound, StartError> {
    let mut listen = Vec::new();
    let mut doors: Vec<Vec<Door>> = (0..workers).map(|_| Vec::new()).collect();
    for (i, forward) in forwards.iter().enumerate() {
        let mut own = Vec::new();
        for (addr, optional) in forward
            .listen
            .iter()
            .flat_map(|l| l.addrs.iter().map(|a| (a.0, l.any && a.0.is_ipv6())))
        {
            let problem = |e| StartError::Listen {
                addr,
                reason: listen_problem(addr, e),
            };
            match Listener::probe(addr) {
                Ok(()) => {}
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if optional => {
                    tracing::info!(%addr, "this machine has no IPv6; listening on IPv4 only");
                    continue;
                }
                Err(e) => return Err(problem(e)),
            }
            // With port 0 the first one gets a port, and the others share it.
            let mut actual = addr;
            for worker_doors in &mut doors {
                let listener = Listener::bind(actual, BACKLOG, &legs[i].client).map_err(problem)?;
                actual = listener.local_addr().map_err(problem)?;
                worker_doors.push(Door::new(listener, i));
            }
            own.push(ListenAddr(actual));
        }
        listen.push(own);
    }
    Ok((listen, doors))
}

fn listen_problem(addr: SocketAddr, error: Errno) -> ListenProblem {
    match error {
        Errno::ADDRINUSE => ListenProblem::InUse(addr.port()),
        Errno::ADDRNOTAVAIL => ListenProblem::NotHere,
        Errno::ACCESS => ListenProblem::Privileged,
        e => ListenProblem::Other(e.into()),
    }
}

fn find_loop(listen: &[Vec<ListenAddr>], onward: &[Addrs]) -> Option<usize> {
    let edges: Vec<_> = listen
        .iter()
        .zip(onward)
        .map(|(listen, onward)| Edge { listen, onward })
        .collect();
    loops::find(&edges, is_local)
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
