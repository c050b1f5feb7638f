//! A worker's connections at the mesh port that have not sent their hello yet.
//!
//! [`Acceptor`] decides what a peer may send and how long it may take. This module reads the hello
//! and no byte after it, because the client's stream follows.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::acceptor::{Acceptor, Event, Limits, Rejection, Withdrawal};
use taut_mesh::channel::Channel;
use taut_mesh::hello::Hello;
use taut_mesh::members::MemberName;
use taut_mesh::unproven::{Room, Unproven};
use taut_mesh::unused::Unused;
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::Stream;

use crate::access::arrival_rate::ArrivalRate;
use crate::counters::log_limit::{LEG_OPTIONS, Line, UNWATCHED};
use crate::counters::worker::WorkerMetrics;
use crate::event::deadlines::Deadlines;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::{READS_MAX, read_records};
use crate::route::table::Mesh;
use crate::rows_mailbox::RowLink;
use crate::turbo::route_metrics::Relays;

/// The time for which a connection without a hello stays open once the relay is draining, or has no room for
/// it. Its peer closes it a round trip after it has been told, unless a hello is on its way.
const GRACE: Duration = Duration::from_secs(5);

/// The steps of new handshakes that a worker takes in a round, and of those that were postponed. Each costs
/// some 100 us, and the sessions wait meanwhile.
const HANDSHAKES: usize = 8;

/// Of the connections that may be ready, the part that may wait besides because they had no room.
const WITHDRAWN: usize = 4;

/// What a worker uses to handle its inbound connections.
pub(crate) struct InboundTerms<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) mesh: &'a Mesh,
    /// Memory to open records in.
    pub(crate) scratch: Scratch<'a>,
    pub(crate) times: Limits,
    /// The maximum number of connections that have not proven their key; above it, a new connection
    /// evicts the oldest.
    pub(crate) max_unproven: usize,
    /// The maximum number of connections that have proven their key and have no hello yet. Above it, the
    /// oldest of the member with the most makes room, if that has more than the member of the new one.
    pub(crate) max_ready: usize,
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
    conns: Slab<InboundConn>,
    generation: Generation,
    deadlines: Deadlines,
    /// The connections whose peer has not proven its key.
    unproven: Unproven<(Slot, Generation)>,
    /// The connections that wait for a hello, by member.
    ready: Unused<(Slot, Generation)>,
    /// Those that had no room among them, by member. Their peers have been told, except in trusted networks,
    /// and a hello may be on its way.
    withdrawn: Unused<(Slot, Generation)>,
    /// Connections whose handshake goes on in the next round.
    postponed: VecDeque<(Slot, Generation)>,
    /// When the first of them was postponed.
    postponed_at: Option<Instant>,
    /// The steps of handshakes in this round.
    handshakes: usize,
    /// When connections without a hello are reset, while the relay is draining.
    drain_until: Option<Instant>,
}

struct InboundConn {
    stream: Stream,
    from: SocketAddr,
    acceptor: Acceptor,
    /// The peer has proven its key.
    proven: bool,
    is_postponed: bool,
    /// When the connection is reset for lack of room.
    withdrawn_until: Option<Instant>,
    generation: Generation,
    deadline: Option<Instant>,
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
        self.conns.is_empty()
    }

    /// Adds a connection that was accepted at the mesh port.
    pub(crate) fn admit(&mut self, stream: Stream, from: SocketAddr, rules: &mut InboundTerms<'_>) {
        rules.metrics.mesh_accepted.add(1);
        let trusted = rules.mesh.trusted_member(from.ip()).cloned();
        let acceptor = Acceptor::new(rules.now, &rules.times, trusted);
        // In a trusted network the address is the proof.
        let proven = acceptor.is_proven();
        if !proven {
            match self.unproven.room(from.ip(), rules.max_unproven, rules.now) {
                Room::Free => {}
                Room::Evict((slot, _)) => {
                    rules.metrics.mesh_evicted.add(1);
                    self.remove(slot, rules);
                }
                Room::Full => {
                    rules.metrics.mesh_refused_full.add(1);
                    return;
                }
            }
        }
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.conns.vacant_entry();
        let slot = Slot(u32::try_from(vacant.key()).unwrap_or(u32::MAX));
        let token = Token::InboundConn(slot, generation).encode();
        if let Err(error) = rules.poller.add(&stream, token, Interest::StreamEdges) {
            if let Some(Line { left_out }) = UNWATCHED.line(rules.now) {
                tracing::warn!(%error, left_out, "cannot watch a connection of the mesh");
            }
            return;
        }
        self.drain_until = None;
        let deadline = Some(acceptor.deadline());
        self.deadlines.set(slot, None, deadline);
        vacant.insert(InboundConn {
            stream,
            from,
            acceptor,
            proven,
            is_postponed: false,
            withdrawn_until: None,
            generation,
            deadline,
        });
        if proven {
            self.begin_leg(slot, rules);
            self.give_place(slot, rules);
            return;
        }
        self.unproven
            .insert((slot, generation), from.ip(), rules.now);
        rules.metrics.mesh_unproven.add(1);
    }

    /// Returns the time at which [`Inbound::expire`] is due even without an event.
    pub(crate) fn next(&self) -> Option<Instant> {
        let next = [self.deadlines.next(), self.postponed_at];
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
            && let Some((slot, generation)) = self.postponed.pop_front()
        {
            if let Some(conn) = self.conns.get_mut(slot.0 as usize)
                && conn.generation == generation
            {
                conn.is_postponed = false;
                requests.extend(self.handle(slot, generation, Readiness::DATA, rules));
            }
        }
        self.postponed_at = (!self.postponed.is_empty()).then_some(rules.now);
        requests
    }

    /// Closes connections whose deadline has passed.
    pub(crate) fn expire(&mut self, rules: &mut InboundTerms<'_>) {
        let due: Vec<_> = self.deadlines.due(rules.now).collect();
        for slot in due {
            let Some(conn) = self.conns.get(slot.0 as usize) else {
                continue;
            };
            if let Some(rejection) = conn.acceptor.expired(rules.now) {
                self.reject(slot, rejection, &[], rules);
                continue;
            }
            self.move_deadline(slot);
            let is_due = |conn: &InboundConn| conn.deadline.is_some_and(|at| at <= rules.now);
            if self.conns.get(slot.0 as usize).is_some_and(is_due) {
                if self.drain_until.is_some() {
                    rules.metrics.mesh_undrained.add(1);
                }
                self.remove(slot, rules);
            }
        }
    }

    /// Reads from a connection, up to the end of its hello.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        readiness: Readiness,
        rules: &mut InboundTerms<'_>,
    ) -> Option<Request> {
        let conn = self.conns.get_mut(slot.0 as usize)?;
        if conn.generation != generation || !readiness.readable() {
            return None;
        }
        if !conn.proven {
            if conn.is_postponed {
                return None;
            }
            if self.handshakes >= HANDSHAKES {
                conn.is_postponed = true;
                self.postponed.push_back((slot, generation));
                self.postponed_at.get_or_insert(rules.now);
                rules.metrics.mesh_handshakes_postponed.add(1);
                return None;
            }
            self.handshakes += 1;
        }
        let read = conn.read(rules);
        if self.drain_until.is_some() && matches!(read, Ok(None)) {
            conn.withdraw(Withdrawal::Draining);
        }
        if conn.acceptor.is_proven() && !conn.proven {
            conn.proven = true;
            rules.arrivals.forgive(conn.from.ip());
            self.uncount_unproven((slot, generation), rules);
            self.begin_leg(slot, rules);
            if matches!(read, Ok(None)) {
                self.give_place(slot, rules);
            }
        }
        self.move_deadline(slot);
        match read {
            Ok(Some(requested)) => {
                let conn = self.remove(slot, rules)?;
                let member = conn.acceptor.member()?.name.clone();
                let (stream, channel) = (conn.stream, conn.acceptor.into_channel());
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
            Err(InboundEnd::Rejected(rejection, alert)) => {
                self.reject(slot, rejection, &alert, rules);
                None
            }
            // Peers close connections that they no longer need; port scanners close theirs too.
            Err(InboundEnd::Gone) => {
                self.remove(slot, rules);
                None
            }
        }
    }

    /// Tells the peers of connections without a hello that this relay is draining, so that they remove them
    /// from their pools. Serves the hellos that have arrived. Those that are on their way are served by
    /// [`Inbound::handle`]. Connections that are left after [`GRACE`] are reset: an RST and not a FIN,
    /// which would be the orderly end of an empty reply in a trusted network.
    pub(crate) fn drain(&mut self, rules: &mut InboundTerms<'_>) -> Vec<Request> {
        if self.drain_until.is_some() {
            return Vec::new();
        }
        self.drain_until = Some(rules.now + GRACE);
        let all = self.conns.iter().map(|(key, conn)| (key, conn.generation));
        let all: Vec<_> = all.collect();
        let mut requests = Vec::new();
        for (key, generation) in all {
            let slot = Slot(u32::try_from(key).unwrap_or(u32::MAX));
            requests.extend(self.handle(slot, generation, Readiness::DATA, rules));
        }
        requests
    }

    /// Closes connections of members, or with keys, that are no longer in the list, and plain connections
    /// from networks that are no longer trusted.
    pub(crate) fn drop_old_keys(&mut self, rules: &mut InboundTerms<'_>) {
        let old: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| {
                let acceptor = &conn.acceptor;
                !acceptor.is_current(&rules.mesh.local.members)
                    || (acceptor.is_trusted() && !rules.mesh.trusts(conn.from.ip()))
            })
            .map(|(key, _)| Slot(u32::try_from(key).unwrap_or(u32::MAX)))
            .collect();
        for slot in old {
            self.remove(slot, rules);
        }
    }

    /// Recomputes the deadline of a connection.
    fn move_deadline(&mut self, slot: Slot) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        let own = conn.acceptor.deadline();
        let sooner = [self.drain_until, conn.withdrawn_until];
        let deadline = match sooner.into_iter().flatten().min() {
            Some(until) if !conn.acceptor.hello_begun() => own.min(until),
            _ => own,
        };
        self.deadlines.set(slot, conn.deadline, Some(deadline));
        conn.deadline = Some(deadline);
    }

    /// Prepares a connection for what is sent on it, now that its peer is known.
    fn begin_leg(&self, slot: Slot, rules: &InboundTerms<'_>) {
        let Some(conn) = self.conns.get(slot.0 as usize) else {
            return;
        };
        conn.begin_leg(rules.mesh, rules.now);
        if let Some(relays) = rules.relays {
            relays.proven(conn.from.ip(), rules.now);
        }
    }

    /// Gives a connection that waits for its hello a place among those that are ready. If there is none, it or
    /// another one is withdrawn.
    fn give_place(&mut self, slot: Slot, rules: &mut InboundTerms<'_>) {
        let Some(conn) = self.conns.get(slot.0 as usize) else {
            return;
        };
        let Some(member) = conn.acceptor.member().map(|member| member.name.clone()) else {
            return;
        };
        let key = (slot, conn.generation);
        let room = self.ready.room(&member, rules.max_ready);
        if room != Room::Free
            && let Some(greatest) = self.ready.greatest()
        {
            rules.metrics.mesh_ready_withdrawn.add(1);
            rules.metrics.mesh_ready_full.add(greatest);
        }
        match room {
            Room::Free => {}
            Room::Full => return self.withdraw(key, rules),
            Room::Evict(oldest) => {
                self.ready.remove(oldest);
                rules.metrics.mesh_ready.sub(1);
                self.withdraw(oldest, rules);
            }
        }
        self.ready.insert(key, member, rules.now);
        rules.metrics.mesh_ready.add(1);
    }

    /// Tells the peer of a connection without a place that there is no room, and serves a hello that is on its
    /// way.
    fn withdraw(&mut self, key: (Slot, Generation), rules: &mut InboundTerms<'_>) {
        let Some(conn) = self.conns.get_mut(key.0.0 as usize) else {
            return;
        };
        let Some(member) = conn.acceptor.member().map(|member| member.name.clone()) else {
            return;
        };
        conn.withdraw(Withdrawal::Full);
        conn.withdrawn_until = Some(rules.now + GRACE);
        self.move_deadline(key.0);
        self.withdrawn.insert(key, member, rules.now);
        let max = rules.max_ready.div_ceil(WITHDRAWN);
        while let Some((excess, _)) = self.withdrawn.take_excess(max) {
            self.remove(excess, rules);
        }
    }

    /// Accounts for a connection that is no longer unproven.
    fn uncount_unproven(&mut self, key: (Slot, Generation), rules: &mut InboundTerms<'_>) {
        if self.unproven.remove(key) {
            rules.metrics.mesh_unproven.sub(1);
        }
    }

    /// Closes a connection for this reason, after sending `alert`. It is counted before the peer can see
    /// that.
    fn reject(
        &mut self,
        slot: Slot,
        rejection: Rejection,
        alert: &[u8],
        rules: &mut InboundTerms<'_>,
    ) {
        rules.metrics.mesh_rejected[rejection.index()].add(1);
        if let Some(conn) = self.remove(slot, rules) {
            if !alert.is_empty() {
                // The peer may be gone.
                let _ = conn.stream.send(alert);
            }
            let from = conn.from;
            tracing::debug!(%from, cause = rejection.label(), "refused at the mesh port");
        }
    }

    /// Removes a connection; dropping it resets it.
    fn remove(&mut self, slot: Slot, rules: &mut InboundTerms<'_>) -> Option<InboundConn> {
        let conn = self.conns.try_remove(slot.0 as usize)?;
        self.deadlines.set(slot, conn.deadline, None);
        let key = (slot, conn.generation);
        if self.ready.remove(key) {
            rules.metrics.mesh_ready.sub(1);
        } else if conn.withdrawn_until.is_some() {
            self.withdrawn.remove(key);
        } else {
            self.uncount_unproven(key, rules);
        }
        Some(conn)
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
    fn begin_leg(&self, mesh: &Mesh, now: Instant) {
        let Some(member) = self.acceptor.member() else {
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

    /// Returns the reason to record when the peer has closed the connection.
    fn closed_by_peer(&self) -> InboundEnd {
        match self.acceptor.closed() {
            Some(rejection) => InboundEnd::Rejected(rejection, Vec::new()),
            None => InboundEnd::Gone,
        }
    }

    /// Tells the peer, if it is waiting, why this relay gives the connection up.
    fn withdraw(&mut self, why: Withdrawal) {
        let mut told = Vec::new();
        self.acceptor.withdraw(why, &mut told);
        // A connection that has sent almost nothing has room in its send buffer. If the peer is gone, its
        // reset is about to arrive.
        if !told.is_empty() {
            let _ = self.stream.send(&told);
        }
    }

    /// Reads until there is a hello or nothing left to read.
    fn read(&mut self, rules: &mut InboundTerms<'_>) -> Result<Option<Requested>, InboundEnd> {
        for _ in 0..READS_MAX {
            let partial = self.acceptor.partial();
            let len = match read_records(&self.stream, partial, &mut rules.scratch) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(self.closed_by_peer()),
            };
            let mut reply = Vec::new();
            let Scratch { plain, cipher } = &mut rules.scratch;
            let arrived = &mut cipher[..len];
            let local = &rules.mesh.local;
            let outcome = self
                .acceptor
                .receive(arrived, plain, rules.now, local, &mut reply);
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
