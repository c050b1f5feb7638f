//! epoll(7): readiness of many descriptors, and a way to wake the thread that waits for it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::Errno;

/// How a descriptor is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, for as long as it stays so (level-triggered): listeners and wakers.
    Read,
    /// Every *change* of readable, writable, peer-has-closed and urgent data (edge-triggered):
    /// the two legs of a session.
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

/// What is known of a descriptor since it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness(EventFlags);

impl Readiness {
    /// Data has arrived.
    pub const DATA: Self = Self(EventFlags::IN);
    /// There is room to write.
    pub const ROOM: Self = Self(EventFlags::OUT);
    /// The peer has ended its stream.
    pub const PEER_CLOSED: Self = Self(EventFlags::IN.union(EventFlags::RDHUP));
    /// There is urgent data.
    pub const URGENT: Self = Self(EventFlags::IN.union(EventFlags::PRI));
    /// The connection has failed.
    pub const FAILED: Self = Self(EventFlags::ERR.union(EventFlags::HUP));

    /// A read would not block: there is data, an end of stream or an error.
    pub fn readable(self) -> bool {
        self.0.intersects(
            EventFlags::IN
                | EventFlags::PRI
                | EventFlags::RDHUP
                | EventFlags::HUP
                | EventFlags::ERR,
        )
    }

    /// A write would not block: there is room, or an error.
    pub fn writable(self) -> bool {
        self.0
            .intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// A short read does not prove the socket empty: the stream has ended or failed, or has an
    /// urgent mark, at which reads stop.
    pub fn short_read_is_inconclusive(self) -> bool {
        self.0
            .intersects(EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// The socket has an error that nobody has fetched yet.
    pub fn failed(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }
}

/// Reports taken from the kernel in one wait, at most.
const BATCH: usize = 256;

/// An epoll instance.
#[derive(Debug)]
pub struct Poller(OwnedFd);

/// A report: the token a descriptor was added with, and its readiness.
pub type Report = (u64, Readiness);

impl Poller {
    /// Makes an instance.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Watches `fd` and reports it as `token`.
    ///
    /// # Errors
    /// `ENOSPC` when `fs.epoll.max_user_watches` is reached, `ENOMEM`, `EEXIST`.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.0, fd, EventData::new_u64(token), interest.flags())
    }

    /// Reports `fd`, which is watched already, as `token` from now on, beginning with what it is
    /// ready for at this moment.
    ///
    /// # Errors
    /// `ENOENT` when it was not watched, `ENOMEM`.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.0, fd, EventData::new_u64(token), interest.flags())
    }

    /// Stops watching `fd`. A closed descriptor needs no such call.
    ///
    /// # Errors
    /// `ENOENT` when it was not watched.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.0, fd)
    }

    /// Waits until something is ready or `timeout` is over (`None`: for ever) and puts what was
    /// reported into `reports` in place of what was there. A signal counts as nothing ready.
    ///
    /// # Errors
    /// None in ordinary use; the kernel's error otherwise.
    pub fn wait(&self, timeout: Option<Duration>, reports: &mut Vec<Report>) -> Result<(), Errno> {
        reports.clear();
        // A duration past the kernel's range is a wait for ever.
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
    /// Makes a waker; add it to the poller with [`Interest::Read`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Makes the poller return.
    pub fn wake(&self) {
        // The only error is EAGAIN at 2^64-2 wakes that nobody took: it is awake then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes the wakes that have come, so that the poller can wait again.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
