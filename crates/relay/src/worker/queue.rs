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

use taut_mesh::places::SessionPlace;

use self::lines::{Lines, NoRoom, Room, Waiting};
use super::Worker;
use super::client::Client;
use crate::access::source::Source;
use crate::counters::forward::ForwardStats;
use crate::outcome::refusal::ClientRefusal;
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
    fn is_before(&self, forward: &Arc<ForwardStats>) -> bool {
        !self.is_empty() && self.with(|lines| lines.is_before(id_of(forward), sessions))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Lines<Client>) -> R) -> R {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut lines);
        self.len.store(lines.len(), Ordering::SeqCst);
        result
    }
}

impl Worker {
    /// Starts the session of a client if there is a place for it. Otherwise the client waits for one.
    pub(super) fn start(&mut self, client: Client) {
        self.io.metrics.accepted.add(1);
        match self.place_for(&client) {
            Ok(place) => self.begin_session(client, place),
            Err(cause) => self.queue(client, cause),
        }
    }

    /// Takes a place for the session of a client, unless others wait for it. An idle session ends for it if all are
    /// taken.
    pub(super) fn place_for(&mut self, client: &Client) -> Result<SessionPlace, ClientRefusal> {
        if client.route.is_full() {
            return Err(ClientRefusal::ForwardFull);
        }
        // A client that cannot wait competes with those who do.
        let can_wait = || client.route.timeouts(&self.setup.timeouts).queue.is_some();
        let is_after = self.shared.queue.is_before(&client.route.stats) && can_wait();
        let place = match is_after {
            true => None,
            false => self.place(&client.permit),
        };
        place.ok_or(ClientRefusal::Full)
    }

    /// Lets a client wait for a place, for lack of which it would be refused.
    fn queue(&mut self, client: Client, cause: ClientRefusal) {
        let Some(time) = client.route.timeouts(&self.setup.timeouts).queue else {
            return self.refuse_client(client, cause);
        };
        // A reader of its first bytes may have watched it. Its session may be another worker's.
        let _ = self.io.poller.remove(&client.stream);
        let stats = client.route.stats.clone();
        let limit = limit_of(&self.setup, &client.route);
        let waiting = Waiting {
            source: client.permit.source(),
            until: self.io.now + time,
            client,
        };
        let room = Room {
            all: self.shared.queue.max(),
            forwards: self.setup.routes.len(),
        };
        let id = id_of(&stats);
        let queue = &self.shared.queue;
        let (pushed, was_empty) = queue.with(|lines| {
            let was_empty = lines.len() == 0;
            (lines.push(id, limit, waiting, room), was_empty)
        });
        match pushed {
            Some(NoRoom::New(client)) => return self.refuse_client(client, cause),
            Some(NoRoom::Displaced(client)) => self.refuse_client(client, cause),
            None => {}
        }
        stats.worker(self.io.worker).queued.add(1);
        self.has_seen_queue = true;
        if was_empty {
            self.tell_others();
        }
        // A place may have become free meanwhile.
        self.serve_queue();
        if self.may_make_room() {
            self.make_room_for_queue();
        }
    }

    /// Serves the queue once a session of this worker has ended, and looks after those who wait when it is time.
    pub(super) fn poll_queue(&mut self) {
        if std::mem::take(&mut self.has_ended) {
            self.serve_queue();
        }
        let watches = self.watches_queue() || !self.shared.queue.is_empty();
        if watches && self.io.now >= self.next_look() {
            self.looked_at = self.io.now;
            self.mailbox.looks_at_queue();
            self.look_at_queue();
        }
        // After the worker has said that it looks: who comes from now on tells it.
        self.has_seen_queue = !self.shared.queue.is_empty();
    }

    /// Whether the worker looks at the queue each second.
    pub(super) fn watches_queue(&self) -> bool {
        self.has_seen_queue || self.mailbox.is_told_of_queue()
    }

    /// Returns the time of the next look at those who wait.
    pub(super) fn next_look(&self) -> Instant {
        self.looked_at + LOOK_EVERY
    }

    /// Resets those who wait.
    pub(super) fn stop_queue(&mut self) {
        for client in self.shared.queue.with(Lines::take_all) {
            client.stream.abort();
        }
    }

    /// Starts sessions of clients that wait, as far as there are places.
    fn serve_queue(&mut self) {
        let shared = self.shared.clone();
        let next = || {
            shared
                .queue
                .with(|lines| lines.next(sessions, || shared.places.take()))
        };
        while !shared.queue.is_empty()
            && let Some((client, place)) = next()
        {
            match client.stream.take_error() {
                Ok(()) => self.begin_session(client, place),
                Err(_) => self.forget(&client),
            }
        }
    }

    fn look_at_queue(&mut self) {
        let now = self.io.now;
        let has_left = |client: &Client| client.stream.take_error().is_err();
        let (left, late) = { &self.shared.queue }.with(|lines| lines.take_late(now, has_left));
        for client in &left {
            self.forget(client);
        }
        for client in late {
            let cause = match client.route.is_full() {
                true => ClientRefusal::ForwardFull,
                false => ClientRefusal::Full,
            };
            self.refuse_client(client, cause);
        }
        // `max_sessions` may have been raised, and sessions may have become idle for long enough.
        self.serve_queue();
        self.make_room_for_queue();
    }

    /// Ends idle sessions of this worker for clients that wait. One worker at a time does so: otherwise each would end
    /// one for the same client.
    fn make_room_for_queue(&mut self) {
        if self.shared.queue.makes_room.swap(true, Ordering::SeqCst) {
            return;
        }
        let queue = self.shared.queue.clone();
        // Those who may not have one of these sessions pass, so that the one who has it is the one who may.
        let mut passes = queue.with(|lines| lines.parties());
        while let Some(source) = queue.with(|lines| lines.next_source(sessions)) {
            let sessions_of = self.sessions_of();
            if self.make_room(source, sessions_of(source) + 1, &sessions_of) {
                self.serve_queue();
            } else if passes == 0 || !self.may_make_room() {
                break;
            } else {
                passes -= 1;
                queue.with(|lines| lines.pass(sessions));
            }
        }
        self.shared.queue.makes_room.store(false, Ordering::SeqCst);
    }

    /// A worker that has nothing to do does not look at the queue.
    fn tell_others(&self) {
        let others = self.shared.mailboxes().iter().enumerate();
        for (_, mailbox) in others.filter(|(index, _)| *index != self.io.worker) {
            mailbox.tell_of_queue();
        }
    }

    fn forget(&self, client: &Client) {
        tracing::debug!(client = %client.addr.0, "a client left while it waited for a place");
        client.route.stats.worker(self.io.worker).queue_left.add(1);
    }

    fn refuse_client(&self, client: Client, cause: ClientRefusal) {
        let Client {
            stream,
            permit,
            addr,
            route,
            ..
        } = client;
        // Dropped first, so that a client that sees the reset and retries does not meet its own permit.
        drop(permit);
        self.refuse(stream, addr.0.ip(), cause, &route.stats);
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
