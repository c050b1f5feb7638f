//! Messages from other threads to a worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use taut_mesh::dials::Fault;
use taut_sys::Errno;
use taut_sys::epoll::Waker;

use crate::early_syn::FourTuple;
use crate::event::token::{Generation, Slot};
use crate::net::backend::Backends;
use crate::net::names::ResolveError;
use crate::route::listener::NewListener;
use crate::route::table::Setup;
use crate::session_list::{SessionFilter, SessionRow};
use crate::worker::client::Client;

/// A worker's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// The worker has been told that clients wait for a place, and has not looked since.
    told_of_queue: AtomicBool,
    /// The queued messages; `None` once the worker has ended.
    messages: Mutex<Option<Vec<Message>>>,
    waker: Waker,
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// The look-up for a session's hello is done.
    Resolved {
        slot: Slot,
        generation: Generation,
        backends: Result<Backends, ResolveError>,
    },
    /// The configuration has changed; `listeners` are the worker's listeners under it.
    Reloaded {
        setup: Arc<Setup>,
        listeners: Vec<NewListener>,
    },
    /// An operator asks for sessions; `reply` takes up to `limit` of those that match, and the
    /// number of all that do, or, unless `counts`, that of those.
    List {
        filter: Arc<SessionFilter>,
        limit: usize,
        counts: bool,
        reply: Sender<(Vec<SessionRow>, u64)>,
    },
    /// An operator ends the sessions that match; `reply` takes their number.
    End {
        filter: Arc<SessionFilter>,
        reply: Sender<u64>,
    },
    /// Another worker has found that a relay does not answer.
    PeerFault(Fault),
    /// The thread that exchanges rows asks for samples of connections.
    Sample,
    /// A client's SYN to a listener of this forward has arrived.
    Syn { connection: FourTuple, forward: u32 },
    /// The client of an early SYN has not come in time.
    NoClient { connection: FourTuple },
    /// Another worker has accepted the client of an early SYN.
    Client {
        client: Box<Client>,
        connection: FourTuple,
    },
}

impl Mailbox {
    /// # Errors
    /// The kernel's error when it has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            told_of_queue: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
            waker: Waker::new()?,
        })
    }

    /// Returns the descriptor that the worker's poller watches.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Adds a message and wakes the worker. The lock is held only for the push.
    ///
    /// # Errors
    /// Returns the message if the worker has ended.
    pub(crate) fn post(&self, message: Message) -> Result<(), Message> {
        match &mut *self.lock() {
            Some(messages) => messages.push(message),
            None => return Err(message),
        }
        self.waker.wake();
        Ok(())
    }

    /// Tells the worker that clients wait for a place.
    pub(crate) fn tell_of_queue(&self) {
        if !self.told_of_queue.swap(true, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether the worker has been told that clients wait for a place, since it looked last.
    pub(crate) fn is_told_of_queue(&self) -> bool {
        self.told_of_queue.load(Ordering::SeqCst)
    }

    /// Notes that the worker looks at those who wait for a place.
    pub(crate) fn looks_at_queue(&self) {
        self.told_of_queue.store(false, Ordering::SeqCst);
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Message> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the mailbox if it is empty. Returns `false` otherwise.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut messages = self.lock();
        let empty = messages.as_ref().is_none_or(Vec::is_empty);
        if empty {
            *messages = None;
        }
        empty
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Message>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
