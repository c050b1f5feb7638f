//! A worker's means of I/O: its poller, its pipes and the buffer that it copies through.

use std::sync::Arc;
use std::time::Instant;

use taut_sys::Errno;
use taut_sys::epoll::Poller;
use taut_sys::pipe::Pipe;

use crate::counters::worker::WorkerMetrics;
use crate::forwarding::direction::{Buffers, Scratch};
use crate::forwarding::splice_pipes::PipePool;

/// The number of bytes copied at a time, and the maximum that a direction holds in memory.
pub(super) const SCRATCH: usize = 64 << 10;

/// A worker's means of I/O.
pub(super) struct IoContext {
    pub(super) poller: Poller,
    pub(super) pipes: PipePool,
    /// Memory for the bytes of streams.
    pub(super) plain: Box<[u8]>,
    /// Memory for what they are on protected legs.
    pub(super) cipher: Box<[u8]>,
    pub(super) splice_after: Option<u64>,
    pub(super) metrics: Arc<WorkerMetrics>,
    /// The worker's number, by which it finds its own counters.
    pub(super) worker: usize,
    /// The time at which the current events are handled.
    pub(super) now: Instant,
}

// === impl Buffers for IoContext ===

impl Buffers for IoContext {
    type Pipe = Pipe;

    fn take_pipe(&mut self) -> Option<Pipe> {
        self.pipes.take(self.now, &self.metrics)
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.pipes.give_back(pipe, &self.metrics);
    }

    fn empty(&mut self, pipe: &Pipe, len: usize) -> Box<[u8]> {
        let mut bytes = vec![0; len].into_boxed_slice();
        let mut at = 0;
        while at < len {
            match pipe.read(&mut bytes[at..]) {
                Ok(n) if n > 0 => at += n,
                Err(Errno::INTR) => {}
                // Unreachable: the pipe holds `len` bytes. Continuing would lose the bytes read so
                // far.
                other => panic!("a pipe with {len} bytes gave {other:?} after {at}"),
            }
        }
        bytes
    }

    fn scratch(&mut self) -> Scratch<'_> {
        Scratch {
            plain: &mut self.plain,
            cipher: &mut self.cipher,
        }
    }

    fn splice_after(&self) -> Option<u64> {
        self.splice_after
    }
}
