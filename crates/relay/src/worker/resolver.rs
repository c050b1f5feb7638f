//! Looks up the names that hellos ask for, on threads that may block, so that a worker never does.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::event::token::{Generation, Slot};
use crate::net::addr::Destination;
use crate::net::targets::{Addrs, look_up};
use crate::worker::mailbox::{Mailbox, Message};

/// Names that are looked up at one time.
const THREADS: usize = 4;
/// Look-ups that wait for a thread; more are refused.
const QUEUE: usize = 1024;
/// Names whose addresses are remembered.
const REMEMBERED: usize = 1024;
/// How long they are: the system's resolver does not say how long they hold good.
const HOLDS_GOOD: Duration = Duration::from_secs(30);

/// Where look-ups are ordered.
#[derive(Clone, Debug)]
pub(crate) struct Resolver(SyncSender<LookUp>);

/// A look-up, and who is to be told.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub(crate) destination: Destination,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
}

/// Addresses and when they were found. Failures are not remembered.
type Memory = Mutex<HashMap<Destination, (Addrs, Instant)>>;

impl Resolver {
    /// Starts its threads. They end when the last `Resolver` is gone; one that is inside the
    /// system's resolver then holds up nobody.
    ///
    /// # Errors
    /// The system's, when it has no thread to give.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (orders, queue) = sync_channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let memory = Arc::new(Memory::default());
        for i in 0..THREADS {
            let (queue, memory) = (queue.clone(), memory.clone());
            std::thread::Builder::new()
                .name(format!("resolver-{i}"))
                .spawn(move || work(&queue, &memory))?;
        }
        Ok(Self(orders))
    }

    /// Orders a look-up; `false` when too many wait.
    pub(crate) fn order(&self, what: LookUp) -> bool {
        match self.0.try_send(what) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

fn work(queue: &Mutex<Receiver<LookUp>>, memory: &Memory) {
    loop {
        // The lock passes the wait on from thread to thread; it is not held over a look-up.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(order) = next else { return };
        let addrs = match remembered(memory, &order.destination) {
            Some(addrs) => Ok(addrs),
            None => look_up(&order.destination).inspect(|addrs| {
                remember(memory, order.destination.clone(), addrs.clone());
            }),
        };
        let _ = order.mailbox.post(Message::Resolved {
            slot: order.slot,
            generation: order.generation,
            addrs,
        });
    }
}

fn remembered(memory: &Memory, destination: &Destination) -> Option<Addrs> {
    let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    let (addrs, found) = memory.get(destination)?;
    (found.elapsed() < HOLDS_GOOD).then(|| addrs.clone())
}

fn remember(memory: &Memory, destination: Destination, addrs: Addrs) {
    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.len() >= REMEMBERED {
        memory.retain(|_, (_, found)| found.elapsed() < HOLDS_GOOD);
    }
    if memory.len() < REMEMBERED {
        memory.insert(destination, (addrs, Instant::now()));
    }
}
