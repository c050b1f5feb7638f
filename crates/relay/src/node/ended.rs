//! How a worker's thread ends, and how the node is told.

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
    /// It panicked.
    #[error("a worker thread panicked (a bug: please report what the log says)")]
    Panicked,
    /// Its poller failed.
    #[error("a worker thread cannot continue: {0}")]
    Failed(std::io::Error),
}

/// Reports how a worker's thread ended, also when it unwinds.
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
        // Fails only if the node is gone.
        let _ = self.to.send(what);
    }
}
