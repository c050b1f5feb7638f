//! A worker: one thread with its own listeners, poller, sessions and pipes. It shares nothing on
//! the path of the bytes; the kernel spreads connections over the workers (SO_REUSEPORT).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Report};

use crate::config::DataPath;
use crate::counters::worker::WorkerMetrics;
use crate::early_syn::FourTuple;
use crate::event::deadlines::Alarms;
use crate::event::token::{Generation, Place, Token};
use crate::forwarding::splice_pipes::PipePool;
use crate::mesh::inbound::Arrivals;
use crate::mesh::pool::Pools;
use crate::route::listener::{DoorId, NewDoor};
use crate::route::table::Setup;
use crate::worker::mailbox::{Inbox, Letter};

mod admission;
mod doors;
mod early;
mod errand;
pub(crate) mod mailbox;
mod mesh;
mod original;
mod preface;
pub(crate) mod resolver;
mod sessions;
mod shared;
mod shop;
mod story;

pub(crate) use doors::BACKLOG;
pub(crate) use preface::MAX_WAITING;
pub(crate) use shared::{Order, Shared};

use doors::{Door, listener_token};
use early::Early;
use preface::Prefaces;
use sessions::{Entry, place};
use shop::{SCRATCH, Shop};

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
}
