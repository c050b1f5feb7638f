//! A worker's listeners: what comes in by each, and what becomes of them when the configuration
//! changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::epoll::Interest;
use taut_sys::socket::Listener;

use super::Worker;
use crate::event::token::Token;
use crate::net::addr::ClientAddr;
use crate::route::listener::{ListenerId, NewListener, Purpose};
use crate::route::table::Setup;

/// Connections the kernel keeps for each listener until they are accepted; it takes the lesser
/// of this and `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;
/// Connections accepted from one listener before sessions get their turn again.
const ACCEPTS: usize = 64;
/// How long a listener rests when the machine has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener and what its connections are for.
pub(super) struct OpenListener {
    listener: Arc<Listener>,
    purpose: Purpose,
    pub(super) resting_until: Option<Instant>,
}

// === impl Door ===

impl OpenListener {
    pub(super) fn new(listener: Arc<Listener>, purpose: Purpose) -> Self {
        Self {
            listener,
            purpose,
            resting_until: None,
        }
    }
}

impl Worker {
    /// Another configuration is at work. Listeners that are no part of it are closed after what is
    /// in their queues, others get their new purpose and keep their queues.
    pub(super) fn reload(&mut self, setup: Arc<Setup>, doors: Vec<NewListener>) {
        let wanted: BTreeSet<_> = doors.iter().map(|door| door.id).collect();
        let unwanted: Vec<_> = self.doors.keys().copied().collect();
        for id in unwanted.into_iter().filter(|id| !wanted.contains(id)) {
            self.close_listener(id);
        }
        for door in doors {
            self.hang(door);
        }
        self.setup = setup;
        self.reload_mesh();
    }

    fn hang(&mut self, new: NewListener) {
        let NewListener {
            id,
            listener,
            purpose,
            options,
        } = new;
        let Some(listener) = listener else {
            if let Some(door) = self.doors.get_mut(&id) {
                if let Err(error) = door.listener.set_options(&options) {
                    tracing::warn!(%error, "a listener keeps the options that it had");
                }
                door.purpose = purpose;
            }
            return;
        };
        let watched = self
            .poller
            .add(&*listener, listener_token(id), Interest::Read);
        let mut door = OpenListener::new(listener, purpose);
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot watch a listener; trying again shortly");
            door.resting_until = Some(self.io.now);
        }
        self.doors.insert(id, door);
    }

    /// Takes some of the connections that wait; `true` when there may be more.
    pub(super) fn accept(&mut self, door: ListenerId) -> bool {
        for _ in 0..ACCEPTS {
            let Some(OpenListener {
                listener, purpose, ..
            }) = self.doors.get(&door)
            else {
                return false;
            };
            match listener.accept() {
                Ok((stream, peer)) => match purpose.clone() {
                    Purpose::Forward(route) if route.identity.accept_proxy.is_some() => {
                        self.await_header(stream, peer, &route);
                    }
                    Purpose::Forward(route) => {
                        if let Some(stream) = self.let_in(stream, peer, &route.sources) {
                            self.welcome(stream, ClientAddr(peer), &route);
                        }
                    }
                    Purpose::Mesh => self.take_in(stream, peer),
                },
                Err(Errno::AGAIN) => return false,
                // It went away while it waited.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    self.io.metrics.accept_failed.add(1);
                    tracing::warn!(%error, "cannot accept a connection; trying again shortly");
                    self.rest(door);
                    return false;
                }
            }
        }
        true
    }

    /// A listener stays readable while the connection it cannot hand out waits, so it has to be
    /// left unwatched for a while.
    fn rest(&mut self, door: ListenerId) {
        if let Some(door) = self.doors.get_mut(&door) {
            door.resting_until = Some(self.io.now + ACCEPT_PAUSE);
            let _ = self.poller.remove(&*door.listener);
        }
    }

    pub(super) fn wake_listeners(&mut self) {
        let now = self.io.now;
        for (&id, door) in &mut self.doors {
            if door.resting_until.is_some_and(|until| now >= until) {
                let watched = self
                    .poller
                    .add(&*door.listener, listener_token(id), Interest::Read);
                door.resting_until = watched.is_err().then(|| now + ACCEPT_PAUSE);
            }
        }
    }

    /// Takes what is already waiting, so that nobody who was let in by the kernel is thrown out,
    /// and then no more.
    pub(super) fn close_listeners(&mut self) {
        let all: Vec<_> = self.doors.keys().copied().collect();
        for id in all {
            self.close_listener(id);
        }
        self.retire_mesh();
    }

    /// Takes what is already waiting, so that nobody who was let in by the kernel is thrown out,
    /// and then no more.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        // The queue is no longer than this; without a bound, arrivals could keep it open.
        let rounds = BACKLOG as usize / ACCEPTS + 1;
        (0..rounds).find(|_| !self.accept(id));
        if let Some(door) = self.doors.remove(&id) {
            // Another process may have the same socket; then closing it would not end the reports.
            let _ = self.poller.remove(&*door.listener);
        }
    }
}

pub(super) fn listener_token(id: ListenerId) -> u64 {
    Token::Listener(id.0).encode()
}
