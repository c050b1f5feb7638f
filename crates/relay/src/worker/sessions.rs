//! Registers, drives and ends the worker's sessions, and serves the queue of waiting clients.

use taut_mesh::places::SessionPlace;
use taut_sys::Errno;
use taut_sys::epoll::Interest;

use super::Worker;
use super::client::Client;
use super::dial_plan::DialPlan;
use super::pending_record::{Origin, PendingRecord, Timeline};
use super::queue::Pushed;
use super::session_table::{Admission, SessionEntry};
use super::slots::slot;
use crate::access::session_quota::Permit;
use crate::access::source::Source;
use crate::event::token::{Slot, Token};
use crate::forwarding::leg::TcpLeg;
use crate::forwarding::session::{RelayFault, Session, Step};
use crate::net::addr::ClientAddr;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::{End, Side};

/// How the legs of a session are closed.
#[derive(Clone, Copy)]
pub(super) enum Close {
    Gracefully,
    Reset,
}

impl Worker {
    /// Sets the time at which a session must be driven even without an event.
    pub(super) fn set_deadline(&mut self, slot: Slot) {
        let race =
            { self.sessions.get(slot) }.and_then(|entry| entry.race_deadline(&self.attempts));
        self.sessions.set_deadline(slot, race);
    }

    /// Registers a session without an upstream leg. Returns `None` if the poller cannot watch its
    /// client; the session has then been ended.
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

    /// Drives the sessions that are queued or whose deadline has passed.
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

    /// Drives a session, counts the bytes that it has moved, and takes the step that it returns.
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
            entry.won(&mut self.attempts, &self.io);
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
                    // Otherwise the next dial to that relay would be spent on a session that no
                    // longer waits for it.
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
        for slot in self.sessions.slots_where(|_| true) {
            self.stop(slot);
        }
    }

    /// Resets these sessions; `end` is the recorded cause.
    pub(super) fn end_all(&mut self, sessions: Vec<Slot>, end: End) {
        for slot in sessions {
            self.end(slot, end, Close::Reset);
        }
    }

    /// Ends a session because the node stops: gracefully if both streams have ended and the kernel has
    /// their bytes, otherwise with a reset.
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
        // After the admission is dropped: a reader of the gauge must not see fewer sessions while
        // their places are still taken.
        self.io.metrics.ended[end.index()].add(1);
        self.io.metrics.sessions.sub(1);
        self.queue_watch.has_ended = true;
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

    // === places ===

    /// Takes a session place for a client with this permit. If all are taken, evicts an idle
    /// session of this worker. Returns `None` if no place is free even then.
    pub(super) fn place(&mut self, new: &Permit) -> Option<SessionPlace> {
        let places = self.shared.places.clone();
        if let Some(place) = places.take() {
            return Some(place);
        }
        if !self.evictable.may_have_one(self.io.now) {
            return None;
        }
        let sessions_of = self.sessions_of();
        // `new` is already included in this count.
        let count = sessions_of(new.source());
        self.make_room(new.source(), count, &sessions_of)
            .then(|| places.take())?
    }

    /// Evicts an idle session in favour of a new session of `source`; with the new one, the source
    /// has `count` sessions. Returns whether one was evicted.
    fn make_room(
        &mut self,
        source: Source,
        count: u32,
        sessions_of: &impl Fn(Source) -> u32,
    ) -> bool {
        let (sessions, now) = (&mut self.sessions, self.io.now);
        let idle = self
            .evictable
            .choose(sessions, (source, count), sessions_of, now);
        if let Some(slot) = idle {
            self.end(slot, End::Evicted, Close::Reset);
        }
        idle.is_some()
    }

    /// Returns a function that counts a source's sessions without its waiting clients.
    fn sessions_of(&self) -> impl Fn(Source) -> u32 + use<> {
        let (all, waiting) = (self.shared.sources.clone(), self.shared.queue.by_source());
        move |source| {
            let waiting = waiting.get(&source).copied().unwrap_or(0);
            all.open_of(source).saturating_sub(waiting)
        }
    }

    /// Starts the session of a client if there is a place for it ([`Self::place_for`]). Otherwise
    /// queues the client, or refuses it if it cannot wait.
    pub(super) fn start(&mut self, client: Client) {
        self.io.metrics.accepted.add(1);
        match self.place_for(&client) {
            Ok(place) => self.begin_session(client, place),
            Err(cause) => self.queue(client, cause),
        }
    }

    /// Takes a session place for a client: a free one, or that of an evicted idle session. Fails if
    /// its forward is at `max_sessions`, other clients are ahead in the queue, or no place can be
    /// freed.
    pub(super) fn place_for(&mut self, client: &Client) -> Result<SessionPlace, ClientRefusal> {
        if client.route.is_full() {
            return Err(ClientRefusal::ForwardFull);
        }
        // A client without `queue_timeout` cannot queue, so it may take a place ahead of queued
        // clients.
        let can_wait = || client.route.timeouts(&self.setup.timeouts).queue.is_some();
        let is_after = self.shared.queue.is_before(&client.route.stats) && can_wait();
        let place = match is_after {
            true => None,
            false => self.place(&client.permit),
        };
        place.ok_or(ClientRefusal::Full)
    }

    /// Queues a client, or refuses it with `cause` if it cannot wait or the queue has no room. Also
    /// refuses the client that is displaced from the queue.
    fn queue(&mut self, mut client: Client, cause: ClientRefusal) {
        let Some(time) = client.route.timeouts(&self.setup.timeouts).queue else {
            return self.refuse_client(client, cause);
        };
        // The poller may still watch the client, if its first bytes were read. Another worker may
        // serve it.
        let _ = self.io.poller.remove(&client.stream);
        let stats = client.route.stats.clone();
        let until = self.io.now + time;
        client.queued_at = Some(self.io.now);
        match self.shared.queue.push(client, until, &self.setup) {
            Pushed::NoRoom(client) => return self.refuse_client(client, cause),
            Pushed::Waits {
                is_first,
                displaced,
            } => {
                if let Some(client) = displaced {
                    self.refuse_client(client, cause);
                }
                stats.worker(self.io.worker).queued.add(1);
                self.queue_watch.has_seen_any = true;
                if is_first {
                    self.tell_others();
                }
            }
        }
        // A place may have become free before the client was in the queue.
        self.serve_queue();
        if self.evictable.may_have_one(self.io.now) {
            self.make_room_for_queue();
        }
    }

    /// Serves the queue after a session of this worker has ended, and checks it once per interval
    /// ([`Self::look_at_queue`]).
    pub(super) fn poll_queue(&mut self) {
        if std::mem::take(&mut self.queue_watch.has_ended) {
            self.serve_queue();
        }
        let next = self.queue_watch.next_look(&self.mailbox);
        let watches = next.is_some() || !self.shared.queue.is_empty();
        if watches && self.queue_watch.is_due(self.io.now) {
            self.queue_watch.looked_at = self.io.now;
            self.mailbox.looks_at_queue();
            self.look_at_queue();
        }
        // After `looks_at_queue` has cleared the flag: the first client queued from now on sets it
        // again.
        self.queue_watch.has_seen_any = !self.shared.queue.is_empty();
    }

    /// Resets all waiting clients of the node.
    pub(super) fn stop_queue(&mut self) {
        for client in self.shared.queue.take_all() {
            client.stream.abort();
        }
    }

    /// Starts sessions of waiting clients, as far as there are free places.
    fn serve_queue(&mut self) {
        let shared = self.shared.clone();
        while let Some((client, place)) = shared.queue.next(&shared.places) {
            match client.stream.take_error() {
                Ok(()) => {
                    let queued_at = client.queued_at.unwrap_or(self.io.now);
                    self.io.metrics.queue.observe(self.io.now - queued_at);
                    self.begin_session(client, place);
                }
                Err(_) => self.forget(&client),
            }
        }
    }

    /// Removes clients that have disconnected and refuses those whose wait has expired. Then serves
    /// the queue, and evicts idle sessions for it.
    fn look_at_queue(&mut self) {
        let (left, late) = self.shared.queue.take_late(self.io.now);
        for client in &left {
            self.forget(client);
        }
        for client in late {
            let cause = match client.route.is_full() {
                true => ClientRefusal::ForwardFull,
                false => ClientRefusal::Full,
            };
            self.refuse_client(client, cause);
        }
        // `max_sessions` may have been raised, and sessions may have become idle for long enough.
        self.serve_queue();
        self.make_room_for_queue();
    }

    /// Evicts idle sessions of this worker for waiting clients.
    fn make_room_for_queue(&mut self) {
        let Some(mut making) = self.shared.queue.right_to_make_room() else {
            return;
        };
        while let Some(source) = making.next_source() {
            let sessions_of = self.sessions_of();
            if self.make_room(source, sessions_of(source) + 1, &sessions_of) {
                self.serve_queue();
            } else if !self.evictable.may_have_one(self.io.now) || !making.pass() {
                break;
            }
        }
    }

    /// Wakes the other workers: an idle worker does not check the queue by itself.
    fn tell_others(&self) {
        let others = self.shared.mailboxes().iter().enumerate();
        for (_, mailbox) in others.filter(|(index, _)| *index != self.io.worker) {
            mailbox.tell_of_queue();
        }
    }

    /// Counts a client that disconnected while it waited.
    fn forget(&self, client: &Client) {
        tracing::debug!(client = %client.addr.0, "a client left while it waited for a place");
        client.route.stats.worker(self.io.worker).queue_left.add(1);
    }

    /// Resets a client, and counts the refusal.
    fn refuse_client(&self, client: Client, cause: ClientRefusal) {
        let Client {
            stream,
            permit,
            addr,
            route,
            ..
        } = client;
        // Dropped first: a client that retries right after the reset must not be counted twice.
        drop(permit);
        self.refuse(stream, addr.0.ip(), cause, &route.stats);
    }
}
