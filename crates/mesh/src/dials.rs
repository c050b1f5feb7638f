//! The connections that a relay dials to its peers, from the dial until a session gets them.
//!
//! [`Dials`] has a [`Pool`] for each peer and knows every dial and every ready connection. It decides what to
//! dial, which session gets a connection, and which connections to close. The caller has the sockets and the
//! clock: it reports what happens to a connection, and carries out every [`Action`] that
//! [`next_action`](Dials::next_action) returns. The relay and the simulated meshes run this same code.

mod connections;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::io::Errno;
use slab::Slab;

use crate::deadlines::Deadlines;
use crate::identity::PublicKey;
use crate::pool::{Bounds, Pool, Wait};
use crate::ways::{Attempt, Prospect, Step};

/// The interval at which the sizes of the pools are checked without an event.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// The bits of [`DialId::generation`], so that it fits into an event's 64 bits with a slot and a kind.
pub const GENERATION_BITS: u32 = 28;

/// The connections to all peers. `C` stands for a connection as the caller has it, `W` for a session that
/// waits for one.
#[derive(Debug)]
pub struct Dials<C, W> {
    times: Times,
    random: Pcg64Mcg,
    peers: Vec<PeerDials<W>>,
    dials: Slab<Dial<C>>,
    generation: u32,
    deadlines: Deadlines<u32>,
    poll_at: Option<Instant>,
    actions: VecDeque<Action<C, W>>,
    /// A connection has become ready since the last [`Dials::has_gained`].
    has_gained: bool,
    /// Only sessions that wait have connections dialled.
    is_closed: bool,
}

/// How long dials and connections last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// From the dial to the end of the handshake.
    pub connect: Duration,
    /// How long a dial may be unanswered before its peer is taken for broken.
    pub patience: Duration,
    /// The age at which a ready connection is replaced.
    pub max_age: Duration,
}

/// What a peer and this relay prove their identities with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Those of the peer, any of which it may prove.
    pub peer: Vec<PublicKey>,
    /// This relay's.
    pub own: PublicKey,
}

/// A peer that is dialled.
#[derive(Clone, Debug)]
pub struct PeerTerms {
    /// The present keys.
    pub keys: Arc<Keys>,
    /// How many connections the pool holds ready.
    pub bounds: Bounds,
    /// How long a ready connection has been silent when keepalive ends it.
    pub keepalive: Duration,
}

/// A dial, or the connection that it has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DialId {
    /// Unique among the connections of the moment.
    pub slot: u32,
    /// Distinguishes the dial from earlier ones in the slot; below 2^[`GENERATION_BITS`].
    pub generation: u32,
}

/// What the caller does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<C, W> {
    /// Dial a peer, at its address with this number modulo that of its addresses. Report
    /// [`begun`](Dials::begun), or [`lost`](Dials::lost) if that fails at once.
    Dial {
        /// By which to report what becomes of the dial.
        id: DialId,
        /// The number of the peer.
        peer: usize,
        /// The number of the address; counts up without end.
        address: usize,
    },
    /// Give a session the connection that it waits for.
    Serve(W, C),
    /// A session waits in vain: its dial has failed, or its peer is not dialled any more. It tries again, or leaves the
    /// peer.
    Fail(W, Errno),
    /// Close a connection.
    Close {
        /// The connection.
        connection: C,
        /// The number of its peer.
        peer: usize,
        /// The reason.
        why: Closing,
    },
    /// Count a dial that has taken so long that its peer is doubted.
    Slow,
    /// A peer has a fault. Tell the other pools of this relay to [adopt](Dials::adopt_fault) it.
    Fault {
        /// The fault.
        fault: Fault,
        /// A dial that began later has succeeded: only older connections are useless.
        works: bool,
    },
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The dial has failed.
    Failed(Errno),
    /// The keys that it was made with have been replaced.
    Outdated,
    /// The pool needs no more.
    Surplus,
    /// It was ready, and has become too old.
    Expired,
    /// It was ready, and the peer is draining.
    Withdrawn,
    /// It was ready, and the peer has no room for it.
    Full,
    /// It was ready, and has ended.
    Lost {
        /// What ended it.
        error: Errno,
        /// The peer may have refused it, so the pool pauses.
        is_refusal: bool,
    },
    /// It was ready, and the peer leaves younger connections unanswered.
    Useless,
    /// It was ready, and sessions may not or need not use it any more.
    Dropped,
}

/// A session that asks for a connection.
#[derive(Debug)]
pub struct Asking<'a, W> {
    /// The session.
    pub session: W,
    /// Its attempt at this peer.
    pub attempt: &'a mut Attempt,
    /// It has not asked the peer before.
    pub at_first: bool,
    /// It has another way.
    pub may_leave: bool,
}

/// What a session gets that asks for a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<C> {
    /// One that was ready.
    Ready(C),
    /// None yet: [`Action::Serve`] or [`Action::Fail`] ends the wait, or [`Dials::forget`].
    Waits(Wait),
    /// None: it takes its next way, or ends.
    Leaves {
        /// The peer cannot be reached as far as is known.
        is_broken: bool,
    },
}

/// Why connections to a peer may be useless although they look alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the peer.
    pub peer: usize,
    /// What shows it.
    pub error: Errno,
    /// Since when the peer has not answered.
    pub since: Instant,
}

/// The connections to one peer.
#[derive(Debug)]
struct PeerDials<W> {
    keys: Arc<Keys>,
    keepalive: Duration,
    pool: Pool<u32, W>,
}

#[derive(Debug)]
struct Dial<C> {
    generation: u32,
    peer: usize,
    /// The number of the address, as the pool counts them.
    address: usize,
    begun: Instant,
    /// The keys that the handshake uses; before the handshake, those when the dial began.
    keys: Arc<Keys>,
    state: State,
    deadline: Option<Instant>,
    /// `None` while the caller begins the dial.
    connection: Option<C>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Dialling,
    /// With the key that the peer has proven; `None` in a trusted network.
    Ready(Option<PublicKey>),
}

// === impl Dials ===

impl<C, W: Copy + PartialEq> Dials<C, W> {
    /// Creates dials without peers. `seed` randomises pauses after failures and the ages of connections; it
    /// should differ from relay to relay.
    pub fn new(seed: u64) -> Self {
        Self {
            times: Times::default(),
            random: Pcg64Mcg::seed_from_u64(seed),
            peers: Vec::new(),
            dials: Slab::new(),
            generation: 0,
            deadlines: Deadlines::default(),
            poll_at: None,
            actions: VecDeque::new(),
            has_gained: false,
            is_closed: false,
        }
    }

    /// Returns what to do next, if anything.
    pub fn next_action(&mut self) -> Option<Action<C, W>> {
        let mut action = self.actions.pop_front()?;
        if let Action::Dial { id, peer, address } = &mut action {
            // A dial that has failed since this one was decided has advanced the address.
            *address = self.peers[*peer].pool.next_address();
            let (id, address) = (*id, *address);
            if let Some(dial) = self.dial_of(id) {
                dial.address = address;
            }
        }
        Some(action)
    }

    // === the peers ===

    /// Adopts the terms of a configuration. Peers are numbered in the order of `peers`, those that are not
    /// dialled any more included: their ready connections close, and sessions that wait leave them.
    pub fn adopt(
        &mut self,
        times: Times,
        peers: impl IntoIterator<Item = Option<PeerTerms>>,
        now: Instant,
    ) {
        self.times = times;
        for (i, terms) in peers.into_iter().enumerate() {
            match (terms, self.peers.get_mut(i)) {
                (Some(terms), Some(known)) => {
                    // Connections that this relay's former key proved last only until their peers forget it.
                    let has_new_key = known.keys.own != terms.keys.own;
                    known.keys = terms.keys;
                    known.keepalive = terms.keepalive;
                    known.pool.adopt(terms.bounds);
                    if has_new_key {
                        let ready = known.pool.drain();
                        self.close_all(ready, Closing::Dropped);
                    }
                }
                (Some(terms), None) => {
                    let seed = self.random.next_u64();
                    self.peers.push(PeerDials {
                        keys: terms.keys,
                        keepalive: terms.keepalive,
                        pool: Pool::new(terms.bounds, now, seed),
                    });
                }
                (None, Some(known)) => {
                    let (ready, waiting) = known.pool.retire();
                    self.close_all(ready, Closing::Dropped);
                    let fail = |session| Action::Fail(session, Errno::HOSTUNREACH);
                    self.actions.extend(waiting.into_iter().map(fail));
                }
                (None, None) => {}
            }
        }
        let is_any_dialled = self.peers.iter().any(|peer| !peer.pool.is_retired());
        self.poll_at = is_any_dialled.then_some(now);
    }

    /// Closes ready connections whose peer has proven a key that is no longer its own. Of those in trusted
    /// networks, closes what `is_trusted` no longer allows.
    pub fn drop_old_keys(&mut self, is_trusted: impl Fn(&C) -> bool, now: Instant) {
        let is_old = |dial: &Dial<C>| match dial.state {
            State::Dialling => false,
            State::Ready(Some(key)) => !self.peers[dial.peer].keys.peer.contains(&key),
            State::Ready(None) => !dial.connection.as_ref().is_some_and(&is_trusted),
        };
        let old: Vec<u32> = self
            .dials
            .iter()
            .filter(|(_, dial)| is_old(dial))
            .map(|(slot, _)| number(slot))
            .collect();
        for slot in old {
            self.discard(slot, Closing::Dropped);
        }
        self.poll_at = self.poll_at.map(|_| now);
    }

    /// Closes ready connections. From now on, only sessions that wait have connections dialled.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.poll_at = None;
        for i in 0..self.peers.len() {
            let ready = self.peers[i].pool.drain();
            self.close_all(ready, Closing::Dropped);
        }
    }

    /// Returns the number of dials and of ready connections.
    pub fn len(&self) -> usize {
        self.dials.len()
    }

    /// Returns whether there is no dial and no ready connection.
    pub fn is_empty(&self) -> bool {
        self.dials.is_empty()
    }

    /// Returns the pool of a peer.
    pub fn pool(&self, peer: usize) -> Option<&Pool<u32, W>> {
        self.peers.get(peer).map(|peer| &peer.pool)
    }

    /// Returns whether sessions may be forwarded to the peer.
    pub fn is_dialled(&self, peer: usize) -> bool {
        self.pool(peer).is_some_and(|pool| !pool.is_retired())
    }

    /// Returns whether the peer cannot be reached as far as is known ([`Pool::is_broken`]).
    pub fn is_broken(&self, peer: usize, now: Instant) -> bool {
        self.pool(peer).is_some_and(|pool| pool.is_broken(now))
    }

    /// Returns the youngest ready connection to a peer.
    pub fn youngest(&self, peer: usize) -> Option<&C> {
        let slot = *self.pool(peer)?.youngest()?;
        self.dials.get(slot as usize)?.connection.as_ref()
    }

    /// Removes and returns a ready connection to a peer for which `fits` returns `true`, to be closed.
    pub fn take_where(
        &mut self,
        peer: usize,
        fits: impl Fn(&C) -> bool,
        now: Instant,
    ) -> Option<C> {
        let fits = |dial: &Dial<C>| {
            dial.peer == peer
                && dial.state != State::Dialling
                && dial.connection.as_ref().is_some_and(&fits)
        };
        let (slot, _) = self.dials.iter().find(|(_, dial)| fits(dial))?;
        let slot = number(slot);
        self.peers[peer].pool.remove(slot);
        self.poll_at = Some(now);
        self.remove(slot)?.connection
    }

    /// Records that the peer has left a session unanswered, or has refused this relay's key: connections to it that
    /// look alive and are older may be as useless. They are closed, and [`Action::Fault`] reports what is news.
    pub fn on_fault(&mut self, fault: Fault, now: Instant) {
        if self.adopt_fault(fault, now) {
            let pool = &self.peers[fault.peer].pool;
            let works = pool.has_connected_after(fault.since);
            self.actions.push_back(Action::Fault { fault, works });
        }
    }

    /// Does the same for a fault that another pool of this relay has found. Returns whether it was news.
    pub fn adopt_fault(&mut self, fault: Fault, now: Instant) -> bool {
        let Fault { peer, since, .. } = fault;
        let dials = &self.dials;
        let is_older = |slot: &u32| dials.get(*slot as usize).is_none_or(|d| d.begun <= since);
        let pool = self.peers.get_mut(peer).map(|peer| &mut peer.pool);
        let Some(useless) = pool.and_then(|pool| pool.on_fault(since, now, is_older)) else {
            return false;
        };
        self.close_all(useless, Closing::Useless);
        self.poll_at = Some(now);
        true
    }

    // === sessions ===

    /// Gets a session a connection to a peer: at first one that is ready, and after that one that is dialled, because
    /// whatever broke a ready one may have broken all of them.
    pub fn ask(&mut self, peer: usize, asking: Asking<'_, W>, now: Instant) -> Asked<C> {
        let is_broken = self.is_broken(peer, now);
        let prospect = Prospect {
            // The list of members may have changed while the session waited.
            is_peer: self.is_dialled(peer),
            is_broken,
            may_leave: asking.may_leave,
        };
        let ready = match asking.attempt.step(asking.at_first, prospect) {
            Step::Take => self.take(peer, now),
            Step::Dial => None,
            Step::Leave => return Asked::Leaves { is_broken },
        };
        match ready {
            Some(connection) => Asked::Ready(connection),
            None => Asked::Waits(self.wait(peer, asking.session, now)),
        }
    }

    /// Has a session wait for a connection, which [`Action::Serve`] or [`Action::Fail`] ends.
    fn wait(&mut self, peer: usize, session: W, now: Instant) -> Wait {
        let wait = self.peers[peer].pool.wait(session);
        if wait == Wait::Dial {
            self.dial(peer, now);
        }
        wait
    }

    fn take(&mut self, peer: usize, now: Instant) -> Option<C> {
        self.poll_at = Some(now);
        let slot = self.peers.get_mut(peer)?.pool.take(now)?;
        self.remove(slot)?.connection
    }

    /// Returns a ready connection for a client whose handshake is still under way, if sessions can spare one.
    pub fn take_early(&mut self, peer: usize, now: Instant) -> Option<C> {
        let slot = self.peers.get_mut(peer)?.pool.take_early(now)?;
        self.poll_at = Some(now);
        self.remove(slot)?.connection
    }

    /// Records a client that has completed its handshake, for which a connection was wanted before.
    pub fn on_early_client(&mut self, peer: usize, now: Instant) {
        if let Some(PeerDials { pool, .. }) = self.peers.get_mut(peer) {
            pool.on_early_client(now);
            self.poll_at = Some(now);
        }
    }

    /// Dials a connection for a client whose handshake is still under way, if the pool has room for one more.
    /// Returns whether it does.
    pub fn dial_ahead(&mut self, peer: usize, now: Instant) -> bool {
        let pool = self.peers.get_mut(peer).map(|peer| &mut peer.pool);
        let may = !self.is_closed && pool.is_some_and(|pool| pool.may_dial_ahead(now));
        if may {
            self.dial(peer, now);
        }
        may
    }

    /// Removes a session that no longer waits.
    pub fn forget(&mut self, peer: usize, session: W) {
        if let Some(PeerDials { pool, .. }) = self.peers.get_mut(peer) {
            pool.forget(session);
        }
    }

    /// Returns, once, whether a connection has become ready for which no session waited.
    pub fn has_gained(&mut self) -> bool {
        std::mem::take(&mut self.has_gained)
    }

    // === time ===

    /// Returns when to [`poll`](Self::poll) even without an event.
    pub fn next(&self) -> Option<Instant> {
        self.deadlines.next().into_iter().chain(self.poll_at).min()
    }

    /// Closes connections that are too old or too slow, and dials what the pools want; `bounds` returns those
    /// of a peer.
    pub fn poll(&mut self, bounds: impl Fn(usize) -> Bounds, now: Instant) {
        let due: Vec<u32> = self.deadlines.due(now).collect();
        for slot in due {
            match self.dials.get(slot as usize).map(|dial| dial.state) {
                Some(State::Ready(_)) => self.discard(slot, Closing::Expired),
                Some(State::Dialling) => self.on_slow_dial(slot, now),
                None => {}
            }
        }
        if self.poll_at.is_none_or(|at| now < at) {
            return;
        }
        self.poll_at = (!self.peers.is_empty()).then(|| now + POLL_EVERY);
        for i in 0..self.peers.len() {
            let pool = &mut self.peers[i].pool;
            if pool.is_retired() {
                continue;
            }
            pool.set_bounds(bounds(i));
            let wanted = match self.is_closed {
                true => 0,
                false => pool.dials_wanted(now),
            };
            for _ in 0..wanted {
                self.dial(i, now);
            }
            self.dial_for_waiters(i, now);
        }
    }

    /// Handles a dial that has taken long: first long enough to doubt the peer, then too long.
    fn on_slow_dial(&mut self, slot: u32, now: Instant) {
        let Some(dial) = self.dials.get_mut(slot as usize) else {
            return;
        };
        let (peer, begun) = (dial.peer, dial.begun);
        let end = begun + self.times.connect;
        if now >= end {
            return self.dial_lost(slot, Errno::TIMEDOUT, now);
        }
        self.set_deadline(slot, Some(end));
        // The sessions that wait for the dial cannot be relied on to report this: their clients may give up first. If
        // a later dial has succeeded, only this one has lost its SYN.
        if !self.peers[peer].pool.has_connected_since(begun) {
            self.actions.push_back(Action::Slow);
            let (error, since) = (Errno::TIMEDOUT, begun);
            self.on_fault(Fault { peer, error, since }, now);
        }
    }
}

// === impl Closing ===

impl Closing {
    /// Returns whether the connection was ready, in its pool.
    pub fn was_ready(self) -> bool {
        match self {
            Self::Failed(_) | Self::Outdated | Self::Surplus => false,
            Self::Expired
            | Self::Withdrawn
            | Self::Full
            | Self::Lost { .. }
            | Self::Useless
            | Self::Dropped => true,
        }
    }
}

fn number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
