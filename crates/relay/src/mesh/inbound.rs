//! A worker's connections at the mesh port that have not sent their hello yet.
//!
//! [`Acceptor`] decides what a peer may send and how long it may take, and [`Arrivals`] which connections have
//! room. This module reads the hello and no byte after it, because the client's stream follows.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use taut_mesh::acceptor::{Acceptor, Event, Limits, Rejection};
use taut_mesh::arrivals::{Action, ArrivalId, Arrivals, Bounds, Closing};
use taut_mesh::channel::Channel;
use taut_mesh::hello::Hello;
use taut_mesh::members::MemberName;
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::Stream;

use crate::access::arrival_rate::ArrivalRate;
use crate::counters::log_limit::{LEG_OPTIONS, Line, UNWATCHED};
use crate::counters::worker::WorkerMetrics;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::{READS_MAX, read_records};
use crate::route::table::Mesh;
use crate::rows_mailbox::RowLink;
use crate::turbo::route_metrics::Relays;

/// The steps of new handshakes that a worker takes in a round, and of those that were postponed. Each costs
/// some 100 us, and the sessions wait meanwhile.
const HANDSHAKES: usize = 8;

/// What a worker uses to handle its inbound connections.
pub(crate) struct InboundTerms<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) mesh: &'a Mesh,
    /// Memory to open records in.
    pub(crate) scratch: Scratch<'a>,
    pub(crate) times: Limits,
    pub(crate) bounds: Bounds,
    pub(crate) metrics: &'a WorkerMetrics,
    /// The table of relays that have proven their key.
    pub(crate) relays: Option<&'a Relays>,
    /// Connections of each source that have not proven a key.
    pub(crate) arrivals: &'a ArrivalRate,
    pub(crate) now: Instant,
}

/// Connections without a hello.
#[derive(Default)]
pub(crate) struct Inbound {
    arrivals: Arrivals<InboundConn>,
    /// Connections whose handshake goes on in the next round.
    postponed: VecDeque<ArrivalId>,
    /// When the first of them was postponed.
    postponed_at: Option<Instant>,
    /// The steps of handshakes in this round.
    handshakes: usize,
}

struct InboundConn {
    stream: Stream,
    from: SocketAddr,
    is_postponed: bool,
}

/// The request of another relay on a connection that it has made.
pub(crate) enum Request {
    /// A session.
    Session(SessionRequest),
    /// The exchange of rows.
    Rows(RowLink),
}

/// A session that another relay requests, and the connection that becomes its client leg.
pub(crate) struct SessionRequest {
    pub(crate) stream: Stream,
    pub(crate) from: SocketAddr,
    pub(crate) hello: Box<Hello>,
    /// The relay that it comes from.
    pub(crate) member: MemberName,
    /// The TLS of the connection; `None` in a trusted network.
    pub(crate) channel: Option<Channel>,
    /// The start of the client's stream.
    pub(crate) early: Vec<u8>,
}

// === impl Inbound ===

impl Inbound {
    /// Returns whether there are no connections.
    pub(crate) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Adds a connection that was accepted at the mesh port.
    pub(crate) fn admit(&mut self, stream: Stream, from: SocketAddr, rules: &mut InboundTerms<'_>) {
        rules.metrics.mesh_accepted.add(1);
        let trusted = rules.mesh.trusted_member(from.ip()).cloned();
        let acceptor = Acceptor::new(rules.now, &rules.times, trusted);
        let is_proven = acceptor.is_proven();
        let conn = InboundConn {
            stream,
            from,
            is_postponed: false,
        };
        let admitted = self
            .arrivals
            .admit(conn, from.ip(), acceptor, rules.bounds, rules.now);
        match admitted {
            Ok(id) => {
                if self.watch(id, rules) && is_proven {
                    self.begin_leg(id, rules);
                }
            }
            Err(_) => rules.metrics.mesh_refused_full.add(1),
        }
        self.act(rules);
    }

    /// Has the poller watch a connection. Closes it if that fails.
    fn watch(&mut self, id: ArrivalId, rules: &InboundTerms<'_>) -> bool {
        let Some((conn, _)) = self.arrivals.get_mut(id) else {
            return false;
        };
        let token = Token::InboundConn(Slot(id.slot), Generation(id.generation)).encode();
        let watched = rules.poller.add(&conn.stream, token, Interest::StreamEdges);
        if let Err(error) = watched {
            self.arrivals.take(id);
            if let Some(Line { left_out }) = UNWATCHED.line(rules.now) {
                tracing::warn!(%error, left_out, "cannot watch a connection of the mesh");
            }
            return false;
        }
        true
    }

    /// Returns the time at which [`Inbound::expire`] is due even without an event.
    pub(crate) fn next(&self) -> Option<Instant> {
        let next = [self.arrivals.next(), self.postponed_at];
        next.into_iter().flatten().min()
    }

    /// Begins another round of the worker, with steps of handshakes of its own.
    pub(crate) fn begin_round(&mut self) {
        self.handshakes = 0;
    }

    /// Continues handshakes that were postponed, as many as one round may take.
    pub(crate) fn handle_postponed(&mut self, rules: &mut InboundTerms<'_>) -> Vec<Request> {
        let mut requests = Vec::new();
        while self.handshakes < HANDSHAKES
            && let Some(id) = self.postponed.pop_front()
        {
            if let Some((conn, _)) = self.arrivals.get_mut(id) {
                conn.is_postponed = false;
                requests.extend(self.read(id, rules));
            }
        }
        self.postponed_at = (!self.postponed.is_empty()).then_some(rules.now);
        self.act(rules);
        requests
    }

    /// Closes connections whose deadline has passed.
    pub(crate) fn expire(&mut self, rules: &mut InboundTerms<'_>) {
        self.arrivals.expire(rules.now);
        self.act(rules);
    }

    /// Reads from a connection, up to the end of its hello.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        readiness: Readiness,
        rules: &mut InboundTerms<'_>,
    ) -> Option<Request> {
        if !readiness.readable() {
            return None;
        }
        let (slot, generation) = (slot.0, generation.0);
        let request = self.read(ArrivalId { slot, generation }, rules);
        self.act(rules);
        request
    }

    fn read(&mut self, id: ArrivalId, rules: &mut InboundTerms<'_>) -> Option<Request> {
        let (conn, acceptor) = self.arrivals.get_mut(id)?;
        if !acceptor.is_proven() {
            if conn.is_postponed {
                return None;
            }
            if self.handshakes >= HANDSHAKES {
                conn.is_postponed = true;
                self.postponed.push_back(id);
                self.postponed_at.get_or_insert(rules.now);
                rules.metrics.mesh_handshakes_postponed.add(1);
                return None;
            }
            self.handshakes += 1;
        }
        let read = conn.read(acceptor, rules);
        let from = conn.from.ip();
        let waits = matches!(read, Ok(None));
        if self.arrivals.advanced(id, waits, rules.bounds, rules.now) {
            rules.arrivals.forgive(from);
            self.begin_leg(id, rules);
        }
        match read {
            Ok(Some(requested)) => {
                let (conn, acceptor) = self.arrivals.take(id)?;
                let member = acceptor.member()?.name.clone();
                let (stream, channel) = (conn.stream, acceptor.into_channel());
                Some(match requested {
                    Requested::Session(hello, early) => Request::Session(SessionRequest {
                        stream,
                        from: conn.from,
                        hello,
                        member,
                        channel,
                        early,
                    }),
                    Requested::Rows(early) => {
                        // Another thread's poller watches it from now on.
                        let _ = rules.poller.remove(&stream);
                        Request::Rows(RowLink {
                            stream,
                            channel,
                            member,
                            early,
                        })
                    }
                })
            }
            Ok(None) => None,
            Err(end) => {
                let (conn, _) = self.arrivals.take(id)?;
                self.count(rules);
                // Peers close connections that they no longer need; port scanners close theirs too.
                if let InboundEnd::Rejected(rejection, alert) = end {
                    conn.reject(rejection, &alert, rules);
                }
                None
            }
        }
    }

    /// Tells the peers of connections without a hello that this relay is draining, so that they remove them
    /// from their pools. Serves the hellos that have arrived.
    pub(crate) fn drain(&mut self, rules: &mut InboundTerms<'_>) -> Vec<Request> {
        let all = self.arrivals.drain(rules.now);
        let requests = all.into_iter().filter_map(|id| self.read(id, rules));
        let requests = requests.collect();
        self.act(rules);
        requests
    }

    /// Closes connections of members, or with keys, that are no longer in the list, and plain connections
    /// from networks that are no longer trusted.
    pub(crate) fn drop_old_keys(&mut self, rules: &mut InboundTerms<'_>) {
        let mesh = rules.mesh;
        self.arrivals.drop_old(|conn, acceptor| {
            acceptor.is_current(&mesh.local.members)
                && (!acceptor.is_trusted() || mesh.trusts(conn.from.ip()))
        });
        self.act(rules);
    }

    /// Prepares a connection for what is sent on it, now that its peer is known.
    fn begin_leg(&mut self, id: ArrivalId, rules: &InboundTerms<'_>) {
        let Some((conn, acceptor)) = self.arrivals.get_mut(id) else {
            return;
        };
        conn.begin_leg(acceptor, rules.mesh, rules.now);
        if let Some(relays) = rules.relays {
            relays.proven(conn.from.ip(), rules.now);
        }
    }

    /// Carries out what is decided, and counts it.
    fn act(&mut self, rules: &InboundTerms<'_>) {
        self.count(rules);
        let metrics = rules.metrics;
        while let Some(action) = self.arrivals.next_action() {
            match action {
                // Dropping the connection resets it.
                Action::Close(conn, why) => match why {
                    Closing::Evicted => metrics.mesh_evicted.add(1),
                    Closing::Expired(rejection) => conn.reject(rejection, &[], rules),
                    Closing::Undrained => metrics.mesh_undrained.add(1),
                    Closing::Withdrawn | Closing::Dropped => {}
                },
                Action::Withdraw(id, why) => {
                    if let Some((conn, acceptor)) = self.arrivals.get_mut(id) {
                        let mut told = Vec::new();
                        acceptor.withdraw(why, &mut told);
                        // A connection that has sent almost nothing has room in its send buffer. If the peer is
                        // gone, its reset is about to arrive.
                        if !told.is_empty() {
                            let _ = conn.stream.send(&told);
                        }
                    }
                }
                Action::Full(greatest) => {
                    metrics.mesh_ready_withdrawn.add(1);
                    metrics.mesh_ready_full.add(&greatest);
                }
            }
        }
    }

    fn count(&self, rules: &InboundTerms<'_>) {
        let counts = self.arrivals.counts();
        rules.metrics.mesh_unproven.set(counts.unproven as u64);
        rules.metrics.mesh_ready.set(counts.ready as u64);
    }
}

/// What a connection is for, and the bytes after its hello.
enum Requested {
    Session(Box<Hello>, Vec<u8>),
    Rows(Vec<u8>),
}

/// The reason why a connection ended before its hello.
enum InboundEnd {
    Gone,
    /// With the alert that says so to the peer.
    Rejected(Rejection, Vec<u8>),
}

impl InboundConn {
    /// Sets what sending to this relay uses, now that its name is known.
    fn begin_leg(&self, acceptor: &Acceptor, mesh: &Mesh, now: Instant) {
        let Some(member) = acceptor.member() else {
            return;
        };
        mesh.turbo.proven(&member.name, self.from.ip());
        let Some(options) = mesh.legs.get(&member.name) else {
            return;
        };
        if let Err(error) = self.stream.set_options(options)
            && let Some(Line { left_out }) = LEG_OPTIONS.line(now)
        {
            let relay = &member.name;
            tracing::warn!(%error, %relay, left_out, "cannot set the options of a connection; it keeps those of [relay.mesh]");
        }
    }

    /// Closes the connection for this reason, after sending `alert`. It is counted before the peer can see
    /// that.
    fn reject(self, rejection: Rejection, alert: &[u8], rules: &InboundTerms<'_>) {
        rules.metrics.mesh_rejected[rejection.index()].add(1);
        if !alert.is_empty() {
            // The peer may be gone.
            let _ = self.stream.send(alert);
        }
        let from = self.from;
        tracing::debug!(%from, cause = rejection.label(), "refused at the mesh port");
    }

    /// Reads until there is a hello or nothing left to read.
    fn read(
        &mut self,
        acceptor: &mut Acceptor,
        rules: &mut InboundTerms<'_>,
    ) -> Result<Option<Requested>, InboundEnd> {
        for _ in 0..READS_MAX {
            let partial = acceptor.partial();
            let len = match read_records(&self.stream, partial, &mut rules.scratch) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(_) => {
                    let rejection = acceptor.closed();
                    let end = rejection.map(|why| InboundEnd::Rejected(why, Vec::new()));
                    return Err(end.unwrap_or(InboundEnd::Gone));
                }
            };
            let mut reply = Vec::new();
            let Scratch { plain, cipher } = &mut rules.scratch;
            let arrived = &mut cipher[..len];
            let local = &rules.mesh.local;
            let outcome = acceptor.receive(arrived, plain, rules.now, local, &mut reply);
            let event = match outcome {
                Ok(event) => event,
                Err(rejection) => return Err(InboundEnd::Rejected(rejection, reply)),
            };
            if !reply.is_empty() {
                match self.stream.send(&reply) {
                    Ok(n) if n == reply.len() => {}
                    _ => return Err(InboundEnd::Gone),
                }
            }
            match event {
                Event::More | Event::Proven => {}
                Event::Hello { hello, early } => {
                    return Ok(Some(Requested::Session(hello, early)));
                }
                Event::Rows { early } => return Ok(Some(Requested::Rows(early))),
            }
        }
        // A handshake and a hello take a few reads; a peer must not keep the worker.
        Err(InboundEnd::Rejected(Rejection::BadFrame, Vec::new()))
    }
}
