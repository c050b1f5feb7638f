//! Clients of forwards that wait for a place, because all of `max_sessions`, or of their forward's, are taken.
//!
//! Whichever worker finds a free place serves them ([`Lines`] says whom). A source counts those of its clients that
//! wait for `max_sessions_per_source`. A session that another relay asks for does not wait: that relay may have
//! another route.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | clients | [`MAX_QUEUED`] of the node, fewer if descriptors are; an equal share for each forward, at least one | the newest client of the party with the most there is reset, or the newcomer if its own party has as many | `taut_relay_refused_total` |
//! | the wait | `queue_timeout`, and up to [`LOOK_EVERY`] | reset | `taut_relay_refused_total` |

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

/// The interval at which clients that have waited for too long are reset, and each worker looks for idle sessions that
/// make room.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The clients of a node that wait for a place.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines<Client>>,
    /// While no client waits, workers take no lock.
    len: AtomicUsize,
    max: AtomicUsize,
    /// A worker ends idle sessions for those who wait.
    makes_room: AtomicBool,
}

/// The result of letting a client wait.
pub(super) enum Pushed {
    /// There is no room for this one.
    NoRoom(Client),
    Waits {
        /// Whether no other client waited.
        is_first: bool,
        /// One for whom there is no room any more.
        displaced: Option<Client>,
    },
}

/// A worker's right to end idle sessions for clients that wait.
pub(super) struct MakingRoom {
    queue: Arc<Queue>,
    /// The number of parties that may still pass.
    passes: usize,
}

/// What a worker knows of the queue.
pub(super) struct QueueWatch {
    /// Whether clients waited for a place when the worker looked last.
    pub(super) has_seen_any: bool,
    /// Whether places of the worker may have become free since it served the queue.
    pub(super) has_ended: bool,
    /// The time of the last look.
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

    /// Changes the maximum number of clients. Those beyond it stay.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Adopts the limits of forwards after a reload.
    pub(super) fn reload(&self, setup: &Setup) {
        if !self.is_empty() {
            self.with(|lines| lines.set_limits(|client| limit_of(setup, &client.route)));
        }
    }

    /// Returns how many clients of each source wait.
    pub(super) fn by_source(&self) -> HashMap<Source, u32> {
        match self.is_empty() {
            true => HashMap::new(),
            false => self.with(|lines| lines.by_source()),
        }
    }

    /// Whether somebody waits whom a newcomer of this forward would pass.
    pub(super) fn is_before(&self, forward: &Arc<ForwardStats>) -> bool {
        !self.is_empty() && self.with(|lines| lines.is_before(id_of(forward), sessions))
    }

    /// Lets a client wait until this time.
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

    /// Removes the clients that have left, and those who have waited for too long.
    pub(super) fn take_late(&self, now: Instant) -> (Vec<Client>, Vec<Client>) {
        let has_left = |client: &Client| client.stream.take_error().is_err();
        self.with(|lines| lines.take_late(now, has_left))
    }

    pub(super) fn take_all(&self) -> Vec<Client> {
        self.with(Lines::take_all)
    }

    /// Returns the right to end idle sessions for clients that wait, unless another worker has it: otherwise each would
    /// end one for the same client.
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

    /// Passes over the next client's party, which may have none of the idle sessions: the place must go to a party that
    /// may. Returns `false` if all have been passed over.
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

    /// Returns the time of the worker's next look at those who wait; `None` while nobody does, as far as it knows.
    pub(super) fn next_look(&self, mailbox: &Mailbox) -> Option<Instant> {
        (self.has_seen_any || mailbox.is_told_of_queue()).then(|| self.looked_at + LOOK_EVERY)
    }

    /// Whether it is time for a look.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.looked_at + LOOK_EVERY
    }
}

/// Tells forwards apart, also after a reload.
fn id_of(forward: &Arc<ForwardStats>) -> usize {
    Arc::as_ptr(forward).addr()
}

/// Returns the sessions of a client's forward.
fn sessions(client: &Client) -> u64 {
    client.route.stats.sum(|c| &c.sessions)
}

/// Returns the present `max_sessions` of a forward; that of `route` if the forward is gone.
fn limit_of(setup: &Setup, route: &Route) -> Option<u32> {
    let is_it = |present: &&Arc<Route>| Arc::ptr_eq(&present.stats, &route.stats);
    let present = setup.routes.iter().find(is_it);
    present.map_or(route.max_sessions, |present| present.max_sessions)
}
