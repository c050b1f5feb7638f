//! What other threads have to say to a worker.

use std::sync::{Arc, Mutex, PoisonError};

use taut_sys::Errno;
use taut_sys::epoll::Waker;

use super::client::Client;
use crate::early_syn::FourTuple;
use crate::event::token::{Generation, Slot};
use crate::net::targets::{Addrs, ResolveError};
use crate::route::listener::NewListener;
use crate::route::table::Setup;

/// A worker's letter box.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// None: its worker has ended.
    messages: Mutex<Option<Vec<Message>>>,
    waker: Waker,
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// The addresses of the name that a session's hello asked for.
    Resolved {
        slot: Slot,
        generation: Generation,
        addrs: Result<Addrs, ResolveError>,
    },
    /// Another configuration is at work: the listeners of this worker that belong to it.
    Reloaded {
        setup: Arc<Setup>,
        listeners: Vec<NewListener>,
    },
    /// The mesh has other keys.
    NewKeys,
    /// A client's SYN to the listener of this forward has been seen.
    Syn { connection: FourTuple, forward: u32 },
    /// The client of an early SYN has not come.
    NoClient { connection: FourTuple },
    /// The client of an early SYN has been accepted by another worker.
    Client {
        client: Client,
        connection: FourTuple,
    },
}

impl Mailbox {
    /// # Errors
    /// The kernel's, when there is no descriptor for it.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            messages: Mutex::new(Some(Vec::new())),
            waker: Waker::new()?,
        })
    }

    /// What the worker's poller watches.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Leaves a letter and wakes the worker. The lock is held for as long as it takes to push.
    ///
    /// # Errors
    /// The letter, when the worker has ended.
    pub(crate) fn post(&self, message: Message) -> Result<(), Message> {
        match &mut *self.lock() {
            Some(messages) => messages.push(message),
            None => return Err(message),
        }
        self.waker.wake();
        Ok(())
    }

    /// Takes what is there.
    pub(crate) fn take(&self) -> Vec<Message> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes no more letters, unless there are some: `false` then.
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
