//! One direction of a session: bytes from one leg to the other, then the end of the stream.
//!
//! What is done with an answer of the kernel is decided here, against the [`Leg`] trait, so that
//! it can be tried against legs that misbehave in every order; the real legs are TCP sockets.
//!
//! # How bytes move
//!
//! A direction holds at most one *parcel*: bytes taken from one leg that the other had no room
//! for, in memory or in a pipe. A new parcel is begun only when the last one is gone. Nothing is
//! lost by this, for the kernel's receive queue is the buffer that counts, and three things are
//! gained: memory is bounded; a slow receiver closes the sender's window; and `EAGAIN` from
//! splice(2) into a pipe, which may mean "socket empty" or "pipe full", is never ambiguous,
//! since the pipe is empty whenever it is filled.

use taut_sys::Errno;
use taut_sys::epoll::Readiness;
use taut_sys::pipe::Pipe;
use taut_sys::socket::Stream;

/// Bytes asked of the kernel in one splice. A pipe of 1 MiB can hold more when its slots carry
/// coalesced segments; asking for more costs nothing.
const SPLICE_MAX: usize = 4 << 20;

/// Bytes a direction moves before the other sessions of its worker get their turn.
pub(crate) const TURN: u64 = 512 << 10;

/// What a direction needs of a leg; the meaning of each is that of [`Stream`]'s method.
pub(crate) trait Leg {
    type Pipe;
    fn recv(&self, buf: &mut [u8]) -> Result<usize, Errno>;
    fn peek(&self) -> Result<Option<bool>, Errno>;
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;
    fn fill(&self, pipe: &Self::Pipe, max: usize) -> Result<usize, Errno>;
    fn drain(&self, pipe: &Self::Pipe, len: usize) -> Result<usize, Errno>;
    fn shutdown_write(&self) -> Result<(), Errno>;
    fn take_error(&self) -> Result<(), Errno>;
    fn unacknowledged(&self) -> usize;
    fn unsent(&self) -> usize;
    fn is_its_own_peer(&self) -> bool;
    fn end_gracefully(&self);
}

/// What a worker lends a direction for the time of one turn.
pub(crate) trait Buffers {
    type Pipe;
    /// A clean pipe, or none.
    fn take_pipe(&mut self) -> Option<Self::Pipe>;
    /// An empty pipe comes back.
    fn give_back(&mut self, pipe: Self::Pipe);
    /// Takes the `len` bytes that are in a pipe out of it.
    fn empty(&mut self, pipe: &Self::Pipe, len: usize) -> Box<[u8]>;
    /// Room to copy through; as long as a copied parcel can be.
    fn scratch(&mut self) -> &mut [u8];
    /// Bytes that are copied before splice is used; `None`: all.
    fn splice_after(&self) -> Option<u64>;
}

/// One direction of a session.
pub(crate) struct Direction<P> {
    chunk: Chunk<P>,
    /// There may be something to read (an edge was reported and `EAGAIN` not yet seen).
    readable: bool,
    /// There may be room to write.
    writable: bool,
    /// A read that gives less than it was asked for is no proof that the socket is empty: the
    /// peer has ended its stream, failed, or sent urgent data (reads stop at the mark).
    read_to_the_end: bool,
    /// The source is a connection that broke: what it had delivered is passed on, and then
    /// nothing, least of all a FIN, which would make a part look whole.
    broken: bool,
    state: State,
    moved: u64,
    spliced: bool,
}

enum Chunk<P> {
    None,
    Bytes { bytes: Box<[u8]>, sent: usize },
    Piped { pipe: P, left: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Bytes may come.
    Open,
    /// The source has ended; a parcel may still be on its way.
    Ending,
    /// FIN has been forwarded.
    Ended,
    /// A broken source has nothing more to give; FIN is never forwarded.
    Spent,
}

/// How a turn came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more can be done until a leg is reported ready.
    Blocked,
    /// More could be done, but it is the others' turn.
    Yielded,
    /// The direction is done: FIN has been passed on or, from a broken source, what there was.
    Ended,
}

/// Which leg failed, seen from a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    From(Errno),
    To(Errno),
}

// === impl Direction ===

impl<P> Direction<P> {
    pub(crate) fn new() -> Self {
        Self {
            chunk: Chunk::None,
            readable: false,
            writable: false,
            read_to_the_end: false,
            broken: false,
            state: State::Open,
            moved: 0,
            spliced: false,
        }
    }

    /// Whether some of its bytes were spliced.
    pub(crate) fn spliced(&self) -> bool {
        self.spliced
    }

    /// The stream begins with these bytes, ahead of the source's own. Only for a direction that
    /// [is untouched](Self::is_untouched).
    pub(crate) fn begin_with(&mut self, bytes: Box<[u8]>) {
        if !bytes.is_empty() {
            self.chunk = Chunk::Bytes { bytes, sent: 0 };
        }
    }

    /// Takes note of what is known of the leg that is read.
    pub(crate) fn handle_source(&mut self, ready: Readiness) {
        self.readable |= ready.readable();
        self.read_to_the_end |= ready.short_read_is_inconclusive();
    }

    /// Takes note of what is known of the leg that is written.
    pub(crate) fn handle_sink(&mut self, ready: Readiness) {
        self.writable |= ready.writable();
    }

    /// Bytes that have been handed to the writing leg so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// How far the stream has come: bytes, and whether its end has been passed on. It changes
    /// whenever something has been passed on.
    pub(crate) fn position(&self) -> (u64, bool) {
        (self.moved, self.ended())
    }

    /// The source's connection broke. What it had delivered is still passed on, but no FIN
    /// unless the source had ended its stream in good order before.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.readable = true;
        self.read_to_the_end = true;
    }

    /// Nothing has been passed on, and nothing is on its way.
    pub(crate) fn is_untouched(&self) -> bool {
        self.moved == 0 && self.state == State::Open && self.is_empty()
    }

    /// The leg that was written is gone; another will come. Only for one that
    /// [is untouched](Self::is_untouched).
    pub(crate) fn lose_sink(&mut self) {
        self.writable = false;
    }

    /// The same for the leg that was read.
    pub(crate) fn lose_source(&mut self) {
        self.readable = false;
        self.read_to_the_end = false;
    }

    /// Nothing is left to do for this direction.
    pub(crate) fn finished(&self) -> bool {
        match self.state {
            State::Ended => true,
            State::Spent => self.is_empty(),
            State::Open | State::Ending => false,
        }
    }

    /// The whole stream has been passed on, FIN included.
    pub(crate) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Nothing is held that the writing leg has not taken.
    fn is_empty(&self) -> bool {
        matches!(self.chunk, Chunk::None | Chunk::Piped { left: 0, .. })
    }

    /// Gives up a pipe that still has bytes in it, if there is one.
    pub(crate) fn take_dirty_pipe(&mut self) -> Option<P> {
        match std::mem::replace(&mut self.chunk, Chunk::None) {
            Chunk::Piped { pipe, .. } => Some(pipe),
            _ => None,
        }
    }

    /// Bytes wait in a pipe for a sink that takes none.
    pub(crate) fn pins_a_pipe(&self) -> bool {
        matches!(self.chunk, Chunk::Piped { .. })
    }

    /// Takes the bytes out of the pipe and gives it back: others can use it, and this sink is in
    /// no hurry.
    pub(crate) fn unpin<W: Buffers<Pipe = P>>(&mut self, io: &mut W) {
        let Chunk::Piped { pipe, left } = &self.chunk else {
            return;
        };
        let bytes = io.empty(pipe, *left);
        if let Some(pipe) = self.take_dirty_pipe() {
            io.give_back(pipe);
            self.chunk = Chunk::Bytes { bytes, sent: 0 };
        }
    }

    /// Moves what can be moved now, at most about [`TURN`] bytes.
    ///
    /// # Errors
    /// [`Fault`]: the leg that failed. What had been read before it stays in the direction, and
    /// a later turn goes on with it.
    pub(crate) fn turn<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<Turn, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let result = self.go(from, to, io);
        // A pipe is held only while there is something in it.
        if let Chunk::Piped { left: 0, .. } = self.chunk
            && let Some(pipe) = self.take_dirty_pipe()
        {
            io.give_back(pipe);
        }
        result
    }

    fn go<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<Turn, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let start = self.moved;
        loop {
            if !self.deliver(to)? {
                return Ok(Turn::Blocked);
            }
            match self.state {
                // Without room to write nothing is read: the bytes wait in the kernel's receive
                // queue, where they close the sender's window, and not in this process.
                State::Open if !self.readable || !self.writable => return Ok(Turn::Blocked),
                State::Open => {}
                State::Ending => {
                    to.shutdown_write().map_err(Fault::To)?;
                    self.state = State::Ended;
                    return Ok(Turn::Ended);
                }
                State::Ended | State::Spent => return Ok(Turn::Ended),
            }
            if self.moved - start >= TURN {
                return Ok(Turn::Yielded);
            }
            match self.collect(from, to, io) {
                Err(Fault::From(_)) if self.broken => self.state = State::Spent,
                other => other?,
            }
        }
    }

    fn end_of_stream(&mut self) {
        self.state = if self.broken {
            State::Spent
        } else {
            State::Ending
        };
    }

    /// Hands the parcel to `to`; `false` when some of it is left.
    fn deliver<L: Leg<Pipe = P>>(&mut self, to: &L) -> Result<bool, Fault> {
        while self.writable {
            let result = match &mut self.chunk {
                Chunk::None | Chunk::Piped { left: 0, .. } => return Ok(true),
                Chunk::Bytes { bytes, sent } => to.send(&bytes[*sent..]),
                Chunk::Piped { pipe, left } => to.drain(pipe, *left),
            };
            match result {
                Ok(n) => {
                    self.moved += n as u64;
                    match &mut self.chunk {
                        Chunk::Bytes { bytes, sent } => {
                            *sent += n;
                            if *sent == bytes.len() {
                                self.chunk = Chunk::None;
                            }
                        }
                        // Saturating: the kernel cannot move more than was in the pipe.
                        Chunk::Piped { left, .. } => *left = left.saturating_sub(n),
                        Chunk::None => {}
                    }
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Fault::To(e)),
            }
        }
        Ok(self.is_empty())
    }

    /// Takes the next parcel from `from`. Copied bytes go to `to` without a stop on the way.
    fn collect<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        if let Chunk::Piped { .. } = self.chunk {
            return self.collect_by_splice(from, to, io);
        }
        if io.splice_after().is_some_and(|after| self.moved >= after)
            && let Some(pipe) = io.take_pipe()
        {
            self.chunk = Chunk::Piped { pipe, left: 0 };
            return self.collect_by_splice(from, to, io);
        }
        self.collect_by_copy(from, to, io)
    }

    fn collect_by_splice<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let Chunk::Piped { pipe, left } = &mut self.chunk else {
            return Ok(());
        };
        match from.fill(pipe, SPLICE_MAX) {
            Ok(0) => return self.look_closer(from, to, io),
            Ok(n) => {
                *left = n;
                self.spliced = true;
            }
            // The pipe is empty, so it is the socket that has nothing, or is at an urgent mark.
            Err(Errno::AGAIN) if !self.read_to_the_end => self.readable = false,
            Err(Errno::AGAIN) => return self.look_closer(from, to, io),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Fault::From(e)),
        }
        Ok(())
    }

    /// Splice moved nothing. It stops at an urgent mark, where it says `EAGAIN` for ever, or 0
    /// once FIN is behind it; a read goes past the mark.
    fn look_closer<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        match from.peek() {
            Ok(Some(false)) => self.end_of_stream(),
            Ok(Some(true)) => return self.collect_by_copy(from, to, io),
            Ok(None) => self.readable = false,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Fault::From(e)),
        }
        Ok(())
    }

    fn collect_by_copy<L, W>(&mut self, from: &L, to: &L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let scratch = io.scratch();
        let n = match from.recv(scratch) {
            Ok(0) => {
                self.end_of_stream();
                return Ok(());
            }
            Ok(n) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(());
            }
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(Fault::From(e)),
        };
        // epoll(7): an edge-triggered stream that gave less than it was asked for is empty, and
        // what comes next is reported. That saves the read that would say EAGAIN.
        if n < scratch.len() && !self.read_to_the_end {
            self.readable = false;
        }
        let mut sent = 0;
        let mut fault = None;
        while sent < n && self.writable {
            match to.send(&scratch[sent..n]) {
                Ok(m) => sent += m,
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(e) => {
                    fault = Some(Fault::To(e));
                    break;
                }
            }
        }
        self.moved += sent as u64;
        if sent < n {
            let rest = scratch[sent..n].into();
            // An empty pipe held from before goes back; the bytes are in memory now.
            if let Some(pipe) = self.take_dirty_pipe() {
                io.give_back(pipe);
            }
            self.chunk = Chunk::Bytes {
                bytes: rest,
                sent: 0,
            };
        }
        fault.map_or(Ok(()), Err)
    }
}

// === impl Leg for Stream ===

impl Leg for Stream {
    type Pipe = Pipe;

    fn recv(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        Stream::recv(self, buf)
    }

    fn peek(&self) -> Result<Option<bool>, Errno> {
        Stream::peek(self)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        Stream::send(self, bytes)
    }

    fn fill(&self, pipe: &Pipe, max: usize) -> Result<usize, Errno> {
        pipe.fill(self, max)
    }

    fn drain(&self, pipe: &Pipe, len: usize) -> Result<usize, Errno> {
        pipe.drain(self, len)
    }

    fn shutdown_write(&self) -> Result<(), Errno> {
        Stream::shutdown_write(self)
    }

    fn take_error(&self) -> Result<(), Errno> {
        Stream::take_error(self)
    }

    fn unacknowledged(&self) -> usize {
        Stream::unacknowledged(self)
    }

    fn unsent(&self) -> usize {
        Stream::unsent(self)
    }

    fn is_its_own_peer(&self) -> bool {
        Stream::is_its_own_peer(self)
    }

    fn end_gracefully(&self) {
        Stream::end_gracefully(self);
    }
}

#[cfg(test)]
mod tests;
