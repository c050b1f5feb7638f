//! Messages to the thread that measures paths and exchanges rows ([`crate::rows`]), and what it
//! publishes.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use taut_mesh::channel::Channel;
use taut_mesh::hello::Target;
use taut_mesh::members::MemberName;
use taut_mesh::rows::{Figure, Traffic};
use taut_sys::Errno;
use taut_sys::epoll::Waker;
use taut_sys::socket::Stream;

use crate::control::protocol::Answer;
use crate::net::names::Addrs;

/// The largest number of messages that wait for the thread.
pub(crate) const MAX_MESSAGES: usize = 1024;

/// A message to the thread.
pub(crate) enum ToRows {
    /// Another relay has made a row link.
    Link(Box<RowLink>),
    /// Samples of a worker's connections.
    Samples(Vec<PathSample>),
    /// The addresses of a target; empty if the look-up failed.
    Found(NameKind, Target, Addrs),
    /// An operator asks; the answer goes to the sender.
    Ask(Question, Sender<Answer>),
}

/// The kind of a machine whose name is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    Member,
    Destination,
}

/// A row link that another relay has made.
pub(crate) struct RowLink {
    pub(crate) stream: Stream,
    /// The TLS of the connection; `None` in a trusted network.
    pub(crate) channel: Option<Channel>,
    /// The relay that it comes from.
    pub(crate) member: MemberName,
    /// The bytes that came with the hello.
    pub(crate) early: Vec<u8>,
}

/// A sample of a path from TCP_INFO.
pub(crate) struct PathSample {
    pub(crate) path: SampledPath,
    pub(crate) least: Duration,
    pub(crate) smoothed: Duration,
    /// Segments that were sent since the last sample of the connection, and of these, retransmitted
    /// ones.
    pub(crate) segments: (u32, u32),
}

/// Where a path leads.
pub(crate) enum SampledPath {
    /// To another relay.
    Peer(MemberName),
    /// To a client or destination.
    Outside(IpAddr),
}

/// A question of an operator.
pub(crate) enum Question {
    /// The state of the mesh.
    Mesh,
    /// Round-trip times, as [`Request::Rtt`](crate::control::protocol::Request::Rtt) asks for them.
    Rtt {
        limit: usize,
        prefixes_only: bool,
        known: Option<String>,
    },
}

/// The measured path to another relay.
#[derive(Clone, Debug)]
pub(crate) struct PeerFigure {
    pub(crate) name: MemberName,
    pub(crate) figure: Figure,
}

/// The figures that the thread publishes for metrics.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) peers: Vec<PeerFigure>,
    pub(crate) traffic: Traffic,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) links: u64,
    pub(crate) probes: u64,
    pub(crate) probes_failed: u64,
    pub(crate) destinations_refused: u64,
    pub(crate) left_out: u64,
}

/// The thread's mailbox.
#[derive(Debug)]
pub(crate) struct RowsMailbox {
    messages: Mutex<Vec<ToRows>>,
    waker: Waker,
    stopped: AtomicBool,
    published: ArcSwap<Published>,
}

// === impl RowsMailbox ===

impl RowsMailbox {
    /// # Errors
    /// The kernel's error when it has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            messages: Mutex::default(),
            waker: Waker::new()?,
            stopped: AtomicBool::new(false),
            published: ArcSwap::default(),
        })
    }

    /// Adds a message and wakes the thread. Drops the message if too many wait.
    pub(crate) fn post(&self, message: ToRows) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.len() < MAX_MESSAGES {
            messages.push(message);
        }
        drop(messages);
        self.waker.wake();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns what the thread has published last.
    pub(crate) fn published(&self) -> std::sync::Arc<Published> {
        self.published.load_full()
    }

    pub(super) fn publish(&self, published: Published) {
        self.published.store(published.into());
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(super) fn take(&self) -> Vec<ToRows> {
        self.waker.clear();
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut messages)
    }
}

impl std::fmt::Debug for ToRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToRows").finish_non_exhaustive()
    }
}
