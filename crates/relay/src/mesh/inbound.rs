//! A worker's connections at the mesh port that have not said their hello yet.
//!
//! What they may say, and in what time, is decided by [`Acceptor`]; here it is read, never past
//! the hello, for after it comes the client's stream.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::acceptor::{Acceptor, Event, Limits, Rejection};
use taut_mesh::hello::Hello;
use taut_mesh::key::Keys;
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::Stream;
use taut_sys::{Errno, random};

use crate::access::session_quota::Source;
use crate::counters::worker::WorkerMetrics;
use crate::event::deadlines::Deadlines;
use crate::event::token::{Generation, Slot, Token};
use crate::turbo::route_metrics::Relays;

/// One without a proof that is younger does not give way to another of its own source. An honest
/// relay is done within two round trips.
const GRACE: Duration = Duration::from_secs(1);

/// What a worker's arrivals are treated by.
pub(crate) struct InboundTerms<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) keys: &'a Keys,
    pub(crate) times: Limits,
    /// Connections that have not proven that they hold a key; a further one takes the place of
    /// the oldest.
    pub(crate) max_unproven: usize,
    /// Connections that have, and have no hello yet.
    pub(crate) max_ready: usize,
    pub(crate) metrics: &'a WorkerMetrics,
    /// Where those are noted that have proven that they hold a key, if anybody wants to know.
    pub(crate) relays: Option<&'a Relays>,
    pub(crate) now: Instant,
}

/// Connections without a hello.
#[derive(Default)]
pub(crate) struct Inbound {
    conns: Slab<InboundConn>,
    generation: Generation,
    deadlines: Deadlines,
    /// Those without a proof in the order in which they came, and others that were among them.
    queue: VecDeque<(Slot, Generation)>,
    unproven: usize,
    /// The same, by where they come from.
    by_source: HashMap<Source, usize>,
    ready: usize,
}

struct InboundConn {
    stream: Stream,
    from: SocketAddr,
    acceptor: Acceptor,
    since: Instant,
    /// It was counted as ready.
    proven: bool,
    generation: Generation,
    deadline: Option<Instant>,
}

/// A session that another relay asks for.
pub(crate) struct SessionRequest {
    pub(crate) stream: Stream,
    pub(crate) from: SocketAddr,
    pub(crate) hello: Box<Hello>,
}

// === impl Arrivals ===

impl Inbound {
    /// Nobody is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Takes in a connection that was accepted at the mesh port.
    pub(crate) fn admit(&mut self, stream: Stream, from: SocketAddr, rules: &InboundTerms<'_>) {
        rules.metrics.mesh_accepted.add(1);
        if self.unproven >= rules.max_unproven {
            let Some(slot) = self.gives_way(Source::of(from.ip()), rules.now) else {
                rules.metrics.mesh_refused_full.add(1);
                return;
            };
            rules.metrics.mesh_evicted.add(1);
            self.remove(slot, rules);
        }
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.conns.vacant_entry();
        let slot = Slot(u32::try_from(vacant.key()).unwrap_or(u32::MAX));
        let token = Token::InboundConn(slot, generation).encode();
        if let Err(error) = rules.poller.add(&stream, token, Interest::StreamEdges) {
            tracing::warn!(%error, "cannot watch a connection of the mesh");
            return;
        }
        let acceptor = Acceptor::new(random::bytes(), rules.now, &rules.times);
        let deadline = Some(acceptor.deadline());
        self.deadlines.set(slot, None, deadline);
        vacant.insert(InboundConn {
            stream,
            from,
            acceptor,
            since: rules.now,
            proven: false,
            generation,
            deadline,
        });
        self.queue.push_back((slot, generation));
        self.unproven += 1;
        *self.by_source.entry(Source::of(from.ip())).or_default() += 1;
        rules.metrics.mesh_unproven.add(1);
    }

    /// When [`Inbound::expire`] wants to be called even if nothing is reported.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Closes what has taken too long.
    pub(crate) fn expire(&mut self, rules: &InboundTerms<'_>) {
        let due: Vec<_> = self.deadlines.due(rules.now).collect();
        for slot in due {
            let late = self
                .conns
                .get(slot.0 as usize)
                .and_then(|a| a.acceptor.expired(rules.now));
            if let Some(rejection) = late {
                self.reject(slot, rejection, rules);
            }
        }
    }

    /// Reads what a connection has to say, up to its hello.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        readiness: Readiness,
        rules: &InboundTerms<'_>,
    ) -> Option<SessionRequest> {
        let conn = self.conns.get_mut(slot.0 as usize)?;
        if conn.generation != generation || !readiness.readable() {
            return None;
        }
        let heard = conn.listen(self.ready >= rules.max_ready, rules);
        let deadline = Some(conn.acceptor.deadline());
        self.deadlines.set(slot, conn.deadline, deadline);
        conn.deadline = deadline;
        if conn.acceptor.is_proven() && !conn.proven {
            conn.proven = true;
            let from = conn.from;
            self.is_settled(from, rules);
            self.ready += 1;
            rules.metrics.mesh_ready.add(1);
            if let Some(relays) = rules.relays {
                relays.proven(from.ip(), rules.now);
            }
        }
        match heard {
            Ok(Some(hello)) => {
                let conn = self.remove(slot, rules)?;
                Some(SessionRequest {
                    stream: conn.stream,
                    from: conn.from,
                    hello,
                })
            }
            Ok(None) if self.ready > rules.max_ready => {
                rules.metrics.mesh_refused_full.add(1);
                self.remove(slot, rules);
                None
            }
            Ok(None) => None,
            Err(Farewell::Rejected(rejection)) => {
                self.reject(slot, rejection, rules);
                None
            }
            Err(Farewell::Full) => {
                rules.metrics.mesh_refused_full.add(1);
                self.remove(slot, rules);
                None
            }
            // A peer that no longer needs a connection closes it; so do those who only knock.
            Err(Farewell::Gone) => {
                self.remove(slot, rules);
                None
            }
        }
    }

    /// Resets those that wait: their peers take them out of their pools. A hello that has come is
    /// served, one that has begun to come is waited for. Never by FIN: to a dialler whose hello
    /// crosses it, it would be the orderly end of an empty reply.
    pub(crate) fn retire(&mut self, rules: &InboundTerms<'_>) -> Vec<SessionRequest> {
        let all = self.conns.iter().map(|(key, a)| (key, a.generation));
        let all: Vec<_> = all.collect();
        let mut requests = Vec::new();
        for (key, generation) in all {
            let slot = Slot(u32::try_from(key).unwrap_or(u32::MAX));
            requests.extend(self.handle(slot, generation, Readiness::DATA, rules));
            let begun = |a: &InboundConn| a.generation == generation && a.acceptor.hello_begun();
            if !self.conns.get(key).is_some_and(begun) {
                self.remove(slot, rules);
            }
        }
        requests
    }

    /// Closes what was proven with a key that is no longer held.
    pub(crate) fn drop_old_keys(&mut self, rules: &InboundTerms<'_>) {
        let old: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| !conn.acceptor.is_current(rules.keys))
            .map(|(key, _)| Slot(u32::try_from(key).unwrap_or(u32::MAX)))
            .collect();
        for slot in old {
            self.remove(slot, rules);
        }
    }

    /// Who without a proof gives way to one of `newcomer`'s: the oldest of the source that has most.
    /// If that is the newcomer's own, nobody who is young: they are further on than the new one, and
    /// a relay that makes many at a time would undo its own work.
    fn gives_way(&self, newcomer: Source, now: Instant) -> Option<Slot> {
        let most = self.by_source.values().copied().max()?;
        let of_most = |source| self.by_source.get(&source) == Some(&most);
        let (slot, oldest) = self.queue.iter().find_map(|&(slot, generation)| {
            let conn = self.conns.get(slot.0 as usize)?;
            let counts = conn.generation == generation && !conn.proven;
            (counts && of_most(Source::of(conn.from.ip()))).then_some((slot, conn))
        })?;
        let is_young = now.saturating_duration_since(oldest.since) < GRACE;
        (!is_young || !of_most(newcomer)).then_some(slot)
    }

    /// One that counted among those without a proof no longer does.
    fn is_settled(&mut self, from: SocketAddr, rules: &InboundTerms<'_>) {
        self.unproven -= 1;
        rules.metrics.mesh_unproven.sub(1);
        if let Entry::Occupied(mut count) = self.by_source.entry(Source::of(from.ip())) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn reject(&mut self, slot: Slot, rejection: Rejection, rules: &InboundTerms<'_>) {
        rules.metrics.mesh_rejected[rejection.index()].add(1);
        if let Some(conn) = self.remove(slot, rules) {
            let from = conn.from;
            tracing::debug!(%from, cause = rejection.label(), "refused at the mesh port");
        }
    }

    /// Forgets a connection; dropping it resets it.
    fn remove(&mut self, slot: Slot, rules: &InboundTerms<'_>) -> Option<InboundConn> {
        let conn = self.conns.try_remove(slot.0 as usize)?;
        self.deadlines.set(slot, conn.deadline, None);
        if conn.proven {
            self.ready -= 1;
            rules.metrics.mesh_ready.sub(1);
        } else {
            self.is_settled(conn.from, rules);
        }
        // What is at the front and long gone would only grow.
        while let Some(&(front, generation)) = self.queue.front() {
            let waits = self
                .conns
                .get(front.0 as usize)
                .is_some_and(|a| a.generation == generation && !a.proven);
            if waits {
                break;
            }
            self.queue.pop_front();
        }
        Some(conn)
    }
}

/// Why a connection ends before its hello.
enum Farewell {
    Gone,
    Full,
    Rejected(Rejection),
}

impl InboundConn {
    /// What it means that the peer has closed.
    fn farewell(&self) -> Farewell {
        match self.acceptor.closed() {
            Some(rejection) => Farewell::Rejected(rejection),
            None => Farewell::Gone,
        }
    }

    /// Reads until there is a hello, or no more. `full`: no more is greeted, so that the dialler's
    /// dial has failed and it makes a pause.
    fn listen(
        &mut self,
        full: bool,
        rules: &InboundTerms<'_>,
    ) -> Result<Option<Box<Hello>>, Farewell> {
        loop {
            let n = match self.stream.recv(self.acceptor.space()) {
                Ok(0) => return Err(self.farewell()),
                Ok(n) => n,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(self.farewell()),
            };
            match self.acceptor.advance(n, rules.now, rules.keys) {
                Ok(Event::More | Event::Proven) => {}
                Ok(Event::Greet(_)) if full => return Err(Farewell::Full),
                Ok(Event::Greet(greeting)) => match self.stream.send(&greeting) {
                    Ok(n) if n == greeting.len() => {}
                    _ => return Err(Farewell::Gone),
                },
                Ok(Event::Hello(hello)) => return Ok(Some(hello)),
                Err(rejection) => return Err(Farewell::Rejected(rejection)),
            }
        }
    }
}
