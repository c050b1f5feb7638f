//! Pipes that hold bytes between two sockets for splice(2).

use std::os::fd::OwnedFd;

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

use crate::Errno;
use crate::socket::Stream;

/// Both ends of a pipe.
///
/// The kernel counts a pipe's *slots* (one per page fragment), not its bytes. A pipe can be full
/// well below its capacity (many small segments), or hold more than its capacity (one slot may be a
/// coalesced super-segment). Callers must count the bytes that go in and out instead of relying on
/// the capacity.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// Creates a pipe with a capacity of `capacity` bytes or more.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`. `EPERM` if the user's pipes exceed `fs.pipe-user-pages-soft` or
    /// `capacity` exceeds `fs.pipe-max-size`; the kernel would then hand out a pipe of one or two
    /// pages, which is slower than copying.
    pub fn new(capacity: usize) -> Result<Self, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if fcntl_getpipe_size(&write)? < capacity {
            fcntl_setpipe_size(&write, capacity)?;
        }
        Ok(Self { read, write })
    }

    /// Moves up to `max` bytes from the socket's receive queue into the pipe.
    ///
    /// Stops at an urgent mark. At the mark it returns `EAGAIN` or, if a FIN has arrived as well,
    /// `Ok(0)`, so `Ok(0)` does *not* prove the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` if the socket is empty, the pipe is full, or the socket is at an urgent mark;
    /// otherwise the socket's error.
    pub fn fill(&self, from: &Stream, max: usize) -> Result<usize, Errno> {
        splice(
            from,
            None,
            &self.write,
            None,
            max,
            SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
        )
    }

    /// Reads from the pipe.
    ///
    /// # Errors
    /// `EAGAIN` if the pipe is empty.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.read, buf)
    }

    /// Moves up to `len` bytes from the pipe to the socket's send queue.
    ///
    /// `len` must not exceed the bytes in the pipe: with a larger value the kernel expects more
    /// data and holds back the last partial segment for 200 ms, as with SPLICE_F_MORE.
    ///
    /// # Errors
    /// `EAGAIN` if the send queue is full; otherwise the socket's error.
    pub fn drain(&self, to: &Stream, len: usize) -> Result<usize, Errno> {
        to.before_write();
        splice(
            &self.read,
            None,
            to,
            None,
            len,
            SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
        )
    }
}
