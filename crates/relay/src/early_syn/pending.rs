//! Connections whose client's handshake is under way, and which worker has the upstream leg of each.
//!
//! The thread that reads events and the workers share it. Its lock is held for a look at a table,
//! never over a system call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::limiter::{Admission, Counts, Limiter};
use super::limits::Limits;
use super::{Exits, FourTuple, SynEvent};

/// What is pending, and who has it.
#[derive(Debug)]
pub(crate) struct PendingTable(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    limiter: Limiter,
    /// Worker by connection; no more than the limiter lets be pending.
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

    /// A SYN was seen: the worker of `workers` that is to get its upstream leg under way, if the
    /// limiter lets it.
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

    /// Connections whose client has not come, each with the worker that has its upstream leg.
    pub(crate) fn expire(&self, now: Instant) -> Vec<(FourTuple, usize)> {
        let mut inner = self.lock();
        let expired = inner.limiter.expire(now);
        expired
            .into_iter()
            .filter_map(|c| Some((c, inner.owners.remove(&c)?)))
            .collect()
    }

    /// What the program has counted, and the SYN cookies that the kernel has sent.
    pub(crate) fn note(&self, exits: Option<Exits>, cookies: Option<u64>, now: Instant) {
        let mut inner = self.lock();
        inner.exits = exits;
        if let Some(sent) = cookies {
            inner.limiter.note_cookies(sent, now);
        }
    }

    /// A connection was accepted: the worker that has its upstream leg under way, if one has.
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

    /// Whether this worker is still to get something under way for this connection: it may have
    /// been accepted before the worker read of its SYN.
    pub(crate) fn is_awaited(&self, connection: FourTuple, worker: usize) -> bool {
        self.lock().owners.get(&connection) == Some(&worker)
    }

    /// Nothing was or could be got under way for this connection after all.
    pub(crate) fn given_up(&self, connection: FourTuple) {
        let mut inner = self.lock();
        inner.owners.remove(&connection);
        inner.limiter.settled(connection);
    }

    /// What the limiter and the program have counted.
    pub(crate) fn counts(&self) -> (Counts, Option<Exits>) {
        let inner = self.lock();
        (inner.limiter.counts(), inner.exits.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
