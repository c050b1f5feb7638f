//! The ring buffer through which the programs hand over copies of early-acknowledged segments.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, poll};
use taut_bpf::{Error, Map};

use crate::error::ProgramError;
use crate::wire::Copy;

/// Size of the ring buffer in bytes. All taps of a process share it; user space empties it within
/// some tens of milliseconds.
pub const RING_BYTES: u32 = 16 << 20;

/// The interval at which copies are processed while there are any.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Stops the consumption when there is no room left; the rest stays in the ring buffer.
const ENOUGH: i32 = -1;

/// The ring buffer, shared by all taps of a process.
pub struct Copies {
    map: MapHandle,
    /// Whether the programs have to wake a waiter.
    asleep: Map<u32, u32>,
    ring: RingBuffer<'static>,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    copies: Vec<Copy>,
    bytes: usize,
}

// === impl Copies ===

impl Copies {
    /// Creates an empty ring buffer of `bytes`, a power of two and a multiple of the page size.
    ///
    /// # Errors
    /// [`ProgramError::Load`].
    pub fn new(bytes: u32) -> Result<Self, ProgramError> {
        let opts = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as u64,
            ..Default::default()
        };
        let refused = |source| ProgramError::Load(Error::during("create a BPF map")(source));
        let map = MapHandle::create(MapType::RingBuf, Some("taut_retained"), 0, 0, bytes, &opts);
        let map = map.map_err(refused)?;
        let asleep = MapHandle::create(MapType::Array, Some("taut_asleep"), 4, 4, 1, &opts);
        let asleep = Map::new(asleep.map_err(refused)?, "asleep").map_err(ProgramError::Load)?;
        let taken = Arc::new(Mutex::new(Taken::default()));
        let mut ring = RingBufferBuilder::new();
        ring.add(&map, {
            let taken = taken.clone();
            move |bytes: &[u8]| {
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.add(bytes)
            }
        })
        .map_err(refused)?;
        let ring = ring.build().map_err(refused)?;
        Ok(Self {
            map,
            asleep,
            ring,
            taken,
        })
    }

    /// Returns the map, for the programs to reuse.
    pub(crate) fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Returns the map that records whether a waiter sleeps, for the programs to reuse.
    pub(crate) fn asleep(&self) -> BorrowedFd<'_> {
        self.asleep.handle().as_fd()
    }

    /// Makes the programs wake a [`Waiter`] with the next copy. A copy that is being written at
    /// this moment may not wake it, so callers must still process copies occasionally.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub(crate) fn wake_with_the_next(&self) -> Result<(), ProgramError> {
        self.asleep.insert(&0, &1).map_err(ProgramError::Map)
    }

    /// Takes all copies out of the ring buffer. If more arrive meanwhile, stops after as many bytes
    /// as the ring buffer has room for.
    pub fn take(&self) -> Vec<Copy> {
        // The only error is the stop that `Taken::add` requests.
        let _ = self.ring.consume();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes = 0;
        std::mem::take(&mut taken.copies)
    }

    /// Returns a handle that waits for copies.
    ///
    /// # Errors
    /// The system's error if no file descriptors are left.
    pub(crate) fn waiter(&self) -> io::Result<Waiter> {
        Ok(Waiter(self.map.as_fd().try_clone_to_owned()?))
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}

// === impl Taken ===

impl Taken {
    fn add(&mut self, bytes: &[u8]) -> i32 {
        if let Some(copy) = Copy::decode(bytes) {
            self.bytes += copy.frame.len();
            self.copies.push(copy);
        }
        if self.bytes < RING_BYTES as usize {
            0
        } else {
            ENOUGH
        }
    }
}

/// Waits for copies.
pub(crate) struct Waiter(std::os::fd::OwnedFd);

// === impl Waiter ===

impl Waiter {
    /// Returns once there are copies in the ring buffer.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
