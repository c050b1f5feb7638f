//! A worker: one thread with its own listeners, poller, sessions and pipes. It shares nothing on
//! the path of the bytes; the kernel spreads connections over the workers (SO_REUSEPORT).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use slab::Slab;
use taut_mesh::hello::{Hello, SessionId};
use taut_sys::epoll::{Interest, Poller, Report};
use taut_sys::pipe::Pipe;
use taut_sys::socket::{LegOptions, Listener, Stream};
use taut_sys::{Errno, random};

use crate::access::{self, Verdict, may_be_borrowed};
use crate::addr::{ClientAddr, OnwardAddr};
use crate::alarms::Alarms;
use crate::arrivals::Arrivals;
use crate::config::{DataPath, Timeouts};
use crate::direction::Workshop;
use crate::early::Table;
use crate::early_syn::FourTuple;
use crate::end::{End, Side};
use crate::identity::Introduction;
use crate::inbox::{Inbox, Letter};
use crate::metrics::WorkerMetrics;
use crate::pipes::PipePool;
use crate::pool::Pools;
use crate::refused::Refused;
use crate::resolver::Resolver;
use crate::route_metrics::{Relays, Visit};
use crate::session::{Session, Step};
use crate::session_log::Recorder;
use crate::setup::{Peer, Route, Setup, Way};
use crate::sources::{Permit, Sources};
use crate::targets::Addrs;
use crate::token::{Generation, Place, Token};
use crate::worker::early::Early;
use crate::worker::preface::Prefaces;
use crate::worker::story::{Origin, Story, Timeline};

mod doors;
mod early;
mod mesh;
mod original;
mod preface;
mod story;

pub(crate) use mesh::Refusal;
pub(crate) use preface::{MAX_WAITING, Unproxied};

/// Connections the kernel keeps for each listener until they are accepted; it takes the lesser
/// of this and `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;
/// Connections accepted from one listener before sessions get their turn again.
const ACCEPTS: usize = 64;
/// Bytes copied at a time, and the most a direction holds in memory.
const SCRATCH: usize = 64 << 10;
/// How long a listener rests when the machine has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a node tells its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Take connections.
    Run = 0,
    /// Take no more, and end when the last session has.
    Drain = 1,
    /// Reset what is open and end.
    Stop = 2,
}

/// What all workers of a node share.
pub(crate) struct Shared {
    order: AtomicU8,
    open: AtomicU32,
    pub(crate) max_sessions: AtomicU32,
    /// Sessions of each source.
    pub(crate) sources: Arc<Sources>,
    /// One for each worker.
    pub(crate) workers: u32,
    /// What workers take over when they are told.
    setup: ArcSwap<Setup>,
    /// There is one from the first time that sessions from the mesh are taken.
    pub(crate) resolver: OnceLock<Resolver>,
    /// Where sessions are recorded when they have ended.
    log: Option<Recorder>,
    /// Who has an onward leg for whom, when early SYN is on.
    pub(crate) early: Option<Arc<Table>>,
    /// Which relays connect here, where that matters for routes.
    pub(crate) relays: Option<Arc<Relays>>,
    /// The workers', in their order.
    inboxes: OnceLock<Vec<Arc<Inbox>>>,
}

/// One thread's share of a node.
pub(crate) struct Worker {
    /// Its place among the workers.
    index: usize,
    poller: Poller,
    inbox: Arc<Inbox>,
    doors: BTreeMap<DoorId, Door>,
    sessions: Slab<Entry>,
    generation: Generation,
    alarms: Alarms,
    ready: VecDeque<Place>,
    arrivals: Arrivals,
    pools: Pools,
    /// Onward legs whose client has not been accepted yet; bounded by the limiter.
    early: HashMap<FourTuple, Early>,
    /// Connections that are to begin with a PROXY protocol header.
    prefaces: Prefaces,
    shop: Shop,
    /// What new sessions are begun by.
    setup: Arc<Setup>,
    shared: Arc<Shared>,
}

/// The number of an address that is listened on, the same at every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DoorId(pub(crate) u32);

/// A worker's share of an address that is to be listened on.
#[derive(Debug)]
pub(crate) struct NewDoor {
    pub(crate) id: DoorId,
    /// `None`: it has one.
    pub(crate) listener: Option<Arc<Listener>>,
    pub(crate) purpose: Purpose,
    /// What is asked of the sockets of accepted connections.
    pub(crate) options: LegOptions,
}

/// A listener and what its connections are for.
struct Door {
    listener: Arc<Listener>,
    purpose: Purpose,
    resting_until: Option<Instant>,
}

/// What the connections of a listener are for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Each is a session of this forward.
    Forward(Arc<Route>),
    /// They come from other relays, which will ask for sessions.
    Mesh,
}

struct Entry {
    session: Session<Stream>,
    generation: Generation,
    client: ClientAddr,
    errand: Errand,
    timeouts: Arc<Timeouts>,
    timeline: Timeline,
    /// For the session log, if there is one.
    story: Option<Box<Story>>,
    deadline: Option<Instant>,
    queued: bool,
    /// Its source's, given back with it.
    permit: Permit,
    /// The relay that it comes from is here while it lasts.
    _visit: Option<Visit>,
}

/// What a session's onward leg is still to be got by.
enum Errand {
    /// By connecting to the addresses of the destination, one after the other.
    Dial {
        addrs: Addrs,
        next: usize,
        options: Arc<LegOptions>,
        /// From the client's address.
        borrow: bool,
    },
    /// The addresses of the destination are being looked up.
    LookUp { name: String },
    /// By asking another relay, with this hello.
    Ask {
        peer: Arc<Peer>,
        hello: Box<Hello>,
        tries_left: u8,
    },
}

/// How a session's legs are closed.
#[derive(Clone, Copy)]
enum Close {
    Gracefully,
    Reset,
}

struct Shop {
    pipes: PipePool,
    scratch: Box<[u8]>,
    splice_after: Option<u64>,
    metrics: Arc<WorkerMetrics>,
    now: Instant,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(
        workers: u32,
        max_sessions: u32,
        sources: Arc<Sources>,
        setup: Setup,
        log: Option<Recorder>,
        early: Option<Arc<Table>>,
        relays: Option<Arc<Relays>>,
    ) -> Self {
        let order = AtomicU8::new(Order::Run as u8);
        Self {
            order,
            open: AtomicU32::new(0),
            max_sessions: AtomicU32::new(max_sessions),
            sources,
            workers,
            setup: ArcSwap::from_pointee(setup),
            resolver: OnceLock::new(),
            log,
            early,
            relays,
            inboxes: OnceLock::new(),
        }
    }

    /// Makes the workers known to each other.
    pub(crate) fn introduce(&self, inboxes: Vec<Arc<Inbox>>) {
        // They are introduced once.
        let _ = self.inboxes.set(inboxes);
    }

    /// The configuration at work.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }

    pub(crate) fn replace(&self, setup: Arc<Setup>) {
        self.setup.store(setup);
        self.relays_may_differ();
    }

    /// The relays that are dialled may have other addresses.
    pub(crate) fn relays_may_differ(&self) {
        if let Some(relays) = &self.relays {
            relays.changed().notify_one();
        }
    }

    fn inboxes(&self) -> &[Arc<Inbox>] {
        self.inboxes.get().map_or(&[], Vec::as_slice)
    }

    /// One worker's part of a figure that is the whole node's; at least 1 of at least 1.
    fn share(&self, of_node: u32) -> u32 {
        of_node.div_ceil(self.workers)
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::Release);
    }

    pub(crate) fn ordered(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Run,
            1 => Order::Drain,
            _ => Order::Stop,
        }
    }

    fn admit(&self) -> bool {
        let max = self.max_sessions.load(Ordering::Relaxed);
        let admitted = self.open.fetch_add(1, Ordering::Relaxed) < max;
        if !admitted {
            self.release();
        }
        admitted
    }

    fn release(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Door ===

impl Door {
    fn new(listener: Arc<Listener>, purpose: Purpose) -> Self {
        Self {
            listener,
            purpose,
            resting_until: None,
        }
    }
}

// === impl Worker ===

impl Worker {
    /// # Errors
    /// The kernel's, when there is no descriptor or memory for it.
    pub(crate) fn new(
        index: usize,
        doors: Vec<NewDoor>,
        data: &DataPath,
        max_pipes: usize,
        metrics: Arc<WorkerMetrics>,
        shared: Arc<Shared>,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        let inbox = Arc::new(Inbox::new()?);
        poller.add(inbox.waker(), Token::Waker.encode(), Interest::Read)?;
        let mut own = BTreeMap::new();
        for door in doors {
            let Some(listener) = door.listener else {
                continue;
            };
            poller.add(&*listener, listener_token(door.id), Interest::Read)?;
            own.insert(door.id, Door::new(listener, door.purpose));
        }
        let now = Instant::now();
        let setup = shared.setup();
        let pools = match &setup.mesh {
            Some(mesh) => Pools::new(&mesh.peers, mesh::share_of_pool(mesh.pool, &shared), now),
            None => Pools::default(),
        };
        Ok(Self {
            index,
            poller,
            inbox,
            doors: own,
            sessions: Slab::new(),
            generation: Generation::default(),
            alarms: Alarms::default(),
            ready: VecDeque::new(),
            arrivals: Arrivals::default(),
            pools,
            early: HashMap::new(),
            prefaces: Prefaces::default(),
            shop: Shop {
                pipes: PipePool::new(max_pipes, data.pipe_size),
                scratch: vec![0; SCRATCH].into(),
                splice_after: data.splice_after,
                metrics,
                now,
            },
            setup,
            shared,
        })
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.inbox.clone()
    }

    /// Works until it is ordered to end.
    ///
    /// # Errors
    /// epoll's, which leave no way to go on.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut reports = Vec::new();
        loop {
            self.poller.wait(self.patience(), &mut reports)?;
            self.shop.now = Instant::now();
            for &report in &reports {
                self.handle(report);
            }
            self.tend_mesh();
            self.tend_prefaces();
            for _ in 0..self.ready.len() {
                if let Some(place) = self.ready.pop_front() {
                    if let Some(entry) = self.sessions.get_mut(place.0 as usize) {
                        entry.queued = false;
                    }
                    self.drive(place);
                }
            }
            let due: Vec<_> = self.alarms.due(self.shop.now).collect();
            for place in due {
                // One that waits for its turn gets it there.
                if self
                    .sessions
                    .get(place.0 as usize)
                    .is_some_and(|e| !e.queued)
                {
                    self.drive(place);
                }
            }
            self.wake_doors();
            match self.shared.ordered() {
                Order::Run => {}
                Order::Drain => {
                    self.close_doors();
                    // Hellos that are on their way are waited for; what else stands at the mesh
                    // port has its deadlines.
                    if self.sessions.is_empty()
                        && self.arrivals.is_empty()
                        && self.prefaces.is_empty()
                        && self.inbox.close_if_empty()
                    {
                        return Ok(());
                    }
                }
                Order::Stop => {
                    self.close_doors();
                    let all: Vec<_> = self.sessions.iter().map(|(key, _)| place(key)).collect();
                    for place in all {
                        self.stop(place);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// How long to wait for the kernel.
    fn patience(&self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let resting = self.doors.values().filter_map(|d| d.resting_until).min();
        let mesh = [
            self.pools.next(),
            self.arrivals.next(),
            self.prefaces.next(),
        ];
        let next = [self.alarms.next(), resting]
            .into_iter()
            .chain(mesh)
            .flatten()
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle(&mut self, (token, readiness): Report) {
        match Token::decode(token) {
            Token::Waker => {
                self.inbox.waker().clear();
                for letter in self.inbox.take() {
                    self.read(letter);
                }
            }
            Token::Listener(door) => {
                self.accept(DoorId(door));
            }
            Token::Leg(place, generation, side) => {
                let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
                    return;
                };
                if entry.generation != generation {
                    return;
                }
                entry.session.handle(side, readiness);
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(place);
                }
            }
            Token::Arrival(place, generation) => self.hear(place, generation, readiness),
            Token::Spare(place, generation) => self.prepare(place, generation, readiness),
            Token::Preface(place, generation) => self.read_header(place, generation, readiness),
        }
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Resolved {
                place,
                generation,
                addrs,
            } => self.resolved(place, generation, addrs),
            Letter::NewKeys => self.drop_old_keys(),
            Letter::Reloaded { setup, doors } => self.reload(setup, doors),
            Letter::Syn {
                connection,
                forward,
            } => self.foresee(connection, forward),
            Letter::NoClient { connection } => self.forget(connection),
            Letter::Client {
                client,
                addr,
                route,
                connection,
            } => self.unite(client, addr, &route, connection),
        }
    }

    /// Takes some of the connections that wait; `true` when there may be more.
    fn accept(&mut self, door: DoorId) -> bool {
        for _ in 0..ACCEPTS {
            let Some(Door {
                listener, purpose, ..
            }) = self.doors.get(&door)
            else {
                return false;
            };
            match listener.accept() {
                Ok((stream, peer)) => match purpose.clone() {
                    Purpose::Forward(route) if route.identity.accept_proxy.is_some() => {
                        self.await_header(stream, peer, &route);
                    }
                    Purpose::Forward(route) => {
                        if let Some(stream) = self.let_in(stream, peer, &route.sources) {
                            self.welcome(stream, ClientAddr(peer), &route);
                        }
                    }
                    Purpose::Mesh => self.take_in(stream, peer),
                },
                Err(Errno::AGAIN) => return false,
                // It went away while it waited.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    self.shop.metrics.accept_failed.add(1);
                    tracing::warn!(%error, "cannot accept a connection; trying again shortly");
                    self.rest(door);
                    return false;
                }
            }
        }
        true
    }

    /// A listener stays readable while the connection it cannot hand out waits, so it has to be
    /// left unwatched for a while.
    fn rest(&mut self, door: DoorId) {
        if let Some(door) = self.doors.get_mut(&door) {
            door.resting_until = Some(self.shop.now + ACCEPT_PAUSE);
            let _ = self.poller.remove(&*door.listener);
        }
    }

    fn wake_doors(&mut self) {
        let now = self.shop.now;
        for (&id, door) in &mut self.doors {
            if door.resting_until.is_some_and(|until| now >= until) {
                let watched = self
                    .poller
                    .add(&*door.listener, listener_token(id), Interest::Read);
                door.resting_until = watched.is_err().then(|| now + ACCEPT_PAUSE);
            }
        }
    }

    /// Takes what is already waiting, so that nobody who was let in by the kernel is thrown out,
    /// and then no more.
    fn close_doors(&mut self) {
        let all: Vec<_> = self.doors.keys().copied().collect();
        for id in all {
            self.close_door(id);
        }
        self.retire_mesh();
    }

    /// Resets a connection whose source may not come.
    fn let_in(
        &self,
        stream: Stream,
        from: SocketAddr,
        sources: &access::Sources,
    ) -> Option<Stream> {
        match Refused::of(sources.check(from.ip())) {
            None => Some(stream),
            Some(cause) => {
                self.refuse(stream, cause);
                None
            }
        }
    }

    fn refuse(&self, stream: Stream, cause: Refused) {
        self.shop.metrics.refused[cause.index()].add(1);
        stream.abort();
    }

    /// A client has come. `to`: what it connected to, if that was another machine, which told us.
    fn admit(&mut self, client: Stream, addr: ClientAddr, to: Option<SocketAddr>, route: &Route) {
        self.shop.metrics.accepted.add(1);
        let local = || to.or_else(|| client.local_addr().ok());
        let errand = match errand_of(route, addr, local, &self.setup) {
            Ok(errand) => errand,
            Err(verdict) => {
                self.shop.metrics.intercept_refused.add(1);
                tracing::info!(
                    client = %addr.0, to = ?local(), cause = verdict.label(),
                    "not an allowed destination"
                );
                client.abort();
                return;
            }
        };
        let introduction = route.identity.send_proxy.then(local).flatten().map(|to| {
            let client = addr.0;
            Introduction { client, to }.header()
        });
        self.open(
            client,
            addr,
            errand,
            &Origin::Forward(route),
            introduction.unwrap_or_default(),
        );
    }

    /// Begins a session; its destination is told `introduction` first.
    fn open(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        errand: Errand,
        origin: &Origin<'_>,
        introduction: Vec<u8>,
    ) {
        if let Some(key) = self.seat(client, addr, errand, origin) {
            if let Some(entry) = self.sessions.get_mut(key) {
                entry.session.introduce(introduction);
            }
            self.go_on(place(key), true, Errno::HOSTUNREACH);
        }
    }

    /// Gives a session its place, or resets the client when there is none.
    fn seat(
        &mut self,
        client: Stream,
        addr: ClientAddr,
        errand: Errand,
        origin: &Origin<'_>,
    ) -> Option<usize> {
        // Of a session from the mesh: the client that the hello names.
        let Some(permit) = self.shared.sources.admit(addr.0.ip()) else {
            self.refuse(client, Refused::SourceLimit);
            return None;
        };
        if !self.shared.admit() {
            // First: who sees the reset and tries again must not meet its own trace.
            drop(permit);
            self.refuse(client, Refused::Full);
            return None;
        }
        let log = self.shared.log.is_some();
        let story = log.then(|| Box::new(Story::new(origin, &client, &errand)));
        let visit = match (&self.shared.relays, origin) {
            (Some(relays), Origin::Mesh { relay, .. }) => relays.visit(*relay),
            _ => None,
        };
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.sessions.vacant_entry();
        let key = vacant.key();
        let token = Token::Leg(place(key), generation, Side::Client).encode();
        // A connection from another relay is watched already.
        let watched = match self.poller.add(&client, token, Interest::StreamEdges) {
            Err(Errno::EXIST) => self.poller.rename(&client, token, Interest::StreamEdges),
            other => other,
        };
        vacant.insert(Entry {
            session: Session::new(client, self.shop.now),
            generation,
            client: addr,
            errand,
            timeouts: self.setup.timeouts.clone(),
            timeline: Timeline::new(self.shop.now),
            story,
            deadline: None,
            queued: false,
            permit,
            _visit: visit,
        });
        self.shop.metrics.sessions.add(1);
        match watched {
            Ok(()) => Some(key),
            Err(e) => {
                self.end(place(key), End::of_connect(e), Close::Reset);
                None
            }
        }
    }

    /// Gets the session an onward leg in the way its errand says; when there is no further one it
    /// ends with the `last` error. `at_first`: none has been tried before.
    fn go_on(&mut self, place: Place, at_first: bool, last: Errno) {
        match self.sessions.get(place.0 as usize).map(|e| &e.errand) {
            Some(Errand::Dial { .. }) => self.dial(place, last),
            Some(Errand::LookUp { .. }) if at_first => self.look_up(place),
            Some(Errand::LookUp { .. }) => self.end(place, End::of_connect(last), Close::Reset),
            Some(Errand::Ask { .. }) => self.ask(place, at_first, last),
            None => {}
        }
    }

    /// Connects to the next address of the destination; with none left the session ends with the
    /// `last` error.
    fn dial(&mut self, place: Place, mut last: Errno) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let Errand::Dial {
            addrs,
            next,
            options,
            borrow,
        } = &mut entry.errand
        else {
            return;
        };
        let source = borrow.then(|| entry.client.0.ip().to_canonical());
        if source.is_some_and(|ip| !may_be_borrowed(ip)) {
            tracing::info!(client = %entry.client.0, "its address cannot be borrowed");
            self.end(place, End::NotAllowed, Close::Reset);
            return;
        }
        while let Some(&OnwardAddr(addr)) = addrs.get(*next) {
            *next += 1;
            let token = Token::Leg(place, entry.generation, Side::Onward).encode();
            let dialled = match source {
                None => Stream::connect(addr, options),
                Some(source) => Stream::connect_from(addr, source, options),
            };
            let dialled = dialled.and_then(|onward| {
                self.poller.add(&onward, token, Interest::StreamEdges)?;
                Ok(onward)
            });
            match dialled {
                Ok(onward) => {
                    let until = self.shop.now + entry.timeouts.connect;
                    entry.session.dialled(onward, until);
                    entry.timeline.dialled(self.shop.now);
                    self.set_alarm(place);
                    return;
                }
                Err(e) => last = e,
            }
        }
        self.end(place, End::of_connect(last), Close::Reset);
    }

    fn drive(&mut self, place: Place) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let before = entry.session.moved();
        let step = entry
            .session
            .drive(self.shop.now, &entry.timeouts, &mut self.shop);
        let after = entry.session.moved();
        self.shop.metrics.onward_bytes.add(after.0 - before.0);
        self.shop.metrics.client_bytes.add(after.1 - before.1);
        let connected = entry.session.is_connected();
        let metrics = &self.shop.metrics;
        if entry
            .timeline
            .note(self.shop.now, connected, after, metrics)
            && let (Some(story), (_, Some(onward))) = (&mut entry.story, entry.session.legs())
        {
            story.connected(onward);
        }
        match step {
            Step::Wait => self.set_alarm(place),
            Step::Again => {
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(place);
                }
                self.set_alarm(place);
            }
            Step::Redial(error) => {
                entry.timeline.lost();
                self.go_on(place, false, error);
            }
            Step::Done(end) => self.end(place, end, Close::Gracefully),
            Step::Broken(end) => self.end(place, end, Close::Reset),
        }
    }

    fn set_alarm(&mut self, place: Place) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let new = entry.session.deadline(&entry.timeouts);
        self.alarms.set(place, entry.deadline, new);
        entry.deadline = new;
    }

    fn stop(&mut self, place: Place) {
        match self
            .sessions
            .get(place.0 as usize)
            .map(|e| e.session.stop())
        {
            Some(Step::Done(end)) => self.end(place, end, Close::Gracefully),
            Some(_) => self.end(place, End::Stopped, Close::Reset),
            None => {}
        }
    }

    fn end(&mut self, place: Place, end: End, close: Close) {
        let Some(mut entry) = self.sessions.try_remove(place.0 as usize) else {
            return;
        };
        self.alarms.set(place, entry.deadline, None);
        if let Errand::Ask { peer, .. } = &entry.errand
            && entry.session.is_waiting()
        {
            // Otherwise a connection would be made for nobody.
            self.pools.forget(peer.id, (place, entry.generation));
        }
        for pipe in entry.session.take_dirty_pipes() {
            drop(pipe);
            self.shop.pipes.forget(&self.shop.metrics);
        }
        if let (Some(story), Some(log)) = (entry.story.take(), &self.shared.log) {
            log.record(Box::new(story.tell(&entry, self.shop.now, end)));
        }
        let (onward_bytes, client_bytes) = entry.session.moved();
        let (client, onward) = entry.session.into_legs();
        // First, so that whoever sees the connection end sees it counted, and its place free.
        drop(entry.permit);
        self.shared.release();
        self.shop.metrics.sessions.sub(1);
        self.shop.metrics.ended[end.index()].add(1);
        match close {
            // They have been told to end gracefully when both streams had ended.
            Close::Gracefully => drop((client, onward)),
            Close::Reset => {
                client.abort();
                onward.into_iter().for_each(Stream::abort);
            }
        }
        tracing::debug!(
            client = %entry.client.0, cause = end.label(), onward_bytes, client_bytes,
            "session over"
        );
    }
}

/// What a client of this forward needs, or why it gets nothing. `to`: what it connected to.
fn errand_of(
    route: &Route,
    client: ClientAddr,
    to: impl FnOnce() -> Option<SocketAddr>,
    setup: &Setup,
) -> Result<Errand, Verdict> {
    let borrow = route.identity.borrow;
    Ok(match &route.way {
        Way::Original(way) => {
            // The connection is gone already when it has no address.
            let to = to().ok_or(Verdict::Unspecified)?;
            original::errand(way, client, to, borrow, setup)?
        }
        Way::Direct { targets, options } => Errand::Dial {
            addrs: targets.current(),
            next: 0,
            options: options.clone(),
            borrow,
        },
        Way::Mesh {
            peer,
            route,
            destination,
        } => Errand::Ask {
            peer: peer.clone(),
            hello: Box::new(Hello {
                source: client.0,
                destination: destination.clone(),
                route: route.clone(),
                hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
                session: SessionId(random::bytes()),
            }),
            tries_left: mesh::tries(peer),
        },
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a worker has fewer sessions than 2^32"
)]
fn place(key: usize) -> Place {
    Place(key as u32)
}

fn listener_token(id: DoorId) -> u64 {
    Token::Listener(id.0).encode()
}

// === impl Workshop for Shop ===

impl Workshop for Shop {
    type Pipe = Pipe;

    fn take_pipe(&mut self) -> Option<Pipe> {
        self.pipes.take(self.now, &self.metrics)
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.pipes.give_back(pipe, &self.metrics);
    }

    fn empty(&mut self, pipe: &Pipe, len: usize) -> Box<[u8]> {
        let mut bytes = vec![0; len].into_boxed_slice();
        let mut at = 0;
        while at < len {
            match pipe.read(&mut bytes[at..]) {
                Ok(n) if n > 0 => at += n,
                Err(Errno::INTR) => {}
                // Cannot be: `len` bytes are in it. What was read would be lost, so say so loudly.
                other => panic!("a pipe with {len} bytes gave {other:?} after {at}"),
            }
        }
        bytes
    }

    fn scratch(&mut self) -> &mut [u8] {
        &mut self.scratch
    }

    fn splice_after(&self) -> Option<u64> {
        self.splice_after
    }
}
