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
use crate::event::deadlines::Deadlines;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::splice_pipes::PipePool;
use crate::mesh::inbound::Inbound;
use crate::mesh::pool::Pools;
use crate::route::listener::{ListenerId, NewListener};
use crate::route::table::Setup;
use crate::worker::mailbox::{Mailbox, Message};

mod accept;
mod dial;
mod early;
mod io;
mod listeners;
pub(crate) mod mailbox;
mod mesh;
mod original_dst;
mod pending_record;
mod proxy_header;
pub(crate) mod resolver;
mod sessions;
mod shared;

pub(crate) use listeners::BACKLOG;
pub(crate) use proxy_header::MAX_WAITING;
pub(crate) use shared::{Order, Shared};

use early::Early;
use io::{IoContext, SCRATCH};
use listeners::{OpenListener, listener_token};
use proxy_header::ProxyHeaders;
use sessions::{SessionEntry, slot};

/// One thread's share of a node.
pub(crate) struct Worker {
    /// Its place among the workers.
    index: usize,
    poller: Poller,
    mailbox: Arc<Mailbox>,
    doors: BTreeMap<ListenerId, OpenListener>,
    sessions: Slab<SessionEntry>,
    generation: Generation,
    deadlines: Deadlines,
    ready: VecDeque<Slot>,
    inbound: Inbound,
    pools: Pools,
    /// Onward legs whose client has not been accepted yet; bounded by the limiter.
    early: HashMap<FourTuple, Early>,
    /// Connections that are to begin with a PROXY protocol header.
    proxy_headers: ProxyHeaders,
    io: IoContext,
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
        doors: Vec<NewListener>,
        data: &DataPath,
        max_pipes: usize,
        metrics: Arc<WorkerMetrics>,
        shared: Arc<Shared>,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        let mailbox = Arc::new(Mailbox::new()?);
        poller.add(mailbox.waker(), Token::Waker.encode(), Interest::Read)?;
        let mut own = BTreeMap::new();
        for door in doors {
            let Some(listener) = door.listener else {
                continue;
            };
            poller.add(&*listener, listener_token(door.id), Interest::Read)?;
            own.insert(door.id, OpenListener::new(listener, door.purpose));
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
            mailbox,
            doors: own,
            sessions: Slab::new(),
            generation: Generation::default(),
            deadlines: Deadlines::default(),
            ready: VecDeque::new(),
            inbound: Inbound::default(),
            pools,
            early: HashMap::new(),
            proxy_headers: ProxyHeaders::default(),
            io: IoContext {
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

    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        self.mailbox.clone()
    }

    /// Works until it is ordered to end.
    ///
    /// # Errors
    /// epoll's, which leave no way to go on.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut reports = Vec::new();
        loop {
            self.poller.wait(self.patience(), &mut reports)?;
            self.io.now = Instant::now();
            for &report in &reports {
                self.handle(report);
            }
            self.poll_mesh();
            self.poll_proxy_headers();
            for _ in 0..self.ready.len() {
                if let Some(slot) = self.ready.pop_front() {
                    if let Some(entry) = self.sessions.get_mut(slot.0 as usize) {
                        entry.queued = false;
                    }
                    self.drive(slot);
                }
            }
            let due: Vec<_> = self.deadlines.due(self.io.now).collect();
            for slot in due {
                // One that waits for its turn gets it there.
                if self
                    .sessions
                    .get(slot.0 as usize)
                    .is_some_and(|e| !e.queued)
                {
                    self.drive(slot);
                }
            }
            self.wake_listeners();
            match self.shared.ordered() {
                Order::Run => {}
                Order::Drain => {
                    self.close_listeners();
                    // Hellos that are on their way are waited for; what else stands at the mesh
                    // port has its deadlines.
                    if self.sessions.is_empty()
                        && self.inbound.is_empty()
                        && self.proxy_headers.is_empty()
                        && self.mailbox.close_if_empty()
                    {
                        return Ok(());
                    }
                }
                Order::Stop => {
                    self.close_listeners();
                    let all: Vec<_> = self.sessions.iter().map(|(key, _)| slot(key)).collect();
                    for slot in all {
                        self.stop(slot);
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
            self.inbound.next(),
            self.proxy_headers.next(),
        ];
        let next = [self.deadlines.next(), resting]
            .into_iter()
            .chain(mesh)
            .flatten()
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle(&mut self, (token, readiness): Report) {
        match Token::decode(token) {
            Token::Waker => {
                self.mailbox.waker().clear();
                for message in self.mailbox.take() {
                    self.read(message);
                }
            }
            Token::Listener(door) => {
                self.accept(ListenerId(door));
            }
            Token::Leg(slot, generation, side) => {
                let Some(entry) = self.sessions.get_mut(slot.0 as usize) else {
                    return;
                };
                if entry.generation != generation {
                    return;
                }
                entry.session.handle(side, readiness);
                if !std::mem::replace(&mut entry.queued, true) {
                    self.ready.push_back(slot);
                }
            }
            Token::InboundConn(slot, generation) => {
                self.on_mesh_readable(slot, generation, readiness)
            }
            Token::Spare(slot, generation) => self.prepare(slot, generation, readiness),
            Token::ProxyHeader(slot, generation) => self.read_header(slot, generation, readiness),
        }
    }

    fn read(&mut self, message: Message) {
        match message {
            Message::Resolved {
                slot,
                generation,
                addrs,
            } => self.resolved(slot, generation, addrs),
            Message::NewKeys => self.drop_old_keys(),
            Message::Reloaded { setup, doors } => self.reload(setup, doors),
            Message::Syn {
                connection,
                forward,
            } => self.on_syn(connection, forward),
            Message::NoClient { connection } => self.forget(connection),
            Message::Client {
                client,
                addr,
                route,
                connection,
            } => self.join_early(client, addr, &route, connection),
        }
    }
}
