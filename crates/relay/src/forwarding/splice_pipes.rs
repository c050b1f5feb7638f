//! A worker's pipes for splice(2): created when first needed, limited in number, handed out empty.

use std::time::{Duration, Instant};

use taut_sys::pipe::Pipe;

use crate::counters::worker::WorkerMetrics;

/// The time after a refusal by the kernel during which no pipe is created: each attempt costs
/// system calls on the data path.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// The pipes of one worker.
///
/// A direction keeps a pipe only while there are bytes in it, so the limit applies to simultaneous
/// bulk transfers, not to sessions.
pub(crate) struct PipePool {
    free: Vec<Pipe>,
    made: usize,
    limit: usize,
    size: usize,
    refused_until: Option<Instant>,
}

impl PipePool {
    pub(crate) fn new(limit: usize, size: usize) -> Self {
        Self {
            free: Vec::new(),
            made: 0,
            limit,
            size,
            refused_until: None,
        }
    }

    /// Returns an empty pipe. With `None`, the caller copies.
    pub(crate) fn take(&mut self, now: Instant, metrics: &WorkerMetrics) -> Option<Pipe> {
        let pipe = self.free.pop().or_else(|| self.make(now, metrics));
        match pipe {
            Some(_) => metrics.pipes_in_use.add(1),
            None => metrics.pipe_misses.add(1),
        }
        pipe
    }

    /// Takes back a drained pipe. A pipe that still holds bytes must be dropped instead: its bytes
    /// would appear in another session's stream.
    pub(crate) fn give_back(&mut self, pipe: Pipe, metrics: &WorkerMetrics) {
        metrics.pipes_in_use.sub(1);
        self.free.push(pipe);
    }

    /// Accounts for a pipe that was dropped with bytes in it.
    pub(crate) fn forget(&mut self, metrics: &WorkerMetrics) {
        self.made -= 1;
        metrics.pipes_in_use.sub(1);
        metrics.pipes_open.sub(1);
    }

    fn make(&mut self, now: Instant, metrics: &WorkerMetrics) -> Option<Pipe> {
        if self.made >= self.limit || self.refused_until.is_some_and(|t| now < t) {
            return None;
        }
        match Pipe::new(self.size) {
            Ok(pipe) => {
                self.made += 1;
                self.refused_until = None;
                metrics.pipes_open.add(1);
                Some(pipe)
            }
            Err(error) => {
                if self.refused_until.is_none() {
                    tracing::warn!(
                        %error, size = self.size, open = self.made,
                        "the kernel refuses another pipe; copying instead \
                         (see fs.pipe-user-pages-soft, relay.max_pipes, relay.pipe_size)"
                    );
                }
                self.refused_until = Some(now + RETRY_AFTER_REFUSAL);
                metrics.pipes_refused.add(1);
                None
            }
        }
    }
}
