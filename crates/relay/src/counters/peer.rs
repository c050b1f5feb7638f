//! The counters of one peer.

use super::counter::Counter;
use crate::outcome::peer::PeerFailure;

/// The counters of one peer: connections to it, and the sessions that go through it.
#[derive(Debug)]
pub(crate) struct PeerStats {
    /// The peer's name, its label in metrics.
    pub(crate) name: String,
    workers: Box<[PeerCounters]>,
}

/// One worker's counters of a peer. Aligned so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PeerCounters {
    /// Connections that became ready.
    pub(crate) dialled: Counter,
    /// Dials that failed, by reason.
    pub(crate) failed: [Counter; PeerFailure::ALL.len()],
    /// Connections that are ready for a session.
    pub(crate) ready: Counter,
    /// Open sessions.
    pub(crate) sessions: Counter,
    /// Sessions reset because no connection to the peer could be had.
    pub(crate) sessions_failed: Counter,
    /// Bytes sent to the peer.
    pub(crate) sent_bytes: Counter,
    /// Bytes received from the peer.
    pub(crate) received_bytes: Counter,
}

impl PeerStats {
    pub(crate) fn new(name: String, workers: usize) -> Self {
        Self {
            name,
            workers: (0..workers).map(|_| PeerCounters::default()).collect(),
        }
    }

    /// Returns the counters that worker `index` writes.
    pub(crate) fn worker(&self, index: usize) -> &PeerCounters {
        &self.workers[index]
    }

    /// Returns the sum of all workers.
    pub(crate) fn sum(&self, counter: impl Fn(&PeerCounters) -> &Counter) -> u64 {
        let values = self.workers.iter().map(|w| counter(w).get());
        values.fold(0, u64::wrapping_add)
    }
}
