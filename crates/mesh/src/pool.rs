//! The pool of connections to one relay: what it dials, holds ready and gives away.
//!
//! A relay dials connections to its peers before sessions need them, and uses each once (pied-piper 3.2,
//! improvement 3). [`Pool`] decides for one peer how many dials to begin and when, which session gets a
//! connection, and whether the peer works ([`breaker`]). How large a pool should be is the matter of
//! [`sizer`], and the pauses after failed dials that of [`backoff`]. [`Dials`](crate::dials::Dials) has a pool for each
//! peer, does what the pool decides and reports what became of it.

mod backoff;
mod breaker;
mod sizer;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use self::breaker::Breaker;
pub use self::sizer::{Bounds, Sizer, expiry};

/// The number of dials to one peer that may be in progress, unless the upper limit of the pool is larger.
/// Further sessions wait for one of these dials: more dials would not help a slow peer, and a full peer
/// refuses them.
pub const DIALS_AT_ONCE: u32 = 64;

/// How long a pool dials only for sessions after its peer has said that it has no room for more ready connections.
pub const FULL_PAUSE: Duration = Duration::from_secs(10);

/// The connections to one peer. `C` stands for a ready connection, `W` for a session that waits for one.
///
/// `take*` and `wait` serve a session; `may_*` and `*_wanted` say what to dial; `on_*` report what has become
/// of a dial, a connection or the peer.
#[derive(Debug)]
pub struct Pool<C, W> {
    bounds: Bounds,
    sizer: Sizer,
    breaker: Breaker,
    /// Connections that are ready for use, the youngest last.
    ready: VecDeque<C>,
    dialling: u32,
    /// Of these, dials for clients whose handshake is still under way.
    ahead: u32,
    waiting: VecDeque<Waiting<W>>,
    /// The next address of the peer to dial; counts up without end.
    next_address: usize,
    /// When a dial last succeeded.
    last_success: Option<Instant>,
    /// Until when the peer is taken to have no room for more ready connections.
    full_until: Option<Instant>,
    retired: bool,
}

/// A session that waits for a connection.
#[derive(Debug)]
struct Waiting<W> {
    session: W,
    /// The number of the address that was the next to dial when the session began to wait.
    address: usize,
}

/// How a session that waits gets its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Dial a connection for it now.
    Dial,
    /// A connection that was dialled ahead is on its way.
    DialledAhead,
    /// Too many dials are in progress. It gets the connection of one of them, or one that is dialled later.
    Postponed,
}

/// The use of a connection that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given<W> {
    /// This session has waited longest, and gets it.
    To(W),
    /// The pool holds it for a later session.
    Kept,
    /// The pool is full, or its peer is not dialled any more: close it.
    Surplus,
}

// === impl Pool ===

impl<C: Copy + PartialEq, W: Copy + PartialEq> Pool<C, W> {
    /// Creates an empty pool at `now`. `seed` randomises the pauses after failed dials; it should differ
    /// between pools.
    pub fn new(bounds: Bounds, now: Instant, seed: u64) -> Self {
        Self {
            bounds,
            sizer: Sizer::new(bounds, now, seed),
            breaker: Breaker::default(),
            ready: VecDeque::new(),
            dialling: 0,
            ahead: 0,
            waiting: VecDeque::new(),
            next_address: 0,
            last_success: None,
            full_until: None,
            retired: false,
        }
    }

    /// Adopts other bounds.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.sizer.set_bounds(bounds);
    }

    /// Returns the youngest ready connection, which stays in the pool.
    pub fn youngest(&self) -> Option<&C> {
        self.ready.back()
    }

    /// Adopts other bounds for a peer that is dialled, also for one that was retired.
    pub fn adopt(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.sizer.set_bounds(bounds);
        self.retired = false;
    }

    /// Records that the peer is not dialled any more. Returns the ready connections, to be closed, and the
    /// sessions that wait, which have to leave the peer.
    pub fn retire(&mut self) -> (VecDeque<C>, Vec<W>) {
        self.retired = true;
        let waiting = self.waiting.drain(..).map(|waiting| waiting.session);
        let waiting = waiting.collect();
        (self.drain(), waiting)
    }

    /// Returns whether the peer is not dialled any more.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Removes all ready connections, to be closed.
    pub fn drain(&mut self) -> VecDeque<C> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the number of ready connections.
    pub fn ready(&self) -> u32 {
        count(self.ready.len())
    }

    /// Returns the number of dials in progress.
    pub fn dialling(&self) -> u32 {
        self.dialling
    }

    /// Returns the number of sessions that wait for a connection.
    pub fn waiting(&self) -> u32 {
        count(self.waiting.len())
    }

    // === sessions ===

    /// Returns a ready connection for a session that arrives at `now`; `None` if it must
    /// [`wait`](Self::wait) for one.
    pub fn take(&mut self, now: Instant) -> Option<C> {
        self.sizer.arrived(now);
        // The youngest connection is the least likely to have died unnoticed.
        let taken = self.ready.pop_back();
        if taken.is_none() {
            self.sizer.missed(now);
        }
        taken
    }

    /// Returns a ready connection for a client whose handshake is still under way, if sessions can spare one.
    pub fn take_early(&mut self, now: Instant) -> Option<C> {
        if self.ready() <= self.sizer.reserve(now) {
            return None;
        }
        self.ready.pop_back()
    }

    /// Records a client that has completed its handshake, for which a connection was wanted before.
    pub fn on_early_client(&mut self, now: Instant) {
        self.sizer.arrived_early(now);
    }

    /// Adds a session that waits for a connection.
    pub fn wait(&mut self, session: W) -> Wait {
        self.waiting.push_back(Waiting {
            session,
            address: self.next_address,
        });
        if self.ahead > 0 {
            self.ahead -= 1;
            Wait::DialledAhead
        } else if self.dialling < self.dials_at_once() {
            Wait::Dial
        } else {
            Wait::Postponed
        }
    }

    /// Removes a session that no longer waits.
    pub fn forget(&mut self, session: W) {
        self.waiting.retain(|waiting| waiting.session != session);
    }

    // === dials ===

    /// Returns how many connections to dial at `now` so that the pool has its size.
    pub fn dials_wanted(&self, now: Instant) -> u32 {
        if self.retired || self.is_full(now) {
            return 0;
        }
        // Dials that sessions wait for do not fill the pool.
        let coming = self.dialling.saturating_sub(self.waiting());
        let wanted = self.sizer.dials_wanted(self.ready(), coming, now);
        wanted.min(self.dials_at_once().saturating_sub(self.dialling))
    }

    /// Returns whether to dial one more connection because sessions wait.
    pub fn is_dial_awaited(&self) -> bool {
        self.dialling < self.waiting() && self.dialling < self.dials_at_once()
    }

    /// Returns whether to dial a connection at `now` for a client whose handshake is still under way. If so,
    /// the dial counts as one that a later session [waits](Wait::DialledAhead) for.
    pub fn may_dial_ahead(&mut self, now: Instant) -> bool {
        // No session waits for this dial, and any SYN, even a forged one, can cause it. So it must
        // not exceed the size of the pool, and it must respect the peer's back-off.
        let has_room = self.dialling.saturating_add(self.ready()) < self.most_ready();
        let may = !self.retired
            && !self.is_full(now)
            && has_room
            && self.sizer.retry_at().is_none_or(|at| now >= at);
        self.ahead += u32::from(may);
        may
    }

    /// Records that a dial begins. Returns the number of the address to dial, modulo that of the peer's
    /// addresses.
    pub fn on_dial(&mut self) -> usize {
        self.dialling += 1;
        self.next_address
    }

    /// Returns the number of the address to dial, which a failed dial has advanced.
    pub fn next_address(&self) -> usize {
        self.next_address
    }

    /// Records that the dial of address number `tried` has failed at `now`. Returns the session that has
    /// waited longest, which must try the next address; `None` if all sessions that wait do so already.
    pub fn on_dial_failed(&mut self, tried: usize, now: Instant) -> Option<W> {
        self.dial_ended();
        // Dials that failed together advance the address only once: a second step could lead back
        // to the address that failed.
        if self.next_address == tried {
            self.next_address = tried.wrapping_add(1);
        }
        self.on_failure(now);
        // A session has one try for each address, so other dials of an address that it has left must not count for it.
        let longest = self.waiting.front()?;
        if longest.address > tried {
            return None;
        }
        self.waiting.pop_front().map(|waiting| waiting.session)
    }

    /// Records the end of a dial that says nothing about the peer, because the keys that it was made with have
    /// changed meanwhile. The session that waited for it still waits.
    pub fn on_dial_outdated(&mut self) {
        self.dial_ended();
    }

    /// Records that a dial has succeeded at `now`, `setup` after it began. If the connection is of use,
    /// [`give`](Self::give) it.
    pub fn on_dial_succeeded(&mut self, setup: Duration, now: Instant) {
        self.dial_ended();
        self.sizer.dial_succeeded(setup);
        self.breaker.dial_succeeded(setup, now);
        self.last_success = Some(now);
    }

    /// Returns whether a dial has succeeded at or after `begun`. If not, a dial that began then and is still
    /// unanswered has not merely lost its SYN.
    pub fn has_connected_since(&self, begun: Instant) -> bool {
        self.last_success.is_some_and(|at| at >= begun)
    }

    /// Returns whether a dial has succeeded after `since`, so that the peer works although it has left
    /// unanswered what was sent at `since`.
    pub fn has_connected_after(&self, since: Instant) -> bool {
        self.last_success.is_some_and(|at| at > since)
    }

    /// Gives a connection that has become ready to a session, or to the pool. More connections than the pool
    /// may hold become ready if the sessions that they were dialled for have left.
    pub fn give(&mut self, connection: C) -> Given<W> {
        if let Some(waiting) = self.waiting.pop_front() {
            return Given::To(waiting.session);
        }
        if self.retired || self.ready() >= self.most_ready() {
            return Given::Surplus;
        }
        self.ready.push_back(connection);
        Given::Kept
    }

    /// Removes a ready connection that has expired or died. Returns whether the pool had it.
    pub fn remove(&mut self, connection: C) -> bool {
        let before = self.ready.len();
        self.ready.retain(|&ready| ready != connection);
        self.ready.len() < before
    }

    // === the peer ===

    /// Returns whether the peer cannot be reached as far as is known, so that a session that has another
    /// route should take it. The pool goes on to dial the peer, with pauses. If the pool dials no connection
    /// of its own, one session tries the peer after each pause.
    pub fn is_broken(&self, now: Instant) -> bool {
        let is_tried = || {
            let pauses = self.sizer.retry_at().is_some_and(|at| now < at);
            self.dialling > 0 || pauses || self.sizer.target(now) > 0
        };
        match self.breaker.state(now) {
            breaker::State::Closed => false,
            breaker::State::Proving => true,
            breaker::State::Open => self.ready.is_empty() && is_tried(),
        }
    }

    /// Records that the peer does not work: a connection to it was lost as soon as it was ready, or the peer
    /// has announced that it is draining.
    pub fn on_failure(&mut self, now: Instant) {
        self.sizer.dial_failed(now);
        self.breaker.failed();
    }

    /// Records that the peer has left unanswered what was sent to it at `since`, or has refused this relay's
    /// key. Returns the ready connections that are older, according to `is_older`, to be closed, since they may
    /// be as useless; `None` if there are none and the peer is known to be broken, or to work
    /// ([`has_connected_after`](Self::has_connected_after)).
    pub fn on_fault(
        &mut self,
        since: Instant,
        now: Instant,
        is_older: impl Fn(&C) -> bool,
    ) -> Option<VecDeque<C>> {
        let (older, younger) = self
            .drain()
            .into_iter()
            .partition::<VecDeque<_>, _>(is_older);
        self.ready = younger;
        let works = self.has_connected_after(since);
        let is_known = works || self.breaker.state(now) == breaker::State::Open;
        if older.is_empty() && is_known {
            return None;
        }
        if !works {
            self.on_failure(now);
        }
        Some(older)
    }

    /// Records that the peer has no room for more ready connections. It works, and sessions go on to use it.
    pub fn on_full(&mut self, now: Instant) {
        self.full_until = Some(now + FULL_PAUSE);
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }

    /// Returns the pause of the pool after a failure, as its end, or `None` if the last dial succeeded.
    pub fn retry_at(&self) -> Option<Instant> {
        self.sizer.retry_at()
    }

    /// Returns how many connections may be ready. One is always allowed: a client whose handshake is under
    /// way may have asked for it.
    fn most_ready(&self) -> u32 {
        self.bounds.ceiling.max(1)
    }

    fn dials_at_once(&self) -> u32 {
        self.bounds.ceiling.max(DIALS_AT_ONCE)
    }

    /// Records the end of a dial, with or without success.
    fn dial_ended(&mut self) {
        self.dialling -= 1;
        // Dials are alike: whichever ends first serves whoever waits first.
        self.ahead = self.ahead.min(self.dialling);
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
