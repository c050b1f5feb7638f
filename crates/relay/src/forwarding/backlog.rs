//! How much of a stream may wait in this node: what its sink takes in a while, and not what all buffers hold.
//!
//! A sink that is slower than its source fills the buffers between them, and each byte is then as old as they
//! are large. The kernel cannot know that the two sockets carry one stream: it sizes each buffer for the path of
//! its own connection. So the sink's unsent bytes are limited, and if the sink is the bottleneck, the source's
//! window too; both follow what the sink takes. Pure.
//!
//! TCP_WINDOW_CLAMP limits what is advertised beyond what has arrived, not what waits already. So the window
//! becomes less as more waits. A window that was advertised is never taken back (RFC 9293 section 3.8.6): what
//! the source's peer may send already still comes. A near source sends a segment with each acknowledgement, however small
//! its window is, and fills its receive buffer; so that becomes smaller too, as the sink takes what waits.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A direction that has moved fewer bytes has no limits. Most never move more.
pub(crate) const BEGIN: u64 = 128 << 10;

/// The time between looks at a direction whose bytes move.
const LOOK: Duration = Duration::from_millis(100);

/// The looks over which the sink's rate is averaged: a second. Acknowledgements come in bursts behind a loss.
const LOOKS: usize = 10;

/// Looks in a row that must find too much waiting.
const PATIENCE: u32 = 10;

/// Looks that must find next to nothing waiting until that is because of the limit.
const SHORT: u32 = 3;

/// The time for which what waits in front of a slow sink lasts, while the window opens again.
const WAITING: Duration = Duration::from_millis(200);

/// The bytes that may always wait in front of a sink, and those that it may always leave unsent.
const LEAST: u64 = 64 << 10;

/// The time in which a worker that has much to do comes back to a session.
const TURN: Duration = Duration::from_millis(10);

/// The segments that a window has room for while nothing waits.
const LEAST_SEGMENTS: u64 = 4;

/// The bytes that any sink may leave unsent until its rate is known.
const UNSENT: u64 = 512 << 10;

/// The time for which the unsent bytes of a slow sink last.
const UNSENT_FOR: Duration = Duration::from_millis(100);

/// What a direction needs of a leg to limit what waits. Amounts are in bytes.
pub(crate) trait Buffered {
    /// Returns what has arrived and was not read (SIOCINQ).
    fn unread(&self) -> u64;
    /// Returns the round trip of the connection, and the size of the segments that arrive.
    fn path(&self) -> (Duration, u64);
    /// Returns the largest window that the leg would advertise now (TCP_WINDOW_CLAMP); `None` if it cannot be limited.
    fn largest_window(&self) -> Option<u64>;
    fn limit_window(&self, bytes: u64);
    /// Leaves the window to the kernel and the receive buffer.
    fn unlimit_window(&self);
    /// Returns the receive buffer; `None` if it is not known what of the window is left.
    fn buffer(&self) -> Option<Buffer>;
    /// Sets the size of the receive buffer. Returns `false` if this node may not; nothing has changed then.
    fn limit_buffer(&self, bytes: u64) -> bool;
    /// Sets the receive buffer for the kernel to tune it from there.
    fn unlimit_buffer(&self, bytes: u64);
    /// Has the leg take bytes only while fewer are unsent, and report room when half of them are (TCP_NOTSENT_LOWAT).
    fn limit_unsent(&self, bytes: u64);
}

/// The receive buffer of a leg. Amounts are in bytes, the first two with the kernel's overhead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) used: u64,
    pub(crate) size: u64,
    /// The window that was advertised last, of which a part may have come since.
    pub(crate) window: u64,
    /// Whether its size may be changed: the kernel tunes it.
    pub(crate) may_limit: bool,
}

/// How much of one direction may wait.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// The time of the next look; `None` while no bytes move.
    next: Option<Instant>,
    /// The times of the last looks, and the bytes moved by then; the latest comes last.
    looks: VecDeque<(Instant, u64)>,
    /// The bytes moved by the last look.
    moved: u64,
    /// What the sink can take, in bytes per second.
    rate: u64,
    /// The looks in a row that have found more waiting than the sink took.
    busy: u32,
    /// The looks that have found next to nothing waiting, since the sink was busy or got more.
    short: u32,
    /// The looks in a row that have found too much waiting.
    exceeded: u32,
    /// What the sink may leave unsent; 0 as long as there is no limit.
    unsent: u64,
    limit: Option<Limit>,
}

/// What a sink that takes a certain rate needs of the buffers ahead of it, in bytes.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// What may wait in front of it or be under way.
    allowance: u64,
    /// The source's window at most. A larger one would let a near source exceed the allowance before the worker
    /// comes back.
    window: u64,
    /// The source's window while the allowance is used up. The kernel widens a window slowly, so it is not closed.
    least_window: u64,
    /// Room for a segment.
    segment: u64,
    /// What the sink may leave unsent.
    unsent: u64,
}

/// The limit of a source's window.
#[derive(Clone, Copy, Debug)]
struct Limit {
    need: Need,
    /// The window that was set last, in bytes.
    window: u64,
    /// The window without a limit, in bytes.
    full: u64,
    /// Until when what the need was raised to has not shown whether the sink takes it.
    raised_until: Instant,
    /// The size of the receive buffer that was set last, and the one before the first.
    buffer: Option<(u64, u64)>,
    /// The bytes moved when it shrank last, and by the last turn.
    shrunk_at: u64,
    turned_at: u64,
    /// It is to shrink as soon as a turn has read something.
    shrinks: bool,
}

// === impl Backlog ===

impl Backlog {
    /// Returns the time of the next look.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Adapts the window to what waits. Called ahead of a turn, because a read advertises the window.
    pub(crate) fn before_turn(&mut self, from: &impl Buffered) {
        if let Some(limit) = &mut self.limit {
            limit.adapt(from.unread(), from);
        }
    }

    /// Looks at the direction, which has moved `moved` bytes, if the time has come. Returns whether its source's
    /// window is limited from now on and was not before.
    pub(crate) fn after_turn(
        &mut self,
        moved: u64,
        now: Instant,
        from: &impl Buffered,
        to: &impl Buffered,
    ) -> bool {
        if let Some(limit) = &mut self.limit {
            limit.shrink_buffer(moved, from);
        }
        match self.next {
            Some(next) if now < next => false,
            Some(_) => self.look(moved, now, from, to),
            None => {
                let is_worth_it = match self.limit {
                    Some(_) => moved > self.moved,
                    None => moved >= self.moved + LEAST,
                };
                if is_worth_it {
                    self.begin(moved, now, to);
                }
                false
            }
        }
    }

    /// Begins to look, for the first time or after a pause.
    fn begin(&mut self, moved: u64, now: Instant, to: &impl Buffered) {
        self.looks = VecDeque::from([(now, moved)]);
        self.moved = moved;
        (self.busy, self.short, self.exceeded) = (0, 0, 0);
        self.next = Some(now + LOOK);
        if self.unsent == 0 {
            self.limit_unsent(UNSENT, to);
        }
    }

    fn look(&mut self, moved: u64, now: Instant, from: &impl Buffered, to: &impl Buffered) -> bool {
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((now, moved));
        let (since, by_then) = self.looks.front().copied().unwrap_or((now, moved));
        let taken = moved - std::mem::replace(&mut self.moved, moved);
        let has_moved = taken > 0;
        let unread = from.unread();
        let has_paused = !has_moved && unread == 0 && self.limit.is_none();
        let has_stopped = moved == by_then && self.looks.len() > LOOKS;
        if has_paused || has_stopped {
            self.next = None;
            self.looks = VecDeque::new();
            return false;
        }
        self.next = Some(now + LOOK);
        // A sink that has found next to nothing could have taken more.
        let is_short = unread < LEAST / 4;
        self.busy = if is_short { 0 } else { self.busy + 1 };
        self.short += u32::from(is_short && has_moved);
        let rate = per_second(moved - by_then, now - since);
        self.rate = match self.limit {
            _ if rate > self.rate || self.busy < PATIENCE => rate.max(self.rate),
            None => rate,
            // At most by half in a second: a sink that has paused for less is not slow.
            Some(_) if has_moved && self.busy.is_multiple_of(PATIENCE) => rate.max(self.rate / 2),
            Some(_) => self.rate,
        };
        if self.busy >= PATIENCE && has_moved {
            self.short = 0;
        }
        if self.limit.is_none() && unread <= LEAST {
            self.exceeded = 0;
            self.allow_unsent(taken, to);
            return false;
        }
        let (round_trip, segment) = from.path();
        let need = Need::of(self.rate, round_trip, segment);
        let Some(limit) = &mut self.limit else {
            return self.judge(need, (unread, taken), now, from, to);
        };
        // At a single look, it may just have taken a burst.
        let is_short = self.short >= SHORT;
        if limit.follow(need, is_short, round_trip, now) {
            self.short = 0;
        }
        if is_short && limit.need.allowance >= limit.full {
            from.unlimit_window();
            if let Some((_, before)) = limit.buffer {
                from.unlimit_buffer(before);
            }
            self.limit = None;
            self.exceeded = 0;
            self.limit_unsent(need.unsent.max(UNSENT), to);
            return false;
        }
        limit.set(unread, from);
        limit.shrinks = true;
        let is_near = need.unsent / 2 < self.unsent && need.unsent > self.unsent / 2;
        if !is_near {
            self.limit_unsent(need.unsent, to);
        }
        false
    }

    /// Decides whether a limit begins, and returns that.
    fn judge(
        &mut self,
        need: Need,
        (unread, taken): (u64, u64),
        now: Instant,
        from: &impl Buffered,
        to: &impl Buffered,
    ) -> bool {
        if unread <= need.allowance {
            self.exceeded = 0;
            self.allow_unsent(taken, to);
            return false;
        }
        if self.is_in_slow_start() {
            return false;
        }
        self.exceeded += 1;
        if self.exceeded < PATIENCE {
            return false;
        }
        self.exceeded = 0;
        let Some(full) = from.largest_window().filter(|full| need.allowance < *full) else {
            return false;
        };
        let mut limit = Limit {
            need,
            window: full,
            full,
            raised_until: now,
            buffer: None,
            shrunk_at: self.moved,
            turned_at: self.moved,
            shrinks: false,
        };
        limit.set(unread, from);
        self.limit = Some(limit);
        self.limit_unsent(need.unsent, to);
        true
    }

    /// Returns whether the sink takes more and more.
    fn is_in_slow_start(&self) -> bool {
        let moved = |at: usize| self.looks.get(at).map_or(self.moved, |(_, moved)| *moved);
        let middle = moved(self.looks.len() / 2);
        let (older, newer) = (middle - moved(0), self.moved - middle);
        newer / 5 > older / 4
    }

    /// Lets a sink that is no bottleneck leave more unsent if it has taken that much several times since the last look: the
    /// worker may not come back soon enough.
    fn allow_unsent(&mut self, taken: u64, to: &impl Buffered) {
        if taken / 2 >= self.unsent {
            self.limit_unsent(self.unsent.saturating_mul(2), to);
        }
    }

    fn limit_unsent(&mut self, bytes: u64, to: &impl Buffered) {
        self.unsent = bytes;
        to.limit_unsent(bytes);
    }
}

// === impl Need ===

impl Need {
    /// Returns what a sink needs that takes `rate` bytes per second from a source with this round trip.
    fn of(rate: u64, round_trip: Duration, segment: u64) -> Self {
        let window = in_time(rate, 2 * round_trip.max(TURN));
        let window = window.max(segment.saturating_mul(LEAST_SEGMENTS));
        let allowance = in_time(rate, round_trip + WAITING);
        // A segment that does not fit waits for a probe, and probes back off for as long as the window was closed. The
        // kernel's estimate may be smaller than what the peer sends.
        let least = segment + segment / 4;
        Self {
            allowance: allowance.max(LEAST).max(window),
            window,
            least_window: (in_time(rate, round_trip) / 4 * 3).max(least),
            segment: least,
            unsent: in_time(rate, UNSENT_FOR).max(LEAST),
        }
    }
}

// === impl Limit ===

impl Limit {
    /// Adopts what the sink needs. If it `is_short`, the limit may be what slows it down: it then gets twice as much,
    /// which shows a round trip later. Returns whether that begins.
    fn follow(&mut self, need: Need, is_short: bool, round_trip: Duration, now: Instant) -> bool {
        let has_shown = now >= self.raised_until;
        let before = std::mem::replace(&mut self.need, need);
        let factor = match has_shown {
            true if is_short => 2,
            true => return false,
            false => 1,
        };
        self.need.allowance = need.allowance.max(before.allowance.saturating_mul(factor));
        self.need.window = need.window.max(before.window.saturating_mul(factor));
        if has_shown {
            // Until then, so many looks have found next to nothing again if it was not enough.
            self.raised_until = now + round_trip.max(LOOK * (SHORT + 1));
        }
        has_shown
    }

    /// Sets the window that belongs to what waits, if it differs much from the one that was set.
    fn adapt(&mut self, unread: u64, from: &impl Buffered) {
        let window = self.window_for(unread);
        let is_near = window.abs_diff(self.window) < self.need.window / 8;
        let is_open = |window| (window > self.need.segment, window > self.need.least_window);
        if !is_near || is_open(window) != is_open(self.window) {
            self.set(unread, from);
        }
    }

    /// Sets it in any case: the kernel widens a window by itself when it tunes the buffer.
    fn set(&mut self, unread: u64, from: &impl Buffered) {
        self.window = self.window_for(unread);
        from.limit_window(self.window);
    }

    /// Shrinks the receive buffer after a turn by which `moved` bytes have moved: by a part of what the sink has taken,
    /// until it has room for the allowance. The rest of that comes again, so that the source goes on.
    ///
    /// A turn that has read something leaves room, so that what the source's peer may still send has some. A look may
    /// come after other turns.
    fn shrink_buffer(&mut self, moved: u64, from: &impl Buffered) {
        let has_read = moved > std::mem::replace(&mut self.turned_at, moved);
        if !has_read || !std::mem::take(&mut self.shrinks) {
            return;
        }
        let taken = moved - std::mem::replace(&mut self.shrunk_at, moved);
        let unread = from.unread();
        let least = self.need.allowance.saturating_mul(2);
        if let Some((size, before)) = self.buffer
            && size < least.min(before)
        {
            let size = least.min(before);
            if from.limit_buffer(size) {
                self.buffer = Some((size, before));
            }
            return;
        }
        if unread <= self.need.allowance {
            return;
        }
        let Some(now) = from.buffer() else { return };
        if now.window > self.need.least_window.max(2 * self.need.segment) {
            return;
        }
        let (last, before) = match self.buffer {
            Some(sizes) => sizes,
            None if now.may_limit => (now.size, now.size),
            None => return,
        };
        // The kernel counts more than the bytes.
        let overhead = now.used.div_ceil(unread).max(2);
        let filled = now.used + now.window * overhead + 4 * self.need.segment;
        let less = (taken / 4 * 3).saturating_mul(now.used) / unread;
        // At first, it does not have to be full.
        let shrunk = self.buffer.map_or(0, |_| last.saturating_sub(less));
        let size = shrunk.max(filled).max(least);
        if size < last && from.limit_buffer(size) {
            self.buffer = Some((size, before));
        }
    }

    /// Returns the window that belongs to what waits: the rest of the allowance, as a buffer of that size would have it.
    /// It has room for a single segment only if the sink has stopped, or what came before the limit waits.
    fn window_for(&self, unread: u64) -> u64 {
        let need = &self.need;
        if unread / 3 >= need.allowance {
            return need.segment;
        }
        let rest = need.allowance.saturating_sub(unread);
        rest.min(need.window).max(need.least_window).min(self.full)
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn in_time(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
