//! One direction of a session: bytes from one leg to the other, then the end of the stream.
//!
//! The [`Leg`] trait abstracts the socket, so that tests can produce the kernel's results in any
//! order. The real legs are TCP sockets.
//!
//! # How bytes move
//!
//! A direction holds at most one *chunk*, in memory or in a pipe: bytes read from one leg that the
//! other leg had no room for. It starts a new chunk only when the last one is gone. Throughput does
//! not suffer, because the kernel's receive queue is the buffer that counts. Three things are
//! gained: memory is bounded; a slow receiver closes the sender's window; and `EAGAIN` from
//! splice(2) into a pipe, which may mean "socket empty" or "pipe full", is never ambiguous, because
//! the pipe is always empty before it is filled.

mod leg;

use taut_sys::Errno;
use taut_sys::epoll::Readiness;

pub(crate) use self::leg::{Buffers, Leg, Received, Scratch};

/// The number of bytes that one splice requests. A pipe of 1 MiB can hold more when its slots carry
/// coalesced segments; a larger request costs nothing.
const SPLICE_MAX: usize = 4 << 20;

/// The bytes that a direction moves before the other sessions of its worker get their turn.
pub(crate) const TURN: u64 = 512 << 10;

/// One direction of a session.
pub(crate) struct Direction<P> {
    chunk: Chunk<P>,
    /// There may be bytes to read: the poller reported an edge, and no `EAGAIN` has followed.
    readable: bool,
    /// The poller has reported an edge, and nothing has been spliced since: what it reported may be
    /// something that splice does not see.
    is_unspliced: bool,
    /// There may be room to write.
    writable: bool,
    /// A short read does not prove that the socket is empty, because the peer has ended its stream,
    /// failed, or sent urgent data (reads stop at the urgent mark).
    read_to_the_end: bool,
    /// The source's connection broke. The bytes that it delivered are forwarded, but no FIN
    /// follows, because a FIN would make a partial stream look complete.
    broken: bool,
    /// A read has failed. Another could say that nothing is there yet (the next record of a leg whose
    /// last one could not be opened), and never anything else.
    exhausted: bool,
    state: State,
    /// FIN is left to the close of the sink.
    fin_is_due: bool,
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
    /// Bytes may arrive.
    Open,
    /// The source has ended; a chunk may remain.
    Ending,
    /// FIN has been forwarded, or is left to the close of the sink.
    Ended,
    /// The source broke and has delivered everything that it will; no FIN is forwarded.
    Spent,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The direction can do nothing until a leg is ready.
    Blocked,
    /// The direction could do more, but its turn is over.
    Yielded,
    /// The direction is done: it forwarded FIN, or everything that a broken source delivered.
    Ended,
}

/// What a read proves that returns less than was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    /// That the socket is empty.
    IsTheLast,
    ProvesNothing,
}

/// What sends FIN once the last byte has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinBy {
    Shutdown,
    /// The close of the sink, if FIN is all that ends its stream.
    Close,
}

/// The leg that failed, from the direction's point of view.
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
            is_unspliced: false,
            writable: false,
            read_to_the_end: false,
            broken: false,
            exhausted: false,
            state: State::Open,
            fin_is_due: false,
            moved: 0,
            spliced: false,
        }
    }

    /// Returns whether any bytes were spliced.
    pub(crate) fn spliced(&self) -> bool {
        self.spliced
    }

    /// Puts `bytes` ahead of the source's stream. The direction must be
    /// [untouched](Self::is_untouched).
    pub(crate) fn begin_with(&mut self, bytes: Box<[u8]>) {
        if bytes.is_empty() {
            return;
        }
        let bytes = match std::mem::replace(&mut self.chunk, Chunk::None) {
            Chunk::Bytes { bytes: next, sent } => [&bytes[..], &next[sent..]].concat().into(),
            Chunk::None | Chunk::Piped { .. } => bytes,
        };
        self.chunk = Chunk::Bytes { bytes, sent: 0 };
    }

    /// Handles readiness of the leg that the direction reads from.
    pub(crate) fn handle_source(&mut self, ready: Readiness) {
        self.readable |= ready.readable();
        self.is_unspliced |= ready.readable();
        self.read_to_the_end |= ready.short_read_is_inconclusive();
    }

    /// Handles readiness of the leg that the direction writes to.
    pub(crate) fn handle_sink(&mut self, ready: Readiness) {
        self.writable |= ready.writable();
    }

    /// Returns the number of bytes written to the sink so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the progress of the stream: the bytes moved, and whether the end was forwarded.
    pub(crate) fn position(&self) -> (u64, bool) {
        (self.moved, self.ended())
    }

    /// Records that the source's connection broke. The bytes that it delivered are still forwarded,
    /// but FIN only if the source had ended its stream before.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.readable = true;
        self.read_to_the_end = true;
        if self.exhausted && self.state == State::Open {
            self.state = State::Spent;
        }
    }

    /// Returns whether the direction has forwarded nothing and holds nothing.
    pub(crate) fn is_untouched(&self) -> bool {
        self.moved == 0 && self.state == State::Open && self.is_empty()
    }

    /// Returns whether the direction has forwarded nothing. It may hold bytes that it has read.
    pub(crate) fn has_sent_nothing(&self) -> bool {
        self.moved == 0 && self.state == State::Open
    }

    /// Prepares for a different leg to write to. The direction must have
    /// [sent nothing](Self::has_sent_nothing).
    pub(crate) fn lose_sink(&mut self) {
        self.writable = false;
    }

    /// Prepares for a different leg to read from.
    pub(crate) fn lose_source(&mut self) {
        self.readable = false;
        self.is_unspliced = false;
        self.read_to_the_end = false;
        self.exhausted = false;
    }

    /// Returns whether the direction is done.
    pub(crate) fn finished(&self) -> bool {
        match self.state {
            State::Ended => true,
            State::Spent => self.is_empty(),
            State::Open | State::Ending => false,
        }
    }

    /// Returns whether the whole stream was forwarded, FIN included.
    pub(crate) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Returns whether FIN is left to the close of the sink.
    pub(crate) fn fin_is_due(&self) -> bool {
        self.fin_is_due
    }

    /// Returns whether the sink has taken everything that was read.
    fn is_empty(&self) -> bool {
        matches!(self.chunk, Chunk::None | Chunk::Piped { left: 0, .. })
    }

    /// Removes and returns the pipe of the chunk, if there is one; it may still hold bytes.
    pub(crate) fn take_dirty_pipe(&mut self) -> Option<P> {
        match std::mem::replace(&mut self.chunk, Chunk::None) {
            Chunk::Piped { pipe, .. } => Some(pipe),
            _ => None,
        }
    }

    /// Returns whether bytes wait in a pipe.
    pub(crate) fn pins_a_pipe(&self) -> bool {
        matches!(self.chunk, Chunk::Piped { .. })
    }

    /// Moves the bytes in the pipe to memory and returns the pipe to the pool: this sink takes none
    /// of them, and other directions can use the pipe.
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

    /// Moves what can be moved now, up to about [`TURN`] bytes.
    ///
    /// # Errors
    /// [`Fault`]: the leg that failed. Bytes that were already read remain in the
    /// direction, and a later turn continues with them.
    pub(crate) fn turn<L, W>(&mut self, from: &mut L, to: &mut L, io: &mut W) -> Result<Turn, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        self.turn_with(FinBy::Shutdown, from, to, io)
    }

    /// Moves bytes like [`Self::turn`], and ends the sink's stream as `fin_by` says.
    ///
    /// # Errors
    /// Those of [`Self::turn`].
    pub(crate) fn turn_with<L, W>(
        &mut self,
        fin_by: FinBy,
        from: &mut L,
        to: &mut L,
        io: &mut W,
    ) -> Result<Turn, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let result = self.go(fin_by, from, to, io);
        // A direction keeps a pipe only while there are bytes in it.
        if let Chunk::Piped { left: 0, .. } = self.chunk
            && let Some(pipe) = self.take_dirty_pipe()
        {
            io.give_back(pipe);
        }
        result
    }

    fn go<L, W>(
        &mut self,
        fin_by: FinBy,
        from: &mut L,
        to: &mut L,
        io: &mut W,
    ) -> Result<Turn, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let start = self.moved;
        loop {
            if !self.deliver(to, io)? {
                return Ok(Turn::Blocked);
            }
            match self.state {
                // Without room to write, nothing is read: the bytes stay in the kernel's receive
                // queue, where they close the sender's window, instead of in this process.
                State::Open if !self.readable || !self.writable => return Ok(Turn::Blocked),
                State::Open => {}
                State::Ending if fin_by == FinBy::Close && to.ends_with_fin() => {
                    self.fin_is_due = true;
                    self.state = State::Ended;
                    return Ok(Turn::Ended);
                }
                State::Ending => match to.shutdown_write() {
                    Ok(()) => {
                        self.state = State::Ended;
                        return Ok(Turn::Ended);
                    }
                    Err(Errno::AGAIN) => {
                        self.writable = false;
                        return Ok(Turn::Blocked);
                    }
                    Err(e) => return Err(Fault::To(e)),
                },
                State::Ended | State::Spent => return Ok(Turn::Ended),
            }
            if self.moved - start >= TURN {
                return Ok(Turn::Yielded);
            }
            match self.collect(from, to, io) {
                Err(Fault::From(_)) if self.broken => self.state = State::Spent,
                Err(Fault::From(e)) => {
                    self.exhausted = true;
                    return Err(Fault::From(e));
                }
                other => other?,
            }
            // A leg that was given up although it has no error reads as one that is quiet.
            if self.broken && !self.readable && self.state == State::Open {
                self.state = State::Spent;
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

    /// Writes the chunk, and what `to` holds, to `to`. Returns `false` if some of the chunk is left.
    fn deliver<L, W>(&mut self, to: &mut L, io: &mut W) -> Result<bool, Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        while self.writable {
            let result = match &mut self.chunk {
                Chunk::None | Chunk::Piped { left: 0, .. } => match to.flush() {
                    Ok(()) => return Ok(true),
                    Err(e) => Err(e),
                },
                Chunk::Bytes { bytes, sent } => to.send(&bytes[*sent..], io.scratch().cipher),
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

    /// Reads the next chunk from `from`. Copied bytes are written to `to` at once.
    fn collect<L, W>(&mut self, from: &mut L, to: &mut L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        if let Chunk::Piped { .. } = self.chunk {
            return self.collect_by_splice(from, to, io);
        }
        if io.splice_after().is_some_and(|after| self.moved >= after)
            && from.prepare_splice().map_err(Fault::From)?
            && to.prepare_splice().map_err(Fault::To)?
            && let Some(pipe) = io.take_pipe()
        {
            self.chunk = Chunk::Piped { pipe, left: 0 };
            return self.collect_by_splice(from, to, io);
        }
        let short = if self.read_to_the_end {
            Short::ProvesNothing
        } else {
            Short::IsTheLast
        };
        self.collect_by_copy(from, to, io, short)
    }

    fn collect_by_splice<L, W>(&mut self, from: &mut L, to: &mut L, io: &mut W) -> Result<(), Fault>
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
                self.is_unspliced = false;
            }
            // The pipe is empty, so the socket is empty, at an urgent mark, or in a sockmap.
            Err(Errno::AGAIN) if !self.read_to_the_end && !self.is_unspliced => {
                self.readable = false
            }
            Err(Errno::AGAIN) => return self.look_closer(from, to, io),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Fault::From(e)),
        }
        Ok(())
    }

    /// Handles a splice that moved nothing. At an urgent mark, splice returns `EAGAIN` for ever, or
    /// 0 once FIN follows the mark; a read passes the mark. In a sockmap whose program passes data to the
    /// socket, only reads find it.
    fn look_closer<L, W>(&mut self, from: &mut L, to: &mut L, io: &mut W) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        match from.peek() {
            Ok(Some(false)) => self.end_of_stream(),
            // Splice is asked again after this read, and then a peek tells whether this was all.
            Ok(Some(true)) => return self.collect_by_copy(from, to, io, Short::ProvesNothing),
            Ok(None) => self.readable = false,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Fault::From(e)),
        }
        Ok(())
    }

    fn collect_by_copy<L, W>(
        &mut self,
        from: &mut L,
        to: &mut L,
        io: &mut W,
        short: Short,
    ) -> Result<(), Fault>
    where
        L: Leg<Pipe = P>,
        W: Buffers<Pipe = P>,
    {
        let mut scratch = io.scratch();
        let Received { len: n, more } = match from.recv(&mut scratch) {
            Ok(Received { len: 0, .. }) => {
                self.end_of_stream();
                return Ok(());
            }
            Ok(received) => received,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(());
            }
            Err(Errno::INTR) => return Ok(()),
            Err(e) => return Err(Fault::From(e)),
        };
        // epoll(7): if a read of an edge-triggered stream returns less than requested, the stream
        // is empty, and the poller will report new bytes. This saves the read that would return
        // EAGAIN.
        if !more && short == Short::IsTheLast {
            self.readable = false;
        }
        let mut sent = 0;
        let mut fault = None;
        while sent < n && self.writable {
            match to.send(&scratch.plain[sent..n], scratch.cipher) {
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
            let rest = scratch.plain[sent..n].into();
            // The direction still holds an empty pipe; the bytes are in memory now.
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

#[cfg(test)]
mod tests;
