//! A worker's sessions: registering, driving and ending them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::deadlines::Deadlines;
use taut_mesh::member_quota::MemberPermit;
use taut_mesh::members::MemberName;
use taut_mesh::places::SessionPlace;
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};

use super::Worker;
use super::dial_plan::DialPlan;
use super::pending_record::{Origin, PendingRecord, Timeline};
use super::slots::slot;
use crate::access::session_quota::Permit;
use crate::config::Timeouts;
use crate::counters::forward::ForwardStats;
use crate::counters::peer::PeerStats;
use crate::counters::told::SegmentCounts;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::leg::TcpLeg;
use crate::forwarding::session::{RelayFault, Session, Step};
use crate::net::addr::ClientAddr;
use crate::outcome::session_end::{End, Side};
use crate::turbo::route_metrics::Visit;

/// The time after which a connected upstream leg that the session dialled gets keepalive, which takes
/// four system calls. No probe is due sooner: it is the least that `keepalive_idle` can be. Client legs
/// and legs from the pool have keepalive from the start.
pub(super) const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(1);

/// A worker's sessions.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) entries: Slab<SessionEntry>,
    generation: Generation,
    deadlines: Deadlines<Slot>,
    /// Sessions that wait for their turn.
    ready: VecDeque<Slot>,
}

/// A session and its worker's state for it.
pub(super) struct SessionEntry {
    pub(super) session: Session<TcpLeg>,
    pub(super) generation: Generation,
    pub(super) client: ClientAddr,
    pub(super) admission: Admission,
    pub(super) plan: DialPlan,
    pub(super) timeouts: Arc<Timeouts>,
    pub(super) timeline: Timeline,
    /// The counters of the session's forward.
    pub(super) stats: Arc<ForwardStats>,
    /// The peer that the upstream leg leads to.
    pub(super) peer: Option<Arc<PeerStats>>,
    /// The session's log record, if there is a session log.
    pub(super) record: Option<Box<PendingRecord>>,
    pub(super) deadline: Option<Instant>,
    /// The time to enable keepalive on the upstream leg.
    pub(super) keep_alive_at: Option<Instant>,
    pub(super) queued: bool,
    /// The segments of the client's leg, and of the upstream leg, that samples have counted.
    pub(super) segment_counts: [SegmentCounts; 2],
    /// Keeps the relay that the session comes from remembered.
    pub(super) _visit: Option<Visit>,
}

/// The places that a session takes, given back when dropped.
pub(super) struct Admission {
    /// That in the quota of its source.
    pub(super) permit: Permit,
    /// That in the quota of the relay that it comes from, if it comes from one.
    pub(super) member: Option<MemberPermit>,
    /// That among `max_sessions`.
    pub(super) _place: SessionPlace,
}

// === impl Admission ===

impl Admission {
    /// Returns the places of a session of a forward's client.
    pub(super) fn of_client(permit: Permit, place: SessionPlace) -> Self {
        Self {
            permit,
            member: None,
            _place: place,
        }
    }
}

/// How the legs of a session are closed.
#[derive(Clone, Copy)]
pub(super) enum Close {
    Gracefully,
    Reset,
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn get(&self, slot: Slot) -> Option<&SessionEntry> {
        self.entries.get(slot.0 as usize)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut SessionEntry> {
        self.entries.get_mut(slot.0 as usize)
    }

    /// Returns whether the session is still open and has no upstream leg yet.
    pub(super) fn is_waiting(&self, (slot, generation): (Slot, Generation)) -> bool {
        self.get(slot)
            .is_some_and(|e| e.generation == generation && e.session.is_waiting())
    }

    /// Handles an event of a leg and queues its session.
    pub(super) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        side: Side,
        readiness: Readiness,
    ) {
        if let Some(entry) = self.entries.get_mut(slot.0 as usize)
            && entry.generation == generation
        {
            entry.session.handle(side, readiness);
            if !std::mem::replace(&mut entry.queued, true) {
                self.ready.push_back(slot);
            }
        }
    }

    /// Queues a session for its turn.
    pub(super) fn queue(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.get_mut(slot.0 as usize)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Sets the session's deadline: its own, `sooner`, or the time to enable keepalive.
    fn set_deadline(&mut self, slot: Slot, sooner: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(slot.0 as usize) else {
            return;
        };
        let own = entry.session.deadline(&entry.timeouts);
        let new = [own, sooner, entry.keep_alive_at];
        let new = new.into_iter().flatten().min();
        self.deadlines.set(slot, entry.deadline, new);
        entry.deadline = new;
    }

    /// Returns the time at which the next session is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Returns whether a session waits for its turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

// === impl SessionEntry ===

impl SessionEntry {
    /// Enables keepalive on the upstream leg when the time has come.
    fn keep_alive(&mut self, now: Instant) {
        if self.keep_alive_at.is_none_or(|at| now < at) {
            return;
        }
        self.keep_alive_at = None;
        if let (DialPlan::Dial(dial), (_, Some(upstream))) = (&self.plan, self.session.legs()) {
            upstream.stream().keep_alive(dial.keepalive());
        }
    }

    /// Adopts another plan, which may lead to another peer.
    pub(super) fn change_plan(&mut self, plan: DialPlan, worker: usize) {
        let peer = plan.peer().map(|peer| peer.stats.clone());
        if let Some(before) = std::mem::replace(&mut self.peer, peer) {
            before.worker(worker).sessions.sub(1);
        }
        if let Some(peer) = &self.peer {
            peer.worker(worker).sessions.add(1);
        }
        self.plan = plan;
    }
}

impl Worker {
    /// Sets the time at which a session must be driven even without an event.
    pub(super) fn set_deadline(&mut self, slot: Slot) {
        let race = self.race_deadline(slot);
        self.sessions.set_deadline(slot, race);
    }

    /// Registers a session without an upstream leg. Returns `None` if the poller cannot watch its client.
    pub(super) fn register(
        &mut self,
        (client, admission): (TcpLeg, Admission),
        addr: ClientAddr,
        plan: DialPlan,
        origin: &Origin<'_>,
    ) -> Option<usize> {
        let log = self.shared.log.is_some();
        let record = log.then(|| Box::new(PendingRecord::new(origin, client.stream(), &plan)));
        let visit = match (&self.shared.relays, origin) {
            (Some(relays), Origin::Mesh { relay, .. }) => relays.visit(*relay),
            _ => None,
        };
        self.sessions.generation = self.sessions.generation.next();
        let generation = self.sessions.generation;
        let vacant = self.sessions.entries.vacant_entry();
        let key = vacant.key();
        let token = Token::Leg(slot(key), generation, Side::Client).encode();
        let poller = &self.io.poller;
        // A connection from another relay is already in the poller.
        let watched = match poller.add(client.stream(), token, Interest::StreamEdges) {
            Err(Errno::EXIST) => poller.modify(client.stream(), token, Interest::StreamEdges),
            other => other,
        };
        let stats = origin.stats().clone();
        stats.worker(self.io.worker).sessions.add(1);
        let peer = plan.peer().map(|peer| peer.stats.clone());
        if let Some(peer) = &peer {
            peer.worker(self.io.worker).sessions.add(1);
        }
        vacant.insert(SessionEntry {
            session: Session::new(client, self.io.now),
            generation,
            client: addr,
            admission,
            plan,
            timeouts: match origin {
                Origin::Forward(route) => route.timeouts(&self.setup.timeouts),
                Origin::Mesh { .. } => self.setup.timeouts_of_mesh.clone(),
            },
            timeline: Timeline::new(self.io.now),
            stats,
            peer,
            record,
            deadline: None,
            keep_alive_at: None,
            queued: false,
            segment_counts: Default::default(),
            _visit: visit,
        });
        self.io.metrics.sessions.add(1);
        match watched {
            Ok(()) => Some(key),
            Err(e) => {
                self.end(slot(key), End::of_connect(e), Close::Reset);
                None
            }
        }
    }

    /// Gives every session that is ready or due its turn.
    pub(super) fn drive_sessions(&mut self) {
        for _ in 0..self.sessions.ready.len() {
            if let Some(slot) = self.sessions.ready.pop_front() {
                if let Some(entry) = self.sessions.get_mut(slot) {
                    entry.queued = false;
                }
                self.drive(slot);
            }
        }
        let due: Vec<_> = self.sessions.deadlines.due(self.io.now).collect();
        for slot in due {
            // A queued session is driven when its turn comes.
            if self.sessions.get(slot).is_some_and(|e| !e.queued) {
                self.drive(slot);
            }
        }
    }

    fn drive(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.entries.get_mut(slot.0 as usize) else {
            return;
        };
        entry.keep_alive(self.io.now);
        let before = entry.session.moved();
        let step = entry
            .session
            .drive(self.io.now, &entry.timeouts, &mut self.io);
        let after = entry.session.moved();
        let (to_upstream, to_client) = (after.0 - before.0, after.1 - before.1);
        self.io.metrics.upstream_bytes.add(to_upstream);
        self.io.metrics.client_bytes.add(to_client);
        self.io
            .metrics
            .backlogs_limited
            .add(entry.session.take_limited());
        let counters = entry.stats.worker(self.io.worker);
        counters.upstream_bytes.add(to_upstream);
        counters.client_bytes.add(to_client);
        if let Some(peer) = &entry.peer {
            let counters = peer.worker(self.io.worker);
            counters.sent_bytes.add(to_upstream);
            counters.received_bytes.add(to_client);
        }
        if before.1 == 0 && after.1 > 0 {
            entry.plan.on_answer();
        }
        if before == (0, 0) && after != before {
            entry.plan.forget_passed();
        }
        let redial_fault = (step == Step::Redial(Errno::TIMEDOUT)).then(|| {
            let connect = entry.timeouts.connect;
            RelayFault {
                error: Errno::TIMEDOUT,
                since: self.io.now - entry.plan.patience(connect, &self.setup),
            }
        });
        let relay_fault = entry.session.take_relay_fault().or(redial_fault);
        let connected = entry.session.is_connected();
        let is_dialling = matches!(entry.plan, DialPlan::Dial(_));
        let metrics = &self.io.metrics;
        if entry.timeline.note(self.io.now, connected, after, metrics) {
            counters.connected.add(1);
            if let (Some(record), (_, Some(upstream))) = (&mut entry.record, entry.session.legs()) {
                record.connected(upstream.stream());
            }
            self.won(slot);
        }
        if let Some(fault) = relay_fault {
            self.on_broken_relay(slot, fault);
        }
        match step {
            Step::Wait if !connected && is_dialling => self.race(slot, Errno::HOSTUNREACH),
            Step::Wait => self.set_deadline(slot),
            Step::Again => {
                self.sessions.queue(slot);
                self.set_deadline(slot);
            }
            Step::Redial(error) => {
                if let Some(entry) = self.sessions.get_mut(slot) {
                    entry.timeline.lost();
                    // Otherwise, a dial that ends later would be given to a session that has left.
                    if let DialPlan::Ask { peer, .. } = &entry.plan {
                        let waiter = (slot, entry.generation);
                        self.mesh.pools.forget(peer.id, waiter);
                    }
                }
                self.dial(slot, false, error);
            }
            Step::Done(end) => self.end(slot, end, Close::Gracefully),
            Step::Broken(end) => self.end(slot, end, Close::Reset),
        }
    }

    /// Ends every session.
    pub(super) fn stop_sessions(&mut self) {
        let all: Vec<_> = self
            .sessions
            .entries
            .iter()
            .map(|(key, _)| slot(key))
            .collect();
        for slot in all {
            self.stop(slot);
        }
    }

    /// Ends the sessions that come from, or go to, relays that `is_former`.
    pub(super) fn end_sessions_of(&mut self, is_former: impl Fn(&MemberName) -> bool) {
        let of_former = |entry: &SessionEntry| {
            let to = match &entry.plan {
                DialPlan::Ask { peer, .. } => Some(&peer.name),
                DialPlan::Dial { .. } | DialPlan::LookUp { .. } => None,
            };
            let from = entry.admission.member.as_ref().map(MemberPermit::member);
            from.is_some_and(&is_former) || to.is_some_and(&is_former)
        };
        let entries = self.sessions.entries.iter();
        let former: Vec<_> = entries
            .filter(|(_, entry)| of_former(entry))
            .map(|(key, _)| slot(key))
            .collect();
        for slot in former {
            self.end(slot, End::MemberRemoved, Close::Reset);
        }
    }

    fn stop(&mut self, slot: Slot) {
        match self.sessions.get(slot).map(|e| e.session.stop()) {
            Some(Step::Done(end)) => self.end(slot, end, Close::Gracefully),
            Some(_) => self.end(slot, End::Stopped, Close::Reset),
            None => {}
        }
    }

    /// Ends a session: closes its legs, counts it and records it.
    pub(super) fn end(&mut self, slot: Slot, end: End, close: Close) {
        let Some(mut entry) = self.sessions.entries.try_remove(slot.0 as usize) else {
            return;
        };
        self.sessions.deadlines.set(slot, entry.deadline, None);
        if let DialPlan::Dial(dial) = &mut entry.plan {
            self.attempts.forget(dial, &self.io.metrics);
        }
        if let DialPlan::Ask { peer, .. } = &entry.plan
            && entry.session.is_waiting()
        {
            // Otherwise, a connection would be dialled that no session waits for.
            self.mesh.pools.forget(peer.id, (slot, entry.generation));
        }
        for pipe in entry.session.take_dirty_pipes() {
            drop(pipe);
            self.io.pipes.forget(&self.io.metrics);
        }
        if let (Some(record), Some(log)) = (entry.record.take(), &self.shared.log) {
            log.record(Box::new(record.finish(
                &entry.session,
                entry.client,
                &entry.timeline,
                &entry.plan,
                self.io.now,
                end,
            )));
        }
        let (upstream_bytes, client_bytes) = entry.session.moved();
        if end == End::UpstreamReset && client_bytes == 0 && entry.timeline.is_fresh(self.io.now) {
            entry.plan.on_refusal(self.io.now, &self.io.metrics);
        }
        let (client, upstream) = entry.session.into_legs();
        // Released before the legs close, so that a client that sees the end of its connection also
        // finds it counted and its place free.
        drop(entry.plan);
        let counters = entry.stats.worker(self.io.worker);
        counters.sessions.sub(1);
        counters.ended[end.index()].add(1);
        drop(entry.admission);
        // Whoever reads that there is one session less finds its places free.
        self.io.metrics.ended[end.index()].add(1);
        self.io.metrics.sessions.sub(1);
        self.has_ended = true;
        if let Some(peer) = &entry.peer {
            let counters = peer.worker(self.io.worker);
            counters.sessions.sub(1);
            if end.is_of_connect() {
                counters.sessions_failed.add(1);
            }
        }
        match close {
            // Both streams have ended, so closing sends no RST.
            Close::Gracefully => drop((client, upstream)),
            Close::Reset => {
                client.abort();
                upstream.into_iter().for_each(TcpLeg::abort);
            }
        }
        tracing::debug!(
            client = %entry.client.0, cause = end.label(), upstream_bytes, client_bytes,
            "session ended"
        );
    }
}
