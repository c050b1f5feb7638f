//! A node: everything it needs is acquired before anything is started, so that a start either
//! succeeds or leaves nothing behind.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use taut_mesh::hello::Target;
use taut_mesh::key::{KeyError, Keys};
use taut_sys::Errno;
use taut_sys::limits::raise_open_files;
use taut_sys::socket::{LegOptions, Listener, is_local};
use tokio::sync::mpsc;

use crate::access::{Destinations, TooManyRules};
use crate::addr::{Destination, Listen, ListenAddr};
use crate::config::{Config, Forward, InterceptConfig, MeshConfig, Transparent};
use crate::early::{Reader, ReaderError, Table};
use crate::handover::Passed;
use crate::inbox::{Inbox, Letter};
use crate::intercept::{InterceptError, Interception, Plan};
use crate::loops::{self, Edge};
use crate::metrics::Metrics;
use crate::resolver::Resolver;
use crate::route_metrics::{self, Job, RouteMetrics};
use crate::session_log::{self, SessionLog, SessionLogError};
use crate::setup::{Mesh, Onward, Original, Peer, Route, Setup, Way};
use crate::sources::{Sources, UNLIMITED};
use crate::targets::{Addrs, ResolveError, Targets, look_up};
use crate::turbo::TurboStart;
use crate::worker::{BACKLOG, DoorId, MAX_WAITING, NewDoor, Order, Purpose, Shared, Worker};

mod holdings;
mod reload;

use holdings::{Held, Holdings};

/// Sessions of a node that was given no figure, at most.
const DEFAULT_MAX_SESSIONS: u64 = 65_536;

/// Descriptors besides those of sessions, pipes and listeners: standard streams, log, resolver,
/// metrics and a few to spare.
const OTHER_DESCRIPTORS: u64 = 64;

/// How long the end waits for the session log's last records to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

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
    /// There is no key for the mesh.
    #[error("relay.mesh.key_file: {0}")]
    Key(#[from] KeyError),
    /// More rules than are looked through for every session.
    #[error("relay.mesh or relay.forward, allow or deny: {0}")]
    Rules(#[from] TooManyRules),
    /// Sessions cannot be logged.
    #[error("relay.session_log: {0}")]
    SessionLog(#[from] SessionLogError),
    /// Connections cannot be intercepted.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// SYNs cannot be watched.
    #[error("{0}; leave `early_syn` out to go on without it")]
    EarlySyn(#[from] ReaderError),
    /// This machine does not say which addresses it has.
    #[error("cannot find out this machine's own addresses: {0}")]
    Addresses(std::io::Error),
    /// The threads that look names up could not be started.
    #[error("cannot start the threads that look names up: {0}")]
    Resolver(std::io::Error),
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
    /// Until no more sessions are taken.
    routes: Option<RouteMetrics>,
    /// Until the last session has ended, for its packets have to be brought here.
    intercept: Option<Interception>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

/// What ends and refreshes a node from any thread.
pub(crate) struct SharedHandle {
    shared: Arc<Shared>,
    inboxes: Vec<Arc<Inbox>>,
    present: Mutex<Present>,
    /// Apart from the above, which a look-up may hold for long.
    early: Mutex<Option<Reader>>,
    log: Mutex<Option<SessionLog>>,
}

/// The configuration at work, and what is held for it.
struct Present {
    config: Config,
    holdings: Holdings,
    /// What legs between relays ask of their sockets.
    mesh_leg: LegOptions,
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
        Self::start_with(config, Vec::new())
    }

    /// The same, with sockets that somebody else has bound: those at addresses of the configuration
    /// are listened on, the others are closed.
    ///
    /// # Errors
    /// [`StartError`], and then nothing has been started.
    pub fn start_with(config: &Config, mut inherited: Vec<Passed>) -> Result<Self, StartError> {
        let workers = config.workers.map_or_else(available_cpus, usize::from);
        let max_sessions = session_ceiling(config, workers)?;

        let turbo = config.mesh.as_ref().and_then(|mesh| mesh.turbo);
        let turbo = TurboStart::begin(config.keepalive, turbo);
        let mesh_leg = turbo.leg().clone();
        let Assembly {
            setup,
            doors: mut all_doors,
            mut holdings,
        } = assemble(
            config,
            workers,
            &mesh_leg,
            &Holdings::default(),
            &mut inherited,
        )?;
        for Passed { addr, .. } in inherited {
            tracing::warn!(%addr, "a socket that was handed over is not in the configuration; closing it");
        }

        let early = setup.routes.iter().any(|route| route.early_syn);
        let early = early.then(|| Arc::new(Table::new(config.early_syn.limits)));

        let log = match config.session_log.clone() {
            Some(target) => Some(SessionLog::start(target, session_log::CAPACITY)?),
            None => None,
        };
        let recorder = log.as_ref().map(SessionLog::recorder);
        let metrics = Metrics::new(workers, early.clone(), turbo).with_log(recorder.clone());
        let relays = metrics.route_segments().map(|_| Arc::default());
        let shared = Shared::new(
            u32::try_from(workers).unwrap_or(u32::MAX),
            max_sessions,
            Sources::new(config.max_sessions_per_source.unwrap_or(UNLIMITED)),
            setup,
            recorder,
            early.clone(),
            relays,
        );
        let shared = Arc::new(shared);
        let setup = shared.setup();
        start_resolver(&shared, &setup)?;
        let mut ready = Vec::with_capacity(workers);
        for i in 0..workers {
            let doors = all_doors.pop().unwrap_or_default();
            let pipes = share_of(config.data.max_pipes as usize, workers, i);
            let worker = Worker::new(
                i,
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
        let inboxes: Vec<_> = ready.iter().map(Worker::inbox).collect();
        shared.introduce(inboxes.clone());
        let early = match early {
            Some(table) => Some(early_reader(config, &setup, table, inboxes.clone())?),
            None => None,
        };
        let intercept = match plan(config, &setup) {
            Some(plan) => Some(Interception::start(plan, metrics.intercept())?),
            None => None,
        };
        // Before the pools are filled: a connection's first window is that of its route at the time.
        let routes = route_metrics(&shared, &metrics);
        if routes.is_none() && config.mesh.is_some() {
            route_metrics::remove_stale();
        }
        holdings.setup = Some(setup.clone());
        let shared = Arc::new(SharedHandle {
            shared,
            inboxes,
            present: Mutex::new(Present {
                config: config.clone(),
                holdings,
                mesh_leg,
            }),
            early: Mutex::new(early),
            log: Mutex::new(log),
        });
        let (report, ended) = mpsc::unbounded_channel();
        let mut node = Self {
            shared,
            metrics,
            threads: Vec::new(),
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
                // Dropping the node stops the threads that were started.
                .map_err(|source| StartError::Worker { worker: i, source })?;
            node.threads.push(thread);
        }
        tracing::info!(workers, max_sessions, "relaying");
        announce(config, &setup);
        Ok(node)
    }

    /// The addresses listened on, with the ports the kernel chose where it was asked to, in the
    /// order of the configuration.
    pub fn listen_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.shared.shared.setup();
        let routes = setup.routes.iter();
        routes.flat_map(|route| &route.listen).copied().collect()
    }

    /// The addresses at which other relays are listened to.
    pub fn mesh_addrs(&self) -> Vec<ListenAddr> {
        let setup = self.shared.shared.setup();
        let mesh = setup.mesh.iter();
        mesh.flat_map(|mesh| &mesh.listen).copied().collect()
    }

    /// What it counts.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    pub(crate) fn handle(&self) -> Arc<SharedHandle> {
        self.shared.clone()
    }

    /// Puts others in place of the mesh's keys. Sessions go on; connections that none uses, and
    /// that were made with a key which is no longer held, are closed.
    pub fn replace_keys(&self, keys: Keys) {
        self.shared.replace_keys(keys);
    }

    /// Puts another configuration to work. Sessions go on, and keep what they began with; listeners
    /// at unchanged addresses keep their sockets and queues; what only a restart can change stays
    /// and is said in a warning each.
    ///
    /// Blocks for as long as the resolver takes for names that are new.
    ///
    /// # Errors
    /// [`StartError`], and then nothing has changed.
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        self.shared.reload(config)
    }

    /// Takes no more connections; [`Node::ended`] returns when the last session has ended.
    pub fn drain(&mut self) {
        // What is foreseen now could not be served.
        self.shared.forget_early();
        self.shared.order(Order::Drain);
        // The process that goes on has its own.
        self.routes = None;
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

/// Says what is listened on and where it goes.
fn announce(config: &Config, setup: &Setup) {
    for (forward, route) in config.forwards.iter().zip(&setup.routes) {
        for listen in &route.listen {
            tracing::info!(listen = %listen.0, to = %route.destination, via = ?forward.via, "forwarding");
        }
    }
    for listen in setup.mesh.iter().flat_map(|mesh| &mesh.listen) {
        tracing::info!(listen = %listen.0, "taking sessions from the mesh");
    }
}

/// What a configuration comes to when everything that it needs has been acquired.
struct Assembly {
    setup: Setup,
    /// Each worker's.
    doors: Vec<Vec<NewDoor>>,
    holdings: Holdings,
}

/// Acquires what `config` needs besides what is held `before`. Dropped, it is all given back.
fn assemble(
    config: &Config,
    workers: usize,
    mesh_leg: &LegOptions,
    before: &Holdings,
    inherited: &mut Vec<Passed>,
) -> Result<Assembly, StartError> {
    let keys = match &config.mesh {
        Some(mesh) => Some(Keys::load(&mesh.key_file)?),
        None => None,
    };
    let mut next = before.successor();
    let (targets, peers) = resolve_all(config, before)?;
    let legs = legs_of(config)?;
    let peers = peers_of(peers, mesh_leg, before, &mut next);
    let mut doors: Vec<Vec<NewDoor>> = (0..workers).map(|_| Vec::new()).collect();
    let mut routes = Vec::new();
    for ((forward, targets), legs) in config.forwards.iter().zip(targets).zip(legs) {
        let (client, onward) = legs;
        let transparent = forward.transparent.is_some();
        let (listen, opened) = bind(
            &forward.listen,
            workers,
            &client,
            before,
            &mut next,
            transparent,
            inherited,
        )?;
        let way = match &forward.transparent {
            None => way(forward, targets, onward, &peers),
            Some(transparent) => original(forward, transparent, &listen, onward, &peers)?,
        };
        let route = Route {
            id: 0,
            name: listen
                .first()
                .map_or_else(String::new, |l| l.0.to_string())
                .into(),
            destination: match &forward.to {
                Some(to) => to.to_string().into(),
                None => "where clients want to go".into(),
            },
            listen,
            early_syn: forward.early_syn,
            sources: forward.sources.clone(),
            way,
            identity: forward.identity.clone(),
        };
        let route = before.route(route, &mut next);
        let purpose = Purpose::Forward(route.clone());
        hang(&mut doors, opened, &purpose, &client);
        routes.push(route);
    }
    let mesh = match (&config.mesh, keys) {
        (Some(mesh), Some(keys)) => {
            let (listen, opened) = bind(
                &mesh.listen,
                workers,
                mesh_leg,
                before,
                &mut next,
                false,
                inherited,
            )?;
            hang(&mut doors, opened, &Purpose::Mesh, mesh_leg);
            Some(Arc::new(Mesh {
                keys: ArcSwap::from_pointee(keys),
                hop_limit: mesh.hop_limit,
                pool: mesh.pool,
                arrivals: mesh.arrivals,
                sources: mesh.sources.clone(),
                access: access(mesh, &listen, &peers)?,
                onward: Arc::new(plain_leg(config)),
                borrow: mesh.borrow,
                listen,
                peers,
            }))
        }
        _ => None,
    };
    if let Some(i) = find_loop(&routes, None) {
        // One that takes connections to wherever they want to go has no address to be found.
        if let Some(destination) = config.forwards[i].to.clone() {
            return Err(StartError::Loop { destination });
        }
    }
    let setup = Setup {
        timeouts: Arc::new(config.timeouts),
        routes,
        mesh,
    };
    Ok(Assembly {
        setup,
        doors,
        holdings: next,
    })
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic has been reported by `ended` and by the panic hook.
            let _ = thread.join();
        }
        self.routes = None;
        self.intercept = None;
        // Nothing is recorded any more.
        let log = self.shared.log().take();
        if log.is_some_and(|log| !log.finish(LOG_PATIENCE)) {
            tracing::warn!("the session log's last records could not be written in time");
        }
    }
}

// === impl SharedHandle ===

impl SharedHandle {
    fn order(&self, order: Order) {
        self.shared.order(order);
        self.inboxes.iter().for_each(|inbox| inbox.waker().wake());
    }

    /// The names that are looked up here: those of forwards, then those of peers.
    pub(crate) fn names(&self) -> Vec<Arc<Targets>> {
        let setup = self.shared.setup();
        let forwards = setup.routes.iter().filter_map(|r| match &r.way {
            Way::Direct { targets, .. } => Some(targets),
            Way::Mesh { .. } | Way::Original(_) => None,
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
    fn forget_early(&self) {
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
    fn reopen_log(&self) {
        if let Some(log) = &*self.log() {
            log.reopen();
        }
    }

    fn log(&self) -> MutexGuard<'_, Option<SessionLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn early(&self) -> MutexGuard<'_, Option<Reader>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts others in place of the mesh's keys. Connections that were made with one that is no
    /// longer among them are closed unless a session uses them.
    pub(crate) fn replace_keys(&self, keys: Keys) {
        if let Some(mesh) = &self.shared.setup().mesh {
            mesh.keys.store(Arc::new(keys));
            for inbox in &self.inboxes {
                let _ = inbox.post(Letter::NewKeys);
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
    let mesh_listeners = config.mesh.iter().flat_map(|m| &m.listen);
    let listeners: usize = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .chain(mesh_listeners)
        .map(|l| l.addrs.len())
        .sum();
    // A worker: its poller, its waker and its listeners.
    // What is offered to a next process is held twice.
    let copies = if config.handover.is_some() { 2 } else { 1 };
    let fixed = OTHER_DESCRIPTORS
        + workers as u64 * (2 + copies * listeners as u64)
        + 2 * u64::from(config.data.max_pipes)
        + config.mesh.as_ref().map_or(0, |mesh| {
            mesh_descriptors(mesh, dialled_relays(config).len() as u64)
        })
        + introduced_descriptors(config);
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

/// What the mesh's connections without a session take at most.
fn mesh_descriptors(mesh: &MeshConfig, relays: u64) -> u64 {
    let arrivals = match mesh.listen.is_empty() {
        true => 0,
        false => u64::from(mesh.arrivals.max_unproven) + u64::from(mesh.arrivals.max_ready),
    };
    arrivals + relays * u64::from(mesh.pool.max)
}

/// What connections without a whole PROXY protocol header take at most.
fn introduced_descriptors(config: &Config) -> u64 {
    let introduced = |f: &Forward| f.identity.accept_proxy.is_some();
    match config.forwards.iter().any(introduced) {
        true => u64::from(MAX_WAITING),
        false => 0,
    }
}

/// The relays that this node dials: the first of every route, and those that others may name.
fn dialled_relays(config: &Config) -> Vec<Destination> {
    let mut relays: Vec<Destination> = Vec::new();
    let first = config.forwards.iter().filter_map(|f| f.via.first());
    let named = config.mesh.iter().flat_map(|mesh| &mesh.peers);
    for relay in first.chain(named) {
        if !relays.contains(relay) {
            relays.push(relay.clone());
        }
    }
    relays
}

/// The addresses of each forward's destination, if it is dialled from here, and of each relay.
type Resolved = (Vec<Option<Arc<Targets>>>, Vec<Arc<Targets>>);

/// A look-up, or what an earlier one found.
enum LookUp<'s> {
    Known(Arc<Targets>),
    Started(std::thread::ScopedJoinHandle<'s, Result<Arc<Targets>, ResolveError>>),
}

/// Looks up every destination and every relay that is not known yet, all at the same time: a resolver that does not
/// answer costs its time-out once. A destination behind other relays is looked up by the last.
fn resolve_all(config: &Config, before: &Holdings) -> Result<Resolved, ResolveError> {
    let destination = |f: &Forward| f.to.clone().filter(|_| f.via.is_empty());
    let relays = dialled_relays(config);
    std::thread::scope(|scope| {
        let look_up = |to: Destination, known: Option<Arc<Targets>>| match known {
            Some(known) => LookUp::Known(known),
            None => LookUp::Started(scope.spawn(move || Targets::resolve(to).map(Arc::new))),
        };
        let direct = |to: Destination| {
            let known = before.target(&to);
            look_up(to, known)
        };
        let relay = |to: Destination| {
            let known = before.peer(&to).map(|peer| peer.targets.clone());
            look_up(to, known)
        };
        let forwards: Vec<_> = config
            .forwards
            .iter()
            .map(|f| destination(f).map(direct))
            .collect();
        let relays: Vec<_> = relays.into_iter().map(relay).collect();
        let join = |one: LookUp<'_>| match one {
            LookUp::Known(targets) => Ok(targets),
            LookUp::Started(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        };
        let forwards = forwards.into_iter().map(|f| f.map(join).transpose());
        let forwards = forwards.collect::<Result<_, _>>()?;
        let relays = relays.into_iter().map(join).collect::<Result<_, _>>()?;
        Ok((forwards, relays))
    })
}

/// What a leg asks of its socket that is no part of the mesh and has nothing of its own.
fn plain_leg(config: &Config) -> LegOptions {
    LegOptions::new(config.keepalive)
}

/// What each forward's legs ask of their sockets, having found out that they can have it.
fn legs_of(config: &Config) -> Result<Vec<(LegOptions, LegOptions)>, StartError> {
    let leg = |congestion: &Option<String>| -> Result<LegOptions, StartError> {
        let options = LegOptions {
            congestion: congestion.clone(),
            ..plain_leg(config)
        };
        options.probe().map_err(|e| StartError::Congestion {
            name: congestion.clone().unwrap_or_default(),
            source: e.into(),
        })?;
        Ok(options)
    };
    let legs = |f: &Forward| Ok((leg(&f.client_congestion)?, leg(&f.onward_congestion)?));
    config.forwards.iter().map(legs).collect()
}

fn peers_of(
    targets: Vec<Arc<Targets>>,
    options: &LegOptions,
    before: &Holdings,
    next: &mut Holdings,
) -> Vec<Arc<Peer>> {
    let peer = |targets: Arc<Targets>| {
        let id = next.peer_id(targets.destination());
        holdings::peer(before, id, targets, options.clone())
    };
    targets.into_iter().map(peer).collect()
}

/// Starts the threads that look names up, if there are none and somebody may need them: only
/// sessions from the mesh bring names that nobody has looked up before.
fn start_resolver(shared: &Shared, setup: &Setup) -> Result<(), StartError> {
    let takes_sessions = setup.mesh.as_ref().is_some_and(|m| !m.listen.is_empty());
    if takes_sessions && shared.resolver.get().is_none() {
        let resolver = Resolver::start().map_err(StartError::Resolver)?;
        // Nobody else sets it: reloads come one after the other.
        let _ = shared.resolver.set(resolver);
    }
    Ok(())
}

/// Watches for SYNs to the listeners of the forwards that have early SYN.
fn early_reader(
    config: &Config,
    setup: &Setup,
    table: Arc<Table>,
    inboxes: Vec<Arc<Inbox>>,
) -> Result<Reader, ReaderError> {
    let watch: Vec<_> = setup
        .routes
        .iter()
        .filter(|route| route.early_syn)
        .flat_map(|route| route.listen.iter().map(|listen| (listen.0, route.id)))
        .collect();
    let limits = config.early_syn.limits;
    let devices = config.early_syn.devices.clone();
    Reader::start(devices, &watch, limits, table, inboxes)
}

/// How a forward's connections go on. `targets`: of its destination, if it is dialled from here.
fn way(
    forward: &Forward,
    targets: Option<Arc<Targets>>,
    options: LegOptions,
    peers: &[Arc<Peer>],
) -> Way {
    let first = forward.via.first();
    let peer = peers
        .iter()
        .find(|peer| Some(peer.targets.destination()) == first);
    match (targets, peer, &forward.to) {
        (None, Some(peer), Some(to)) => Way::Mesh {
            peer: peer.clone(),
            route: forward.via[1..].iter().map(target).collect(),
            destination: target(to),
        },
        (Some(targets), ..) => Way::Direct {
            targets,
            options: Arc::new(options),
        },
        (None, ..) => unreachable!("every first relay of a route has been looked up"),
    }
}

/// How a transparent forward's connections go on.
fn original(
    forward: &Forward,
    transparent: &Transparent,
    listen: &[ListenAddr],
    options: LegOptions,
    peers: &[Arc<Peer>],
) -> Result<Way, StartError> {
    let mut access = Destinations::new(transparent.allow.clone(), transparent.deny.clone())?;
    access.set_own(own_addresses()?);
    access.set_mesh(addrs_of(peers).map(|addr| addr.ip().into()));
    let first = forward.via.first();
    let peer = first.and_then(|first| peers.iter().find(|p| p.targets.destination() == first));
    let onward = match peer {
        Some(peer) => Onward::Mesh {
            peer: peer.clone(),
            route: forward.via[1..].iter().map(target).collect(),
        },
        None => Onward::Direct(Arc::new(options)),
    };
    Ok(Way::Original(Box::new(Original {
        taking: transparent.taking(listen.iter().map(|l| l.0).collect()),
        access,
        onward,
    })))
}

/// Routes with an initial window to the mesh's other relays, where nothing else opens it.
fn route_metrics(shared: &Arc<Shared>, metrics: &Metrics) -> Option<RouteMetrics> {
    let relays = shared.relays.clone()?;
    let job = Job {
        segments: metrics.route_segments()?,
        changed: relays.changed(),
        status: metrics.route_metrics(),
        wanted: Box::new({
            let shared = shared.clone();
            move || {
                let setup = shared.setup();
                let dialled = setup.mesh.iter().flat_map(|mesh| addrs_of(&mesh.peers));
                let dialled = dialled.map(|addr| addr.ip());
                dialled.chain(relays.current(Instant::now())).collect()
            }
        }),
    };
    RouteMetrics::start(job)
        .inspect_err(|error| {
            tracing::warn!("{error}; legs between relays begin with 10 segments");
        })
        .ok()
}

/// What has to be brought to this node from the network, if anything has.
fn plan(config: &Config, setup: &Setup) -> Option<Plan> {
    let takings = setup.routes.iter().filter_map(|route| match &route.way {
        Way::Original(original) => Some(original.taking.clone()),
        _ => None,
    });
    let takings: Vec<_> = takings.collect();
    let borrows = config.forwards.iter().any(|f| f.identity.borrow)
        || config.mesh.as_ref().is_some_and(|mesh| mesh.borrow);
    let InterceptConfig { mark, method } = config.intercept;
    (borrows || !takings.is_empty()).then_some(Plan {
        takings,
        borrows,
        mark,
        method,
    })
}

/// A destination as a hello names it.
fn target(destination: &Destination) -> Target {
    match destination.host.parse() {
        Ok(ip) => Target::Addr(SocketAddr::new(ip, destination.port)),
        Err(_) => Target::Name {
            host: destination.host.clone(),
            port: destination.port,
        },
    }
}

/// Where sessions from the mesh may go.
fn access(
    mesh: &MeshConfig,
    listen: &[ListenAddr],
    peers: &[Arc<Peer>],
) -> Result<Destinations, StartError> {
    let own = listen.iter().map(|l| l.0);
    let others = addrs_of(peers);
    let mut access = Destinations::new(mesh.allow.clone(), mesh.deny.clone())?;
    access.set_mesh(own.chain(others).map(|addr| addr.ip().into()));
    access.set_own(own_addresses()?);
    Ok(access)
}

/// The addresses of the relays that are dialled.
fn addrs_of(peers: &[Arc<Peer>]) -> impl Iterator<Item = SocketAddr> {
    peers.iter().flat_map(|peer| {
        let addrs = peer.targets.current();
        addrs.iter().map(|a| a.0).collect::<Vec<_>>()
    })
}

/// The addresses that this machine has at present.
fn own_addresses() -> Result<Vec<IpAddr>, StartError> {
    let own = nix::ifaddrs::getifaddrs().map_err(|e| StartError::Addresses(e.into()))?;
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    Ok(own.filter_map(|i| i.address).filter_map(ip).collect())
}

/// The addresses of a list, and what each worker gets of them.
type Bound = (Vec<ListenAddr>, Vec<Vec<(DoorId, Option<Arc<Listener>>)>>);

/// Binds every address once for each worker, unless it is bound already.
fn bind(
    listen: &[Listen],
    workers: usize,
    options: &LegOptions,
    before: &Holdings,
    next: &mut Holdings,
    transparent: bool,
    inherited: &mut Vec<Passed>,
) -> Result<Bound, StartError> {
    let listen_on = match transparent {
        true => Listener::bind_transparent,
        false => Listener::bind,
    };
    let mut own = Vec::new();
    let mut opened: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    for (addr, optional) in listen
        .iter()
        .flat_map(|l| l.addrs.iter().map(|a| (a.0, l.any && a.0.is_ipv6())))
    {
        let problem = |e| StartError::Listen {
            addr,
            reason: listen_problem(addr, e),
        };
        let nth = next.doors.iter().filter(|door| door.asked == addr).count();
        if let Some(held) = before.held(addr, nth) {
            for worker in &mut opened {
                worker.extend(held.ids.iter().map(|&id| (id, None)));
            }
            own.push(ListenAddr(held.actual));
            next.doors.push(held.clone());
            continue;
        }
        let sockets = adopt(inherited, addr, workers, options).map_err(problem)?;
        if !sockets.is_empty() {
            let mut ids = Vec::new();
            for round in sockets.chunks(workers) {
                let id = next.new_door();
                ids.push(id);
                for (worker, listener) in opened.iter_mut().zip(round) {
                    worker.push((id, Some(listener.clone())));
                }
            }
            own.push(ListenAddr(addr));
            next.doors.push(Held {
                ids,
                asked: addr,
                actual: addr,
                listeners: sockets.iter().map(Arc::downgrade).collect(),
            });
            continue;
        }
        match Listener::probe(addr) {
            Ok(()) => {}
            // It is this node that is in the way, with an address that it may be about to leave.
            Err(Errno::ADDRINUSE) if before.overlaps(addr) && !next.overlaps(addr) => {}
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if optional => {
                tracing::info!(%addr, "this machine has no IPv6; listening on IPv4 only");
                continue;
            }
            Err(e) => return Err(problem(e)),
        }
        // With port 0 the first one gets a port, and the others share it.
        let mut actual = addr;
        let id = next.new_door();
        let mut listeners = Vec::with_capacity(workers);
        for worker in &mut opened {
            let listener = listen_on(actual, BACKLOG, options).map_err(problem)?;
            actual = listener.local_addr().map_err(problem)?;
            let listener = Arc::new(listener);
            listeners.push(Arc::downgrade(&listener));
            worker.push((id, Some(listener)));
        }
        own.push(ListenAddr(actual));
        next.doors.push(Held {
            ids: vec![id],
            asked: addr,
            actual,
            listeners,
        });
    }
    Ok((own, opened))
}

/// Takes the sockets at `addr` out of those that were inherited. Every one is listened on, for there
/// may be somebody in its queue; with fewer than `workers` of them some are shared.
fn adopt(
    inherited: &mut Vec<Passed>,
    addr: SocketAddr,
    workers: usize,
    options: &LegOptions,
) -> Result<Vec<Arc<Listener>>, Errno> {
    let (here, elsewhere) = std::mem::take(inherited)
        .into_iter()
        .partition::<Vec<_>, _>(|passed| passed.addr == addr);
    *inherited = elsewhere;
    let mut sockets = Vec::with_capacity(here.len().max(workers));
    for Passed { fd, .. } in here {
        sockets.push(Arc::new(Listener::from_fd(fd, options)?));
    }
    for i in sockets.len()..workers {
        let Some(socket) = sockets.get(i % sockets.len().max(1)) else {
            break;
        };
        let shared = Listener::from_fd(socket.duplicate()?, options)?;
        sockets.push(Arc::new(shared));
    }
    Ok(sockets)
}

/// Gives each worker its listeners of one purpose.
fn hang(
    doors: &mut [Vec<NewDoor>],
    opened: Vec<Vec<(DoorId, Option<Arc<Listener>>)>>,
    purpose: &Purpose,
    options: &LegOptions,
) {
    let door = |(id, listener)| NewDoor {
        id,
        listener,
        purpose: purpose.clone(),
        options: options.clone(),
    };
    for (worker, opened) in doors.iter_mut().zip(opened) {
        worker.extend(opened.into_iter().map(door));
    }
}

fn listen_problem(addr: SocketAddr, error: Errno) -> ListenProblem {
    match error {
        Errno::ADDRINUSE => ListenProblem::InUse(addr.port()),
        Errno::ADDRNOTAVAIL => ListenProblem::NotHere,
        Errno::ACCESS => ListenProblem::Privileged,
        e => ListenProblem::Other(e.into()),
    }
}

/// The first forward that leads back to itself, when the addresses of `new` are what is said there.
fn find_loop(routes: &[Arc<Route>], new: Option<(&Targets, &Addrs)>) -> Option<usize> {
    let onward: Vec<Addrs> = routes
        .iter()
        .map(|route| {
            let targets: &Targets = match &route.way {
                Way::Direct { targets, .. } => targets,
                Way::Mesh { peer, .. } => &peer.targets,
                // Where it goes is judged for each connection.
                Way::Original(_) => return Addrs::from([]),
            };
            match new {
                Some((which, addrs)) if std::ptr::eq(which, targets) => addrs.clone(),
                _ => targets.current(),
            }
        })
        .collect();
    let edges: Vec<_> = routes
        .iter()
        .zip(&onward)
        .map(|(route, onward)| Edge {
            listen: &route.listen,
            onward,
        })
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
