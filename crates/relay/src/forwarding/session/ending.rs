//! How a session ends: what a broken leg has delivered goes to the other one, and tails leave the kernel.

use std::time::{Duration, Instant};

use taut_mesh::answer::Consequence;
use taut_sys::Errno;

use crate::config::Timeouts;
use crate::forwarding::direction::{Buffers, Leg, Turn};
use crate::outcome::session_end::{End, Side};

use super::{FIRST_LOOK, LONGEST_LOOK, Phase, RelayFault, Session, Step};

/// Polls a send queue and records how long it has made no progress.
#[derive(Clone, Copy)]
pub(super) struct Watch {
    pub(super) next: Instant,
    pause: Duration,
    /// The bytes in the send queue, and the bytes written to it so far.
    seen: (usize, u64),
    moved_at: Instant,
}

impl<L: Leg> Session<L> {
    /// Makes the close of both legs an orderly end, after both streams have ended. Returns `true` if the
    /// close is all that is left to do.
    ///
    /// # Errors
    /// The leg that failed.
    pub(super) fn leave_to_the_kernel(&mut self) -> Result<bool, (Side, Errno)> {
        let Some(upstream) = &mut self.upstream else {
            return Ok(false);
        };
        let (first, last, side) = match () {
            () if self.to_client.fin_is_due() => (upstream, &mut self.client, Side::Client),
            () if self.to_upstream.fin_is_due() => (&mut self.client, upstream, Side::Upstream),
            () => {
                self.client.end_gracefully();
                upstream.end_gracefully();
                return Ok(false);
            }
        };
        // If the peer has acknowledged FIN and has sent its own, the connection is over, and its close
        // cannot reset anything.
        let is_over = first.ends_with_fin() && first.unacknowledged() == 0;
        if !is_over {
            first.end_gracefully();
        }
        if (is_over || first.unsent() == 0) && last.unsent() == 0 {
            last.end_gracefully();
            return Ok(true);
        }
        // FIN must not wait until the tails are out.
        last.shutdown_write().map_err(|e| (side, e))?;
        first.end_gracefully();
        last.end_gracefully();
        Ok(false)
    }

    /// Handles the failure of leg `dead`: the other leg gets the bytes that `dead` delivered, then
    /// RST.
    pub(super) fn break_off<W>(
        &mut self,
        dead: Side,
        e: Errno,
        now: Instant,
        t: &Timeouts,
        io: &mut W,
    ) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        if dead == Side::Upstream {
            let consequence = self.answer.on_end(e, self.is_untouched(), now);
            if self.follow(consequence, e) {
                return self.redial(e, now, io);
            }
        }
        match dead {
            Side::Client => self.to_upstream.break_off(),
            Side::Upstream => self.to_client.break_off(),
        }
        let end = End::of_leg(dead, e);
        self.phase = Phase::Breaking {
            dead,
            end,
            watch: Watch::new(now),
        };
        self.flush(now, t, io)
    }

    /// Records what an error means for the relay at the upstream leg. Returns whether to redial.
    pub(super) fn follow(&mut self, consequence: Consequence, error: Errno) -> bool {
        if let Some(since) = consequence.broken_since {
            self.relay_fault = Some(RelayFault { error, since });
        }
        consequence.redials
    }

    /// Gives the upstream leg up for another one.
    pub(super) fn redial<W>(&mut self, error: Errno, now: Instant, io: &mut W) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        self.upstream = None;
        self.upstream_failed = false;
        // The next leg may be one that bytes in a pipe cannot go to.
        self.to_upstream.unpin(io);
        self.to_upstream.lose_sink();
        self.to_client.lose_source();
        self.phase = Phase::Connecting { until: now };
        Step::Redial(error)
    }

    /// Returns whether no byte of this session has gone to the upstream leg or come from it. Bytes
    /// that the kernel accepted may have arrived even without an acknowledgement, so a single one
    /// counts.
    fn is_untouched(&self) -> bool {
        // Bytes that were read from the client and not sent stay, and go to the next leg.
        self.to_upstream.has_sent_nothing() && self.to_client.is_untouched()
    }

    pub(super) fn flush<W>(&mut self, now: Instant, t: &Timeouts, io: &mut W) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        let Phase::Breaking {
            dead,
            end,
            mut watch,
        } = self.phase
        else {
            return Step::Wait;
        };
        let Some(upstream) = &mut self.upstream else {
            return Step::Broken(end);
        };
        let (direction, from, to, survivor_failed) = match dead {
            Side::Client => (
                &mut self.to_upstream,
                &mut self.client,
                upstream,
                self.upstream_failed,
            ),
            Side::Upstream => (
                &mut self.to_client,
                upstream,
                &mut self.client,
                self.client_failed,
            ),
        };
        if survivor_failed {
            return Step::Broken(end);
        }
        let yielded = match direction.turn(from, to, io) {
            Err(_) => return Step::Broken(end),
            Ok(turn) => turn == Turn::Yielded,
        };
        // RST discards bytes that the survivor's peer has not acknowledged, so it must wait for
        // them.
        let queued = to.unacknowledged();
        if direction.finished() && queued == 0 {
            return Step::Broken(end);
        }
        if watch.stalled((queued, direction.moved()), now, t.flush) {
            return Step::Broken(end);
        }
        self.phase = Phase::Breaking { dead, end, watch };
        if yielded { Step::Again } else { Step::Wait }
    }

    /// Waits until both send queues are empty, within the session's own time limit. If the sockets
    /// were closed with unsent bytes, the kernel alone would decide how long a slow reader gets
    /// (some minutes).
    pub(super) fn linger(&mut self, now: Instant, t: &Timeouts) -> Step {
        let Phase::Lingering { mut watch, mut cut } = self.phase else {
            return Step::Wait;
        };
        let mut queued = 0;
        for (side, leg, failed) in [
            (Side::Client, Some(&self.client), self.client_failed),
            (Side::Upstream, self.upstream.as_ref(), self.upstream_failed),
        ] {
            let Some(leg) = leg else { continue };
            if !failed {
                queued += leg.unsent();
            } else if cut.is_none() && watch.seen.0 > 0 {
                // Reading the error clears it, so the cause is stored here.
                cut = leg.take_error().err().map(|e| End::of_leg(side, e));
            }
        }
        if queued == 0 {
            return Step::Done(cut.unwrap_or(End::Complete));
        }
        if watch.stalled((queued, 0), now, t.half_closed) {
            return Step::Broken(cut.unwrap_or(End::HalfClosedTimeout));
        }
        self.phase = Phase::Lingering { watch, cut };
        Step::Wait
    }

    /// Returns whether a leg would lose its tail if it were closed now.
    fn holds_tails(&self) -> bool {
        self.client.held() + self.upstream.as_ref().map_or(0, Leg::held) > 0
    }

    /// Returns how the session ends if the node has to stop now.
    pub(crate) fn stop(&self) -> Step {
        match self.phase {
            // The kernel holds both tails completely and delivers them without this process.
            Phase::Lingering { cut, .. } if !self.holds_tails() => {
                Step::Done(cut.unwrap_or(End::Complete))
            }
            _ => Step::Broken(End::Stopped),
        }
    }
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next: now,
            pause: FIRST_LOOK,
            seen: (0, 0),
            moved_at: now,
        }
    }

    /// Records the state of the queue. Returns `true` if it has not moved for `limit`.
    pub(super) fn stalled(&mut self, seen: (usize, u64), now: Instant, limit: Duration) -> bool {
        if seen != self.seen {
            self.seen = seen;
            self.moved_at = now;
        }
        if now >= self.next {
            self.next = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_LOOK);
        }
        now >= self.moved_at + limit
    }
}
