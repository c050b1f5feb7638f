//! Connections whose client's handshake is under way, and the worker that has each upstream leg.
//!
//! The thread that reads events and the workers share the table. They hold its lock for one table
//! operation, never across a system call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Admission, Counts, Exits, FourTuple, Limiter, Limits, SynEvent};

/// Pending connections, and the worker of each.
#[derive(Debug)]
pub(crate) struct PendingTable(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    limiter: Limiter,
    /// Workers by connection; the limiter bounds their number.
    owners: HashMap<FourTuple, usize>,
    next_worker: usize,
    exits: Option<Exits>,
}

// === impl PendingTable ===

impl PendingTable {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Mutex::new(Inner {
            limiter: Limiter::new(limits),
            owners: HashMap::new(),
            next_worker: 0,
            exits: None,
        }))
    }

    /// Handles a SYN. Returns which of `workers` must dial the upstream leg, or `None` if the
    /// limiter refuses.
    pub(crate) fn admit(&self, syn: &SynEvent, workers: usize, now: Instant) -> Option<usize> {
        let mut inner = self.lock();
        if inner.limiter.admit(syn, now) != Admission::Admit {
            return None;
        }
        inner.next_worker = (inner.next_worker + 1) % workers;
        let worker = inner.next_worker;
        inner.owners.insert(syn.connection(), worker);
        Some(worker)
    }

    /// Removes connections whose client has not come in time, and returns each with the worker that
    /// has its upstream leg.
    pub(crate) fn expire(&self, now: Instant) -> Vec<(FourTuple, usize)> {
        let mut inner = self.lock();
        let expired = inner.limiter.expire(now);
        expired
            .into_iter()
            .filter_map(|c| Some((c, inner.owners.remove(&c)?)))
            .collect()
    }

    /// Removes all connections, and returns each with the worker that has its upstream leg.
    pub(crate) fn forget_all(&self) -> Vec<(FourTuple, usize)> {
        let mut inner = self.lock();
        let all: Vec<_> = inner.owners.drain().collect();
        for (connection, _) in &all {
            inner.limiter.settled(*connection);
        }
        all
    }

    /// Records the program's counters and the number of SYN cookies that the kernel has sent.
    pub(crate) fn note(&self, exits: Option<Exits>, cookies: Option<u64>, now: Instant) {
        let mut inner = self.lock();
        inner.exits = exits;
        if let Some(sent) = cookies {
            inner.limiter.note_cookies(sent, now);
        }
    }

    /// Records an accepted connection. Returns the worker that has its upstream leg, if any.
    pub(crate) fn accepted(&self, connection: FourTuple, now: Instant) -> Option<usize> {
        let mut inner = self.lock();
        let owner = inner.owners.remove(&connection);
        match owner {
            Some(_) => {
                inner.limiter.settled(connection);
            }
            None => inner.limiter.accepted_without(connection, now),
        }
        owner
    }

    /// Returns whether this worker must still dial for the connection. The connection may have been
    /// accepted before the worker learnt of its SYN.
    pub(crate) fn is_awaited(&self, connection: FourTuple, worker: usize) -> bool {
        self.lock().owners.get(&connection) == Some(&worker)
    }

    /// Records that no upstream leg was dialled for this connection.
    pub(crate) fn give_up(&self, connection: FourTuple) {
        let mut inner = self.lock();
        inner.owners.remove(&connection);
        inner.limiter.settled(connection);
    }

    /// Returns the number of pending connections, and the counters of the limiter and of the program.
    pub(crate) fn counts(&self) -> (usize, Counts, Option<Exits>) {
        let inner = self.lock();
        let limiter = &inner.limiter;
        (limiter.pending(), limiter.counts(), inner.exits.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_forgets_all_has_a_leg_for_no_client() {
        let table = PendingTable::new(Limits::default());
        let now = Instant::now();
        let syn = SynEvent {
            client: ([192, 0, 2, 1], 5000).into(),
            listener_addr: ([192, 0, 2, 9], 80).into(),
            listener: 0,
        };
        let worker = table.admit(&syn, 2, now).expect("a worker");
        assert_eq!(table.forget_all(), [(syn.connection(), worker)]);
        assert!(!table.is_awaited(syn.connection(), worker));
        assert_eq!(table.counts().0, 0);
        assert_eq!(table.accepted(syn.connection(), now), None);
    }
}
