//! A worker's pools of connections to other relays. They are established and proven before a
//! session needs them, and each is used once (pied-piper 3.2, improvement 3).
//!
//! [`Dials`] decides for each peer what to dial and when, which session gets a connection, and which connections
//! to close. This module dials the connections, watches them while idle, and counts what becomes of them. Nothing
//! blocks on a connect.

mod conn;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_mesh::dialler::{Ready, Rejection};
use taut_mesh::dials::{self, Action, Asked, Asking, Closing, DialId, Dials, PeerTerms, Times};
use taut_mesh::hello::Hello;
use taut_mesh::pool::{Bounds, Wait};
use taut_sys::epoll::{Interest, Poller, Readiness};
use taut_sys::socket::{Keepalive, Stream};
use taut_sys::{Errno, random};

use self::conn::{Conn, Progress, State};
use crate::config::PoolLimits;
use crate::counters::told::SegmentCounts;
use crate::counters::worker::WorkerMetrics;
use crate::event::token::{Generation, Slot, Token};
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::TcpLeg;
use crate::outcome::peer::PeerFailure;
use crate::route::peer::Peer;
use crate::route::table::Mesh;

/// The interval at which outgrown connections are searched for. Sessions cause a poll each, and a search passes over
/// all connections.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

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
    /// The session waits in vain, for this reason: its dial has failed, or the peer is not dialled any more.
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
pub(crate) struct Pools {
    /// By their numbers, those that are not dialled any more included.
    peers: Vec<Arc<Peer>>,
    dials: Dials<Conn, Waiter>,
    /// When outgrown connections were last searched for.
    searched_at: Option<Instant>,
    outcomes: VecDeque<DialOutcome>,
    /// Faults of peers that this worker has found and the others do not know of.
    faults: Vec<dials::Fault>,
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

impl Default for Pools {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            dials: Dials::new(u64::from_ne_bytes(random::bytes())),
            searched_at: None,
            outcomes: VecDeque::new(),
            faults: Vec::new(),
        }
    }
}

impl Pools {
    /// Returns empty pools for these peers.
    pub(crate) fn new(
        peers: &[Arc<Peer>],
        limits: PoolLimits,
        timeout: Duration,
        now: Instant,
    ) -> Self {
        let mut pools = Self::default();
        pools.set_peers(peers, limits, timeout, now);
        pools
    }

    /// Adopts the peers, and the limits of `terms`. Closes the ready connections of former peers
    /// and keeps those of remaining ones.
    pub(crate) fn adopt(&mut self, peers: &[Arc<Peer>], terms: &mut PoolTerms<'_>) {
        self.set_peers(peers, terms.limits, terms.timeout, terms.now);
        self.act(terms);
    }

    fn set_peers(
        &mut self,
        peers: &[Arc<Peer>],
        limits: PoolLimits,
        timeout: Duration,
        now: Instant,
    ) {
        // Peers are numbered in this order, without gaps.
        let mut new: Vec<_> = peers.iter().filter(|p| p.id >= self.peers.len()).collect();
        new.sort_by_key(|peer| peer.id);
        self.peers.extend(new.into_iter().cloned());
        let of_each = self.peers.iter_mut().enumerate().map(|(id, known)| {
            let peer = peers.iter().find(|peer| peer.id == id)?;
            *known = peer.clone();
            let Keepalive {
                idle,
                interval,
                probes,
            } = peer.options.keepalive;
            Some(PeerTerms {
                keys: peer.keys.clone(),
                bounds: bounds(limits, peer),
                keepalive: idle + interval * probes,
            })
        });
        let times = Times {
            connect: timeout,
            patience: limits.dial_patience(),
            max_age: limits.max_age,
        };
        self.dials.adopt(times, of_each, now);
    }

    /// Gets a session a connection to a peer. If the session has to wait, a [`DialOutcome`] follows.
    pub(crate) fn ask(
        &mut self,
        peer: usize,
        asking: Asking<'_, Waiter>,
        terms: &mut PoolTerms<'_>,
    ) -> Asked<Spare> {
        let at_first = asking.at_first;
        let asked = match self.dials.ask(peer, asking, terms.now) {
            Asked::Ready(conn) => {
                terms.metrics.pool_hits.add(1);
                self.count_ready_less(peer, terms);
                let spare = conn.into_spare();
                spare.map_or(Asked::Leaves { is_broken: false }, Asked::Ready)
            }
            Asked::Waits(wait) => {
                match at_first {
                    true => terms.metrics.pool_misses.add(1),
                    false => terms.metrics.pool_retries.add(1),
                }
                let is_postponed = wait == Wait::Postponed;
                terms
                    .metrics
                    .pool_dials_postponed
                    .add(u64::from(is_postponed));
                Asked::Waits(wait)
            }
            Asked::Leaves { is_broken } => Asked::Leaves { is_broken },
        };
        self.act(terms);
        asked
    }

    /// Returns a ready connection for a client whose handshake is still under way, if sessions can
    /// spare one.
    pub(crate) fn take_early(&mut self, peer: usize, terms: &mut PoolTerms<'_>) -> Option<Spare> {
        let conn = self.dials.take_early(peer, terms.now)?;
        self.count_ready_less(peer, terms);
        conn.into_spare()
    }

    /// Records a client that has completed its handshake, for which a connection was wanted before.
    /// `has_one` tells whether it got one from [`Pools::take_early`]; otherwise its session takes one.
    pub(crate) fn on_early_client(
        &mut self,
        peer: usize,
        has_one: bool,
        terms: &mut PoolTerms<'_>,
    ) {
        self.dials.on_early_client(peer, terms.now);
        terms.metrics.pool_hits.add(u64::from(has_one));
    }

    /// Returns, once, whether a connection has become ready for which no session waited.
    pub(crate) fn has_gained(&mut self) -> bool {
        self.dials.has_gained()
    }

    /// Returns whether the peer cannot be reached as far as is known.
    pub(crate) fn is_broken(&self, peer: usize, now: Instant) -> bool {
        self.dials.is_broken(peer, now)
    }

    /// Records that the peer has left a session unanswered, or has refused this relay's key: connections to
    /// it that look alive and are older may be as useless, also those of the other workers.
    pub(crate) fn on_fault(&mut self, fault: dials::Fault, terms: &mut PoolTerms<'_>) {
        self.dials.on_fault(fault, terms.now);
        self.act(terms);
    }

    /// Does the same for a fault that another worker has found.
    pub(crate) fn adopt_fault(&mut self, fault: dials::Fault, terms: &mut PoolTerms<'_>) {
        self.dials.adopt_fault(fault, terms.now);
        self.act(terms);
    }

    /// Returns, once, the faults that this worker has found.
    pub(crate) fn take_faults(&mut self) -> Vec<dials::Fault> {
        std::mem::take(&mut self.faults)
    }

    /// Removes a session that no longer waits.
    pub(crate) fn forget(&mut self, peer: usize, waiter: Waiter) {
        self.dials.forget(peer, waiter);
    }

    /// Dials a connection for a client whose handshake is still under way, if the pool has room for one
    /// more. Returns whether it does.
    pub(crate) fn dial_ahead(&mut self, peer: usize, terms: &mut PoolTerms<'_>) -> bool {
        let may = self.dials.dial_ahead(peer, terms.now);
        self.act(terms);
        may
    }

    /// Returns the youngest ready connection to each peer, beginning with another peer in each `round`.
    pub(crate) fn youngest(
        &self,
        round: u64,
    ) -> impl Iterator<Item = (&Peer, &Stream, &SegmentCounts)> {
        let first = usize::try_from(round).unwrap_or(0) % self.peers.len().max(1);
        let (before, after) = self.peers.split_at(first.min(self.peers.len()));
        after.iter().chain(before).filter_map(|peer| {
            let conn = self.dials.youngest(peer.id)?;
            Some((&**peer, &conn.stream, &conn.segment_counts))
        })
    }

    /// Returns the next outcome for a session.
    pub(crate) fn next_outcome(&mut self) -> Option<DialOutcome> {
        self.outcomes.pop_front()
    }

    /// Returns the time at which [`Pools::poll`] is due even without an event.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.dials.next()
    }

    /// Handles an event of a connection.
    pub(crate) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
        terms: &mut PoolTerms<'_>,
    ) {
        let id = DialId {
            slot: slot.0,
            generation: generation.0,
        };
        let Some((peer, conn)) = self.dials.get_mut(id) else {
            return;
        };
        let peer = &self.peers[peer];
        let was_connecting = matches!(conn.state, State::Connecting);
        let progress = conn.advance(peer, ready, terms);
        if was_connecting && !matches!(conn.state, State::Connecting) {
            self.dials.connected(id);
        }
        match progress {
            Ok(Progress::Waiting) => {}
            Ok(Progress::Done(key)) => {
                if let Some((time, is_kept)) = self.dials.proven(id, key, terms.now) {
                    terms.metrics.dial_mesh.observe(time);
                    let counters = peer.stats.worker(terms.worker);
                    counters.dialled.add(1);
                    terms.metrics.pool_ready.add(u64::from(is_kept));
                    counters.ready.add(u64::from(is_kept));
                }
            }
            Ok(Progress::Withdrawn) => self.dials.withdrawn(id, terms.now),
            Ok(Progress::Full) => self.dials.full(id, terms.now),
            Ok(Progress::NoKey) => {
                if !self.dials.proved_no_key(id, terms.now) {
                    let rejection = Rejection::UnknownKey;
                    tracing::debug!(peer = %peer.name, cause = rejection.label(), "{rejection}");
                    terms.metrics.pool_peers_rejected.add(1);
                }
            }
            Err(error) => self.dials.lost(id, error, terms.now),
        }
        self.act(terms);
    }

    /// Closes connections that are too old or too slow, and dials replacements for missing ones.
    pub(crate) fn poll(&mut self, terms: &mut PoolTerms<'_>) {
        let searches = self
            .searched_at
            .is_none_or(|at| terms.now >= at + SEARCH_EVERY);
        if searches {
            self.searched_at = Some(terms.now);
            for peer in 0..self.peers.len() {
                self.replace_outgrown(peer, terms);
            }
        }
        let Self { dials, peers, .. } = self;
        dials.poll(|peer| bounds(terms.limits, &peers[peer]), terms.now);
        self.act(terms);
    }

    /// Closes a ready connection whose peer needs twice its window by now. One each time, so that sessions
    /// still find others.
    fn replace_outgrown(&mut self, peer: usize, terms: &mut PoolTerms<'_>) {
        if !self.peers[peer].sizes_window {
            return;
        }
        let window = terms.mesh.turbo.window_of(&self.peers[peer].name);
        let is_outgrown = |conn: &Conn| conn.window.is_some_and(|own| own <= window / 2);
        // Closed, by dropping it, once it is counted.
        if let Some(_outgrown) = self.dials.take_where(peer, is_outgrown, terms.now) {
            terms.metrics.pool_outgrown.add(1);
            self.count_ready_less(peer, terms);
        }
    }

    /// Closes ready connections to peers whose key is no longer one of theirs, and plain ones to addresses
    /// in networks that are no longer trusted.
    pub(crate) fn drop_old_keys(&mut self, terms: &mut PoolTerms<'_>) {
        let is_trusted = |conn: &Conn| terms.mesh.trusts(conn.to.ip());
        self.dials.drop_old_keys(is_trusted, terms.now);
        self.act(terms);
    }

    /// Closes ready connections, and dials no more but for sessions that wait.
    pub(crate) fn close(&mut self, terms: &mut PoolTerms<'_>) {
        self.dials.close();
        self.act(terms);
    }

    /// Carries out what is decided, and counts it.
    fn act(&mut self, terms: &mut PoolTerms<'_>) {
        while let Some(action) = self.dials.next_action() {
            match action {
                Action::Dial { id, peer, address } => match self.dial(id, peer, address, terms) {
                    Ok(conn) => self.dials.begun(id, conn),
                    Err(error) => {
                        self.count_failed_dial(peer, error, false, terms);
                        self.dials.lost(id, error, terms.now);
                    }
                },
                Action::Serve(waiter, conn) => {
                    let spare = conn.into_spare();
                    self.outcomes
                        .extend(spare.map(|spare| DialOutcome::Serve(waiter, spare)));
                }
                Action::Fail(waiter, error) => {
                    self.outcomes.push_back(DialOutcome::Fail(waiter, error));
                }
                Action::Close {
                    connection,
                    peer,
                    why,
                } => self.count_closed(&connection, peer, why, terms),
                Action::Slow => terms.metrics.pool_dials_slow.add(1),
                Action::Fault { fault, works } => {
                    // Otherwise only the older connections are useless.
                    if !works {
                        self.count_failure(fault.peer, PeerFailure::of(fault.error, true), terms);
                        let peer = &self.peers[fault.peer].name;
                        tracing::debug!(%peer, error = %fault.error, "a relay does not work");
                    }
                    self.faults.push(fault);
                }
            }
        }
    }

    /// Begins a dial.
    fn dial(
        &self,
        id: DialId,
        peer: usize,
        address: usize,
        terms: &PoolTerms<'_>,
    ) -> Result<Conn, Errno> {
        let peer = &self.peers[peer];
        let addrs = peer.addrs();
        // Its names may not have been looked up yet.
        let place = address.checked_rem(addrs.len());
        let to = addrs[place.ok_or(Errno::HOSTUNREACH)?].0;
        let (options, window) = match peer.sizes_window {
            true => {
                let (options, window) = terms.mesh.turbo.dialling(&peer.name, &peer.options);
                (Cow::Owned(options), Some(window))
            }
            false => (Cow::Borrowed(&peer.options), None),
        };
        let stream = Stream::connect(to, &options)?;
        let token = Token::Spare(Slot(id.slot), Generation(id.generation)).encode();
        terms.poller.add(&stream, token, Interest::StreamEdges)?;
        Ok(Conn {
            stream,
            to,
            state: State::Connecting,
            window,
            segment_counts: SegmentCounts::default(),
        })
    }

    /// Counts a connection before it is dropped, which resets it.
    fn count_closed(&self, conn: &Conn, peer: usize, why: Closing, terms: &PoolTerms<'_>) {
        let metrics = terms.metrics;
        match why {
            Closing::Failed(error) => {
                let connected = !matches!(conn.state, State::Connecting);
                self.count_failed_dial(peer, error, connected, terms);
            }
            Closing::Outdated => {
                let peer = &self.peers[peer].name;
                tracing::debug!(%peer, "a key has changed during the handshake with a relay");
                metrics.pool_dials_outdated.add(1);
            }
            Closing::Surplus => metrics.pool_surplus.add(1),
            Closing::Expired => metrics.pool_expired.add(1),
            Closing::Withdrawn => metrics.pool_withdrawn.add(1),
            Closing::Full => {
                metrics.pool_withdrawn.add(1);
                self.count_failure(peer, PeerFailure::Full, terms);
            }
            Closing::Lost { error, is_refusal } => {
                metrics.pool_dead.add(1);
                if is_refusal {
                    self.count_failure(peer, PeerFailure::of(error, true), terms);
                }
            }
            Closing::Useless => metrics.pool_dead.add(1),
            Closing::Dropped => {}
        }
        if why.was_ready() {
            self.count_ready_less(peer, terms);
        }
    }

    fn count_failed_dial(&self, peer: usize, error: Errno, connected: bool, terms: &PoolTerms<'_>) {
        terms.metrics.pool_dials_failed.add(1);
        self.count_failure(peer, PeerFailure::of(error, connected), terms);
        let peer = &self.peers[peer].name;
        tracing::debug!(%peer, %error, "cannot connect to a relay");
    }

    fn count_failure(&self, peer: usize, failure: PeerFailure, terms: &PoolTerms<'_>) {
        let failed = &self.peers[peer].stats.worker(terms.worker).failed;
        failed[failure.index()].add(1);
    }

    fn count_ready_less(&self, peer: usize, terms: &PoolTerms<'_>) {
        terms.metrics.pool_ready.sub(1);
        self.peers[peer].stats.worker(terms.worker).ready.sub(1);
    }
}

/// Returns the limits of the pool of a peer. A peer that is dialled only for automatic routes, and is on none
/// that is in use, has no more connections than sessions have needed recently.
fn bounds(limits: PoolLimits, peer: &Peer) -> Bounds {
    Bounds {
        floor: if peer.is_kept() { limits.min } else { 0 },
        ceiling: limits.max,
    }
}
