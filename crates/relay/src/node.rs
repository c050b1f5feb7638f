//! A node: everything it needs is acquired before anything is started, so that a start either
//! succeeds or leaves nothing behind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

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
use crate::inbox::{Inbox, Letter};
use crate::intercept::{InterceptError, Interception, Plan};
use crate::loops::{self, Edge};
use crate::metrics::Metrics;
use crate::resolver::Resolver;
use crate::setup::{Mesh, Onward, Original, Peer, Route, Way};
use crate::targets::{Addrs, ResolveError, Targets, look_up};
use crate::worker::{BACKLOG, Door, MAX_WAITING, Order, Purpose, Shared, Worker};

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
    /// There is no key for the mesh.
    #[error("relay.mesh.key_file: {0}")]
    Key(#[from] KeyError),
    /// More rules than are looked through for every session.
    #[error("relay.mesh or relay.forward, allow or deny: {0}")]
    Rules(#[from] TooManyRules),
    /// Connections cannot be intercepted.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// This machine's own addresses are not known.
    #[error("cannot list this machine's addresses: {0}")]
    OwnAddresses(std::io::Error),
    /// SYNs cannot be watched.
    #[error("{0}; leave `early_syn` out to go on without it")]
    EarlySyn(#[from] ReaderError),
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
    early: Option<Reader>,
    /// Until the last session has ended, for its packets have to be brought here.
    intercept: Option<Interception>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

/// What ends and refreshes a node from any thread.
pub(crate) struct SharedHandle {
    shared: Arc<Shared>,
    inboxes: Vec<Arc<Inbox>>,
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

        let keys = match &config.mesh {
            Some(mesh) => Some(Keys::load(&mesh.key_file)?),
            None => None,
        };
        let (targets, peers) = resolve_all(config)?;
        let legs = legs_of(config)?;
        let peers = peers_of(config, peers)?;
        let mut doors: Vec<Vec<Door>> = (0..workers).map(|_| Vec::new()).collect();
        let mut routes = Vec::new();
        for ((forward, targets), legs) in config.forwards.iter().zip(targets).zip(legs) {
            let (client, onward) = legs;
            let transparent = forward.transparent.is_some();
            let (listen, listeners) = bind(&forward.listen, workers, &client, transparent)?;
            let way = match &forward.transparent {
                None => way(forward, targets, onward, &peers),
                Some(transparent) => original(forward, transparent, &listen, onward, &peers)?,
            };
            let route = Arc::new(Route {
                listen,
                early_syn: forward.early_syn,
                way,
                identity: forward.identity.clone(),
            });
            hang(&mut doors, listeners, &Purpose::Forward(route.clone()));
            routes.push(route);
        }
        let mesh = match (&config.mesh, keys) {
            (Some(mesh), Some(keys)) => {
                let leg = mesh_leg(config)?;
                let (listen, listeners) = bind(&mesh.listen, workers, &leg, false)?;
                hang(&mut doors, listeners, &Purpose::Mesh);
                Some(Arc::new(Mesh {
                    keys: ArcSwap::from_pointee(keys),
                    hop_limit: mesh.hop_limit,
                    pool: mesh.pool,
                    arrivals: mesh.arrivals,
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
        // Only sessions from the mesh bring names that nobody has looked up before.
        let takes_sessions = mesh.as_ref().is_some_and(|m| !m.listen.is_empty());
        let resolver = match takes_sessions {
            true => Some(Resolver::start().map_err(StartError::Resolver)?),
            false => None,
        };

        let early = routes.iter().any(|route: &Arc<Route>| route.early_syn);
        let early = early.then(|| Arc::new(Table::new(config.early_syn.limits)));

        let metrics = Metrics::new(workers, early.clone());
        let shared = Shared::new(
            u32::try_from(workers).unwrap_or(u32::MAX),
            max_sessions,
            config.timeouts,
            routes,
            mesh,
            resolver,
            early.clone(),
        );
        let shared = Arc::new(shared);
        let mut ready = Vec::with_capacity(workers);
        for i in 0..workers {
            let doors = doors.pop().unwrap_or_default();
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
            Some(table) => Some(early_reader(config, &shared, table, inboxes.clone())?),
            None => None,
        };
        let intercept = match plan(config, &shared) {
            Some(plan) => Some(Interception::start(plan, metrics.intercept())?),
            None => None,
        };
        let shared = Arc::new(SharedHandle { shared, inboxes });
        let (report, ended) = mpsc::unbounded_channel();
        let mut node = Self {
            shared,
            metrics,
            threads: Vec::new(),
            early,
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
        let shared = &node.shared.shared;
        for (forward, route) in config.forwards.iter().zip(&shared.routes) {
            for listen in &route.listen {
                let to = forward.to.as_ref().map(ToString::to_string);
                let to = to.as_deref().unwrap_or("where clients want to go");
                tracing::info!(listen = %listen.0, to, via = ?forward.via, "forwarding");
            }
        }
        for listen in shared.mesh.iter().flat_map(|mesh| &mesh.listen) {
            tracing::info!(listen = %listen.0, "taking sessions from the mesh");
        }
        Ok(node)
    }

    /// The addresses listened on, with the ports the kernel chose where it was asked to, in the
    /// order of the configuration.
    pub fn listen_addrs(&self) -> Vec<ListenAddr> {
        let routes = self.shared.shared.routes.iter();
        routes.flat_map(|route| &route.listen).copied().collect()
    }

    /// The addresses at which other relays are listened to.
    pub fn mesh_addrs(&self) -> Vec<ListenAddr> {
        let mesh = self.shared.shared.mesh.iter();
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

    /// Takes no more connections; [`Node::ended`] returns when the last session has ended.
    pub fn drain(&mut self) {
        // What is foreseen now could not be served.
        self.early = None;
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
        self.intercept = None;
    }
}

// === impl SharedHandle ===

impl SharedHandle {
    fn order(&self, order: Order) {
        self.shared.order(order);
        self.inboxes.iter().for_each(|inbox| inbox.waker().wake());
    }

    /// The addresses that are looked up here: those of forwards, then those of peers.
    fn targets(&self) -> Vec<&Targets> {
        let forwards = self.shared.routes.iter().filter_map(|r| match &r.way {
            Way::Direct { targets, .. } => Some(targets),
            Way::Mesh { .. } | Way::Original(_) => None,
        });
        let peers = self.shared.mesh.iter().flat_map(|mesh| &mesh.peers);
        forwards.chain(peers.map(|peer| &peer.targets)).collect()
    }

    /// Which of these are names, by their places.
    pub(crate) fn names(&self) -> Vec<usize> {
        let targets = self.targets().into_iter().enumerate();
        targets
            .filter(|(_, t)| t.is_a_name())
            .map(|(i, _)| i)
            .collect()
    }

    /// Puts others in place of the mesh's keys. Connections that were made with one that is no
    /// longer among them are closed unless a session uses them.
    pub(crate) fn replace_keys(&self, keys: Keys) {
        if let Some(mesh) = &self.shared.mesh {
            mesh.keys.store(Arc::new(keys));
            for inbox in &self.inboxes {
                inbox.post(Letter::NewKeys);
            }
        }
    }

    /// Looks one of them up again. What it had stays when that gives nothing, or a way back to
    /// this node. Blocks for as long as the resolver does.
    pub(crate) fn refresh(&self, place: usize) {
        let Some(&targets) = self.targets().get(place) else {
            return;
        };
        let addrs = match look_up(targets.destination()) {
            Ok(addrs) => addrs,
            Err(error) => {
                tracing::warn!(%error, "keeping the addresses it had");
                return;
            }
        };
        if find_loop(&self.shared.routes, Some((targets, &addrs))).is_some() {
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
    let mesh_listeners = config.mesh.iter().flat_map(|m| &m.listen);
    let listeners: usize = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .chain(mesh_listeners)
        .map(|l| l.addrs.len())
        .sum();
    // A worker: its poller, its waker and its listeners.
    let fixed = OTHER_DESCRIPTORS
        + workers as u64 * (2 + listeners as u64)
        + 2 * u64::from(config.data.max_pipes)
        + config.mesh.as_ref().map_or(0, mesh_descriptors)
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
fn mesh_descriptors(mesh: &MeshConfig) -> u64 {
    let arrivals = match mesh.listen.is_empty() {
        true => 0,
        false => u64::from(mesh.arrivals.max_unproven) + u64::from(mesh.arrivals.max_ready),
    };
    arrivals + u64::from(mesh.pool.max)
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

/// Looks up every destination and every relay, all at the same time: a resolver that does not
/// answer costs its time-out once. A destination behind other relays is looked up by the last.
fn resolve_all(config: &Config) -> Result<(Vec<Option<Targets>>, Vec<Targets>), ResolveError> {
    let destination = |f: &Forward| f.to.clone().filter(|_| f.via.is_empty());
    let relays = dialled_relays(config);
    std::thread::scope(|scope| {
        let start = |to: Destination| scope.spawn(move || Targets::resolve(to));
        let forwards: Vec<_> = config
            .forwards
            .iter()
            .map(|f| destination(f).map(start))
            .collect();
        let relays: Vec<_> = relays.into_iter().map(start).collect();
        let join = |one: std::thread::ScopedJoinHandle<'_, _>| {
            one.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let forwards = forwards.into_iter().map(|f| f.map(join).transpose());
        let forwards = forwards.collect::<Result<_, _>>()?;
        let relays = relays.into_iter().map(join).collect::<Result<_, _>>()?;
        Ok((forwards, relays))
    })
}

/// What a leg asks of its socket that is no part of the mesh and has nothing of its own.
fn plain_leg(config: &Config) -> LegOptions {
    LegOptions {
        keepalive: config.keepalive,
        congestion: None,
    }
}

/// What legs between relays ask of their sockets, having found out that they can have it.
fn mesh_leg(config: &Config) -> Result<LegOptions, StartError> {
    Ok(plain_leg(config))
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

fn peers_of(config: &Config, targets: Vec<Targets>) -> Result<Vec<Arc<Peer>>, StartError> {
    let options = mesh_leg(config)?;
    let peer = |(id, targets)| {
        Arc::new(Peer {
            id,
            targets,
            options: options.clone(),
        })
    };
    Ok(targets.into_iter().enumerate().map(peer).collect())
}

/// Watches for SYNs to the listeners of the forwards that have early SYN.
fn early_reader(
    config: &Config,
    shared: &Shared,
    table: Arc<Table>,
    inboxes: Vec<Arc<Inbox>>,
) -> Result<Reader, ReaderError> {
    let watch: Vec<_> = (0..)
        .zip(&shared.routes)
        .filter(|(_, route)| route.early_syn)
        .flat_map(|(i, route)| route.listen.iter().map(move |listen| (listen.0, i)))
        .collect();
    let limits = config.early_syn.limits;
    let devices = config.early_syn.devices.clone();
    Reader::start(devices, &watch, limits, table, inboxes)
}

/// How a forward's connections go on. `targets`: of its destination, if it is dialled from here.
fn way(
    forward: &Forward,
    targets: Option<Targets>,
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
    let own = nix::ifaddrs::getifaddrs().map_err(|e| StartError::OwnAddresses(e.into()))?;
    access.set_own(own.filter_map(|a| ip_of(a.address.as_ref()?)));
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

fn ip_of(addr: &nix::sys::socket::SockaddrStorage) -> Option<std::net::IpAddr> {
    let v4 = addr.as_sockaddr_in().map(|a| a.ip().into());
    v4.or_else(|| addr.as_sockaddr_in6().map(|a| a.ip().into()))
}

/// What has to be brought to this node from the network, if anything has.
fn plan(config: &Config, shared: &Shared) -> Option<Plan> {
    let takings = shared.routes.iter().filter_map(|route| match &route.way {
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
) -> Result<Destinations, TooManyRules> {
    let own = listen.iter().map(|l| l.0);
    let others = addrs_of(peers);
    let mut access = Destinations::new(mesh.allow.clone(), mesh.deny.clone())?;
    access.set_mesh(own.chain(others).map(|addr| addr.ip().into()));
    Ok(access)
}

/// The addresses of the relays that are dialled.
fn addrs_of(peers: &[Arc<Peer>]) -> impl Iterator<Item = SocketAddr> {
    peers.iter().flat_map(|peer| {
        let addrs = peer.targets.current();
        addrs.iter().map(|a| a.0).collect::<Vec<_>>()
    })
}

/// The addresses of a list, and the listeners of each worker.
type Bound = (Vec<ListenAddr>, Vec<Vec<Listener>>);

/// Binds every address once for each worker.
fn bind(
    listen: &[Listen],
    workers: usize,
    options: &LegOptions,
    transparent: bool,
) -> Result<Bound, StartError> {
    let listen_on = match transparent {
        true => Listener::bind_transparent,
        false => Listener::bind,
    };
    let mut own = Vec::new();
    let mut listeners: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
    for (addr, optional) in listen
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
        for worker in &mut listeners {
            let listener = listen_on(actual, BACKLOG, options).map_err(problem)?;
            actual = listener.local_addr().map_err(problem)?;
            worker.push(listener);
        }
        own.push(ListenAddr(actual));
    }
    Ok((own, listeners))
}

/// Gives each worker its listeners of one purpose.
fn hang(doors: &mut [Vec<Door>], listeners: Vec<Vec<Listener>>, purpose: &Purpose) {
    for (worker, listeners) in doors.iter_mut().zip(listeners) {
        worker.extend(listeners.into_iter().map(|l| Door::new(l, purpose.clone())));
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
            let targets = match &route.way {
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
