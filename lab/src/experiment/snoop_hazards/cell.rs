//! Runs the transfers of a cell and counts their results.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::plan::{AT_ONCE, Cell, Draws, Hazard};
use super::rig::{Rig, TAP};
use super::transfer::Transfer;
use super::{forwarding, rcvbuf};
use crate::experiment::ExperimentError;
use crate::experiment::guests::snooping::{Snooping, add_exits, of_flow};
use crate::experiment::peer_networks::peer_addr;
use crate::experiment::progress::Progress;
use crate::experiment::streams::{self, Failure, accept, left};

/// The time limit of a transfer. It covers nine retransmissions by a sender, or five by the host,
/// which start after 2 s and back off.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// The number of transfers with one `taut snoop` process: two by each worker. After a third
/// repaired flow of one network, the process would stop acknowledging early for that network.
const PER_PROCESS: u64 = 2 * AT_ONCE as u64;
/// The number of incomplete transfers after which a cell stops: each of them takes [`LIMIT`].
const MOST_INCOMPLETE: u64 = 20;
/// The number of incomplete transfers that are described for each cell.
const DESCRIBED: usize = 3;

/// The results of a cell.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) cell: Cell,
    pub(super) complete: u64,
    /// Transfers whose received stream differs from the sent one, or whose connection failed.
    pub(super) wrong: u64,
    /// Transfers that did not finish within [`LIMIT`].
    pub(super) hung: u64,
    /// The durations of complete transfers, in seconds.
    pub(super) times: Vec<f64>,
    /// The first incomplete transfers, in words.
    pub(super) described: Vec<String>,
    /// Counters of `taut snoop` at the end.
    pub(super) to_guest: BTreeMap<String, u64>,
    pub(super) from_guest: BTreeMap<String, u64>,
    /// Repaired flows; `retransmitted` counts the segments that were retransmitted to the guest.
    pub(super) repaired: u64,
    pub(super) retransmitted: u64,
    /// Flows that `taut snoop` gave up.
    pub(super) lost: u64,
    /// The most bytes that were acknowledged early at the same time.
    pub(super) exposure_most: u64,
    /// Faults of the tap, in words.
    pub(super) faults: Vec<String>,
    /// Segments lost behind the guest.
    pub(super) lost_behind: u64,
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
            repaired: 0,
            retransmitted: 0,
            lost: 0,
            exposure_most: 0,
            faults: Vec::new(),
            lost_behind: 0,
        }
    }

    pub(super) fn incomplete(&self) -> u64 {
        self.wrong + self.hung
    }

    /// Adds the counters that a process reports at its end.
    fn add(&mut self, tap: &Value) {
        let number = |key: &str| tap[key].as_u64().unwrap_or(0);
        add_exits(tap, "to_guest", &mut self.to_guest);
        add_exits(tap, "from_guest", &mut self.from_guest);
        self.repaired += number("repaired");
        self.retransmitted += number("retransmitted");
        self.lost += number("lost_after_early_ack");
        self.exposure_most = self.exposure_most.max(number("exposure_most"));
        if tap["state"] != "on" {
            let (name, state, why) = (self.cell.name(), &tap["state"], &tap["why"]);
            self.faults
                .push(format!("{name}: the tap is {state}: {why}"));
        }
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

/// Runs all transfers of `cell`, [`AT_ONCE`] at a time, with a new `taut snoop` for each
/// [`PER_PROCESS`] transfers.
pub(super) fn run(rig: &Rig, cell: &Cell, progress: &Progress) -> Result<Part, ExperimentError> {
    rig.prepare(cell)?;
    let lost = rig.lost()?;
    let part = Mutex::new(Part::new(*cell));
    let mut first = 0;
    while first < cell.transfers && locked(&part).incomplete() < MOST_INCOMPLETE {
        let end = cell.transfers.min(first + PER_PROCESS);
        round(rig, cell, first..end, &part, progress)?;
        first = end;
    }
    let mut part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
    part.lost_behind = rig.lost()? - lost;
    Ok(part)
}

fn round(
    rig: &Rig,
    cell: &Cell,
    transfers: Range<u64>,
    part: &Mutex<Part>,
    progress: &Progress,
) -> Result<(), ExperimentError> {
    let machine = ExperimentError::machine;
    let host = rig.world.host("host");
    let name = format!("snoop-{}-{}", cell.port, transfers.start);
    let start = || Snooping::start(host, &rig.taut, &name, &[TAP.into()], &[], rig.world.dir());
    let snooping = cell
        .snoop
        .then(start)
        .transpose()
        .map_err(machine("start taut snoop"))?;
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let (transfers, snooping) = (transfers.clone(), &snooping);
            scope.spawn(move || {
                let mut own = transfers.filter(|n| n % u64::from(AT_ONCE) == u64::from(worker));
                while let Some(number) = own.next()
                    && locked(part).incomplete() < MOST_INCOMPLETE
                {
                    let ended = transfer(rig, cell, worker, number, snooping.as_ref());
                    locked(part).count(ended);
                    progress.step();
                }
            });
        }
    });
    if let Some(snooping) = snooping {
        let taps = snooping
            .status()
            .map_err(machine("read the status of taut snoop"))?;
        taps.iter().for_each(|tap| locked(part).add(tap));
    }
    Ok(())
}

fn locked(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one transfer. Returns its duration, or the failure and what was happening.
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
    let connected = connect(rig, cell, worker, peer_opens, deadline);
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
        Hazard::Rcvbuf(reads) => rcvbuf::run(transfer, reads),
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

/// Opens a connection between the peer, which sends, and the receiver.
fn connect(
    rig: &Rig,
    cell: &Cell,
    worker: u16,
    peer_opens: bool,
    deadline: Instant,
) -> io::Result<[TcpStream; 2]> {
    let receiver = rig.receiver(cell);
    let port = cell.port + worker;
    let peer = peer_addr(worker, cell.v6);
    let (opens, listens) = match peer_opens {
        true => ("peer", receiver),
        false => (receiver, "peer"),
    };
    // The peer may know the receiver by a different address.
    let (at, to) = match peer_opens {
        true => (rig.own_addr(receiver, cell.v6), rig.known_addr(cell)),
        false => (peer, peer),
    };
    let listen = || TcpListener::bind((at, port));
    let listener = rig.world.host(listens).run(listen);
    let listener = listener.map_err(io::Error::other)??;
    listener.set_nonblocking(true)?;
    let limit = left(deadline)?;
    let from = peer_opens.then_some(peer);
    let open = || streams::connect(from, (to, port).into(), limit);
    let opened = rig.world.host(opens).run(open);
    let opened = opened.map_err(io::Error::other)??;
    let accepted = accept(&listener, deadline)?;
    Ok(match peer_opens {
        true => [opened, accepted],
        false => [accepted, opened],
    })
}
