//! A worker's listeners: opening, pausing and closing them, and reloads of the configuration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::epoll::Interest;
use taut_sys::socket::Listener;

use super::Worker;
use crate::event::token::Token;
use crate::route::listener::{ListenerId, NewListener, Purpose};
use crate::route::table::Setup;

/// The number of connections that the kernel keeps per listener until they are accepted. The kernel
/// uses the lesser of this and `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;
/// The largest number of connections accepted from one listener before sessions get their turn again.
const ACCEPTS: usize = 64;
/// The number of rounds in a row in which a listener is readable before more than one connection is
/// accepted a round.
const PATIENCE: u32 = 4;
/// The pause of a listener when the machine has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener and the purpose of its connections.
pub(super) struct OpenListener {
    pub(super) socket: Arc<Listener>,
    pub(super) purpose: Purpose,
    pub(super) resting_until: Option<Instant>,
    pub(super) streak: Streak,
}

/// The rounds of a worker in a row in which a listener had connections.
///
/// Most often one connection waits, and accept(2) would find none after it. The poller reports the
/// listener again if more wait. So one connection is accepted a round, and twice as many each round
/// once the queue does not become empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streak {
    rounds: u32,
    last: u64,
}

// === impl Streak ===

impl Streak {
    /// Returns the number of connections to accept in this round of the worker.
    pub(super) fn begin(&mut self, round: u64) -> usize {
        let follows = self.rounds > 0 && self.last.wrapping_add(1) == round;
        self.rounds = match follows {
            true => self.rounds.saturating_add(1),
            false => 1,
        };
        self.last = round;
        let doublings = self.rounds.saturating_sub(PATIENCE);
        1 << doublings.min(ACCEPTS.ilog2())
    }
}

// === impl OpenListener ===

impl OpenListener {
    pub(super) fn new(socket: Arc<Listener>, purpose: Purpose) -> Self {
        Self {
            socket,
            purpose,
            resting_until: None,
            streak: Streak::default(),
        }
    }
}

impl Worker {
    /// Adopts another configuration. Listeners that it lacks are closed once their queues are
    /// empty; the others get their new purpose and keep their queues.
    pub(super) fn reload(&mut self, setup: Arc<Setup>, listeners: Vec<NewListener>) {
        let wanted: BTreeSet<_> = listeners.iter().map(|l| l.id).collect();
        let unwanted: Vec<_> = self.listeners.keys().copied().collect();
        for id in unwanted.into_iter().filter(|id| !wanted.contains(id)) {
            self.close_listener(id);
        }
        for listener in listeners {
            self.open_listener(listener);
        }
        // Sessions whose dials have ended are served while the former list applies: their relays may be removed below.
        self.serve_waiters();
        self.shared.queue.reload(&setup);
        self.setup = setup;
        self.reload_mesh();
    }

    fn open_listener(&mut self, new: NewListener) {
        let NewListener {
            id,
            socket,
            purpose,
            options,
        } = new;
        let Some(socket) = socket else {
            if let Some(listener) = self.listeners.get_mut(&id) {
                if let Err(error) = listener.socket.set_options(&options) {
                    tracing::warn!(%error, "cannot set a listener's options; it keeps its former ones");
                }
                listener.purpose = purpose;
            }
            return;
        };
        let watched = self
            .io
            .poller
            .add(&*socket, listener_token(id), Interest::Read);
        let mut listener = OpenListener::new(socket, purpose);
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot watch a listener; trying again shortly");
            listener.resting_until = Some(self.io.now);
        }
        self.listeners.insert(id, listener);
    }

    /// Stops watching a listener for a while. The listener stays readable while a connection waits
    /// for which the machine has no resources, and the poller would report it without end.
    pub(super) fn rest(&mut self, id: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.resting_until = Some(self.io.now + ACCEPT_PAUSE);
            let _ = self.io.poller.remove(&*listener.socket);
        }
    }

    pub(super) fn wake_listeners(&mut self) {
        let now = self.io.now;
        for (&id, listener) in &mut self.listeners {
            if listener.resting_until.is_some_and(|until| now >= until) {
                let watched =
                    self.io
                        .poller
                        .add(&*listener.socket, listener_token(id), Interest::Read);
                listener.resting_until = watched.is_err().then(|| now + ACCEPT_PAUSE);
            }
        }
    }

    /// Closes every listener after accepting the connections in its queue, so that no client whose
    /// handshake is done is reset.
    pub(super) fn close_listeners(&mut self) {
        let all: Vec<_> = self.listeners.keys().copied().collect();
        for id in all {
            self.close_listener(id);
        }
        self.drain_mesh();
    }

    /// Closes a listener after accepting the connections in its queue, so that no client whose
    /// handshake is done is reset.
    pub(super) fn close_listener(&mut self, id: ListenerId) {
        // The queue holds no more than this number of rounds. Without a bound, new connections
        // could keep the listener open.
        let rounds = BACKLOG as usize / ACCEPTS + 1;
        (0..rounds).find(|_| !self.accept_some(id, ACCEPTS));
        if let Some(listener) = self.listeners.remove(&id) {
            // If another process shares the socket, closing it here does not end the poller's
            // reports.
            let _ = self.io.poller.remove(&*listener.socket);
        }
    }
}

pub(super) fn listener_token(id: ListenerId) -> u64 {
    Token::Listener(id.0).encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_does_not_become_empty_is_accepted_in_growing_steps() {
        let mut streak = Streak::default();
        let steps: Vec<_> = (7..20).map(|round| streak.begin(round)).collect();
        assert_eq!(steps, [1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
    }

    #[test]
    fn connections_that_come_one_by_one_are_accepted_one_by_one() {
        let mut streak = Streak::default();
        assert!((0..20).map(|n| streak.begin(n * 2)).all(|max| max == 1));
    }
}
