//! Streams between real sockets, of which both ends take the SHA-256.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::chaos;
use super::plan::{Options, Part, Phase, Reading, Side, Transfer, Writing};
use super::rig::{Rig, addr};
use crate::experiment::ExperimentError;
use crate::experiment::guests::snooping::of_flow;
use crate::experiment::progress::Progress;
use crate::experiment::streams::{Failure, Sink, Source, accept, left};

/// Transfers under way at one time.
pub(super) const AT_ONCE: u64 = 20;
/// So long may a transfer take. A sender that is not answered at all for 100 s tries it about nine
/// times (RFC 6298 5.5, from 200 ms on), each of which would have to be lost.
const LIMIT: Duration = Duration::from_secs(100);
/// The least receive buffer is offered by each of this many listeners.
const SMALL_BUFFER_OF: u64 = 4;
/// It, in bytes: a window that is closed by what one reader leaves.
const SMALL_BUFFER: usize = 32_768;
/// The ports of the listeners begin here.
const PORT: u16 = 5_000;
/// A slow reader's: bytes, pause, and how often it is slow.
const SLOW: (usize, Duration, u32) = (8_192, Duration::from_millis(4), 150);
/// Streams that went wrong and are told of.
const DESCRIBED: usize = 8;

/// What came of all transfers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) transfers: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) wrong: AtomicU64,
    pub(super) hung: AtomicU64,
    failed: AtomicBool,
    described: Mutex<Vec<String>>,
}

/// What one end saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    sent: [u8; 32],
    got: [u8; 32],
    got_bytes: u64,
}

/// What the two ends of a worker tell one another after each transfer.
struct Line {
    tell: Sender<Result<Report, Failure>>,
    hear: Receiver<Result<Report, Failure>>,
}

// === impl Streams ===

impl Streams {
    /// A stream went wrong: what follows would say nothing more.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn described(&self) -> Vec<String> {
        let described = self.described.lock();
        described.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self, count: &AtomicU64, why: String) {
        count.fetch_add(1, Ordering::Relaxed);
        self.failed.store(true, Ordering::Relaxed);
        let mut described = self.described.lock();
        let described = described.as_mut();
        if let Ok(described) = described
            && described.len() < DESCRIBED
        {
            described.push(why);
        }
    }
}

/// All transfers of a phase.
pub(super) fn run(
    rig: &Rig,
    phase: &Phase,
    streams: &Streams,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    let mut workers = Vec::new();
    for number in 0..AT_ONCE {
        workers.push(Worker::new(rig, phase, streams, progress, number)?);
    }
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for worker in &workers {
            let (to_guest, from_peer) = channel();
            let (to_peer, from_guest) = channel();
            for (side, tell, hear) in [
                (Side::Peer, to_guest, from_guest),
                (Side::Guest, to_peer, from_peer),
            ] {
                let line = Line { tell, hear };
                let run = move || worker.run(side, &line);
                ends.push(scope.spawn(move || rig.host(side).run(run)));
            }
        }
        for end in ends {
            end.join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        }
        Ok(())
    })
}

/// One transfer at a time, of which each side is a thread.
struct Worker<'a> {
    rig: &'a Rig,
    phase: &'a Phase,
    streams: &'a Streams,
    progress: &'a Progress,
    number: u64,
    /// The peer's and the guest's, of either version of IP.
    listeners: [[TcpListener; 2]; 2],
}

// === impl Worker ===

impl<'a> Worker<'a> {
    fn new(
        rig: &'a Rig,
        phase: &'a Phase,
        streams: &'a Streams,
        progress: &'a Progress,
        number: u64,
    ) -> Result<Self, ExperimentError> {
        let both = |side: Side| -> Result<_, ExperimentError> {
            let listeners = rig.host(side).run(|| {
                let listen = |v6| listen(phase, side, v6, number);
                listen(false).and_then(|v4| Ok([v4, listen(true)?]))
            })?;
            listeners.map_err(ExperimentError::machine("make a listener"))
        };
        Ok(Self {
            rig,
            phase,
            streams,
            progress,
            number,
            listeners: [both(Side::Peer)?, both(Side::Guest)?],
        })
    }

    fn run(&self, side: Side, line: &Line) {
        let numbers = self.phase.first..self.phase.first + self.phase.transfers;
        let own = numbers.filter(|number| number % AT_ONCE == self.number);
        for number in own {
            let transfer = self.phase.transfer(number);
            let deadline = Instant::now() + LIMIT;
            let connected = self.connect(side, &transfer, deadline);
            let ports = connected.as_ref().ok().and_then(ports);
            let report = connected
                .and_then(|stream| carry(stream, transfer.part(side), deadline))
                .map_err(Failure::of);
            let mut hung = None;
            let report = report.inspect_err(|failure| {
                if let (Failure::Hung(_), Some((own, other))) = (failure, ports) {
                    let ports = match side {
                        Side::Peer => [own, other],
                        Side::Guest => [other, own],
                    };
                    let status = chaos::status(self.rig);
                    hung = Some(of_flow(&status, ports));
                }
            });
            // Each hears what became of the other, and both go on or neither.
            let said = match &report {
                Ok(report) => Ok(*report),
                Err(failure) => Err(failure.clone()),
            };
            let _ = line.tell.send(said);
            let other = line.hear.recv();
            let other = other.unwrap_or_else(|_| Err(Failure::Broken("it ended".into())));
            let fits = match (&report, &other) {
                (Ok(own), Ok(other)) => own.fits(other) && other.fits(own),
                _ => false,
            };
            if !fits {
                self.tell_failure(side, &transfer, &report, &other, hung);
                return;
            }
            if side == Side::Guest {
                let bytes = transfer.peer.bytes + transfer.guest.bytes;
                self.streams.transfers.fetch_add(1, Ordering::Relaxed);
                self.streams.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.progress.step();
            }
        }
    }

    fn tell_failure(
        &self,
        side: Side,
        transfer: &Transfer,
        own: &Result<Report, Failure>,
        other: &Result<Report, Failure>,
        flow: Option<String>,
    ) {
        let hung = [own, other]
            .iter()
            .any(|report| matches!(report, Err(Failure::Hung(_))));
        let what = format!(
            "{transfer:?}, worker {}, {} options, ring of {}: {side:?} {own:?}, other {other:?}; flow: {flow:?}",
            self.number,
            self.phase.options.name(),
            self.phase.ring
        );
        tracing::error!("{what}");
        // Counted once; where it hung, by an end that can say more of it.
        let counts = match own {
            Err(_) => side == Side::Guest || other.is_ok(),
            Ok(_) => side == Side::Guest && other.is_ok(),
        };
        if !counts {
            return;
        }
        let count = if hung {
            &self.streams.hung
        } else {
            &self.streams.wrong
        };
        self.streams.failed(count, what);
    }

    fn connect(&self, side: Side, transfer: &Transfer, deadline: Instant) -> io::Result<TcpStream> {
        if transfer.opener == side {
            let to = listens_at(self.phase, side.other(), transfer.v6, self.number);
            return TcpStream::connect_timeout(&to, left(deadline)?);
        }
        let listener = &self.listeners[side as usize][usize::from(transfer.v6)];
        accept(listener, deadline)
    }
}

/// Its own for each worker, so that it is known whose connection comes.
fn listen(phase: &Phase, side: Side, v6: bool, worker: u64) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(listens_at(phase, side, v6, worker))?;
    let small = worker.is_multiple_of(SMALL_BUFFER_OF);
    if side == Side::Guest && small && phase.options != Options::Grow {
        set_socket_recv_buffer_size(&listener, SMALL_BUFFER)?;
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn listens_at(phase: &Phase, side: Side, v6: bool, worker: u64) -> SocketAddr {
    // Another phase has others: what still waits for old segments is in nobody's way.
    let first = PORT + phase.number * AT_ONCE as u16;
    (addr(side, v6), first + worker as u16).into()
}

/// Does what an end has to do: sends its bytes and ends its stream, and reads to the end of the
/// other's.
fn carry(stream: TcpStream, part: &Part, deadline: Instant) -> io::Result<Report> {
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(&stream, part, deadline));
        let got = receive(&stream, part.reading, deadline);
        if got.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        } else if part.bytes == 0 {
            // As a server does; and while its stream goes on, the host may acknowledge for it.
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

fn receive(stream: &TcpStream, reading: Reading, deadline: Instant) -> io::Result<([u8; 32], u64)> {
    let mut sink = Sink::new();
    if let Reading::Late(by) = reading {
        std::thread::sleep(by);
    }
    if reading == Reading::Slowly {
        let (size, pause, times) = SLOW;
        for _ in 0..times {
            std::thread::sleep(pause);
            if sink.read(stream, size, deadline)? == 0 {
                break;
            }
        }
    }
    // At the end of the stream it reads nothing more.
    sink.read_until(stream, u64::MAX, deadline)?;
    let bytes = sink.bytes;
    Ok((sink.sum(), bytes))
}

/// Its own port and the other's.
fn ports(stream: &TcpStream) -> Option<(u16, u16)> {
    let own = stream.local_addr().ok()?.port();
    Some((own, stream.peer_addr().ok()?.port()))
}

// === impl Report ===

impl Report {
    /// Whether `other` has got what this end has sent.
    fn fits(&self, other: &Self) -> bool {
        self.sent == other.got
    }
}
