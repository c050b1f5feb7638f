//! A worker's connections to other relays that no session uses yet: established and proven before
//! they are needed, used once (pied-piper 3.2, improvement 3).
//!
//! How many there should be is decided by [`Sizer`]; here they are made, watched while idle, aged
//! out and handed over. Nothing is held over a connect: each is a state of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::dialler::{Dialler, Ready};
use taut_mesh::key::Keys;
use taut_mesh::pool::{Bounds, Sizer, expiry};
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::Stream;
use taut_sys::{Errno, random};

use crate::config::PoolLimits;
use crate::counters::worker::WorkerMetrics;
use crate::event::deadlines::Deadlines;
use crate::event::token::{Generation, Slot, Token};
use crate::route::table::Peer;

/// How often sizes are looked at when nothing else gives cause to.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Connections that a worker makes to one peer at one time, at most, where its share of `pool_max` is
/// not more. Further sessions wait for one of these: a peer that is slow is not helped by more, and
/// one that is full undoes what it had begun.
const DIALS_AT_ONCE: u32 = 64;

/// A session that waits for a connection.
pub(crate) type Waiter = (Slot, Generation);

/// A connection that is ready for a hello.
pub(crate) struct Spare {
    pub(crate) stream: Stream,
    pub(crate) ready: Ready,
}

/// What came of a look at the pools.
pub(crate) enum Outcome {
    /// This session gets this connection, made for it just now.
    Serve(Waiter, Spare),
    /// The connection that this session waits for could not be made.
    Fail(Waiter, Errno),
}

/// What a worker's pools are run with.
pub(crate) struct PoolTerms<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) keys: &'a Keys,
    pub(crate) limits: PoolLimits,
    /// For each address: SYN to the end of the handshake.
    pub(crate) timeout: Duration,
    pub(crate) metrics: &'a WorkerMetrics,
    pub(crate) now: Instant,
}

/// All pools of a worker.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Vec<Pool>,
    conns: Slab<Conn>,
    generation: Generation,
    deadlines: Deadlines,
    poll_at: Option<Instant>,
    outcomes: VecDeque<Outcome>,
}

/// The connections to one peer.
struct Pool {
    peer: Arc<Peer>,
    sizer: Sizer,
    /// Ready for use; the last one is the youngest.
    ready: VecDeque<Slot>,
    under_way: u32,
    waiters: VecDeque<Waiter>,
    /// Which of the peer's addresses is dialled next.
    next_addr: usize,
    /// It is no relay of this node any more; only sessions that wait for it get anything.
    retired: bool,
}

struct Conn {
    stream: Stream,
    generation: Generation,
    pool: usize,
    /// The pool's `next_addr` when it was dialled.
    addr: usize,
    state: State,
    begun: Instant,
    deadline: Option<Instant>,
}

enum State {
    Connecting,
    Shaking(Dialler),
    Ready(Ready),
}

// === impl Terms ===

impl PoolTerms<'_> {
    /// Connections to one peer that may be under way.
    fn dials_at_once(&self) -> u32 {
        self.limits.max.max(DIALS_AT_ONCE)
    }
}

// === impl Pools ===

impl Pools {
    /// Pools for these peers, each empty.
    pub(crate) fn new(peers: &[Arc<Peer>], limits: PoolLimits, now: Instant) -> Self {
        Self {
            pools: peers
                .iter()
                .map(|peer| Pool::new(peer, limits, now))
                .collect(),
            poll_at: (!peers.is_empty()).then_some(now),
            ..Self::default()
        }
    }

    /// These are the peers from now on, and the limits are those of `terms`.
    /// What is ready for others is closed; what is ready for those that stay is kept.
    pub(crate) fn adopt(&mut self, peers: &[Arc<Peer>], terms: &PoolTerms<'_>) {
        for i in 0..self.pools.len() {
            let pool = &mut self.pools[i];
            match peers.iter().find(|peer| peer.id == i) {
                Some(peer) => {
                    pool.peer = peer.clone();
                    pool.retired = false;
                    pool.sizer.set_bounds(bounds(terms.limits));
                }
                None => {
                    pool.retired = true;
                    self.empty(i, terms);
                }
            }
        }
        // Numbers are given in this order, and none is left out.
        let mut new: Vec<_> = peers.iter().filter(|p| p.id >= self.pools.len()).collect();
        new.sort_by_key(|peer| peer.id);
        let new = new
            .into_iter()
            .map(|p| Pool::new(p, terms.limits, terms.now));
        self.pools.extend(new);
        self.poll_at = (!peers.is_empty()).then_some(terms.now);
    }

    /// A connection that is ready now, for a session that has just come.
    pub(crate) fn take(&mut self, peer: usize, terms: &PoolTerms<'_>) -> Option<Spare> {
        let pool = &mut self.pools[peer];
        pool.sizer.arrived(terms.now);
        self.poll_at = Some(terms.now);
        // The youngest: the one least likely to have died without a word.
        let Some(slot) = pool.ready.pop_back() else {
            pool.sizer.missed(terms.now);
            terms.metrics.pool_misses.add(1);
            return None;
        };
        terms.metrics.pool_hits.add(1);
        terms.metrics.pool_ready.sub(1);
        self.remove(slot)?.into_spare()
    }

    /// Makes a connection for `waiter`, at once or when its turn comes; an [`Outcome`] tells what came
    /// of it.
    pub(crate) fn dial_for(&mut self, peer: usize, waiter: Waiter, terms: &PoolTerms<'_>) {
        self.pools[peer].waiters.push_back(waiter);
        if self.pools[peer].under_way < terms.dials_at_once() {
            self.dial(peer, terms);
        } else {
            terms.metrics.pool_dials_postponed.add(1);
        }
    }

    /// This session waits no longer.
    pub(crate) fn forget(&mut self, peer: usize, waiter: Waiter) {
        if let Some(pool) = self.pools.get_mut(peer) {
            pool.waiters.retain(|&w| w != waiter);
        }
    }

    /// Makes connections for sessions whose turn has come.
    fn dial_for_waiters(&mut self, peer: usize, terms: &PoolTerms<'_>) {
        // A dial that fails at once takes a session with it, so this ends.
        while let pool = &self.pools[peer]
            && (pool.under_way as usize) < pool.waiters.len()
            && pool.under_way < terms.dials_at_once()
        {
            self.dial(peer, terms);
        }
    }

    /// Makes a connection that a session is expected to want in a moment.
    pub(crate) fn dial_ahead(&mut self, peer: usize, terms: &PoolTerms<'_>) {
        let pool = &self.pools[peer];
        // Nobody waits for it, and anybody may have asked for it: not beyond what the pool may be,
        // and not while the peer cannot be reached.
        let room = pool.under_way < terms.limits.max.max(1);
        let may = pool.sizer.retry_at().is_none_or(|at| terms.now >= at);
        if room && may {
            self.dial(peer, terms);
        }
    }

    /// What is to be told to sessions.
    pub(crate) fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// When [`Pools::poll`] wants to be called even if nothing is reported.
    pub(crate) fn next(&self) -> Option<Instant> {
        [self.deadlines.next(), self.poll_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes note of what is known of a connection.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
        terms: &PoolTerms<'_>,
    ) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        if conn.generation != generation {
            return;
        }
        match conn.advance(ready, terms) {
            Ok(Progress::Waiting) => {}
            Ok(Progress::Done) => self.is_ready(slot, terms),
            Err(error) => self.lose(slot, error, terms),
        }
    }

    /// Ends what is too old or too slow, and dials what is missing.
    pub(crate) fn poll(&mut self, terms: &PoolTerms<'_>) {
        let due: Vec<_> = self.deadlines.due(terms.now).collect();
        for slot in due {
            match self.conns.get(slot.0 as usize).map(|c| &c.state) {
                Some(State::Ready(_)) => {
                    terms.metrics.pool_expired.add(1);
                    self.discard(slot, terms);
                }
                Some(_) => self.lose(slot, Errno::TIMEDOUT, terms),
                None => {}
            }
        }
        if self.poll_at.is_none_or(|at| terms.now < at) {
            return;
        }
        self.poll_at = (!self.pools.is_empty()).then(|| terms.now + POLL_EVERY);
        for i in 0..self.pools.len() {
            let pool = &mut self.pools[i];
            if pool.retired {
                continue;
            }
            let ready = u32::try_from(pool.ready.len()).unwrap_or(u32::MAX);
            // Those that sessions wait for are not for the pool.
            let waiting = u32::try_from(pool.waiters.len()).unwrap_or(u32::MAX);
            let coming = pool.under_way.saturating_sub(waiting);
            let wanted = pool.sizer.dials_wanted(ready, coming, terms.now);
            let may = terms.dials_at_once().saturating_sub(pool.under_way);
            for _ in 0..wanted.min(may) {
                self.dial(i, terms);
            }
            self.dial_for_waiters(i, terms);
        }
    }

    /// Closes what was made with a key that is no longer held.
    pub(crate) fn drop_old_keys(&mut self, terms: &PoolTerms<'_>) {
        let old: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| matches!(&conn.state, State::Ready(r) if !r.is_current(terms.keys)))
            .map(|(key, _)| Slot(u32::try_from(key).unwrap_or(u32::MAX)))
            .collect();
        for slot in old {
            self.discard(slot, terms);
        }
        self.poll_at = self.poll_at.map(|_| terms.now);
    }

    /// Closes what is ready and gives up what is on its way, but not for sessions that wait.
    pub(crate) fn close(&mut self, terms: &PoolTerms<'_>) {
        self.poll_at = None;
        for i in 0..self.pools.len() {
            self.empty(i, terms);
        }
    }

    /// Closes what is ready in a pool.
    fn empty(&mut self, i: usize, terms: &PoolTerms<'_>) {
        while let Some(slot) = self.pools[i].ready.pop_front() {
            terms.metrics.pool_ready.sub(1);
            self.remove(slot);
        }
    }

    fn dial(&mut self, i: usize, terms: &PoolTerms<'_>) {
        let pool = &mut self.pools[i];
        pool.under_way += 1;
        let addrs = pool.peer.targets.current();
        let tried = pool.next_addr;
        let addr = addrs[tried % addrs.len()].0;
        self.generation = self.generation.next();
        let generation = self.generation;
        let vacant = self.conns.vacant_entry();
        let slot = Slot(u32::try_from(vacant.key()).unwrap_or(u32::MAX));
        let token = Token::Spare(slot, generation).encode();
        let dialled = Stream::connect(addr, &pool.peer.options).and_then(|stream| {
            terms.poller.add(&stream, token, Interest::StreamEdges)?;
            Ok(stream)
        });
        match dialled {
            Ok(stream) => {
                let deadline = terms.now + terms.timeout;
                vacant.insert(Conn {
                    stream,
                    generation,
                    pool: i,
                    addr: tried,
                    state: State::Connecting,
                    begun: terms.now,
                    deadline: Some(deadline),
                });
                self.deadlines.set(slot, None, Some(deadline));
            }
            Err(error) => self.failed(i, tried, error, terms),
        }
    }

    /// A connection could not be made.
    fn failed(&mut self, i: usize, tried: usize, error: Errno, terms: &PoolTerms<'_>) {
        let pool = &mut self.pools[i];
        pool.under_way -= 1;
        // Dials that failed together are one step: two must not lead back to where they began.
        if pool.next_addr == tried {
            pool.next_addr = tried.wrapping_add(1);
        }
        pool.sizer.dial_failed(terms.now);
        terms.metrics.pool_dials_failed.add(1);
        tracing::debug!(peer = %pool.peer.targets.destination(), %error, "cannot reach a relay");
        if let Some(waiter) = pool.waiters.pop_front() {
            self.outcomes.push_back(Outcome::Fail(waiter, error));
        }
    }

    /// A connection is over, before or after it was ready.
    fn lose(&mut self, slot: Slot, error: Errno, terms: &PoolTerms<'_>) {
        let Some(conn) = self.conns.get(slot.0 as usize) else {
            return;
        };
        let (pool, tried) = (conn.pool, conn.addr);
        if matches!(conn.state, State::Ready(_)) {
            terms.metrics.pool_dead.add(1);
            self.poll_at = Some(terms.now);
            self.discard(slot, terms);
        } else {
            self.remove(slot);
            self.failed(pool, tried, error, terms);
            self.dial_for_waiters(pool, terms);
        }
    }

    /// The handshake is done.
    fn is_ready(&mut self, slot: Slot, terms: &PoolTerms<'_>) {
        let Some(conn) = self.conns.get_mut(slot.0 as usize) else {
            return;
        };
        let pool = &mut self.pools[conn.pool];
        pool.under_way -= 1;
        let time = terms.now - conn.begun;
        pool.sizer.dial_succeeded(time);
        terms.metrics.dial_mesh.observe(time);
        if let Some(waiter) = pool.waiters.pop_front() {
            let peer = conn.pool;
            let spare = self.remove(slot).and_then(Conn::into_spare);
            self.outcomes
                .extend(spare.map(|s| Outcome::Serve(waiter, s)));
            self.dial_for_waiters(peer, terms);
            return;
        }
        if pool.retired {
            self.remove(slot);
            return;
        }
        let until = expiry(
            terms.now,
            terms.limits.max_age,
            u64::from_ne_bytes(random::bytes()),
        );
        self.deadlines.set(slot, conn.deadline, Some(until));
        conn.deadline = Some(until);
        pool.ready.push_back(slot);
        terms.metrics.pool_ready.add(1);
    }

    /// Takes a ready connection out of its pool and closes it.
    fn discard(&mut self, slot: Slot, terms: &PoolTerms<'_>) {
        if let Some(conn) = self.remove(slot) {
            self.pools[conn.pool].ready.retain(|&p| p != slot);
            terms.metrics.pool_ready.sub(1);
        }
    }

    fn remove(&mut self, slot: Slot) -> Option<Conn> {
        let conn = self.conns.try_remove(slot.0 as usize)?;
        self.deadlines.set(slot, conn.deadline, None);
        Some(conn)
    }
}

// === impl Conn ===

/// How far the handshake of a connection is.
enum Progress {
    Waiting,
    /// It has just been completed.
    Done,
}

impl Pool {
    fn new(peer: &Arc<Peer>, limits: PoolLimits, now: Instant) -> Self {
        let seed = u64::from_ne_bytes(random::bytes());
        Self {
            peer: peer.clone(),
            sizer: Sizer::new(bounds(limits), now, seed),
            ready: VecDeque::new(),
            under_way: 0,
            waiters: VecDeque::new(),
            next_addr: 0,
            retired: false,
        }
    }
}

fn bounds(limits: PoolLimits) -> Bounds {
    Bounds {
        floor: limits.min,
        ceiling: limits.max,
    }
}

impl Conn {
    /// Goes on with the handshake as far as it goes.
    fn advance(&mut self, ready: Readiness, terms: &PoolTerms<'_>) -> Result<Progress, Errno> {
        if let State::Connecting = self.state {
            if !ready.writable() {
                return Ok(Progress::Waiting);
            }
            self.stream.take_error()?;
            if self.stream.is_its_own_peer() {
                return Err(Errno::CONNREFUSED);
            }
            let timeout = terms.timeout;
            let (dialler, opening) = Dialler::new(random::bytes(), terms.now, timeout, terms.keys);
            self.say(&opening)?;
            self.state = State::Shaking(dialler);
        }
        if !ready.readable() {
            return Ok(Progress::Waiting);
        }
        let State::Shaking(dialler) = &mut self.state else {
            // An idle one has nothing to say: it has ended, or what is there is no relay.
            return Err(Errno::CONNRESET);
        };
        loop {
            let n = match self.stream.recv(dialler.space()) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(n) => n,
                Err(Errno::AGAIN) => return Ok(Progress::Waiting),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            match dialler.advance(n, terms.now) {
                Ok(None) => {}
                Ok(Some(proof)) => {
                    self.say(&proof)?;
                    let shaken = std::mem::replace(&mut self.state, State::Connecting);
                    let State::Shaking(dialler) = shaken else {
                        return Err(Errno::PROTO);
                    };
                    self.state = State::Ready(dialler.ready().ok_or(Errno::PROTO)?);
                    return Ok(Progress::Done);
                }
                Err(rejection) => {
                    tracing::debug!(cause = rejection.label(), "not a relay of this mesh");
                    terms.metrics.pool_peers_rejected.add(1);
                    return Err(Errno::PROTO);
                }
            }
        }
    }

    /// Sends a message whole: the buffer of a connection that has sent next to nothing has room.
    fn say(&self, message: &[u8]) -> Result<(), Errno> {
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
            State::Connecting | State::Shaking(_) => None,
        }
    }
}
