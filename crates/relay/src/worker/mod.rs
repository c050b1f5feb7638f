//! A worker: one thread with its own listeners, poller, sessions and pipes. Workers share nothing
//! on the data path; the kernel spreads connections over them (SO_REUSEPORT).
//!
//! A connection becomes a session in five steps: accept and check ([`accept`]), plan
//! ([`dial_plan`]), register ([`sessions`]), dial ([`dial`]). From then on, [`sessions`] drives it. Connections between
//! relays are the subject of [`mesh`]. The other modules do not use [`Worker`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Report};

use crate::config::DataPath;
use crate::counters::worker::WorkerMetrics;
use crate::event::token::Token;
use crate::forwarding::leg::CIPHER;
use crate::forwarding::splice_pipes::PipePool;
use crate::mesh::inbound::Inbound;
use crate::mesh::pool::Pools;
use crate::outcome::session_end::End;
use crate::route::listener::{ListenerId, NewListener};
use crate::route::table::Setup;
use crate::rows_mailbox::ToRows;

mod accept;
mod attempts;
mod client;
mod client_hello;
mod control;
mod dial;
mod dial_plan;
mod dial_race;
mod early;
mod eviction;
mod io;
mod listeners;
pub(crate) mod mailbox;
mod mesh;
mod path_samples;
mod pending_record;
mod proxy_header;
mod queue;
mod session_table;
mod sessions;
mod shared;
mod slots;
mod untried;
mod wait_list;

pub(crate) use attempts::MAX_EXTRA;
pub(crate) use client_hello::MAX_HELLOS;
pub(crate) use listeners::BACKLOG;
pub(crate) use proxy_header::MAX_WAITING;
pub(crate) use queue::{MAX_QUEUED, Queue};
pub(crate) use shared::{Order, Shared};

use attempts::Attempts;
use client_hello::ClientHellos;
use early::EarlyLegs;
use eviction::Evictable;
use io::{IoContext, SCRATCH};
use listeners::Listeners;
use mailbox::{Mailbox, Message};
use mesh::MeshConns;
use path_samples::PathSampler;
use proxy_header::ProxyHeaders;
use queue::QueueWatch;
use session_table::Sessions;

/// One thread's share of a node.
pub(crate) struct Worker {
    io: IoContext,
    sessions: Sessions,
    /// Idle sessions that may be ended for new ones.
    evictable: Evictable,
    attempts: Attempts,
    queue_watch: QueueWatch,
    /// Counts the plans of the worker, beginning at its index. Decides between equal addresses.
    turn: usize,
    path_sampler: PathSampler,
    /// The number of times that the worker has waited for events.
    round: u64,
    mesh: MeshConns,
    early: EarlyLegs,
    listeners: Listeners,
    /// Connections that start with a PROXY protocol header.
    proxy_headers: ProxyHeaders,
    /// Connections whose destination depends on their TLS server name.
    client_hellos: ClientHellos,
    mailbox: Arc<Mailbox>,
    /// The configuration that new sessions use.
    setup: Arc<Setup>,
    shared: Arc<Shared>,
}

// === impl Worker ===

impl Worker {
    /// # Errors
    /// The kernel's error if there is no descriptor or memory for the poller.
    pub(crate) fn new(
        index: usize,
        listeners: Vec<NewListener>,
        data: &DataPath,
        max_pipes: usize,
        metrics: Arc<WorkerMetrics>,
        shared: Arc<Shared>,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        let mailbox = Arc::new(Mailbox::new()?);
        poller.add(mailbox.waker(), Token::Waker.encode(), Interest::Read)?;
        let mut own = Listeners::default();
        for listener in listeners {
            own.open(listener, &poller)?;
        }
        let now = Instant::now();
        let setup = shared.setup();
        let pools = match &setup.mesh {
            Some(mesh) => Pools::new(
                &mesh.peers,
                mesh::share_of_pool(mesh.pool, &shared),
                setup.timeouts.connect,
                now,
            ),
            None => Pools::default(),
        };
        Ok(Self {
            io: IoContext {
                poller,
                pipes: PipePool::new(max_pipes, data.pipe_size),
                plain: vec![0; SCRATCH].into(),
                cipher: vec![0; CIPHER].into(),
                splice_after: data.splice_after,
                metrics,
                worker: index,
                now,
            },
            sessions: Sessions::default(),
            evictable: Evictable::default(),
            attempts: Attempts::default(),
            queue_watch: QueueWatch::new(now),
            turn: index,
            path_sampler: PathSampler::default(),
            round: 0,
            mesh: MeshConns {
                inbound: Inbound::default(),
                pools,
            },
            early: EarlyLegs::default(),
            listeners: own,
            proxy_headers: ProxyHeaders::default(),
            client_hellos: ClientHellos::default(),
            mailbox,
            setup,
            shared,
        })
    }

    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        self.mailbox.clone()
    }

    /// Runs until the node orders the worker to end.
    ///
    /// # Errors
    /// An error of epoll; the worker cannot continue then.
    pub(crate) fn run(mut self) -> Result<(), Errno> {
        let mut reports = Vec::new();
        loop {
            self.io.poller.wait(self.timeout(), &mut reports)?;
            self.io.now = Instant::now();
            self.round = self.round.wrapping_add(1);
            for &report in &reports {
                self.handle(report);
            }
            self.poll_mesh();
            self.proxy_headers.expire(&self.io);
            self.client_hellos.expire(&self.io);
            self.drive_sessions();
            self.poll_queue();
            self.listeners.wake(&self.io);
            match self.shared.ordered() {
                Order::Run => {}
                Order::Drain => {
                    self.close_listeners();
                    // The worker waits for hellos that are on their way; everything else at the
                    // mesh port has a deadline.
                    if self.sessions.entries.is_empty()
                        && !self.queue_watch.has_seen_any
                        && self.mesh.inbound.is_empty()
                        && self.proxy_headers.is_empty()
                        && self.client_hellos.is_empty()
                        && self.mailbox.close_if_empty()
                    {
                        return Ok(());
                    }
                }
                Order::Stop => {
                    self.close_listeners();
                    self.stop_sessions();
                    self.stop_queue();
                    return Ok(());
                }
            }
        }
    }

    /// Returns the time to wait for the kernel; `None` means without limit.
    fn timeout(&self) -> Option<Duration> {
        if self.sessions.has_ready() {
            return Some(Duration::ZERO);
        }
        let next = [
            self.sessions.next(),
            self.queue_watch.next_look(&self.mailbox),
            self.listeners.next(),
            self.mesh.pools.next(),
            self.mesh.inbound.next(),
            self.proxy_headers.next(),
            self.client_hellos.next(),
        ];
        let next = next.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle(&mut self, (token, readiness): Report) {
        match Token::decode(token) {
            Token::Waker => {
                self.mailbox.waker().clear();
                for message in self.mailbox.take() {
                    self.on_message(message);
                }
            }
            Token::Listener(listener) => {
                self.on_listener_readable(ListenerId(listener));
            }
            Token::Leg(slot, generation, side) => {
                self.sessions.handle(slot, generation, side, readiness);
            }
            Token::InboundConn(slot, generation) => {
                self.on_mesh_readable(slot, generation, readiness);
            }
            Token::Spare(slot, generation) => self.on_pool_ready(slot, generation, readiness),
            Token::ClientHello(slot, generation) => {
                self.on_hello_readable(slot, generation, readiness);
            }
            Token::Attempt(slot, generation) => {
                let session = self.attempts.handle(slot, generation, readiness);
                if let Some((slot, generation)) = session
                    && self
                        .sessions
                        .get(slot)
                        .is_some_and(|e| e.generation == generation)
                {
                    self.sessions.queue(slot);
                }
            }
            Token::ProxyHeader(slot, generation) => {
                self.on_header_readable(slot, generation, readiness);
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Resolved {
                slot,
                generation,
                backends,
            } => self.on_resolved(slot, generation, backends),
            Message::List {
                filter,
                limit,
                counts,
                reply,
            } => {
                // The operator may have gone.
                let _ = reply.send(self.sessions.list(&filter, limit, counts, &self.io));
            }
            Message::PeerFault(fault) => {
                self.with_pools(|pools, terms| pools.adopt_fault(fault, terms));
            }
            Message::Sample => {
                if let Some(rows) = &self.shared.rows {
                    let (sessions, pools) = (&self.sessions, &self.mesh.pools);
                    let samples = self.path_sampler.sample(sessions, pools, self.round);
                    rows.post(ToRows::Samples(samples));
                }
            }
            Message::End { filter, reply } => {
                let matching = self.sessions.matching(&filter, &self.io);
                let count = matching.len() as u64;
                self.end_all(matching, End::Operator);
                let _ = reply.send(count);
            }
            Message::Reloaded { setup, listeners } => self.reload(setup, listeners),
            Message::Syn {
                connection,
                forward,
            } => self.on_syn(connection, forward),
            Message::NoClient { connection } => self.on_no_client(connection),
            Message::Client { client, connection } => self.join_early(*client, connection),
        }
    }
}
