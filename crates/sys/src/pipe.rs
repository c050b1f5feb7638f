//! Pipes as the place where splice(2) parks bytes between two sockets.

use std::os::fd::OwnedFd;

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

use crate::Errno;
use crate::socket::Stream;

/// A pipe, both ends.
///
/// A pipe has *slots*, one a page fragment, not bytes: it can be full well below its capacity
/// (many small segments) and hold more than its capacity (one slot may be a coalesced
/// super-segment). So nothing may be concluded from the capacity; count what went in and out.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// Makes a pipe of at least `capacity` bytes.
    ///
    /// # Errors
    /// `EMFILE`/`ENFILE` without descriptors. `EPERM` when the user's pipes are past
    /// `fs.pipe-user-pages-soft` or `capacity` past `fs.pipe-max-size`, also where the kernel
    /// would rather hand out a pipe of a page or two: such a one is slower than copying.
    pub fn new(capacity: usize) -> Result<Self, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if fcntl_getpipe_size(&write)? < capacity {
            fcntl_setpipe_size(&write, capacity)?;
        }
        Ok(Self { read, write })
    }

    /// Moves up to `max` bytes from the socket's receive queue into the pipe.
    ///
    /// It stops at an urgent mark and does not go past it: there it says `EAGAIN` or, when FIN
    /// has arrived too, `Ok(0)`, which is therefore *not* proof of an end of stream.
    ///
    /// # Errors
    /// `EAGAIN` says that the socket is empty, or that the pipe is full, or that the socket is at
    /// an urgent mark. Otherwise the socket's error.
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

    /// Reads what is in the pipe.
    ///
    /// # Errors
    /// `EAGAIN` when it is empty.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.read, buf)
    }

    /// Moves up to `len` bytes from the pipe to the socket's send queue.
    ///
    /// `len` must not exceed what is in the pipe: a larger figure reads as "more to come", and
    /// the kernel would hold back the last partial segment, as SPLICE_F_MORE does (200 ms).
    ///
    /// # Errors
    /// `EAGAIN` when the send queue is full; otherwise the socket's error.
    pub fn drain(&self, to: &Stream, len: usize) -> Result<usize, Errno> {
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
