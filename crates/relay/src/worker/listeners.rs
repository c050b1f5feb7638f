//! A worker's listeners: which are open, and which rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::epoll::{Interest, Poller};
use taut_sys::socket::Listener;

use super::io::IoContext;
use crate::event::token::Token;
use crate::route::listener::{ListenerId, NewListener, Purpose};

/// The number of connections that the kernel keeps per listener until they are accepted. The kernel
/// uses the lesser of this and `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;
/// The largest number of connections accepted from one listener before sessions get their turn again.
pub(super) const ACCEPTS: usize = 64;
/// The number of rounds in a row in which a listener is readable before more than one connection is
/// accepted a round.
const PATIENCE: u32 = 4;
/// The pause of a listener when the machine has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A worker's listeners.
#[derive(Default)]
pub(super) struct Listeners {
    open: BTreeMap<ListenerId, OpenListener>,
}

/// A listener and the purpose of its connections.
pub(super) struct OpenListener {
    pub(super) socket: Arc<Listener>,
    pub(super) purpose: Purpose,
    resting_until: Option<Instant>,
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

// === impl Listeners ===

impl Listeners {
    pub(super) fn get_mut(&mut self, id: ListenerId) -> Option<&mut OpenListener> {
        self.open.get_mut(&id)
    }

    pub(super) fn ids(&self) -> Vec<ListenerId> {
        self.open.keys().copied().collect()
    }

    /// Adds a listener that has a socket.
    ///
    /// # Errors
    /// The kernel's error if the poller cannot watch it.
    pub(super) fn open(&mut self, new: NewListener, poller: &Poller) -> Result<(), Errno> {
        let Some(socket) = new.socket else {
            return Ok(());
        };
        poller.add(&*socket, token(new.id), Interest::Read)?;
        self.open
            .insert(new.id, OpenListener::new(socket, new.purpose));
        Ok(())
    }

    /// Adds a listener, or gives one its new purpose.
    pub(super) fn adopt(&mut self, new: NewListener, io: &IoContext) {
        let NewListener {
            id,
            socket,
            purpose,
            options,
        } = new;
        let Some(socket) = socket else {
            if let Some(listener) = self.open.get_mut(&id) {
                if let Err(error) = listener.socket.set_options(&options) {
                    tracing::warn!(%error, "cannot set a listener's options; it keeps its former ones");
                }
                listener.purpose = purpose;
            }
            return;
        };
        let watched = io.poller.add(&*socket, token(id), Interest::Read);
        let mut listener = OpenListener::new(socket, purpose);
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot watch a listener; trying again shortly");
            listener.resting_until = Some(io.now);
        }
        self.open.insert(id, listener);
    }

    /// Stops watching a listener for a while. The listener stays readable while a connection waits
    /// for which the machine has no resources, and the poller would report it without end.
    pub(super) fn rest(&mut self, id: ListenerId, io: &IoContext) {
        if let Some(listener) = self.open.get_mut(&id) {
            listener.resting_until = Some(io.now + ACCEPT_PAUSE);
            let _ = io.poller.remove(&*listener.socket);
        }
    }

    /// Watches the listeners again that have rested.
    pub(super) fn wake(&mut self, io: &IoContext) {
        for (&id, listener) in &mut self.open {
            if listener.resting_until.is_some_and(|until| io.now >= until) {
                let watched = io.poller.add(&*listener.socket, token(id), Interest::Read);
                listener.resting_until = watched.is_err().then(|| io.now + ACCEPT_PAUSE);
            }
        }
    }

    /// Returns the time at which the next one has rested.
    pub(super) fn next(&self) -> Option<Instant> {
        self.open.values().filter_map(|l| l.resting_until).min()
    }

    pub(super) fn close(&mut self, id: ListenerId, poller: &Poller) {
        if let Some(listener) = self.open.remove(&id) {
            // If another process shares the socket, closing it here does not end the poller's
            // reports.
            let _ = poller.remove(&*listener.socket);
        }
    }
}

// === impl OpenListener ===

impl OpenListener {
    fn new(socket: Arc<Listener>, purpose: Purpose) -> Self {
        Self {
            socket,
            purpose,
            resting_until: None,
            streak: Streak::default(),
        }
    }
}

fn token(id: ListenerId) -> u64 {
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
