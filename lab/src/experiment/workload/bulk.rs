//! One flow at full speed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::net::RecvFlags;
use sha2::{Digest as _, Sha256};

use super::Entrance;
use super::pair::Pair;

/// The size of a write: large enough that the sender's system calls do not matter.
const WRITE: usize = 256 << 10;
/// The size of a read.
const READ: usize = 1 << 20;
/// The number of bytes whose contents are compared. It is past the point at which any relay changes
/// from copying to splicing.
const COMPARED: usize = 16 << 20;

/// One flow's figures.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Bulk {
    pub(in crate::experiment) sent: u64,
    pub(in crate::experiment) received: u64,
    pub(in crate::experiment) time: Duration,
    /// The relay's CPU time.
    pub(in crate::experiment) cpu: Duration,
}

/// Sends for `time`, and receives all sent bytes.
pub(in crate::experiment) fn measure(entrance: &Entrance, time: Duration) -> io::Result<Bulk> {
    let Pair { client, server } = Pair::open(entrance)?;
    let before = entrance.processes.cpu()?;
    let start = Instant::now();
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&client, start + time));
        let received = discard(&server);
        let sent = sender
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        Ok::<_, io::Error>((sent?, received?))
    })?;
    let time = start.elapsed();
    let cpu = entrance.processes.cpu()?.saturating_sub(before);
    Ok(Bulk {
        sent,
        received,
        time,
        cpu,
    })
}

fn send(mut to: &TcpStream, until: Instant) -> io::Result<u64> {
    let block = vec![0x5a; WRITE];
    let mut sent = 0;
    while Instant::now() < until {
        sent += to.write(&block)? as u64;
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Receives everything up to the end of the stream without copying. With MSG_TRUNC the kernel drops
/// the bytes (tcp(7)), so the receiver uses as little CPU time as possible.
pub(in crate::experiment) fn discard(from: &TcpStream) -> io::Result<u64> {
    let mut room = vec![0; READ];
    let mut received = 0;
    loop {
        match rustix::net::recv(from, &mut room[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(received),
            Ok((_, n)) => received += n as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns whether the relay forwards random bytes unchanged.
pub(in crate::experiment) fn relays_exactly(entrance: &Entrance, seed: u64) -> io::Result<bool> {
    let mut bytes = vec![0; COMPARED];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    let Pair { client, mut server } = Pair::open(entrance)?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (&client).write_all(&bytes)?;
            client.shutdown(Shutdown::Write)
        });
        let mut came = Vec::with_capacity(COMPARED);
        server.read_to_end(&mut came)?;
        sender
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        Ok(Sha256::digest(&came) == Sha256::digest(&bytes))
    })
}

// === impl Bulk ===

impl Bulk {
    /// Returns the throughput in GB/s.
    pub(in crate::experiment) fn gigabytes_per_second(&self) -> f64 {
        self.received as f64 / 1e9 / self.time.as_secs_f64()
    }

    /// Returns the relay's CPU time for each GB, in seconds.
    pub(in crate::experiment) fn cpu_per_gigabyte(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.received as f64 / 1e9)
    }
}
