//! How workers end, and how the node learns of it.

use taut_sys::Errno;
use tokio::sync::mpsc;

/// How a worker's thread ended.
#[derive(Debug)]
pub(super) enum Ended {
    AsOrdered,
    Failed(Errno),
    Panicked,
}

/// A worker ended without having been told to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLost {
    /// It met a state that must not be.
    #[error("a worker thread panicked (a bug: please report what the log says)")]
    Panicked,
    /// Its poller failed.
    #[error("a worker thread cannot go on: {0}")]
    Failed(std::io::Error),
}

/// Tells the node how a worker ended, also when it unwinds.
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
        // The node may be gone; then nobody asks.
        let _ = self.to.send(what);
    }
}
