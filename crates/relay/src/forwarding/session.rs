//! A session: the client leg, the upstream leg, and a direction each way between them.
//!
//! The session decides what the kernel's events mean; it opens no socket and reads no clock.
//! [`Session::handle`] records readiness, [`Session::drive`] acts on it, and [`Session::deadline`]
//! returns when to drive the session without an event.
//!
//! ```text
//!   Connecting --connected--> Relaying --both ended--> Lingering --all sent--> over, FIN
//!       |                         |                        |
//!       | refused, timed out,     | a leg broke            | a leg broke, stalled
//!       | client gone             v                        v
//!       +---------------------> Breaking --flushed,----> over, RST
//!                                          stalled
//! ```

mod ending;

use std::time::{Duration, Instant};

use taut_mesh::answer::Answer;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;

use self::ending::Watch;
use crate::config::Timeouts;
use crate::forwarding::backlog::{BEGIN, Backlog};
use crate::forwarding::direction::{Buffers, Direction, Fault, FinBy, Leg, Turn};
use crate::forwarding::user_timeout::{CHECKS, UserTimeout};
use crate::outcome::session_end::{End, Side};

/// The first and the longest interval between checks of a send queue. The kernel does not report
/// when bytes are acknowledged or sent, so the session has to poll.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The time that bytes may wait in a pipe for a reader that takes none. After it they are moved to
/// memory: pipes are few, and a pipe does not help such a reader.
const PIPE_PATIENCE: Duration = Duration::from_secs(1);

/// One relayed connection.
pub(crate) struct Session<L: Leg> {
    client: L,
    upstream: Option<L>,
    to_upstream: Direction<L::Pipe>,
    to_client: Direction<L::Pipe>,
    /// What waits for the upstream leg, and for the client; `None` before much has moved.
    backlogs: [Option<Box<Backlog>>; 2],
    /// The backlogs whose limit has begun since [`Session::take_limited`].
    limited: u64,
    phase: Phase,
    /// Readiness reported for the upstream leg while it was connecting.
    upstream_ready: Option<Readiness>,
    client_failed: bool,
    upstream_failed: bool,
    /// The time at which bytes or an end of stream last moved.
    progress: Instant,
    /// The time to check a pipe that holds bytes.
    pipe_look: Option<Instant>,
    /// Unacknowledged bytes of both legs when a half-closed session was last found without
    /// progress.
    queues: (usize, usize),
    /// The start of the idle time: never later than `progress`. It is moved up to `progress` only
    /// when the deadline passes, so that moving bytes does not cost a new deadline each time.
    idle_from: Instant,
    /// The number of bytes that this relay sent upstream first.
    introduced: u64,
    /// [`Timeouts::first_byte`] is still to be checked. As `idle_from`, it is looked at only when the deadline
    /// passes.
    awaits_first_byte: bool,
    /// What the next relay has to answer.
    answer: Answer,
    /// The user timeouts of the legs to relays: the client's and the upstream one.
    user_timeouts: [UserTimeout; 2],
    /// When these are checked next; `None` while nothing is outstanding.
    user_timeout_check: Option<Instant>,
    /// Why the next relay is taken for broken: it has not answered in time, or it refuses this
    /// relay's key.
    relay_fault: Option<RelayFault>,
}

/// Why a relay is taken for broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RelayFault {
    pub(crate) error: Errno,
    /// Since when the relay has not answered. A connection to it that was made later says more.
    pub(crate) since: Instant,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The upstream leg is being obtained.
    Connecting { until: Instant },
    /// Bytes move.
    Relaying,
    /// One leg broke: the bytes that it delivered go to the other leg, and RST follows.
    Breaking { dead: Side, end: End, watch: Watch },
    /// Both streams have ended; their tails are still in the kernel's send queues. `cut` is set if
    /// a leg failed before its tail was sent.
    Lingering { watch: Watch, cut: Option<End> },
}

/// What the worker must do with a session after driving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for an event or the deadline.
    Wait,
    /// Drive the session again after the other sessions have had their turn.
    Again,
    /// Connecting failed with this error, or the leg from the pool was dead before a byte of this
    /// session went to it. Dial the next address, or end the session with [`End::of_connect`].
    Redial(Errno),
    /// The session is over and the kernel has all its bytes: close both legs. The cause is
    /// [`End::Complete`] unless a leg failed before its tail was sent.
    Done(End),
    /// The session is over: reset both legs.
    Broken(End),
}

// === impl Session ===

impl<L: Leg> Session<L> {
    /// Starts the session of a client that has just been accepted.
    pub(crate) fn new(client: L, now: Instant) -> Self {
        Self {
            client,
            upstream: None,
            to_upstream: Direction::new(),
            to_client: Direction::new(),
            backlogs: Default::default(),
            limited: 0,
            phase: Phase::Connecting { until: now },
            upstream_ready: None,
            client_failed: false,
            upstream_failed: false,
            progress: now,
            pipe_look: None,
            queues: (0, 0),
            idle_from: now,
            introduced: 0,
            awaits_first_byte: true,
            answer: Answer::default(),
            user_timeouts: Default::default(),
            user_timeout_check: None,
            relay_fault: None,
        }
    }

    /// Sends `bytes` upstream first, which have been read from the client.
    pub(crate) fn begin_with(&mut self, bytes: Vec<u8>) {
        self.to_upstream.begin_with(bytes.into());
    }

    /// Sends a `header` of this relay upstream ahead of the client's stream, and of what has been read of it.
    pub(crate) fn introduce(&mut self, header: Vec<u8>) {
        self.introduced += header.len() as u64;
        self.begin_with(header);
    }

    /// Sets an upstream leg that is connecting, with `until` as its deadline.
    pub(crate) fn dialled(&mut self, upstream: L, until: Instant) {
        self.upstream = Some(upstream);
        self.upstream_ready = None;
        self.phase = Phase::Connecting { until };
    }

    /// Waits for an upstream leg, with `until` as the deadline.
    pub(crate) fn awaits(&mut self, until: Instant) {
        self.upstream = None;
        self.upstream_ready = None;
        self.phase = Phase::Connecting { until };
    }

    /// Sets a connected upstream leg. If the leg was `made_before` the session needed it and breaks
    /// before a byte of this session has gone through it, the session returns [`Step::Redial`].
    pub(crate) fn joined(&mut self, upstream: L, made_before: bool, now: Instant) {
        self.upstream = Some(upstream);
        self.upstream_ready = None;
        self.answer.joined(made_before);
        self.phase = Phase::Relaying;
        self.progress = now;
        self.idle_from = now;
        self.user_timeouts[1] = UserTimeout::default();
    }

    /// Expects the relay at the upstream leg to acknowledge what it was sent within `patience`. If it does
    /// not and no byte of this session has gone to it, the session returns [`Step::Redial`].
    pub(crate) fn expect_answer(&mut self, patience: Duration, now: Instant) {
        self.answer.expect(patience, now);
        self.user_timeout_check = Some(now + patience);
    }

    /// Returns, once, why the relay at the upstream leg is taken for broken.
    pub(crate) fn take_relay_fault(&mut self) -> Option<RelayFault> {
        self.relay_fault.take()
    }

    /// Returns how many directions are limited by what waits for their sink and were not before.
    pub(crate) fn take_limited(&mut self) -> u64 {
        std::mem::take(&mut self.limited)
    }

    /// Returns the legs for closing.
    pub(crate) fn into_legs(self) -> (L, Option<L>) {
        (self.client, self.upstream)
    }

    /// Returns the pipes that still hold bytes, for closing.
    pub(crate) fn take_dirty_pipes(&mut self) -> impl Iterator<Item = L::Pipe> {
        [
            self.to_upstream.take_dirty_pipe(),
            self.to_client.take_dirty_pipe(),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns whether the session has no upstream leg yet and may still get one.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Connecting { .. }) && self.upstream.is_none()
    }

    /// Returns what the session does, in a word.
    pub(crate) fn state(&self) -> &'static str {
        match self.phase {
            Phase::Connecting { .. } => "connecting",
            Phase::Relaying if self.to_upstream.finished() => "client_ended",
            Phase::Relaying if self.to_client.finished() => "upstream_ended",
            Phase::Relaying => "relaying",
            Phase::Breaking { .. } => "breaking",
            Phase::Lingering { .. } => "lingering",
        }
    }

    /// Returns the legs.
    pub(crate) fn legs(&self) -> (&L, Option<&L>) {
        (&self.client, self.upstream.as_ref())
    }

    /// Returns whether the upstream leg is connected.
    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self.phase, Phase::Connecting { .. })
    }

    /// Returns whether bytes were spliced to the upstream leg, and whether to the client.
    pub(crate) fn spliced(&self) -> (bool, bool) {
        (self.to_upstream.spliced(), self.to_client.spliced())
    }

    /// Returns the bytes forwarded so far to the upstream leg, and to the client.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.to_upstream.moved(), self.to_client.moved())
    }

    /// Handles an event of a leg.
    pub(crate) fn handle(&mut self, side: Side, ready: Readiness) {
        match side {
            Side::Client => {
                self.to_upstream.handle_source(ready);
                self.to_client.handle_sink(ready);
                self.client_failed |= ready.failed();
            }
            Side::Upstream if matches!(self.phase, Phase::Connecting { .. }) => {
                self.upstream_ready = Some(ready);
            }
            Side::Upstream => {
                self.to_client.handle_source(ready);
                self.to_upstream.handle_sink(ready);
                self.upstream_failed |= ready.failed();
            }
        }
    }

    /// Returns the time at which the session must be driven even without an event.
    pub(crate) fn deadline(&self, timeouts: &Timeouts) -> Option<Instant> {
        match self.phase {
            Phase::Connecting { until } => Some(until),
            Phase::Relaying => {
                let half_closed = self.to_upstream.ended() != self.to_client.ended();
                let half_closed = half_closed.then(|| self.progress + timeouts.half_closed);
                let first_byte = timeouts.first_byte.filter(|_| self.awaits_first_byte);
                let idle = [timeouts.idle, first_byte].into_iter().flatten().min();
                let idle = idle.map(|idle| self.idle_from + idle);
                let answer = self.answer.deadline();
                let user = self.user_timeout_check;
                let [up, down] = [0, 1].map(|at| self.backlogs[at].as_ref().and_then(|b| b.next()));
                let looks = [half_closed, idle, self.pipe_look, answer, user, up, down];
                looks.into_iter().flatten().min()
            }
            Phase::Breaking { watch, .. } | Phase::Lingering { watch, .. } => Some(watch.next),
        }
    }

    /// Does what can be done now and returns the next step.
    pub(crate) fn drive<W>(&mut self, now: Instant, timeouts: &Timeouts, io: &mut W) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        match self.phase {
            Phase::Connecting { until } => self.connect(now, until, timeouts, io),
            Phase::Relaying => self.relay(now, timeouts, io),
            Phase::Breaking { .. } => self.flush(now, timeouts, io),
            Phase::Lingering { .. } => self.linger(now, timeouts),
        }
    }

    fn connect<W>(&mut self, now: Instant, until: Instant, t: &Timeouts, io: &mut W) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        if self.client_failed {
            let error = self.client.take_error().err().unwrap_or(Errno::CONNRESET);
            return Step::Broken(End::of_leg(Side::Client, error));
        }
        let Some(upstream) = &self.upstream else {
            return match now >= until {
                true => Step::Redial(Errno::TIMEDOUT),
                false => Step::Wait,
            };
        };
        match self.upstream_ready {
            Some(ready) if ready.writable() => match attempt_result(upstream, ready) {
                // A connection to itself would loop the bytes and take the port from the program
                // that they are meant for.
                Ok(()) if upstream.is_its_own_peer() => Step::Redial(Errno::CONNREFUSED),
                Ok(()) => {
                    self.connected(ready, now);
                    self.relay(now, t, io)
                }
                // Before a connection is established, RST reads as ECONNREFUSED. With these errors
                // the connection was established, and may have delivered bytes before it broke.
                Err(e @ (Errno::CONNRESET | Errno::PIPE)) => {
                    self.connected(ready, now);
                    self.break_off(Side::Upstream, e, now, t, io)
                }
                Err(e) => Step::Redial(e),
            },
            _ if now >= until => Step::Redial(Errno::TIMEDOUT),
            _ => Step::Wait,
        }
    }

    fn connected(&mut self, ready: Readiness, now: Instant) {
        self.phase = Phase::Relaying;
        self.progress = now;
        self.idle_from = now;
        self.handle(Side::Upstream, ready);
    }

    fn relay<W>(&mut self, now: Instant, t: &Timeouts, io: &mut W) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        let Some(upstream) = &mut self.upstream else {
            return Step::Wait;
        };
        if self.client_failed {
            let error = self.client.take_error().err().unwrap_or(Errno::CONNRESET);
            return self.break_off(Side::Client, error, now, t, io);
        }
        if self.upstream_failed {
            let error = upstream.take_error().err().unwrap_or(Errno::CONNRESET);
            return self.break_off(Side::Upstream, error, now, t, io);
        }
        for (backlog, from) in self.backlogs.iter_mut().zip([&self.client, &*upstream]) {
            if let Some(backlog) = backlog {
                backlog.before_turn(from);
            }
        }
        let before = (self.to_upstream.position(), self.to_client.position());
        // The close of a leg sends the second FIN.
        let fin_by = |other_ended| match other_ended {
            true => FinBy::Close,
            false => FinBy::Shutdown,
        };
        let fin = fin_by(self.to_client.ended());
        let turn = self
            .to_upstream
            .turn_with(fin, &mut self.client, upstream, io);
        let up = match turn {
            Ok(turn) => turn,
            Err(Fault::From(e)) => return self.break_off(Side::Client, e, now, t, io),
            Err(Fault::To(e)) => return self.break_off(Side::Upstream, e, now, t, io),
        };
        let fin = fin_by(self.to_upstream.ended());
        let turn = self
            .to_client
            .turn_with(fin, upstream, &mut self.client, io);
        let down = match turn {
            Ok(turn) => turn,
            Err(Fault::From(e)) => return self.break_off(Side::Upstream, e, now, t, io),
            Err(Fault::To(e)) => return self.break_off(Side::Client, e, now, t, io),
        };
        let directions = [
            (self.to_upstream.moved(), &self.client, &*upstream),
            (self.to_client.moved(), &*upstream, &self.client),
        ];
        for (backlog, (moved, from, to)) in self.backlogs.iter_mut().zip(directions) {
            if moved >= BEGIN {
                let backlog = backlog.get_or_insert_default();
                self.limited += u64::from(backlog.after_turn(moved, now, from, to));
            }
        }
        let after = (self.to_upstream.position(), self.to_client.position());
        if after != before {
            self.progress = now;
            let has_sent = (after.0 != before.0 && upstream.is_of_mesh())
                || (after.1 != before.1 && self.client.is_of_mesh());
            // Most sessions are over by then.
            let check = now + t.user / CHECKS;
            if has_sent && self.user_timeout_check.is_none_or(|at| at > check) {
                self.user_timeout_check = Some(check);
            }
        }
        if let Some((patience, until)) = self.answer.take_due(now)
            && self.to_client.moved() == 0
            && upstream.is_unanswered(patience)
        {
            let is_untouched = self.to_upstream.is_untouched() && self.to_client.is_untouched();
            let consequence = self.answer.on_silence(until - patience, is_untouched);
            if self.follow(consequence, Errno::TIMEDOUT) {
                return self.redial(Errno::TIMEDOUT, now, io);
            }
        }
        if let Some((side, since)) = self.exceeded_user_timeout(now, t.user) {
            let error = Errno::TIMEDOUT;
            if side == Side::Upstream {
                self.relay_fault = Some(RelayFault { error, since });
            }
            return self.break_off(side, error, now, t, io);
        }
        self.after_turns(up, down, now, t, io)
    }

    /// Returns the next step after both directions have had their turn.
    fn after_turns<W>(
        &mut self,
        up: Turn,
        down: Turn,
        now: Instant,
        t: &Timeouts,
        io: &mut W,
    ) -> Step
    where
        W: Buffers<Pipe = L::Pipe>,
    {
        match (up, down) {
            (Turn::Ended, Turn::Ended) => match self.leave_to_the_kernel() {
                Ok(true) => Step::Done(End::Complete),
                Ok(false) => {
                    self.phase = Phase::Lingering {
                        watch: Watch::new(now),
                        cut: None,
                    };
                    self.linger(now, t)
                }
                Err((side, e)) => self.break_off(side, e, now, t, io),
            },
            (Turn::Yielded, _) | (_, Turn::Yielded) => Step::Again,
            (Turn::Ended, _) | (_, Turn::Ended) if now >= self.progress + t.half_closed => {
                match self.stands_still(now) {
                    true => Step::Broken(End::HalfClosedTimeout),
                    false => Step::Wait,
                }
            }
            _ => match self.idle_end(now, t) {
                Some(end) => Step::Broken(end),
                None => {
                    self.watch_pipes(now, io);
                    Step::Wait
                }
            },
        }
    }

    /// Returns the leg whose peer, a relay, has exceeded the user timeout, and since when it has been silent.
    fn exceeded_user_timeout(&mut self, now: Instant, limit: Duration) -> Option<(Side, Instant)> {
        if self.user_timeout_check.is_none_or(|at| now < at) {
            return None;
        }
        self.user_timeout_check = None;
        let legs = [
            (Side::Client, Some(&self.client)),
            (Side::Upstream, self.upstream.as_ref()),
        ];
        for ((side, leg), timeout) in legs.into_iter().zip(&mut self.user_timeouts) {
            let outstanding = leg.filter(|leg| leg.is_of_mesh()).and_then(L::outstanding);
            if outstanding.is_some() {
                self.user_timeout_check = Some(now + limit / CHECKS);
            }
            if let Some(since) = timeout.check(outstanding, limit, now) {
                return Some((side, since));
            }
        }
        None
    }

    /// Returns whether the kernel has delivered nothing either since the last check. A tail that is
    /// being acknowledged counts as progress.
    fn stands_still(&mut self, now: Instant) -> bool {
        let upstream = self.upstream.as_ref().map_or(0, Leg::unacknowledged);
        let queues = (self.client.unacknowledged(), upstream);
        if queues == (0, 0) || queues == self.queues {
            return true;
        }
        self.queues = queues;
        self.progress = now;
        false
    }

    /// Returns the cause of the session's end if no byte has moved either way for longer than a limit.
    fn idle_end(&mut self, now: Instant, t: &Timeouts) -> Option<End> {
        if let Some(first_byte) = t.first_byte
            && self.awaits_first_byte
            && now >= self.idle_from + first_byte
        {
            let is_open = !self.to_upstream.ended() && !self.to_client.ended();
            let (up, down) = self.moved();
            if is_open && up <= self.introduced && down == 0 {
                return Some(End::FirstByteTimeout);
            }
            self.awaits_first_byte = false;
        }
        let idle = t.idle.filter(|idle| now >= self.idle_from + *idle)?;
        let is_idle = now >= self.progress + idle && self.stands_still(now);
        self.idle_from = self.progress;
        is_idle.then_some(End::IdleTimeout)
    }

    /// Returns since when no byte has moved either way; `None` while the session begins or ends.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        matches!(self.phase, Phase::Relaying).then_some(self.progress)
    }

    /// Returns whether no byte has moved either way for this long, and none is being acknowledged.
    pub(crate) fn has_been_idle(&mut self, time: Duration, now: Instant) -> bool {
        { self.idle_since() }.is_some_and(|since| now >= since + time) && self.stands_still(now)
    }

    /// Gives pipes back to the pool if no leg takes their bytes.
    fn watch_pipes<W: Buffers<Pipe = L::Pipe>>(&mut self, now: Instant, io: &mut W) {
        let directions = [&mut self.to_upstream, &mut self.to_client];
        if !directions.iter().any(|d| d.pins_a_pipe()) {
            self.pipe_look = None;
            return;
        }
        match self.pipe_look {
            Some(look) if now < look => {}
            Some(_) if now >= self.progress + PIPE_PATIENCE => {
                directions.into_iter().for_each(|d| d.unpin(io));
                self.pipe_look = None;
            }
            // Bytes have moved since. An occasional check costs less than a new deadline each turn.
            _ => self.pipe_look = Some(now + PIPE_PATIENCE),
        }
    }
}

/// Returns the result of a connection attempt whose leg is writable.
fn attempt_result<L: Leg>(upstream: &L, ready: Readiness) -> Result<(), Errno> {
    // A leg that has neither failed nor hung up has connected.
    match ready.failed_or_hung_up() {
        true => upstream.take_error(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
