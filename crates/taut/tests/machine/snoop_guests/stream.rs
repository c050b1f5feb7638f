//! A stream to the guest, which goes on until the test has done what it does to the guest.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use sha2::{Digest as _, Sha256};
use taut_sys::tcp_info::TcpInfo;

use crate::snoop_guests::world::{GUEST, World};
use crate::snoop_guests::{PATIENCE, wait_until};

/// Bytes of one write.
const CHUNK: usize = 16 * 1024;

pub(crate) struct Stream {
    socket: TcpStream,
    sent: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    sender: JoinHandle<io::Result<String>>,
}

// === impl Stream ===

impl Stream {
    /// Connects to a port of the guest, and sends.
    pub(crate) fn start(world: &World, port: u16) -> Self {
        // A connection that hangs is to fail, in a time that a test can wait.
        Self::with_timeout(world, port, PATIENCE)
    }

    /// Like `start`; an acknowledgement must come within `timeout`.
    pub(crate) fn with_timeout(world: &World, port: u16, timeout: Duration) -> Self {
        let connect = || TcpStream::connect((GUEST, port)).unwrap();
        let socket = world.peer.run(connect).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        set_tcp_user_timeout(&socket, timeout.as_millis().try_into().unwrap()).unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let sender = std::thread::spawn({
            let (sent, over) = (sent.clone(), over.clone());
            let socket = socket.try_clone().unwrap();
            move || send(socket, &sent, &over)
        });
        Self {
            socket,
            sent,
            over,
            sender,
        }
    }

    /// Bytes that the sender's kernel has taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Retransmissions, and probes of a closed window: when one is added, the sender waits for an ACK.
    pub(crate) fn repeated(&self) -> (u32, u8) {
        let info = TcpInfo::of(&self.socket).unwrap();
        (info.total_retrans, info.probes)
    }

    /// Waits until so many more bytes were taken.
    pub(crate) fn moves_on(&self, bytes: u64) {
        let goal = self.sent() + bytes;
        wait_until("the stream", || {
            let broken = self.sender.is_finished();
            assert!(!broken, "the connection broke after {} bytes", self.sent());
            (self.sent() >= goal).then_some(())
        });
    }

    /// Ends the stream and waits until the guest has closed the connection. Returns the digest of what was sent.
    pub(crate) fn end(self) -> String {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.sender.join().unwrap();
        ended.expect("the connection lasts until the end")
    }

    /// Waits until the sender learns that the connection is broken.
    pub(crate) fn breaks(self) -> io::Error {
        let ended = self.sender.join().unwrap();
        ended.expect_err("nobody takes what is sent")
    }
}

/// The digest of everything that was written to it.
#[derive(Default)]
pub(crate) struct Sum(Sha256);

// === impl Sum ===

impl Sum {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// As `sha256sum` prints it.
    pub(crate) fn text(self) -> String {
        let digest = self.0.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn send(mut socket: TcpStream, sent: &AtomicU64, over: &AtomicBool) -> io::Result<String> {
    let mut sum = Sum::default();
    let mut chunk = [0; CHUNK];
    let mut position = 0u64;
    while !over.load(Ordering::Relaxed) {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&position.to_le_bytes());
            position += 8;
        }
        sum.update(&chunk);
        socket.write_all(&chunk)?;
        sent.fetch_add(CHUNK as u64, Ordering::Relaxed);
    }
    socket.shutdown(Shutdown::Write)?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(sum.text())
}
