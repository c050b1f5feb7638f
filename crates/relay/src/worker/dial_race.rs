//! Connects a session to one of several addresses: several attempts at once, of which the first to
//! connect wins (Happy Eyeballs, RFC 8305).
//!
//! One attempt is the session's own upstream leg while it is connecting. The others are here, and
//! one of them becomes the session's leg when it connects or when the leg fails.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | attempts of a session at once | [`AT_ONCE`](crate::net::race::AT_ONCE) | the next begins when one has failed | |
//! | attempts of the node besides each session's own leg | [`MAX_EXTRA`] | the next is put off by the attempt delay | `taut_relay_dials_postponed_total`, `taut_relay_dials_extra` |
//! | an attempt | `connect_timeout` | it has failed | |

use std::time::Instant;

use taut_sys::Errno;
use taut_sys::epoll::Interest;

use super::Worker;
use super::attempts::{Attempt, MAX_EXTRA, Pick};
use super::dial_plan::DialPlan;
use super::sessions::{Close, KEEP_ALIVE_AFTER};
use super::slots;
use crate::access::may_be_borrowed;
use crate::counters::log_limit::LIVE_ADDRESS;
use crate::event::token::{Slot, Token};
use crate::outcome::session_end::{End, Side};

impl Worker {
    /// Returns the values that decide between equal addresses for the next session.
    pub(super) fn pick(&mut self) -> Pick {
        self.turn = self.turn.wrapping_add(1);
        Pick {
            now: self.io.now,
            turn: self.turn,
        }
    }

    /// Returns the time at which a session's race must be driven.
    pub(super) fn race_deadline(&self, slot: Slot) -> Option<Instant> {
        let entry = self.sessions.get(slot)?;
        match &entry.plan {
            DialPlan::Dial(dial) if !entry.session.is_connected() => dial.next(&self.attempts),
            _ => None,
        }
    }

    /// Records that the session's own leg could not connect.
    pub(super) fn fail_own(&mut self, slot: Slot, error: Errno) {
        let now = self.io.now;
        if let Some(entry) = self.sessions.get_mut(slot)
            && let DialPlan::Dial(dial) = &mut entry.plan
            && let Some(begun) = dial.own.take()
        {
            dial.lease = None;
            dial.fail(begun, error, now);
        }
    }

    /// Takes the next steps of a session's race. If no attempt is in progress and no address is
    /// left, the session takes its next way, or ends with the `last` error.
    pub(super) fn race(&mut self, slot: Slot, mut last: Errno) {
        if self.settle_extra(slot, &mut last) {
            return;
        }
        self.begin_due(slot, &mut last);
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::Dial(dial) = &mut entry.plan else {
            return;
        };
        if dial.own.is_none() {
            if dial.extra.is_empty() {
                self.take_next_way(slot, last);
                return;
            }
            let oldest = dial.extra.remove(0);
            self.promote(slot, oldest);
        }
        self.set_deadline(slot);
    }

    /// Removes attempts that have failed. Returns `true` if one has connected and is the session's
    /// leg now.
    fn settle_extra(&mut self, slot: Slot, last: &mut Errno) -> bool {
        let now = self.io.now;
        let Some(entry) = self.sessions.get_mut(slot) else {
            return false;
        };
        let DialPlan::Dial(dial) = &mut entry.plan else {
            return false;
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
                Ok(()) if !attempt.stream.is_its_own_peer() => {
                    self.promote(slot, i);
                    return true;
                }
                answer => {
                    *last = answer.err().unwrap_or(Errno::CONNREFUSED);
                    dial.fail(attempt.begun, *last, now);
                    drop(self.attempts.take(i, &self.io.metrics));
                }
            }
        }
        false
    }

    /// Begins attempts that are due.
    fn begin_due(&mut self, slot: Slot, last: &mut Errno) {
        let now = self.io.now;
        let full = self.shared.share(MAX_EXTRA) as usize;
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let generation = entry.generation;
        let patience = entry.plan.patience(entry.timeouts.connect, &self.setup);
        let DialPlan::Dial(dial) = &mut entry.plan else {
            return;
        };
        let client = entry.client;
        if dial.borrow && !may_be_borrowed(client.0.ip().to_canonical()) {
            tracing::debug!(client = %client.0, "its address cannot be borrowed");
            self.end(slot, End::NotAllowed, Close::Reset);
            return;
        }
        while dial.race.is_due(now) {
            let is_own = dial.own.is_none();
            if !is_own && self.attempts.entries.len() >= full {
                self.io.metrics.dials_postponed.add(1);
                dial.race.postpone(now);
                return;
            }
            let (begun, stream) = dial.begin(now, client);
            self.io.metrics.dials[usize::from(!is_own)].add(1);
            let until = now + patience;
            self.attempts.generation = self.attempts.generation.next();
            let vacant = self.attempts.entries.vacant_entry();
            let i = slots::slot(vacant.key());
            let token = match is_own {
                true => Token::Leg(slot, generation, Side::Upstream),
                false => Token::Attempt(i, self.attempts.generation),
            };
            let dialled = stream.and_then(|stream| {
                self.io
                    .poller
                    .add(&stream, token.encode(), Interest::StreamEdges)?;
                Ok(stream)
            });
            match dialled {
                Ok(stream) if is_own => {
                    entry.session.dialled(stream.into(), until);
                    entry.timeline.dialled(now);
                    dial.set_own(begun);
                }
                Ok(stream) => {
                    vacant.insert(Attempt {
                        stream,
                        generation: self.attempts.generation,
                        session: (slot, generation),
                        begun,
                        until,
                        ready: None,
                    });
                    self.io.metrics.dials_extra_now.add(1);
                    dial.extra.push(i.0);
                }
                Err(e) => {
                    *last = e;
                    dial.fail(begun, e, now);
                }
            }
        }
    }

    /// Makes an attempt the session's own leg. An own leg that is still connecting is reset.
    fn promote(&mut self, slot: Slot, i: u32) {
        let Some(attempt) = self.attempts.take(i, &self.io.metrics) else {
            return;
        };
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::Dial(dial) = &mut entry.plan else {
            return;
        };
        if let Some(overtaken) = dial.own.take() {
            dial.race.fail();
            dial.note_overtaken(overtaken, self.io.now);
        }
        dial.set_own(attempt.begun);
        let token = Token::Leg(slot, entry.generation, Side::Upstream).encode();
        let watched = self
            .io
            .poller
            .modify(&attempt.stream, token, Interest::StreamEdges);
        entry.session.dialled(attempt.stream.into(), attempt.until);
        entry.timeline.dialled(attempt.begun.at);
        if let Some(ready) = attempt.ready {
            entry.session.handle(Side::Upstream, ready);
        }
        match watched {
            Ok(()) => self.sessions.queue(slot),
            Err(e) => self.end(slot, End::of_connect(e), Close::Reset),
        }
    }

    /// Records that the session's own leg has connected, and resets the other attempts.
    pub(super) fn won(&mut self, slot: Slot) {
        let now = self.io.now;
        let Some(entry) = self.sessions.get_mut(slot) else {
            return;
        };
        let DialPlan::Dial(dial) = &mut entry.plan else {
            return;
        };
        let Some(own) = dial.own else { return };
        entry.keep_alive_at = Some(now + KEEP_ALIVE_AFTER);
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
        let place = own.place.min(self.io.metrics.dials_won.len() - 1);
        self.io.metrics.dials_won[place].add(1);
        for &i in &dial.extra {
            if let Some(attempt) = self.attempts.get(i)
                && attempt.begun.place < own.place
            {
                dial.note_overtaken(attempt.begun, now);
            }
        }
        self.attempts.forget(dial, &self.io.metrics);
    }
}
