//! Clients that wait because `max_sessions` of the relay or of their forward are open.
//!
//! Whichever worker finds a free place serves the next client, in the order of [`Lines`]. A waiting
//! client counts towards its source's `max_sessions_per_source`. A session that another relay asks
//! for does not wait: that relay may have another route.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | clients | [`MAX_QUEUED`] per node, fewer if descriptors are short; each forward may use an equal share, or one entry if the share is smaller | the newest client of the forward's largest party, relative to its clients per turn, is reset; the newcomer is reset instead if its own party would be as large, or if its forward has no waiting client | `taut_relay_refused_total` |
//! | the wait | `queue_timeout`, and up to [`LOOK_EVERY`] more | reset | `taut_relay_refused_total` |

mod lines;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use taut_mesh::places::{SessionPlace, SessionPlaces};

use self::lines::{Lines, NoRoom, Room, Waiting};
use super::client::Client;
use super::mailbox::Mailbox;
use crate::access::source::Source;
use crate::counters::forward::ForwardStats;
use crate::route::table::{Route, Setup};

/// The maximum number of clients of a node that wait for a place.
pub(crate) const MAX_QUEUED: usize = 512;

/// The interval at which expired clients are reset and each worker searches for idle sessions to
/// evict.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The clients of a node that wait for a place.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines<Client>>,
    /// The number of waiting clients, so that workers take no lock while it is 0.
    len: AtomicUsize,
    max: AtomicUsize,
    /// Set while a worker evicts idle sessions for waiting clients; only one does at a time.
    makes_room: AtomicBool,
}

/// The result of queueing a client.
pub(super) enum Pushed {
    /// The queue has no room for the client.
    NoRoom(Client),
    /// The client is in the queue.
    Waits {
        /// Whether no other client waited.
        is_first: bool,
        /// The client that was removed to make room.
        displaced: Option<Client>,
    },
}

/// A worker's right to evict idle sessions for waiting clients.
pub(super) struct MakingRoom {
    queue: Arc<Queue>,
    /// The number of parties that may still be skipped.
    passes: usize,
}

/// What a worker knows of the queue.
pub(super) struct QueueWatch {
    /// Whether clients were waiting at the last check, or this worker has queued one since.
    pub(super) has_seen_any: bool,
    /// Whether this worker may have freed a place since it last served the queue.
    pub(super) has_ended: bool,
    /// The time of the last check.
    pub(super) looked_at: Instant,
}

// === impl Queue ===

impl Queue {
    /// Returns the number of clients that wait.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of clients.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the maximum number of clients. Clients above the new maximum stay in the queue.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Adopts the limits of forwards after a reload.
    pub(super) fn reload(&self, setup: &Setup) {
        if !self.is_empty() {
            self.with(|lines| lines.set_limits(|client| limit_of(setup, &client.route)));
        }
    }

    /// Returns the number of waiting clients of each source.
    pub(super) fn by_source(&self) -> HashMap<Source, u32> {
        match self.is_empty() {
            true => HashMap::new(),
            false => self.with(|lines| lines.by_source()),
        }
    }

    /// Returns whether a new client of this forward must queue behind others.
    pub(super) fn is_before(&self, forward: &Arc<ForwardStats>) -> bool {
        !self.is_empty() && self.with(|lines| lines.is_before(id_of(forward), sessions))
    }

    /// Queues a client until this time.
    pub(super) fn push(&self, client: Client, until: Instant, setup: &Setup) -> Pushed {
        let id = id_of(&client.route.stats);
        let limit = limit_of(setup, &client.route);
        let waiting = Waiting {
            source: client.permit.source(),
            until,
            client,
        };
        let room = Room {
            all: self.max(),
            forwards: setup.routes.len(),
        };
        self.with(|lines| {
            let is_first = lines.len() == 0;
            match lines.push(id, limit, waiting, room) {
                Some(NoRoom::New(client)) => Pushed::NoRoom(client),
                Some(NoRoom::Displaced(client)) => Pushed::Waits {
                    is_first,
                    displaced: Some(client),
                },
                None => Pushed::Waits {
                    is_first,
                    displaced: None,
                },
            }
        })
    }

    /// Removes the next client whose forward has room, if there is a place for it.
    pub(super) fn next(&self, places: &Arc<SessionPlaces>) -> Option<(Client, SessionPlace)> {
        match self.is_empty() {
            true => None,
            false => self.with(|lines| lines.next(sessions, || places.take())),
        }
    }

    /// Removes and returns the clients that have disconnected, and those whose wait has expired.
    pub(super) fn take_late(&self, now: Instant) -> (Vec<Client>, Vec<Client>) {
        let has_left = |client: &Client| client.stream.take_error().is_err();
        self.with(|lines| lines.take_late(now, has_left))
    }

    /// Removes and returns all clients.
    pub(super) fn take_all(&self) -> Vec<Client> {
        self.with(Lines::take_all)
    }

    /// Returns the right to evict idle sessions for waiting clients, or `None` if another worker
    /// has it: two workers would each evict one for the same client.
    pub(super) fn right_to_make_room(self: &Arc<Self>) -> Option<MakingRoom> {
        let is_begun = self.makes_room.swap(true, Ordering::SeqCst);
        (!is_begun).then(|| MakingRoom {
            queue: self.clone(),
            passes: self.with(|lines| lines.parties()),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut Lines<Client>) -> R) -> R {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut lines);
        self.len.store(lines.len(), Ordering::SeqCst);
        result
    }
}

// === impl MakingRoom ===

impl MakingRoom {
    /// Returns the source of the next client whose forward has room.
    pub(super) fn next_source(&self) -> Option<Source> {
        self.queue.with(|lines| lines.next_source(sessions))
    }

    /// Skips the next client's party: no idle session may be evicted for it, but perhaps one may
    /// for a later party. Returns `false` when every party has been skipped.
    pub(super) fn pass(&mut self) -> bool {
        if self.passes == 0 {
            return false;
        }
        self.passes -= 1;
        self.queue.with(|lines| lines.pass(sessions));
        true
    }
}

impl Drop for MakingRoom {
    fn drop(&mut self) {
        self.queue.makes_room.store(false, Ordering::SeqCst);
    }
}

// === impl QueueWatch ===

impl QueueWatch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            has_seen_any: false,
            has_ended: false,
            looked_at: now,
        }
    }

    /// Returns when this worker next checks the queue; `None` while it knows of no waiting client.
    pub(super) fn next_look(&self, mailbox: &Mailbox) -> Option<Instant> {
        (self.has_seen_any || mailbox.is_told_of_queue()).then(|| self.looked_at + LOOK_EVERY)
    }

    /// Returns whether the next check is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.looked_at + LOOK_EVERY
    }
}

/// Returns a key of the forward that survives reloads: the address of its counters.
fn id_of(forward: &Arc<ForwardStats>) -> usize {
    Arc::as_ptr(forward).addr()
}

/// Returns the number of open sessions of a client's forward.
fn sessions(client: &Client) -> u64 {
    client.route.stats.sum(|c| &c.sessions)
}

/// Returns the present `max_sessions` of a forward; that of `route` if the forward is gone.
fn limit_of(setup: &Setup, route: &Route) -> Option<u32> {
    let is_it = |present: &&Arc<Route>| Arc::ptr_eq(&present.stats, &route.stats);
    let present = setup.routes.iter().find(is_it);
    present.map_or(route.max_sessions, |present| present.max_sessions)
}
