//! One end of a transfer: sends its bytes and reads those of the other end.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::plan::{Part, Reading, Writing};
use crate::experiment::streams::{Sink, Source};

/// How a slow reader reads: bytes at a time, pause before each read, and number of pauses.
const SLOW: (usize, Duration, u32) = (8_192, Duration::from_millis(4), 150);
/// The receive buffer of a connection after all changes, in bytes.
const RAISED: usize = 2 << 20;

/// The result at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    sent: [u8; 32],
    got: [u8; 32],
    got_bytes: u64,
}

// === impl Report ===

impl Report {
    /// Returns whether `other` has received what this end sent.
    pub(super) fn fits(&self, other: &Self) -> bool {
        self.sent == other.got
    }
}

/// Runs one end: sends its bytes, closes its stream, and reads to the end of the other end's
/// stream.
pub(super) fn carry(stream: TcpStream, part: &Part, deadline: Instant) -> io::Result<Report> {
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&stream, part, deadline));
        let got = receive(&stream, part, deadline);
        if got.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        } else if part.bytes == 0 {
            // Close late, as a server does: while the stream is open, the host may acknowledge for
            // this end.
            stream.shutdown(Shutdown::Write)?;
        }
        let sent = sent.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        let (got, got_bytes) = got?;
        Ok(Report {
            sent: sent?,
            got,
            got_bytes,
        })
    })
}

fn send(stream: &TcpStream, part: &Part, deadline: Instant) -> io::Result<[u8; 32]> {
    let mut source = Source::new(part.seed);
    match part.writing {
        Writing::Bulk => source.write(stream, part.bytes, deadline)?,
        Writing::Pieces => {
            let mut random = Pcg64Mcg::seed_from_u64(!part.seed);
            let mut to_go = part.bytes;
            stream.set_nodelay(true)?;
            while to_go > 0 {
                let piece = (1 + random.next_u64() % 100).min(to_go);
                source.write(stream, piece, deadline)?;
                to_go -= piece;
            }
        }
    }
    if part.bytes > 0 {
        stream.shutdown(Shutdown::Write)?;
    }
    Ok(source.sum())
}

fn receive(stream: &TcpStream, part: &Part, deadline: Instant) -> io::Result<([u8; 32], u64)> {
    let mut sink = Sink::new();
    match part.reading {
        Reading::AtOnce => {}
        Reading::Late(by) => std::thread::sleep(by),
        Reading::Slowly => {
            let (size, pause, times) = SLOW;
            for _ in 0..times {
                std::thread::sleep(pause);
                if sink.read(stream, size, deadline)? == 0 {
                    break;
                }
            }
        }
        Reading::Resizing => resize(stream, part.seed, &mut sink, deadline)?,
    }
    // Reads nothing if the stream has ended already.
    sink.read_until(stream, u64::MAX, deadline)?;
    let bytes = sink.bytes;
    Ok((sink.sum(), bytes))
}

/// Reads a part, stops reading, lowers SO_RCVBUF, and raises it a while later. Repeats this several
/// times.
fn resize(stream: &TcpStream, seed: u64, sink: &mut Sink, deadline: Instant) -> io::Result<()> {
    let mut random = Pcg64Mcg::seed_from_u64(seed.rotate_left(32));
    let mut draw = |range: Range<u64>| range.start + random.next_u64() % (range.end - range.start);
    for _ in 0..draw(1..6) {
        let until = sink.bytes + draw(0..100_000);
        sink.read_until(stream, until, deadline)?;
        if sink.bytes < until {
            return Ok(());
        }
        set_socket_recv_buffer_size(stream, draw(1..16_000) as usize)?;
        std::thread::sleep(Duration::from_millis(draw(0..400)));
        set_socket_recv_buffer_size(stream, draw(32_768..1 << 20) as usize)?;
    }
    Ok(set_socket_recv_buffer_size(stream, RAISED)?)
}
