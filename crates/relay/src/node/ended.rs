//! The end of a worker's thread, and how it is reported to the node.

use taut_sys::Errno;
use tokio::sync::mpsc;

/// How a worker's thread ended.
#[derive(Debug)]
pub(super) enum Ended {
    AsOrdered,
    Failed(Errno),
    Panicked,
}

/// A worker ended without an order.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLost {
    /// The worker panicked.
    #[error("a worker thread panicked (a bug: please report what the log says)")]
    Panicked,
    /// The worker's poller failed.
    #[error("a worker thread cannot continue: {0}")]
    Failed(std::io::Error),
}

/// Reports how a worker's thread ended, even when it unwinds.
pub(super) struct Report {
    pub(super) to: mpsc::UnboundedSender<Ended>,
    pub(super) what: Ended,
}

// === impl Report ===

impl Report {
    pub(super) fn set(mut self, what: Ended) {
        self.what = what;
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let what = std::mem::replace(&mut self.what, Ended::Panicked);
        // Fails only if the node no longer exists.
        let _ = self.to.send(what);
    }
}
