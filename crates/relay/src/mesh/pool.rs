//! A worker's pools of connections to other relays. They are established and proven before a
//! session needs them, and each is used once (pied-piper 3.2, improvement 3).
//!
//! [`Pool`] decides for each peer what to dial and when, and which session gets a connection. This module
//! dials the connections, watches them while idle, replaces old ones and hands them to sessions. Nothing
//! blocks on a connect.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::dialler::{Dialler, Ready, Rejection};
use taut_mesh::hello::Hello;
use taut_mesh::pool::{Bounds, Given, Pool, Wait, expiry};
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::{Keepalive, Stream};
use taut_sys::{Errno, random};

use crate::config::PoolLimits;
use crate::counters::told::SegmentCounts;
use crate::counters::worker::WorkerMetrics;
use crate::event::deadlines::Deadlines;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::{READS_MAX, TcpLeg, read_records};
use crate::outcome::peer::PeerFailure;
use crate::route::peer::Peer;
use crate::route::table::Mesh;

/// The interval at which sizes are checked without an event.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A session that waits for a connection.
pub(crate) type Waiter = (Slot, Generation);

/// A connection that is ready for a hello.
pub(crate) struct Spare {
    pub(crate) stream: Stream,
    pub(crate) ready: Ready,
}

/// The result for a session that waits for a connection.
pub(crate) enum DialOutcome {
    /// A connection dialled for the session.
    Serve(Waiter, Spare),
    /// The error of the dial that the session waited for.
    Fail(Waiter, Errno),
}

/// What a worker uses to run its pools.
pub(crate) struct PoolTerms<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) mesh: &'a Mesh,
    /// Memory to open records in.
    pub(crate) scratch: Scratch<'a>,
    pub(crate) limits: PoolLimits,
    /// For each address: from the SYN to the end of the handshake.
    pub(crate) timeout: Duration,
    pub(crate) metrics: &'a WorkerMetrics,
    /// The worker's number.
    pub(crate) worker: usize,
    pub(crate) now: Instant,
}

/// All pools of a worker.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Vec<PeerPool>,
    conns: Slab<Conn>,
    generation: Generation,
    deadlines: Deadlines,
    poll_at: Option<Instant>,
    /// When outgrown connections were last searched for.
    searched_at: Option<Instant>,
    outcomes: VecDeque<DialOutcome>,
    /// Faults of peers that this worker has found and the others do not know of.
    faults: Vec<PeerFault>,
    /// A connection has become ready since the last [`Pools::has_gained`].
    gained: bool,
    /// The node accepts no more sessions: only those that wait have connections dialled.
    closed: bool,
}

/// The reason why a peer, and its connections that look alive, may be useless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerFault {
    /// The number of the peer.
    pub(crate) peer: usize,
    pub(crate) error: Errno,
    /// Since when the peer has not answered.
    pub(crate) since: Instant,
}

/// The connections to one peer.
struct PeerPool {
    peer: Arc<Peer>,
    pool: Pool<Slot, Waiter>,
}

struct Conn {
    stream: Stream,
    to: SocketAddr,
    generation: Generation,
    pool: usize,
    /// The number of the address, as the pool counts them.
    addr: usize,
    state: State,
    /// The peer as the handshake uses it; before the handshake, as it was when the dial began.
    known: Arc<Peer>,
    begun: Instant,
    /// Its window, if that follows what the peer needs.
    window: Option<u32>,
    deadline: Option<Instant>,
    /// Its segments that samples have counted.
    segment_counts: SegmentCounts,
}

enum State {
    Connecting,
    Handshaking(Box<Dialler>),
    Ready(Ready),
}

// === impl Spare ===

impl Spare {
    /// Gives the connection to a session by sending its hello, and returns the leg.
    pub(crate) fn begin(
        self,
        hello: &Hello,
        metrics: &Arc<WorkerMetrics>,
    ) -> Result<TcpLeg, Errno> {
        let (message, channel) = self.ready.hello(hello).map_err(|_| Errno::PROTO)?;
        // A connection that has sent almost nothing has room in its send buffer.
        match self.stream.send(&message)? {
            n if n == message.len() => Ok(TcpLeg::new(self.stream, channel, metrics)),
            _ => Err(Errno::NOBUFS),
        }
    }
}

// === impl Pools ===

impl Pools {
    /// Returns empty pools for these peers.
    pub(crate) fn new(peers: &[Arc<Peer>], limits: PoolLimits, now: Instant) -> Self {
        Self {
            pools: peers
                .iter()
                .map(|peer| PeerPool::new(peer, limits, now))
                .collect(),
            poll_at: (!peers.is_empty()).then_some(now),
            ..Self::default()
        }
    }

    /// Adopts the peers, and the limits of `terms`. Closes the ready connections of former peers
    /// and keeps those of remaining ones.
    pub(crate) fn adopt(&mut self, peers: &[Arc<Peer>], terms: &mut PoolTerms<'_>) {
        for i in 0..self.pools.len() {
            let PeerPool { peer: known, pool } = &mut self.pools[i];
            let closed = match peers.iter().find(|peer| peer.id == i) {
                Some(peer) => {
                    // Connections that this relay's former key proved last only until their peers forget
                    // that key.
                    let has_new_key = known.own != peer.own;
                    *known = peer.clone();
                    pool.adopt(bounds(terms.limits, peer));
                    has_new_key.then(|| pool.drain())
                }
                None => Some(pool.retire()),
            };
            self.close_all(closed.into_iter().flatten(), i, terms);
        }
        // Peers are numbered in this order, without gaps.
        let mut new: Vec<_> = peers.iter().filter(|p| p.id >= self.pools.len()).collect();
        new.sort_by_key(|peer| peer.id);
        let new = new
            .into_iter()
            .map(|p| PeerPool::new(p, terms.limits, terms.now));
        self.pools.extend(new);
        self.poll_at = (!peers.is_empty()).then_some(terms.now);
    }

    /// Returns a ready connection for a session, if there is one.
    pub(crate) fn take(&mut self, peer: usize, terms: &mut PoolTerms<'_>) -> Option<Spare> {
        self.poll_at = Some(terms.now);
        let slot = self.pools[peer].pool.take(terms.now);
        match slot.is_some() {
            true => terms.metrics.pool_hits.add(1),
            false => terms.metrics.pool_misses.add(1),
        }
        self.take_out(slot?, peer, terms)
    }

    /// Returns a ready connection for a client whose handshake is still under way, if sessions can
    /// spare one.
    pub(crate) fn take_early(&mut self, peer: usize, terms: &mut PoolTerms<'_>) -> Option<Spare> {
        let slot = self.pools.get_mut(peer)?.pool.take_early(terms.now)?;
        self.poll_at = Some(terms.now);
        self.take_out(slot, peer, terms)
    }

    /// Records a client that has completed its handshake, for which a connection was wanted before.
    /// `has_one` tells whether it got one from [`Pools::take_early`]; otherwise its session takes one.
    pub(crate) fn on_early_client(
        &mut self,
        peer: usize,
        has_one: bool,
        terms: &mut PoolTerms<'_>,
    ) {
        if let Some(PeerPool { pool, .. }) = self.pools.get_mut(peer) {
            pool.on_early_client(terms.now);
            self.poll_at = Some(terms.now);
            terms.metrics.pool_hits.add(u64::from(has_one));
        }
    }

    /// Removes a connection that a session gets.
    fn take_out(&mut self, slot: Slot, peer: usize, terms: &mut PoolTerms<'_>) -> Option<Spare> {
        terms.metrics.pool_ready.sub(1);
        self.pools[peer]
            .peer
            .stats
            .worker(terms.worker)
            .ready
            .sub(1);
        self.remove(slot)?.into_spare()
    }

    /// Returns, once, whether a connection has become ready for which no session waited.
    pub(crate) fn has_gained(&mut self) -> bool {
        std::mem::take(&mut self.gained)
    }

    /// Dials a connection for `waiter`, now or when another dial completes, or waits for one that was
    /// dialled ahead. A [`DialOutcome`] reports the result.
    pub(crate) fn dial_for(&mut self, peer: usize, waiter: Waiter, terms: &mut PoolTerms<'_>) {
        match self.pools[peer].pool.wait(waiter) {
            Wait::Dial => self.dial(peer, terms),
            Wait::DialledAhead => {}
            Wait::Postponed => terms.metrics.pool_dials_postponed.add(1),
        }
    }

    /// Returns whether the peer cannot be reached as far as is known ([`Pool::is_broken`]).
    pub(crate) fn is_broken(&self, peer: usize, now: Instant) -> bool {
        self.pools
            .get(peer)
            .is_some_and(|peer| peer.pool.is_broken(now))
    }

    /// Records that the peer has left a session unanswered, or has refused this relay's key: connections to
    /// it that look alive and are older may be as useless, also those of the other workers.
    pub(crate) fn on_fault(&mut self, fault: PeerFault, terms: &mut PoolTerms<'_>) {
        if !self.adopt_fault(fault, terms) {
            return;
        }
        let PeerPool { peer, pool } = &self.pools[fault.peer];
        // Otherwise only the older connections are useless.
        if !pool.has_connected_after(fault.since) {
            let failure = PeerFailure::of(fault.error, true);
            peer.stats.worker(terms.worker).failed[failure.index()].add(1);
            tracing::debug!(peer = %peer.name, error = %fault.error, "a relay does not work");
        }
        self.faults.push(fault);
    }

    /// Does the same for a fault that another worker has found. Returns whether it was news.
    pub(crate) fn adopt_fault(&mut self, fault: PeerFault, terms: &mut PoolTerms<'_>) -> bool {
        let PeerFault { peer, since, .. } = fault;
        let conns = &self.conns;
        let is_older = |slot: &Slot| {
            let conn = conns.get(slot.0 as usize);
            conn.is_none_or(|conn| conn.begun <= since)
        };
        let pool = self.pools.get_mut(peer).map(|peer| &mut peer.pool);
        let Some(useless) = pool.and_then(|pool| pool.on_fault(since, terms.now, is_older)) else {
            return false;
        };
        terms.metrics.pool_dead.add(useless.len() as u64);
        self.close_all(useless, peer, terms);
        self.poll_at = Some(terms.now);
        true
    }

    /// Returns, once, the faults that this worker has found.
    pub(crate) fn take_faults(&mut self) -> Vec<PeerFault> {
        std::mem::take(&mut self.faults)
    }

    /// Removes a session that no longer waits.
    pub(crate) fn forget(&mut self, peer: usize, waiter: Waiter) {
        if let Some(PeerPool { pool, .. }) = self.pools.get_mut(peer) {
            pool.forget(waiter);
        }
    }

    /// Dials for waiting sessions, up to the limit.
    fn dial_for_waiters(&mut self, peer: usize, terms: &mut PoolTerms<'_>) {
        // A dial that fails at once removes a waiter, so the loop ends.
        while self.pools[peer].pool.is_dial_awaited() {
            self.dial(peer, terms);
        }
    }

    /// Dials a connection for a client whose handshake is still under way, if the pool has room for one
    /// more. Returns whether it does.
    pub(crate) fn dial_ahead(&mut self, peer: usize, terms: &mut PoolTerms<'_>) -> bool {
        let pool = self.pools.get_mut(peer).map(|peer| &mut peer.pool);
        if !pool.is_some_and(|pool| pool.may_dial_ahead(terms.now)) {
            return false;
        }
        self.dial(peer, terms);
        true
    }

    /// Returns the youngest ready connection to each peer, beginning with another peer in each `round`.
    pub(crate) fn youngest(
        &self,
        round: u64,
    ) -> impl Iterator<Item = (&Peer, &Stream, &SegmentCounts)> {
        let first = usize::try_from(round).unwrap_or(0) % self.pools.len().max(1);
        let (before, after) = self.pools.split_at(first.min(self.pools.len()));
        after.iter().chain(before).filter_map(|pool| {
            let slot = pool.pool.youngest()?;
            let conn = self.conns.get(slot.0 as usize)?;
            Some((&*pool.peer, &conn.stream, &conn.segment_counts))
        })
    }

    /// Returns the next outcome for a session.
    pub(crate) fn next_outcome(&mut self) -> Option<DialOutcome> {
        self.outcomes.pop_front()
    }

    /// Returns the time at which [`Pools::poll`] is due even without an event.
    pub(crate) fn next(&self) -> Option<Instant> {
        [self.deadlines.next(), self.poll_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles an event of a connection.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
        terms: &mut PoolTerms<'_>,
    ) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        if conn.generation != generation {
            return;
        }
        let peer = self.pools[conn.pool].peer.clone();
        match conn.advance(&peer, ready, terms) {
            Ok(Progress::Waiting) => {}
            Ok(Progress::Done) => self.on_ready(slot, terms),
            Ok(Progress::Withdrawn) => {
                // Another process may accept connections at the same address, or none does.
                terms.metrics.pool_withdrawn.add(1);
                let is_young = self
                    .conns
                    .get(slot.0 as usize)
                    .is_some_and(|conn| terms.now < conn.begun + terms.timeout);
                let pool = self.conns.get(slot.0 as usize).map(|conn| conn.pool);
                if let Some(pool) = pool.filter(|_| is_young) {
                    // Otherwise, a peer that says so on every connection would be dialled without a pause.
                    self.pools[pool].pool.on_failure(terms.now);
                }
                self.poll_at = Some(terms.now);
                self.discard(slot, terms);
            }
            Ok(Progress::Full) => {
                terms.metrics.pool_withdrawn.add(1);
                if let Some(conn) = self.conns.get(slot.0 as usize) {
                    let PeerPool { peer, pool } = &mut self.pools[conn.pool];
                    pool.on_full(terms.now);
                    let failed = &peer.stats.worker(terms.worker).failed;
                    failed[PeerFailure::Full.index()].add(1);
                }
                self.discard(slot, terms);
            }
            Ok(Progress::Outdated) => {
                if let Some(conn) = self.conns.get(slot.0 as usize) {
                    self.pools[conn.pool].pool.on_dial_outdated();
                }
                self.drop_outdated(slot, terms);
            }
            Err(error) => self.on_lost(slot, error, terms),
        }
    }

    /// Closes connections that are too old or too slow, and dials replacements for missing ones.
    pub(crate) fn poll(&mut self, terms: &mut PoolTerms<'_>) {
        let due: Vec<_> = self.deadlines.due(terms.now).collect();
        for slot in due {
            match self.conns.get(slot.0 as usize).map(|c| &c.state) {
                Some(State::Ready(_)) => {
                    terms.metrics.pool_expired.add(1);
                    self.discard(slot, terms);
                }
                Some(_) => self.on_slow_dial(slot, terms),
                None => {}
            }
        }
        if self.poll_at.is_none_or(|at| terms.now < at) {
            return;
        }
        self.poll_at = (!self.pools.is_empty()).then(|| terms.now + POLL_EVERY);
        // Sessions cause a poll each; a search passes over all connections.
        let searches = self
            .searched_at
            .is_none_or(|at| terms.now >= at + POLL_EVERY);
        if searches {
            self.searched_at = Some(terms.now);
        }
        for i in 0..self.pools.len() {
            let PeerPool { peer, pool } = &mut self.pools[i];
            if pool.is_retired() {
                continue;
            }
            pool.set_bounds(bounds(terms.limits, peer));
            if searches {
                self.replace_outgrown(i, terms);
            }
            let pool = &self.pools[i].pool;
            let wanted = match self.closed {
                true => 0,
                false => pool.dials_wanted(terms.now),
            };
            for _ in 0..wanted {
                self.dial(i, terms);
            }
            self.dial_for_waiters(i, terms);
        }
    }

    /// Closes a ready connection whose peer needs twice its window by now. One each time, so that sessions
    /// still find others.
    fn replace_outgrown(&mut self, peer: usize, terms: &mut PoolTerms<'_>) {
        if !self.pools[peer].peer.sizes_window {
            return;
        }
        let window = terms.mesh.turbo.window_of(&self.pools[peer].peer.name);
        let outgrown = self.conns.iter().find(|(_, conn)| {
            conn.pool == peer
                && matches!(conn.state, State::Ready(_))
                && conn.window.is_some_and(|own| own <= window / 2)
        });
        if let Some((key, _)) = outgrown {
            terms.metrics.pool_outgrown.add(1);
            self.discard(Slot(u32::try_from(key).unwrap_or(u32::MAX)), terms);
        }
    }

    /// Handles a dial that has taken long: first long enough to doubt the peer, then too long.
    fn on_slow_dial(&mut self, slot: Slot, terms: &mut PoolTerms<'_>) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        let end = conn.begun + terms.timeout;
        if terms.now >= end {
            return self.on_lost(slot, Errno::TIMEDOUT, terms);
        }
        self.deadlines.set(slot, conn.deadline, Some(end));
        conn.deadline = Some(end);
        let (peer, begun) = (conn.pool, conn.begun);
        // The sessions that wait for the dial cannot be relied on to report this: their clients may give up first. If
        // a later dial has succeeded, only this one has lost its SYN.
        if !self.pools[peer].pool.has_connected_since(begun) {
            terms.metrics.pool_dials_slow.add(1);
            let error = Errno::TIMEDOUT;
            let since = begun;
            self.on_fault(PeerFault { peer, error, since }, terms);
        }
    }

    /// Closes ready connections to peers whose key is no longer one of theirs, and plain ones to addresses
    /// in networks that are no longer trusted.
    pub(crate) fn drop_old_keys(&mut self, terms: &mut PoolTerms<'_>) {
        let old: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| {
                let State::Ready(ready) = &conn.state else {
                    return false;
                };
                match ready.peer() {
                    Some(key) => !self.pools[conn.pool].peer.keys.contains(&key),
                    None => !terms.mesh.trusts(conn.to.ip()),
                }
            })
            .map(|(key, _)| Slot(u32::try_from(key).unwrap_or(u32::MAX)))
            .collect();
        for slot in old {
            self.discard(slot, terms);
        }
        self.poll_at = self.poll_at.map(|_| terms.now);
    }

    /// Closes ready connections, and dials no more but for sessions that wait.
    pub(crate) fn close(&mut self, terms: &mut PoolTerms<'_>) {
        self.closed = true;
        self.poll_at = None;
        for i in 0..self.pools.len() {
            let ready = self.pools[i].pool.drain();
            self.close_all(ready, i, terms);
        }
    }

    /// Closes connections that were ready.
    fn close_all(
        &mut self,
        ready: impl IntoIterator<Item = Slot>,
        peer: usize,
        terms: &mut PoolTerms<'_>,
    ) {
        for slot in ready {
            terms.metrics.pool_ready.sub(1);
            self.pools[peer]
                .peer
                .stats
                .worker(terms.worker)
                .ready
                .sub(1);
            self.remove(slot);
        }
    }

    fn dial(&mut self, i: usize, terms: &mut PoolTerms<'_>) {
        let PeerPool { peer, pool } = &mut self.pools[i];
        let addrs = peer.addrs();
        let tried = pool.on_dial();
        let Some(addr) = tried.checked_rem(addrs.len()).map(|place| addrs[place].0) else {
            // Its names have not been looked up yet.
            self.dial_failed(i, tried, Errno::HOSTUNREACH, false, terms);
            return;
        };
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.conns.vacant_entry();
        let slot = Slot(u32::try_from(vacant.key()).unwrap_or(u32::MAX));
        let token = Token::Spare(slot, generation).encode();
        let (options, window) = match peer.sizes_window {
            true => {
                let (options, window) = terms.mesh.turbo.dialling(&peer.name, &peer.options);
                (Cow::Owned(options), Some(window))
            }
            false => (Cow::Borrowed(&peer.options), None),
        };
        let dialled = Stream::connect(addr, &options).and_then(|stream| {
            terms.poller.add(&stream, token, Interest::StreamEdges)?;
            Ok(stream)
        });
        match dialled {
            Ok(stream) => {
                let deadline = terms.now + terms.limits.dial_patience().min(terms.timeout);
                vacant.insert(Conn {
                    stream,
                    to: addr,
                    generation,
                    pool: i,
                    addr: tried,
                    state: State::Connecting,
                    known: peer.clone(),
                    begun: terms.now,
                    window,
                    deadline: Some(deadline),
                    segment_counts: SegmentCounts::default(),
                });
                self.deadlines.set(slot, None, Some(deadline));
            }
            Err(error) => self.dial_failed(i, tried, error, false, terms),
        }
    }

    /// Accounts for a failed dial.
    fn dial_failed(
        &mut self,
        i: usize,
        tried: usize,
        error: Errno,
        connected: bool,
        terms: &mut PoolTerms<'_>,
    ) {
        let PeerPool { peer, pool } = &mut self.pools[i];
        let waiter = pool.on_dial_failed(tried, terms.now);
        terms.metrics.pool_dials_failed.add(1);
        let failure = PeerFailure::of(error, connected);
        peer.stats.worker(terms.worker).failed[failure.index()].add(1);
        tracing::debug!(peer = %peer.name, %error, "cannot connect to a relay");
        let failed = waiter.map(|waiter| DialOutcome::Fail(waiter, error));
        self.outcomes.extend(failed);
    }

    /// Handles the end of a connection, ready or not.
    fn on_lost(&mut self, slot: Slot, error: Errno, terms: &mut PoolTerms<'_>) {
        let Some(conn) = self.conns.get(slot.0 as usize) else {
            return;
        };
        let (pool, tried) = (conn.pool, conn.addr);
        if matches!(conn.state, State::Ready(_)) {
            // A peer that refuses this relay's key says so only after the handshake. Without a back-off,
            // the pool would dial it without a pause.
            let refused = matches!(error, Errno::PROTO | Errno::ACCESS)
                || terms.now < conn.begun + terms.timeout;
            terms.metrics.pool_dead.add(1);
            self.poll_at = Some(terms.now);
            self.discard(slot, terms);
            if error == Errno::TIMEDOUT {
                // Its keepalive probes were unanswered.
                let Keepalive {
                    idle,
                    interval,
                    probes,
                } = self.pools[pool].peer.options.keepalive;
                let since = terms.now - (idle + interval * probes);
                let peer = pool;
                self.on_fault(PeerFault { peer, error, since }, terms);
            } else if refused {
                let PeerPool { peer, pool } = &mut self.pools[pool];
                pool.on_failure(terms.now);
                let failure = PeerFailure::of(error, true);
                peer.stats.worker(terms.worker).failed[failure.index()].add(1);
            }
        } else {
            let connected = matches!(conn.state, State::Handshaking(_));
            self.remove(slot);
            self.dial_failed(pool, tried, error, connected, terms);
            self.dial_for_waiters(pool, terms);
        }
    }

    /// Handles the end of a handshake: gives the connection to a waiting session or to the pool.
    fn on_ready(&mut self, slot: Slot, terms: &mut PoolTerms<'_>) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        let i = conn.pool;
        let PeerPool { peer, pool } = &mut self.pools[i];
        let time = terms.now - conn.begun;
        pool.on_dial_succeeded(time, terms.now);
        terms.metrics.dial_mesh.observe(time);
        peer.stats.worker(terms.worker).dialled.add(1);
        // The list of members, or this relay's key, may have changed during the handshake.
        let key = match &conn.state {
            State::Ready(ready) => ready.peer(),
            _ => None,
        };
        if key.is_some_and(|key| !peer.keys.contains(&key) || peer.own != conn.known.own) {
            self.drop_outdated(slot, terms);
            return;
        }
        match pool.give(slot) {
            Given::To(waiter) => {
                let spare = self.remove(slot).and_then(Conn::into_spare);
                self.outcomes
                    .extend(spare.map(|s| DialOutcome::Serve(waiter, s)));
                self.dial_for_waiters(i, terms);
                return;
            }
            Given::Surplus => {
                terms.metrics.pool_surplus.add(1);
                self.remove(slot);
                return;
            }
            Given::Kept => {}
        }
        let until = expiry(
            terms.now,
            terms.limits.max_age,
            u64::from_ne_bytes(random::bytes()),
        );
        self.deadlines.set(slot, conn.deadline, Some(until));
        conn.deadline = Some(until);
        self.gained = true;
        terms.metrics.pool_ready.add(1);
        peer.stats.worker(terms.worker).ready.add(1);
    }

    /// Closes a connection if a key has changed since its handshake began. If one is still needed, another
    /// is dialled.
    fn drop_outdated(&mut self, slot: Slot, terms: &mut PoolTerms<'_>) {
        if let Some(conn) = self.remove(slot) {
            let peer = &conn.known.name;
            tracing::debug!(%peer, "a key has changed during the handshake with a relay");
            terms.metrics.pool_dials_outdated.add(1);
            self.poll_at = Some(terms.now);
            self.dial_for_waiters(conn.pool, terms);
        }
    }

    /// Removes a ready connection from its pool and closes it.
    fn discard(&mut self, slot: Slot, terms: &mut PoolTerms<'_>) {
        if let Some(conn) = self.remove(slot) {
            let PeerPool { peer, pool } = &mut self.pools[conn.pool];
            pool.remove(slot);
            terms.metrics.pool_ready.sub(1);
            peer.stats.worker(terms.worker).ready.sub(1);
        }
    }

    fn remove(&mut self, slot: Slot) -> Option<Conn> {
        let conn = self.conns.try_remove(slot.0 as usize)?;
        self.deadlines.set(slot, conn.deadline, None);
        Some(conn)
    }
}

// === impl Conn ===

/// The progress of a connection's handshake.
enum Progress {
    Waiting,
    /// The handshake has just been completed.
    Done,
    /// The peer is draining, and the connection was not used.
    Withdrawn,
    /// The peer has no room for the connection, which was not used.
    Full,
    /// The peer has proven none of the keys that it had when the handshake began, and these have been
    /// replaced since.
    Outdated,
}

impl PeerPool {
    fn new(peer: &Arc<Peer>, limits: PoolLimits, now: Instant) -> Self {
        let seed = u64::from_ne_bytes(random::bytes());
        Self {
            peer: peer.clone(),
            pool: Pool::new(bounds(limits, peer), now, seed),
        }
    }
}

/// Returns the limits of the pool of a peer. A peer that is dialled only for automatic routes, and is on none
/// that is in use, has no more connections than sessions have needed of late.
fn bounds(limits: PoolLimits, peer: &Peer) -> Bounds {
    Bounds {
        floor: if peer.is_kept() { limits.min } else { 0 },
        ceiling: limits.max,
    }
}

impl Conn {
    /// Continues the handshake as far as the received bytes allow.
    fn advance(
        &mut self,
        peer: &Arc<Peer>,
        ready: Readiness,
        terms: &mut PoolTerms<'_>,
    ) -> Result<Progress, Errno> {
        if let State::Connecting = self.state {
            if !ready.writable() {
                return Ok(Progress::Waiting);
            }
            self.stream.take_error()?;
            if self.stream.is_its_own_peer() {
                return Err(Errno::CONNREFUSED);
            }
            if terms.mesh.trusts(self.to.ip()) {
                self.state = State::Ready(Ready::trusted());
                return Ok(Progress::Done);
            }
            let mut opening = Vec::new();
            let dialler = Dialler::new(&peer.tls, terms.now, terms.timeout, &mut opening);
            let dialler = dialler.map_err(|_| Errno::PROTO)?;
            self.send_whole(&opening)?;
            self.known = peer.clone();
            self.state = State::Handshaking(Box::new(dialler));
        }
        if !ready.readable() {
            return Ok(Progress::Waiting);
        }
        for _ in 0..READS_MAX {
            let partial = match &self.state {
                State::Connecting => return Ok(Progress::Waiting),
                State::Handshaking(dialler) => dialler.partial(),
                State::Ready(ready) => ready.partial(),
            };
            let len = match read_records(&self.stream, partial, &mut terms.scratch) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(Progress::Waiting),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            let Scratch { plain, cipher } = &mut terms.scratch;
            let arrived = &mut cipher[..len];
            let mut reply = Vec::new();
            let outcome = match &mut self.state {
                State::Connecting => return Err(Errno::PROTO),
                State::Handshaking(dialler) => {
                    dialler.receive(arrived, plain, terms.now, &mut reply)
                }
                State::Ready(ready) => ready.receive(arrived, plain).map(|()| false),
            };
            if !reply.is_empty() {
                self.send_whole(&reply)?;
            }
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    let handshaking = std::mem::replace(&mut self.state, State::Connecting);
                    let State::Handshaking(dialler) = handshaking else {
                        return Err(Errno::PROTO);
                    };
                    self.state = State::Ready(dialler.ready().ok_or(Errno::PROTO)?);
                    return Ok(Progress::Done);
                }
                Err(Rejection::Withdrawn) => return Ok(Progress::Withdrawn),
                Err(Rejection::Full) => return Ok(Progress::Full),
                // The peer closed an idle connection in order.
                Err(Rejection::ClosedEarly) => return Err(Errno::CONNRESET),
                Err(Rejection::UnknownKey) if self.known.keys != peer.keys => {
                    return Ok(Progress::Outdated);
                }
                Err(rejection) => {
                    tracing::debug!(peer = %peer.name, cause = rejection.label(), "{rejection}");
                    if rejection == Rejection::KeyRefused {
                        return Err(Errno::ACCESS);
                    }
                    terms.metrics.pool_peers_rejected.add(1);
                    return Err(Errno::PROTO);
                }
            }
        }
        // A handshake takes a few reads; a peer must not keep the worker.
        Err(Errno::PROTO)
    }

    /// Sends a whole message. A connection that has sent almost nothing has room in its send
    /// buffer.
    fn send_whole(&self, message: &[u8]) -> Result<(), Errno> {
        match self.stream.send(message) {
            Ok(n) if n == message.len() => Ok(()),
            Ok(_) => Err(Errno::NOBUFS),
            Err(e) => Err(e),
        }
    }

    fn into_spare(self) -> Option<Spare> {
        match self.state {
            State::Ready(ready) => Some(Spare {
                stream: self.stream,
                ready,
            }),
            State::Connecting | State::Handshaking(_) => None,
        }
    }
}
