//! Streams between real sockets, hashed with SHA-256 at both ends.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::ends::{Report, carry};
use super::offer;
use super::plan::{AT_ONCE, Options, Phase, Side, Transfer};
use super::rig::Rig;
use crate::experiment::ExperimentError;
use crate::experiment::guests::snooping::of_flow;
use crate::experiment::progress::Progress;
use crate::experiment::streams::{Failure, accept, left};

/// The time limit of a transfer. A sender without an answer for 100 s retransmits about nine times
/// (RFC 6298 5.5, starting at 200 ms), and each retransmission would have to be lost.
const LIMIT: Duration = Duration::from_secs(100);
/// The time limit in phases in which the host may lose bytes that it has acknowledged. A transfer
/// that lost them hangs for ever.
const LIMIT_WITH_LOSS: Duration = Duration::from_secs(40);
/// One in this many listeners has the smallest receive buffer.
const SMALL_BUFFER_OF: u64 = 4;
/// The smallest receive buffer, in bytes. What a reader leaves in it closes the window.
const SMALL_BUFFER: usize = 32_768;
/// The first port of the listeners.
const PORT: u16 = 5_000;
/// The number of failed streams that are described.
const DESCRIBED: usize = 8;

/// The result of all transfers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) transfers: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) wrong: AtomicU64,
    pub(super) hung: AtomicU64,
    /// Transfers that hung in a phase in which the process was killed while the guest dropped data.
    pub(super) lost_at_kill: AtomicU64,
    failed: AtomicBool,
    described: Mutex<Vec<String>>,
}

/// The messages that the two ends of a worker exchange after each transfer.
struct Line {
    tell: Sender<Result<Report, Failure>>,
    hear: Receiver<Result<Report, Failure>>,
}

// === impl Streams ===

impl Streams {
    /// Returns whether a stream has failed. Further streams would show nothing new.
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

/// Runs all transfers of a phase.
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
                ends.push(scope.spawn(move || worker.run(side, &line)));
            }
        }
        for end in ends {
            end.join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p))
                .map_err(ExperimentError::machine("limit the guest's TCP memory"))?;
        }
        Ok(())
    })
}

/// Runs one transfer at a time, with a thread for each side.
struct Worker<'a> {
    rig: &'a Rig,
    phase: &'a Phase,
    streams: &'a Streams,
    progress: &'a Progress,
    number: u64,
    /// The listeners of the peer, the guest and the host behind the guest, for both versions of IP.
    listeners: [[TcpListener; 2]; 3],
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
        let both = |side: Side, behind: bool| -> Result<_, ExperimentError> {
            let [v4, v6] =
                [false, true].map(|v6| listens_at(rig, phase, (side, behind), v6, number));
            let listeners = rig.host(side, behind).run(|| {
                let small = side == Side::Guest
                    && number.is_multiple_of(SMALL_BUFFER_OF)
                    && phase.options != Options::Grow;
                listen(v4, small).and_then(|v4| Ok([v4, listen(v6, small)?]))
            })?;
            listeners.map_err(ExperimentError::machine("make a listener"))
        };
        Ok(Self {
            rig,
            phase,
            streams,
            progress,
            number,
            listeners: [
                both(Side::Peer, false)?,
                both(Side::Guest, false)?,
                both(Side::Guest, true)?,
            ],
        })
    }

    fn run(&self, side: Side, line: &Line) -> io::Result<()> {
        if let (Side::Guest, Some(memory)) = (side, &self.rig.memory) {
            memory.join()?;
        }
        let limit = match self.phase.may_lose() {
            true => LIMIT_WITH_LOSS,
            false => LIMIT,
        };
        let numbers = self.phase.first..self.phase.first + self.phase.transfers;
        let own = numbers.filter(|number| number % AT_ONCE == self.number);
        for number in own {
            let transfer = self.phase.transfer(number);
            let deadline = Instant::now() + limit;
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
                    let status = self.rig.status();
                    hung = Some(of_flow(&status, ports));
                }
            });
            // Each end learns the other's result, so that both continue or neither does.
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
                // Both ends make the same decision.
                match self.is_excused(&report, &other) {
                    true => continue,
                    false => return Ok(()),
                }
            }
            if side == Side::Guest {
                let bytes = transfer.peer.bytes + transfer.guest.bytes;
                self.streams.transfers.fetch_add(1, Ordering::Relaxed);
                self.streams.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.progress.step();
            }
        }
        Ok(())
    }

    /// Returns whether a transfer may fail in this way: the guest dropped segments, and their
    /// copies were lost with the killed process.
    fn is_excused(&self, own: &Result<Report, Failure>, other: &Result<Report, Failure>) -> bool {
        let hung = |report| matches!(report, &Err(Failure::Hung(_)));
        self.phase.may_lose() && (hung(own) || hung(other))
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
            "{transfer:?}, worker {}, phase {} ({}, ring of {}): {side:?} {own:?}, other {other:?}; \
             flow: {flow:?}",
            self.number,
            self.phase.number,
            self.phase.name(),
            self.phase.ring
        );
        if !self.is_excused(own, other) {
            tracing::error!("{what}");
        }
        // Count a failure once. If the transfer hung, the end that knows more counts it.
        let counts = match own {
            Err(_) => side == Side::Guest || other.is_ok(),
            Ok(_) => side == Side::Guest && other.is_ok(),
        };
        if !counts {
            return;
        }
        if self.is_excused(own, other) {
            self.streams.lost_at_kill.fetch_add(1, Ordering::Relaxed);
            self.progress.step();
            return;
        }
        let count = if hung {
            &self.streams.hung
        } else {
            &self.streams.wrong
        };
        self.streams.failed(count, what);
    }

    /// Connects or accepts. A socket belongs to the namespace of the thread that creates it.
    fn connect(&self, side: Side, transfer: &Transfer, deadline: Instant) -> io::Result<TcpStream> {
        if transfer.opener != side {
            let index = side as usize + usize::from(side == Side::Guest && transfer.behind);
            return accept(&self.listeners[index][usize::from(transfer.v6)], deadline);
        }
        let other = (side.other(), transfer.behind);
        let to = listens_at(self.rig, self.phase, other, transfer.v6, self.number);
        let limit = left(deadline)?;
        let host = self.rig.host(side, transfer.behind);
        let own = self
            .rig
            .addr(side, transfer.behind, transfer.v6, self.number as u16);
        let opened = host.run(|| offer::connect(own, to, transfer.offer, limit));
        opened.map_err(io::Error::other)?
    }
}

/// Opens the listener of a worker. Each worker has its own, so that connections can be told apart.
fn listen(at: SocketAddr, small: bool) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    if small {
        set_socket_recv_buffer_size(&listener, SMALL_BUFFER)?;
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the address of a worker's listener on a side, which may be the host behind the guest.
fn listens_at(
    rig: &Rig,
    phase: &Phase,
    (side, behind): (Side, bool),
    v6: bool,
    worker: u64,
) -> SocketAddr {
    // Each phase has its own ports, so that old segments do not matter.
    let first = PORT + phase.number * AT_ONCE as u16;
    (
        rig.addr(side, behind, v6, worker as u16),
        first + worker as u16,
    )
        .into()
}

/// Returns the stream's local port and its peer's port.
fn ports(stream: &TcpStream) -> Option<(u16, u16)> {
    let own = stream.local_addr().ok()?.port();
    Some((own, stream.peer_addr().ok()?.port()))
}
