//! The counters of one forward.

use std::net::IpAddr;
use std::sync::Arc;

use super::counter::Counter;
use super::last_addr::LastAddr;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;

/// The name of the sessions that other relays request, in place of a forward's name.
pub(crate) const MESH: &str = "mesh";

/// The counters of one forward, or of the sessions that other relays request. They continue when a
/// reload changes the forward's other settings.
#[derive(Debug)]
pub(crate) struct ForwardStats {
    /// The forward's name, its label in metrics.
    pub(crate) name: Arc<str>,
    workers: Box<[ForwardCounters]>,
}

/// One worker's counters of a forward. Aligned so that workers do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ForwardCounters {
    /// Open sessions.
    pub(crate) sessions: Counter,
    /// Sessions whose upstream leg became ready.
    pub(crate) connected: Counter,
    /// Bytes written to the upstream leg.
    pub(crate) upstream_bytes: Counter,
    /// Bytes written to the client.
    pub(crate) client_bytes: Counter,
    pub(crate) ended: [Counter; End::ALL.len()],
    /// Clients that had to wait for a place.
    pub(crate) queued: Counter,
    /// Of these, those who left meanwhile.
    pub(crate) queue_left: Counter,
    pub(crate) refused: [Counter; ClientRefusal::ALL.len()],
    /// Sessions refused because their destination is not allowed.
    pub(crate) destination_refused: Counter,
    /// Clients for whom no route was left.
    pub(crate) without_route: Counter,
    /// Connections reset for lack of an accepted PROXY protocol header.
    pub(crate) header_refused: Counter,
    /// Connections reset for lack of a TLS ClientHello that leads to a destination.
    pub(crate) hello_refused: Counter,
    /// The client that was refused last.
    pub(crate) last_refused: LastAddr,
}

impl ForwardStats {
    pub(crate) fn new(name: Arc<str>, workers: usize) -> Self {
        Self {
            name,
            workers: (0..workers).map(|_| ForwardCounters::default()).collect(),
        }
    }

    /// Returns the counters that worker `index` writes.
    pub(crate) fn worker(&self, index: usize) -> &ForwardCounters {
        &self.workers[index]
    }

    /// Returns the sum of all workers.
    pub(crate) fn sum(&self, counter: impl Fn(&ForwardCounters) -> &Counter) -> u64 {
        let values = self.workers.iter().map(|w| counter(w).get());
        values.fold(0, u64::wrapping_add)
    }

    /// Returns a client that was refused recently.
    pub(crate) fn last_refused(&self) -> Option<IpAddr> {
        self.workers.iter().find_map(|w| w.last_refused.take())
    }
}
