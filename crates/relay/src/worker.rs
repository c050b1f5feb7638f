//! A worker: one thread with its own listeners, poller, sessions and pipes. It shares nothing on
//! the path of the bytes; the kernel spreads connections over the workers (SO_REUSEPORT).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use slab::Slab;
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Report, Waker};
use taut_sys::pipe::Pipe;
use taut_sys::socket::{LegOptions, Listener, Stream};

use crate::addr::{ClientAddr, ListenAddr, OnwardAddr};
use crate::alarms::Alarms;
use crate::config::{DataPath, Timeouts};
use crate::direction::Workshop;
use crate::end::{End, Side};
use crate::metrics::WorkerMetrics;
use crate::pipes::PipePool;
use crate::session::{Session, Step};
use crate::targets::Targets;
use crate::token::{Generation, Place, Token};

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
    pub(crate) max_sessions: u32,
    pub(crate) timeouts: Timeouts,
    /// Of each forward.
    pub(crate) legs: Vec<Legs>,
    pub(crate) targets: Vec<Targets>,
    /// The listeners of each forward.
    pub(crate) listen: Vec<Vec<ListenAddr>>,
}

/// What the two legs of a forward ask of their sockets.
pub(crate) struct Legs {
    pub(crate) client: LegOptions,
    pub(crate) onward: LegOptions,
}

/// One thread's share of a node.
pub(crate) struct Worker {
    poller: Poller,
    waker: Arc<Waker>,
    doors: Vec<Door>,
    sessions: Slab<Entry>,
    generation: Generation,
    alarms: Alarms,
    ready: VecDeque<Place>,
    shop: Shop,
    shared: Arc<Shared>,
}

/// A listener and the forward it belongs to.
pub(crate) struct Door {
    pub(crate) listener: Listener,
    pub(crate) forward: usize,
    resting_until: Option<Instant>,
}

struct Entry {
    session: Session<Stream>,
    generation: Generation,
    client: ClientAddr,
    forward: usize,
    /// Addresses of the destination, in the order they are tried, and the next one.
    addrs: Arc<[OnwardAddr]>,
    next_addr: usize,
    deadline: Option<Instant>,
    queued: bool,
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
        max_sessions: u32,
        timeouts: Timeouts,
        legs: Vec<Legs>,
        targets: Vec<Targets>,
        listen: Vec<Vec<ListenAddr>>,
    ) -> Self {
        let order = AtomicU8::new(Order::Run as u8);
        Self {
            order,
            open: AtomicU32::new(0),
            max_sessions,
            timeouts,
            legs,
            targets,
            listen,
        }
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::Release);
    }

    fn ordered(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Run,
            1 => Order::Drain,
            _ => Order::Stop,
        }
    }

    fn admit(&self) -> bool {
        let admitted = self.open.fetch_add(1, Ordering::Relaxed) < self.max_sessions;
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
    pub(crate) fn new(listener: Listener, forward: usize) -> Self {
        Self {
            listener,
            forward,
            resting_until: None,
        }
    }
}

// === impl Worker ===

impl Worker {
    /// # Errors
    /// The kernel's, when there is no descriptor or memory for it.
    pub(crate) fn new(
        doors: Vec<Door>,
        data: &DataPath,
        max_pipes: usize,
        metrics: Arc<WorkerMetrics>,
        shared: Arc<Shared>,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        let waker = Arc::new(Waker::new()?);
        poller.add(&*waker, Token::Waker.encode(), Interest::Read)?;
        for (i, door) in doors.iter().enumerate() {
            poller.add(&door.listener, listener_token(i), Interest::Read)?;
        }
        Ok(Self {
            poller,
            waker,
            doors,
            sessions: Slab::new(),
            generation: Generation::default(),
            alarms: Alarms::default(),
            ready: VecDeque::new(),
            shop: Shop {
                pipes: PipePool::new(max_pipes, data.pipe_size),
                scratch: vec![0; SCRATCH].into(),
                splice_after: data.splice_after,
                metrics,
                now: Instant::now(),
            },
            shared,
        })
    }

    pub(crate) fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
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
                    if self.sessions.is_empty() {
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
        let resting = self.doors.iter().filter_map(|d| d.resting_until).min();
        let next = [self.alarms.next(), resting].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle(&mut self, (token, readiness): Report) {
        match Token::decode(token) {
            Token::Waker => self.waker.clear(),
            Token::Listener(door) => {
                self.accept(door as usize);
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
        }
    }

    /// Takes some of the connections that wait; `true` when there may be more.
    fn accept(&mut self, door: usize) -> bool {
        for _ in 0..ACCEPTS {
            let Some(Door {
                listener, forward, ..
            }) = self.doors.get(door)
            else {
                return false;
            };
            match listener.accept() {
                Ok((stream, peer)) => {
                    let forward = *forward;
                    self.admit(stream, ClientAddr(peer), forward);
                }
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
    fn rest(&mut self, door: usize) {
        if let Some(door) = self.doors.get_mut(door) {
            door.resting_until = Some(self.shop.now + ACCEPT_PAUSE);
            let _ = self.poller.remove(&door.listener);
        }
    }

    fn wake_doors(&mut self) {
        let now = self.shop.now;
        for (i, door) in self.doors.iter_mut().enumerate() {
            if door.resting_until.is_some_and(|until| now >= until) {
                let watched = self
                    .poller
                    .add(&door.listener, listener_token(i), Interest::Read);
                door.resting_until = watched.is_err().then(|| now + ACCEPT_PAUSE);
            }
        }
    }

    /// Takes what is already waiting, so that nobody who was let in by the kernel is thrown out,
    /// and then no more.
    fn close_doors(&mut self) {
        for i in 0..self.doors.len() {
            // The queue is no longer than this; without a bound, arrivals could keep it open.
            let rounds = BACKLOG as usize / ACCEPTS + 1;
            (0..rounds).find(|_| !self.accept(i));
        }
        self.doors.clear();
    }

    fn admit(&mut self, client: Stream, addr: ClientAddr, forward: usize) {
        let addrs = self.shared.targets[forward].current();
        self.shop.metrics.accepted.add(1);
        if !self.shared.admit() {
            self.shop.metrics.refused_full.add(1);
            client.abort();
            return;
        }
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.sessions.vacant_entry();
        let place = place(vacant.key());
        let token = Token::Leg(place, generation, Side::Client).encode();
        let watched = self.poller.add(&client, token, Interest::StreamEdges);
        vacant.insert(Entry {
            session: Session::new(client, self.shop.now),
            generation,
            client: addr,
            forward,
            addrs,
            next_addr: 0,
            deadline: None,
            queued: false,
        });
        self.shop.metrics.sessions.add(1);
        match watched {
            Ok(()) => self.dial(place, Errno::HOSTUNREACH),
            Err(e) => self.end(place, End::of_connect(e), Close::Reset),
        }
    }

    /// Connects to the next address of the destination; with none left the session ends with the
    /// `last` error.
    fn dial(&mut self, place: Place, mut last: Errno) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        while let Some(&OnwardAddr(addr)) = entry.addrs.get(entry.next_addr) {
            entry.next_addr += 1;
            let token = Token::Leg(place, entry.generation, Side::Onward).encode();
            let dialled =
                Stream::connect(addr, &self.shared.legs[entry.forward].onward).and_then(|onward| {
                    self.poller.add(&onward, token, Interest::StreamEdges)?;
                    Ok(onward)
                });
            match dialled {
                Ok(onward) => {
                    let until = self.shop.now + self.shared.timeouts.connect;
                    entry.session.dialled(onward, until);
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
            .drive(self.shop.now, &self.shared.timeouts, &mut self.shop);
        let after = entry.session.moved();
        self.shop.metrics.onward_bytes.add(after.0 - before.0);
        self.shop.metrics.client_bytes.add(after.1 - before.1);
        match step {
            Step::Wait => self.set_alarm(place),
            Step::Again => {
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(place);
                }
                self.set_alarm(place);
            }
            Step::Redial(error) => self.dial(place, error),
            Step::Done(end) => self.end(place, end, Close::Gracefully),
            Step::Broken(end) => self.end(place, end, Close::Reset),
        }
    }

    fn set_alarm(&mut self, place: Place) {
        let Some(entry) = self.sessions.get_mut(place.0 as usize) else {
            return;
        };
        let new = entry.session.deadline(&self.shared.timeouts);
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
        for pipe in entry.session.take_dirty_pipes() {
            drop(pipe);
            self.shop.pipes.forget(&self.shop.metrics);
        }
        let (onward_bytes, client_bytes) = entry.session.moved();
        let (client, onward) = entry.session.into_legs();
        match close {
            // They have been told to end gracefully when both streams had ended.
            Close::Gracefully => drop((client, onward)),
            Close::Reset => {
                client.abort();
                onward.into_iter().for_each(Stream::abort);
            }
        }
        self.shared.release();
        self.shop.metrics.sessions.sub(1);
        self.shop.metrics.ended[end.index()].add(1);
        tracing::debug!(
            client = %entry.client.0, cause = end.label(), onward_bytes, client_bytes,
            "session over"
        );
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a worker has fewer sessions than 2^32"
)]
fn place(key: usize) -> Place {
    Place(key as u32)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a node has fewer listeners than 2^32"
)]
fn listener_token(i: usize) -> u64 {
    Token::Listener(i as u32).encode()
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
