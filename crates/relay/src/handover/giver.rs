//! The old process: a thread that waits for a new process to take over.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use taut_sys::Errno;
use taut_sys::netns_lock::NetnsLock;
use taut_sys::scm_rights::{MAX_DESCRIPTORS, SeqpacketListener};
use taut_sys::socket::listening_addr;

use super::message::{Giving, Message, Next};
use super::{HandoverError, MAX_SOCKETS, START, STEP, Talk};

/// The pause when this machine has no descriptor left for a conversation.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits at a path for a new process that takes over.
///
/// A giver holds a duplicate of every socket that it offers. Drop it before the node drains for
/// another reason; otherwise the ports stay open although no process accepts. Dropping does not
/// wait: a conversation in progress completes, but the node is not notified.
#[derive(Debug)]
pub struct Giver {
    shared: Arc<Shared>,
}

/// The events of a [`Giver`] so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Conversations that ended before the new process reported that it serves.
    pub failed: u64,
    /// 1 if the sockets have been handed over, 0 otherwise.
    pub handed_over: u64,
}

#[derive(Debug)]
struct Shared {
    counter: SeqpacketListener,
    path: PathBuf,
    stopped: AtomicBool,
    offered: Mutex<Arc<Vec<(SocketAddr, OwnedFd)>>>,
    /// The lock of interception, while this process has it.
    interception: Weak<NetnsLock>,
    failed: AtomicU64,
    handed_over: AtomicU64,
    start: Duration,
}

/// The process that serves in place of this one.
#[derive(Debug)]
pub struct Successor(Talk);

// === impl Successor ===

impl Successor {
    /// Tells it that this process drains.
    pub fn draining(&self) {
        // It serves whether or not it receives this message.
        let _ = self.0.send(&Message::Draining, &[]);
    }

    /// Returns whether it has ended. (One of the first release seems to have.)
    pub fn has_ended(&self) -> bool {
        self.0.channel.is_closed_by_peer()
    }
}

// === impl Giver ===

impl Giver {
    /// Listens at `path` and offers `sockets`, which may be this process's own or duplicates, and the lock of
    /// `interception`, if this process has it. Calls
    /// `on_taken` once, on the giver's thread, when a new process serves in place of this one;
    /// `on_taken` starts the drain.
    ///
    /// # Errors
    /// [`HandoverError`]: the path cannot be bound, a socket does not listen, there are more than
    /// [`MAX_SOCKETS`], or no thread can be started.
    pub fn start(
        path: &Path,
        sockets: Vec<OwnedFd>,
        interception: Weak<NetnsLock>,
        on_taken: impl FnOnce(Successor) + Send + 'static,
    ) -> Result<Self, HandoverError> {
        Self::with(path, sockets, interception, START, on_taken)
    }

    pub(super) fn with(
        path: &Path,
        sockets: Vec<OwnedFd>,
        interception: Weak<NetnsLock>,
        start: Duration,
        on_taken: impl FnOnce(Successor) + Send + 'static,
    ) -> Result<Self, HandoverError> {
        let call = |what, source| HandoverError::Call {
            path: path.to_owned(),
            what,
            source,
        };
        let offered = named(path, sockets)?;
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            let mut builder = std::fs::DirBuilder::new();
            let created = builder.recursive(true).mode(0o755).create(folder);
            let errno = |e| Errno::from_io_error(&e).unwrap_or(Errno::IO);
            created.map_err(|e| call("create its directory", errno(e)))?;
        }
        let counter = SeqpacketListener::bind(path).map_err(|e| call("listen", e))?;
        let shared = Arc::new(Shared {
            counter,
            path: path.to_owned(),
            stopped: AtomicBool::new(false),
            offered: Mutex::new(Arc::new(offered)),
            interception,
            failed: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
            start,
        });
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("taut-handover".to_owned())
            .spawn(move || thread.run(on_taken))
            .map_err(|e| {
                let source = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
                call("start a thread", source)
            })?;
        Ok(Self { shared })
    }

    /// Replaces the offered sockets, for a node whose listeners have changed.
    ///
    /// # Errors
    /// [`HandoverError`] as for [`Giver::start`]; the former sockets stay offered then.
    pub fn offer(&self, sockets: Vec<OwnedFd>) -> Result<(), HandoverError> {
        let offered = named(&self.shared.path, sockets)?;
        *self.shared.offered() = Arc::new(offered);
        Ok(())
    }

    /// Returns the counts so far.
    pub fn events(&self) -> Events {
        Events {
            failed: self.shared.failed.load(Ordering::Relaxed),
            handed_over: self.shared.handed_over.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        *self.shared.offered() = Arc::default();
        self.shared.counter.close();
    }
}

fn named(path: &Path, sockets: Vec<OwnedFd>) -> Result<Vec<(SocketAddr, OwnedFd)>, HandoverError> {
    if sockets.len() > MAX_SOCKETS {
        return Err(HandoverError::Protocol {
            path: path.to_owned(),
            reason: format!(
                "{} sockets are too many; the limit is {MAX_SOCKETS}",
                sockets.len()
            ),
        });
    }
    let name = |fd: OwnedFd| match listening_addr(&fd) {
        Ok(addr) => Ok((addr, fd)),
        Err(source) => Err(HandoverError::Call {
            path: path.to_owned(),
            what: "offer a socket",
            source,
        }),
    };
    sockets.into_iter().map(name).collect()
}

// === impl Shared ===

impl Shared {
    fn offered(&self) -> std::sync::MutexGuard<'_, Arc<Vec<(SocketAddr, OwnedFd)>>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn run(&self, on_taken: impl FnOnce(Successor)) {
        while !self.stopped() {
            let channel = match self.counter.accept() {
                Ok(channel) => channel,
                Err(_) if self.stopped() => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) => {
                    tracing::warn!("handover at {}: cannot accept: {e}", self.path.display());
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let talk = Talk {
                channel,
                path: self.path.clone(),
            };
            match self.converse(&talk) {
                Ok(()) => {
                    self.handed_over.store(1, Ordering::Relaxed);
                    // The sockets now belong to the new process: if it closes one, that socket must
                    // be closed.
                    *self.offered() = Arc::default();
                    on_taken(Successor(talk));
                    return;
                }
                Err(e) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("{e}; this process continues");
                }
            }
        }
    }

    /// Handles a conversation from `Take` to `Serving`.
    fn converse(&self, talk: &Talk) -> Result<(), HandoverError> {
        talk.check_user()?;
        let patience = |time| {
            let set = talk.channel.set_timeout(time);
            set.map_err(|e| talk.call("set a timeout", e))
        };
        patience(STEP)?;
        let mut state = Giving::default();
        loop {
            let (message, _) = talk.receive()?;
            match state.handle(&message).map_err(|e| talk.protocol(e))? {
                Next::Give { interception } => {
                    self.give(talk, interception)?;
                    patience(self.start)?;
                }
                Next::Drain if self.stopped() => {
                    // The node is stopping already.
                    return Err(talk.protocol("this process is stopping already".to_owned()));
                }
                Next::Drain => return Ok(()),
            }
        }
    }

    fn give(&self, talk: &Talk, takes_lock: bool) -> Result<(), HandoverError> {
        let offered = self.offered().clone();
        let lock = self.interception.upgrade().filter(|_| takes_lock);
        talk.send(&Message::offer(offered.len(), lock.is_some()), &[])?;
        if let Some(lock) = lock {
            let errno = |e| Errno::from_io_error(&e).unwrap_or(Errno::MFILE);
            let shared = lock.share();
            let shared = shared.map_err(|e| talk.call("share a lock", errno(e)))?;
            talk.send(&Message::Interception, &[shared.as_fd()])?;
        }
        for batch in offered.chunks(MAX_DESCRIPTORS) {
            let addrs = batch.iter().map(|(addr, _)| *addr).collect();
            let fds: Vec<BorrowedFd<'_>> = batch.iter().map(|(_, fd)| fd.as_fd()).collect();
            talk.send(&Message::Sockets { addrs }, &fds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
