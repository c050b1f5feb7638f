//! Readiness of many descriptors (epoll(7)), and a way to wake the waiting thread (eventfd(2)).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::Errno;

/// The events that are reported for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, level-triggered: for listeners and wakers.
    Read,
    /// Changes to readable, writable, peer-closed and urgent data, edge-triggered: for the two
    /// legs of a session.
    StreamEdges,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::StreamEdges => {
                EventFlags::IN
                    | EventFlags::OUT
                    | EventFlags::RDHUP
                    | EventFlags::PRI
                    | EventFlags::ET
            }
        }
    }
}

/// The events reported for a descriptor in one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// Data arrived.
    pub const DATA: Self = Self(EventFlags::IN);
    /// The send queue has room.
    pub const ROOM: Self = Self(EventFlags::OUT);
    /// The peer has closed its direction of the stream.
    pub const PEER_CLOSED: Self = Self(EventFlags::IN.union(EventFlags::RDHUP));
    /// Urgent data arrived.
    pub const URGENT: Self = Self(EventFlags::IN.union(EventFlags::PRI));
    /// The connection has failed.
    pub const FAILED: Self = Self(EventFlags::ERR.union(EventFlags::HUP));

    /// Returns whether a read would not block: there is data, an end of stream or an error.
    pub fn readable(self) -> bool {
        self.0.intersects(
            EventFlags::IN
                | EventFlags::PRI
                | EventFlags::RDHUP
                | EventFlags::HUP
                | EventFlags::ERR,
        )
    }

    /// Returns whether a write would not block: there is room, or an error.
    pub fn writable(self) -> bool {
        self.0
            .intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns whether a short read may leave data in the socket: the stream has ended or failed,
    /// or has an urgent mark, where reads stop.
    pub fn short_read_is_inconclusive(self) -> bool {
        self.0
            .intersects(EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns whether the socket has failed or both directions of its connection have ended.
    pub fn failed_or_hung_up(self) -> bool {
        self.0.intersects(EventFlags::ERR | EventFlags::HUP)
    }

    /// Returns whether the socket has a pending error.
    pub fn failed(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }
}

/// The largest number of reports read in one wait.
const BATCH: usize = 256;

/// An epoll instance.
#[derive(Debug)]
pub struct Poller(OwnedFd);

/// The token that a descriptor was added with, and its readiness.
pub type Report = (u64, Readiness);

impl Poller {
    /// Creates an instance.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds `fd`, which is reported as `token`.
    ///
    /// # Errors
    /// `ENOSPC` when `fs.epoll.max_user_watches` is reached, `ENOMEM`, `EEXIST`.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.0, fd, EventData::new_u64(token), interest.flags())
    }

    /// Changes the token and the interest of `fd`, which was added before. The poller reports its
    /// current readiness again.
    ///
    /// # Errors
    /// `ENOENT` if `fd` was not added, `ENOMEM`.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.0, fd, EventData::new_u64(token), interest.flags())
    }

    /// Removes `fd`. Closing a descriptor removes it as well.
    ///
    /// # Errors
    /// `ENOENT` if `fd` was not added.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.0, fd)
    }

    /// Waits until a descriptor is ready or `timeout` has passed (`None`: no timeout) and replaces
    /// the content of `reports`. Returns without reports when a signal interrupts the wait.
    ///
    /// # Errors
    /// None in ordinary use; the kernel's error otherwise.
    pub fn wait(&self, timeout: Option<Duration>, reports: &mut Vec<Report>) -> Result<(), Errno> {
        reports.clear();
        // A duration beyond the kernel's range means no timeout.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
        match epoll::wait(&self.0, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                reports.extend(events.iter().map(|e| (e.data.u64(), Readiness(e.flags))));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Wakes a [`Poller`] from another thread (an eventfd(2)).
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates a waker; add it to the poller with [`Interest::Read`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Makes the poller's current or next wait return.
    pub fn wake(&self) {
        // The only error is EAGAIN, after 2^64-2 wakes without `clear`; the poller is awake then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears all wakes so far, so that the poller can wait again.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
