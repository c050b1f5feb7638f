//! The application in the guest: receives streams, and reports when it received which bytes.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags};
use sha2::{Digest as _, Sha256};

use super::talk::Received;
use crate::experiment::guests::transfer::now;

/// The size of a read.
const READ: usize = 256 * 1024;
/// The number of bytes to hash between two reads of the clock: see [`super::burner`].
const HASHED: usize = 16 * 1024;

/// Memory for streams, touched in advance: a page fault costs User Mode Linux more than the page's
/// bytes.
#[derive(Clone, Default)]
pub(super) struct Room(Arc<Mutex<Buffers>>);

#[derive(Default)]
struct Buffers {
    free: Vec<Vec<u8>>,
    streams: usize,
    size: usize,
}

// === impl Room ===

impl Room {
    /// Allocates buffers for `streams` streams of `bytes` bytes each.
    pub(super) fn expect(&self, streams: usize, bytes: usize) {
        let mut buffers = self.buffers();
        // One byte more detects a stream that is too long.
        let size = bytes + 1;
        if buffers.free.len() == streams && buffers.size == size {
            return;
        }
        // Free the old buffers before allocating new ones.
        buffers.free = Vec::new();
        (buffers.streams, buffers.size) = (streams, size);
        buffers.free.extend((0..streams).map(|_| vec![1; size]));
    }

    fn take(&self) -> Option<Vec<u8>> {
        self.buffers().free.pop()
    }

    /// Takes a buffer back. Frees a buffer of another size: it belongs to an earlier stream, whose
    /// thread ends only now.
    fn give_back(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers();
        if buffer.len() == buffers.size && buffers.free.len() < buffers.streams {
            buffers.free.push(buffer);
        }
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener for streams.
pub(super) struct Entrance(Arc<TcpListener>);

impl Entrance {
    /// Receives streams from now on.
    pub(super) fn open(port: u16, room: &Room) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?);
        let (taken, room) = (Arc::clone(&listener), room.clone());
        std::thread::Builder::new().spawn(move || receive(&taken, &room))?;
        Ok(Self(listener))
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        // A thread that waits in `accept` now gets an error and ends.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// Receives streams, each on its own thread, until the listener fails.
fn receive(listener: &TcpListener, room: &Room) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let accepted = now();
        let room = room.clone();
        std::thread::Builder::new().spawn(move || {
            // Without a buffer the sender gets no answer, and notices that.
            let Some(mut buffer) = room.take() else {
                return;
            };
            let _ = one(stream, accepted, &mut buffer);
            room.give_back(buffer);
        })?;
    }
}

fn one(mut stream: TcpStream, accepted: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut fds = [PollFd::new(&stream, PollFlags::IN)];
    rustix::event::poll(&mut fds, None)?;
    let first = now();
    let (mut bytes, mut last) = (0, first);
    while bytes < buffer.len() {
        let end = buffer.len().min(bytes + READ);
        match stream.read(&mut buffer[bytes..end])? {
            0 => break,
            read => {
                bytes += read;
                last = now();
            }
        }
    }
    let mut digest = Sha256::new();
    for part in buffer[..bytes].chunks(HASHED) {
        digest.update(part);
        let _ = now();
    }
    let received = Received {
        accepted,
        first,
        last,
        bytes,
        digest: digest.finalize().into(),
    };
    stream.write_all(&serde_json::to_vec(&received)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_late_is_not_given_to_a_stream_that_is_longer() {
        let room = Room::default();
        room.expect(1, 10);
        let late = room.take().unwrap();
        room.expect(1, 1000);
        room.give_back(late);
        let next = room.take().unwrap();
        assert_eq!(next.len(), 1001);
        room.give_back(next);
        assert_eq!(room.take().map(|buffer| buffer.len()), Some(1001));
        assert_eq!(room.take(), None);
    }
}
