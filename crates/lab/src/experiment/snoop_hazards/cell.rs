//! Runs the transfers of a cell and counts how they end.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::plan::{AT_ONCE, Cell, Draws, Hazard};
use super::rig::{Rig, TAP};
use super::{forwarding, rcvbuf};
use crate::experiment::ExperimentError;
use crate::experiment::guests::snooping::{Snooping, add_exits, of_flow};
use crate::experiment::progress::Progress;
use crate::experiment::streams::{Failure, accept, left};

/// The longest that a transfer may take. It covers nine retransmissions of a sender, or five of the
/// host's, which begin after 2 s and back off.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// A cell with so many incomplete transfers begins no more: each of them takes [`LIMIT`].
const MOST_INCOMPLETE: u64 = 20;
/// Incomplete transfers that are described, in each cell.
const DESCRIBED: usize = 3;

/// What came of a cell.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) cell: Cell,
    pub(super) complete: u64,
    /// A stream that differs from what was sent, or a connection that failed.
    pub(super) wrong: u64,
    /// Not over within [`LIMIT`].
    pub(super) hung: u64,
    /// Seconds that each complete transfer took.
    pub(super) times: Vec<f64>,
    /// The first incomplete transfers, in words.
    pub(super) described: Vec<String>,
    /// Counters of `taut snoop` at the end.
    pub(super) to_guest: BTreeMap<String, u64>,
    pub(super) from_guest: BTreeMap<String, u64>,
    /// The tap's whole status but for the flows.
    pub(super) status: Option<String>,
    /// Segments lost behind the guest.
    pub(super) lost_behind: u64,
}

/// A transfer: its connection, and what is drawn for it.
pub(super) struct Transfer {
    pub(super) sender: TcpStream,
    pub(super) receiver: TcpStream,
    pub(super) draws: Draws,
    pub(super) seed: u64,
    pub(super) deadline: Instant,
}

// === impl Part ===

impl Part {
    pub(super) fn new(cell: Cell) -> Self {
        Self {
            cell,
            complete: 0,
            wrong: 0,
            hung: 0,
            times: Vec::new(),
            described: Vec::new(),
            to_guest: BTreeMap::new(),
            from_guest: BTreeMap::new(),
            status: None,
            lost_behind: 0,
        }
    }

    pub(super) fn incomplete(&self) -> u64 {
        self.wrong + self.hung
    }

    fn count(&mut self, ended: Result<Duration, (Failure, String)>) {
        let (failure, what) = match ended {
            Ok(time) => {
                self.complete += 1;
                self.times.push(time.as_secs_f64());
                return;
            }
            Err(failed) => failed,
        };
        match failure {
            Failure::Hung(_) => self.hung += 1,
            Failure::Broken(_) => self.wrong += 1,
        }
        if self.described.len() < DESCRIBED {
            let name = self.cell.name();
            self.described.push(format!("{name}: {failure}; {what}"));
        }
    }
}

/// Makes all transfers of `cell`, [`AT_ONCE`] at a time.
pub(super) fn run(rig: &Rig, cell: &Cell, progress: &Progress) -> Result<Part, ExperimentError> {
    let machine = ExperimentError::machine;
    rig.prepare(cell)?;
    let lost = rig.lost()?;
    let host = rig.world.host("host");
    let name = format!("snoop-{}", cell.port);
    let start = || Snooping::start(host, &rig.taut, &name, &[TAP.into()], &[], rig.world.dir());
    let snooping = cell
        .snoop
        .then(start)
        .transpose()
        .map_err(machine("start taut snoop"))?;
    let part = Mutex::new(Part::new(*cell));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let (next, part, snooping) = (&next, &part, &snooping);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let given_up = locked(part).incomplete() >= MOST_INCOMPLETE;
                    if number >= cell.transfers || given_up {
                        return;
                    }
                    let ended = transfer(rig, cell, worker, number, snooping.as_ref());
                    locked(part).count(ended);
                    progress.step();
                }
            });
        }
    });
    let mut part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
    part.lost_behind = rig.lost()? - lost;
    if let Some(snooping) = snooping {
        let taps = snooping.status().map_err(machine("ask taut snoop"))?;
        for mut tap in taps {
            add_exits(&tap, "to_guest", &mut part.to_guest);
            add_exits(&tap, "from_guest", &mut part.from_guest);
            tap["flows"].take();
            part.status = Some(tap.to_string());
        }
    }
    Ok(part)
}

fn locked(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One transfer; how long it took, or why it failed and what is known of it.
fn transfer(
    rig: &Rig,
    cell: &Cell,
    worker: u16,
    number: u64,
    snooping: Option<&Snooping>,
) -> Result<Duration, (Failure, String)> {
    let began = Instant::now();
    let deadline = began + LIMIT;
    let mut draws = Draws::of(cell, number);
    let peer_opens = draws.from(0..3) > 0;
    let what = format!(
        "transfer {number}, seed {}, opened by the {}",
        cell.seed,
        if peer_opens { "peer" } else { "receiver" }
    );
    let connected = connect(rig, cell, cell.port + worker, peer_opens, deadline);
    let [sender, receiver] =
        connected.map_err(|e| (Failure::of(e), format!("{what}, to connect")))?;
    let ports = [&sender, &receiver].map(|end| end.local_addr().map_or(0, |addr| addr.port()));
    let transfer = Transfer {
        sender,
        receiver,
        seed: draws.from(0..u64::MAX),
        draws,
        deadline,
    };
    let ended = match cell.hazard {
        Hazard::Forwarding(_) => forwarding::run(transfer),
        Hazard::Rcvbuf => rcvbuf::run(transfer),
    };
    match ended {
        Ok(()) => Ok(began.elapsed()),
        Err((failure, more)) => {
            let flow = snooping
                .and_then(|snooping| snooping.status().ok())
                .and_then(|taps| Some(of_flow(taps.first()?, ports)));
            Err((
                failure,
                format!("{what}, {more}; ports {ports:?}, flow: {flow:?}"),
            ))
        }
    }
}

/// A connection between the peer, which is to send, and the receiver.
fn connect(
    rig: &Rig,
    cell: &Cell,
    port: u16,
    peer_opens: bool,
    deadline: Instant,
) -> io::Result<[TcpStream; 2]> {
    let receiver = rig.receiver(cell);
    let (opens, listens) = if peer_opens {
        ("peer", receiver)
    } else {
        (receiver, "peer")
    };
    let own = SocketAddr::new(rig.own_addr(listens, cell.v6), port);
    let listener = rig.world.host(listens).run(|| TcpListener::bind(own));
    let listener = listener.map_err(io::Error::other)??;
    listener.set_nonblocking(true)?;
    let known = match listens {
        "peer" => own,
        _ => SocketAddr::new(rig.known_addr(cell), port),
    };
    let limit = left(deadline)?;
    let opened = rig
        .world
        .host(opens)
        .run(|| TcpStream::connect_timeout(&known, limit));
    let opened = opened.map_err(io::Error::other)??;
    let accepted = accept(&listener, deadline)?;
    Ok(if peer_opens {
        [opened, accepted]
    } else {
        [accepted, opened]
    })
}
