//! What a direction needs of its legs and of its worker.

use std::time::Duration;

use taut_sys::Errno;

use crate::forwarding::backlog::Buffered;
use crate::forwarding::user_timeout::Outstanding;

/// The operations that a direction needs on a leg. For a leg without TLS, each is the method of
/// [`taut_sys::socket::Stream`] with that name.
pub(crate) trait Leg: Buffered {
    type Pipe;
    /// Reads into `scratch.plain`. A result of 0 is the orderly end of the stream.
    fn recv(&mut self, scratch: &mut Scratch<'_>) -> Result<Received, Errno>;
    /// Returns what a read would find: data or something that only a read can tell (`Some(true)`), the end
    /// of the stream (`Some(false)`), or nothing yet (`None`).
    fn peek(&self) -> Result<Option<bool>, Errno>;
    /// Writes `bytes`. A protected leg may hold some of them until [`Leg::flush`]. `cipher` is scratch
    /// memory.
    fn send(&mut self, bytes: &[u8], cipher: &mut [u8]) -> Result<usize, Errno>;
    /// Writes the bytes that the leg holds. `EAGAIN`: some are left.
    fn flush(&mut self) -> Result<(), Errno>;
    /// Returns whether the kernel can move this leg's bytes by splice. A protected leg gives it the keys for
    /// that, if it takes them.
    ///
    /// # Errors
    /// The leg is lost: the kernel has taken some of its keys, and not all.
    fn prepare_splice(&mut self) -> Result<bool, Errno>;
    /// Moves bytes into a pipe. A result of 0 means that [`Leg::peek`] or [`Leg::recv`] can tell what comes
    /// next.
    fn fill(&mut self, pipe: &Self::Pipe, max: usize) -> Result<usize, Errno>;
    fn drain(&mut self, pipe: &Self::Pipe, len: usize) -> Result<usize, Errno>;
    /// Ends the stream to the peer in order. `EAGAIN`: call again when the leg is writable.
    fn shutdown_write(&mut self) -> Result<(), Errno>;
    /// Returns whether FIN alone ends the stream, in both directions, so that a close of the leg sends
    /// what [`Leg::shutdown_write`] does.
    fn ends_with_fin(&self) -> bool;
    fn take_error(&self) -> Result<(), Errno>;
    fn unacknowledged(&self) -> usize;
    fn unsent(&self) -> usize;
    /// Returns the number of bytes taken that closing the leg, even in order, would discard.
    fn held(&self) -> usize;
    /// Returns whether bytes are unacknowledged and no acknowledgement has come for this long.
    fn is_unanswered(&self, since: Duration) -> bool;
    /// Returns whether the peer is a relay of the mesh, so that the session keeps the user timeout.
    fn is_of_mesh(&self) -> bool;
    /// Returns what is known of the peer while something is unacknowledged or unsent.
    fn outstanding(&self) -> Option<Outstanding>;
    fn is_its_own_peer(&self) -> bool;
    fn end_gracefully(&self);
}

/// What [`Leg::recv`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// The number of bytes; 0 is the end of the stream.
    pub(crate) len: usize,
    /// More bytes than these may be waiting. If not, the poller reports the next ones.
    pub(crate) more: bool,
}

/// Memory that a worker lends a leg for one call.
pub(crate) struct Scratch<'a> {
    /// Holds the bytes of a stream; it limits the size of a copied chunk.
    pub(crate) plain: &'a mut [u8],
    /// Holds them as they are on the wire. It has room for the records of as much as `plain` holds.
    pub(crate) cipher: &'a mut [u8],
}

impl Scratch<'_> {
    /// Returns the number of sealed bytes that can be opened at a time.
    pub(crate) fn room(&self) -> usize {
        self.plain.len().min(self.cipher.len())
    }
}

/// Pipes and buffers that a worker lends a direction for one turn.
pub(crate) trait Buffers {
    type Pipe;
    /// Returns an empty pipe, or `None` if there is none.
    fn take_pipe(&mut self) -> Option<Self::Pipe>;
    /// Takes back an empty pipe.
    fn give_back(&mut self, pipe: Self::Pipe);
    /// Drains the `len` bytes that a pipe holds.
    fn empty(&mut self, pipe: &Self::Pipe, len: usize) -> Box<[u8]>;
    /// Returns the memory to copy through.
    fn scratch(&mut self) -> Scratch<'_>;
    /// Returns the number of copied bytes after which splice is used; `None`: never.
    fn splice_after(&self) -> Option<u64>;
}
