//! Looks up the destinations of hellos on separate threads, because a look-up blocks.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::event::token::{Generation, Slot};
use crate::net::addr::Destination;
use crate::net::backend::{BackendTable, Backends};
use crate::net::targets::look_up;
use crate::worker::mailbox::{Mailbox, Message};

/// The number of concurrent look-ups.
pub(crate) const THREADS: usize = 4;
/// The number of look-ups that may wait for a thread; further ones are refused.
const QUEUE: usize = 1024;
/// The number of destinations whose addresses are cached.
const REMEMBERED: usize = 1024;
/// The time for which a cached address is used: the system's resolver does not report a TTL.
const HOLDS_GOOD: Duration = Duration::from_secs(30);

/// Queues look-ups.
#[derive(Clone, Debug)]
pub(crate) struct Resolver(SyncSender<LookUp>);

/// A look-up, and the session that receives the result.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub(crate) destination: Destination,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
}

/// Cached addresses and the time at which they were found. Failures are not cached.
type Memory = Mutex<HashMap<Destination, (Backends, Instant)>>;

impl Resolver {
    /// Starts the threads. They end when the last `Resolver` is dropped; a thread that is inside
    /// the system's resolver at that time delays nothing else.
    ///
    /// # Errors The system's error if it cannot start a thread.
    pub(crate) fn start(table: &Arc<BackendTable>) -> std::io::Result<Self> {
        let (orders, queue) = sync_channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let memory = Arc::new(Memory::default());
        for i in 0..THREADS {
            let (queue, memory, table) = (queue.clone(), memory.clone(), table.clone());
            std::thread::Builder::new()
                .name(format!("resolver-{i}"))
                .spawn(move || work(&queue, &memory, &table))?;
        }
        Ok(Self(orders))
    }

    /// Queues a look-up. Returns `false` if the queue is full.
    pub(crate) fn order(&self, what: LookUp) -> bool {
        match self.0.try_send(what) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

fn work(queue: &Mutex<Receiver<LookUp>>, memory: &Memory, table: &BackendTable) {
    loop {
        // The lock is held while waiting for an order, never during a look-up.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(order) = next else { return };
        let backends = match remembered(memory, &order.destination) {
            Some(backends) => Ok(backends),
            None => look_up(&order.destination).map(|addrs| {
                let backends = table.of(addrs.iter().copied());
                remember(memory, order.destination.clone(), backends.clone());
                backends
            }),
        };
        let _ = order.mailbox.post(Message::Resolved {
            slot: order.slot,
            generation: order.generation,
            backends,
        });
    }
}

fn remembered(memory: &Memory, destination: &Destination) -> Option<Backends> {
    let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    let (backends, found) = memory.get(destination)?;
    (found.elapsed() < HOLDS_GOOD).then(|| backends.clone())
}

fn remember(memory: &Memory, destination: Destination, backends: Backends) {
    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.len() >= REMEMBERED {
        memory.retain(|_, (_, found)| found.elapsed() < HOLDS_GOOD);
    }
    if memory.len() < REMEMBERED {
        memory.insert(destination, (backends, Instant::now()));
    }
}
