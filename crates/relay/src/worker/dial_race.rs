//! Connects a session to one of several addresses: several attempts at once, of which the first to
//! connect wins (Happy Eyeballs, RFC 8305).
//!
//! One attempt at a time is the session's upstream leg while it connects. The others are in
//! [`Attempts`]; one becomes the leg when it connects first, or when the leg fails and no address
//! is left to dial.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | attempts of a session at once | [`AT_ONCE`](crate::net::race::AT_ONCE) | the next begins when one has failed | |
//! | attempts of the node besides each session's own leg | [`MAX_EXTRA`](super::MAX_EXTRA) | the next is put off by the attempt delay | `taut_relay_dials_postponed_total`, `taut_relay_dials_extra` |
//! | an attempt | `connect_timeout` | it has failed | |

use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::epoll::Interest;

use super::attempts::{Attempt, Attempts};
use super::dial_plan::DialPlan;
use super::io::IoContext;
use super::session_table::{KEEP_ALIVE_AFTER, SessionEntry};
use super::slots;
use crate::access::may_be_borrowed;
use crate::counters::log_limit::LIVE_ADDRESS;
use crate::event::token::{Slot, Token};
use crate::outcome::session_end::{End, Side};

/// A session's race, with what it uses of its worker.
pub(super) struct SessionRace<'a> {
    pub(super) slot: Slot,
    pub(super) entry: &'a mut SessionEntry,
    pub(super) attempts: &'a mut Attempts,
    pub(super) io: &'a IoContext,
    /// The maximum number of attempts of the worker besides each session's own leg.
    pub(super) max_extra: usize,
    /// The time limit of an attempt.
    pub(super) patience: Duration,
}

/// The result of driving a race.
pub(super) enum Driven {
    /// Attempts are in progress.
    InProgress,
    /// Another attempt is the session's own leg now, and may have connected.
    Promoted,
    /// No attempt is in progress and no address is left.
    Lost,
    /// The session ends.
    Ended(End),
}

// === impl SessionRace ===

impl SessionRace<'_> {
    /// Drives the race. Stores the error of the last failed attempt in `last`.
    pub(super) fn drive(&mut self, last: &mut Errno) -> Driven {
        if let Some(connected) = self.settle_extra(last) {
            return self.promote(connected);
        }
        if let Err(end) = self.begin_due(last) {
            return Driven::Ended(end);
        }
        let DialPlan::Dial(dial) = &mut self.entry.plan else {
            return Driven::InProgress;
        };
        if dial.own.is_some() {
            return Driven::InProgress;
        }
        if dial.extra.is_empty() {
            return Driven::Lost;
        }
        let oldest = dial.extra.remove(0);
        self.promote(oldest)
    }

    /// Removes failed extra attempts, and returns the slot of the first that has connected.
    fn settle_extra(&mut self, last: &mut Errno) -> Option<u32> {
        let now = self.io.now;
        let DialPlan::Dial(dial) = &mut self.entry.plan else {
            return None;
        };
        let mut at = 0;
        while let Some(&i) = dial.extra.get(at) {
            let Some(attempt) = self.attempts.get(i) else {
                dial.extra.remove(at);
                continue;
            };
            let answer = match attempt.ready {
                Some(ready) if ready.writable() => attempt.stream.take_error(),
                _ if now >= attempt.until => Err(Errno::TIMEDOUT),
                _ => {
                    at += 1;
                    continue;
                }
            };
            dial.extra.remove(at);
            match answer {
                Ok(()) if !attempt.stream.is_its_own_peer() => return Some(i),
                answer => {
                    *last = answer.err().unwrap_or(Errno::CONNREFUSED);
                    dial.fail(attempt.begun, *last, now);
                    drop(self.attempts.take(i, &self.io.metrics));
                }
            }
        }
        None
    }

    /// Begins attempts that are due.
    ///
    /// # Errors
    /// The [`End`] of the session if its client's address cannot be borrowed.
    fn begin_due(&mut self, last: &mut Errno) -> Result<(), End> {
        let (io, attempts) = (self.io, &mut *self.attempts);
        let (slot, generation) = (self.slot, self.entry.generation);
        let client = self.entry.client;
        let DialPlan::Dial(dial) = &mut self.entry.plan else {
            return Ok(());
        };
        if dial.borrow && !may_be_borrowed(client.0.ip().to_canonical()) {
            tracing::debug!(client = %client.0, "cannot connect from the client's address");
            return Err(End::NotAllowed);
        }
        while dial.race.is_due(io.now) {
            let is_own = dial.own.is_none();
            if !is_own && attempts.entries.len() >= self.max_extra {
                io.metrics.dials_postponed.add(1);
                dial.race.postpone(io.now);
                return Ok(());
            }
            let (begun, stream) = dial.begin(io.now, client);
            io.metrics.dials[usize::from(!is_own)].add(1);
            let until = io.now + self.patience;
            attempts.generation = attempts.generation.next();
            let vacant = attempts.entries.vacant_entry();
            let i = slots::slot(vacant.key());
            let token = match is_own {
                true => Token::Leg(slot, generation, Side::Upstream),
                false => Token::Attempt(i, attempts.generation),
            };
            let dialled = stream.and_then(|stream| {
                io.poller
                    .add(&stream, token.encode(), Interest::StreamEdges)?;
                Ok(stream)
            });
            match dialled {
                Ok(stream) if is_own => {
                    self.entry.session.dialled(stream.into(), until);
                    self.entry.timeline.dialled(io.now);
                    dial.set_own(begun);
                }
                Ok(stream) => {
                    vacant.insert(Attempt {
                        stream,
                        generation: attempts.generation,
                        session: (slot, generation),
                        begun,
                        until,
                        ready: None,
                    });
                    io.metrics.dials_extra_now.add(1);
                    dial.extra.push(i.0);
                }
                Err(e) => {
                    *last = e;
                    dial.fail(begun, e, io.now);
                }
            }
        }
        Ok(())
    }

    /// Makes an extra attempt the session's upstream leg, and resets the leg that was still
    /// connecting, if any.
    fn promote(&mut self, i: u32) -> Driven {
        let entry = &mut *self.entry;
        let (Some(attempt), DialPlan::Dial(dial)) =
            (self.attempts.take(i, &self.io.metrics), &mut entry.plan)
        else {
            return Driven::InProgress;
        };
        if let Some(overtaken) = dial.own.take() {
            dial.race.fail();
            dial.note_overtaken(overtaken, self.io.now);
        }
        dial.set_own(attempt.begun);
        let token = Token::Leg(self.slot, entry.generation, Side::Upstream).encode();
        let poller = &self.io.poller;
        let watched = poller.modify(&attempt.stream, token, Interest::StreamEdges);
        entry.session.dialled(attempt.stream.into(), attempt.until);
        entry.timeline.dialled(attempt.begun.at);
        if let Some(ready) = attempt.ready {
            entry.session.handle(Side::Upstream, ready);
        }
        match watched {
            Ok(()) => Driven::Promoted,
            Err(e) => Driven::Ended(End::of_connect(e)),
        }
    }
}

// === impl SessionEntry ===

impl SessionEntry {
    /// Returns the time at which the session's race must be driven.
    pub(super) fn race_deadline(&self, attempts: &Attempts) -> Option<Instant> {
        match &self.plan {
            DialPlan::Dial(dial) if !self.session.is_connected() => dial.next(attempts),
            _ => None,
        }
    }

    /// Records that the session's own leg could not connect.
    pub(super) fn fail_own(&mut self, error: Errno, now: Instant) {
        if let DialPlan::Dial(dial) = &mut self.plan
            && let Some(begun) = dial.own.take()
        {
            dial.lease = None;
            dial.fail(begun, error, now);
        }
    }

    /// Records that the session's own leg has connected, and resets the other attempts.
    pub(super) fn won(&mut self, attempts: &mut Attempts, io: &IoContext) {
        let now = io.now;
        let DialPlan::Dial(dial) = &mut self.plan else {
            return;
        };
        let Some(own) = dial.own else { return };
        self.keep_alive_at = Some(now + KEEP_ALIVE_AFTER);
        let backend = &dial.backends[own.place];
        if !own.is_early {
            backend.connected_after(now.saturating_duration_since(own.at));
        }
        if backend.clear()
            && let Some(line) = LIVE_ADDRESS.line(now)
        {
            let (addr, left_out) = (backend.addr.0, line.left_out);
            tracing::info!(%addr, left_out, "an address answers again");
        }
        let place = own.place.min(io.metrics.dials_won.len() - 1);
        io.metrics.dials_won[place].add(1);
        for &i in &dial.extra {
            if let Some(attempt) = attempts.get(i)
                && attempt.begun.place < own.place
            {
                dial.note_overtaken(attempt.begun, now);
            }
        }
        attempts.forget(dial, &io.metrics);
    }
}
