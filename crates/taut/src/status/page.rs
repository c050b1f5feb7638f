//! The page of this machine (`taut status --serve`): its connections and its jobs, read-only, over HTTP.
//!
//! `/status.json` is what `taut status --json` prints; `/machine.json` is what the page shows besides, and
//! `/mesh.json` the mesh of the relay. Only control sockets at their default paths are asked.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | work | a thread observes the machine, once for all who ask, for 1.5 s after each answer | what it found is repeated |
//! | work while no one asks | the observer ends [`UNREAD`] after the last request | the next reader waits for 1.5 s |
//! | the wait for an answer | [`PATIENCE`] | 503 |
//! | connections, sessions, changes that are shown one by one | 12, [`admin::SESSIONS`], [`CHANGES`] | the rest is only counted |

use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use taut_exposition::site::{self, Collected, Content, Shared, Site};
use taut_observe::versioned::Versioned;
use taut_relay::admin;
use taut_sys::listen::Listen;
use taut_tune::log;

use super::Overview;
use super::connections::{Limits, Watched};
use super::jobs::{self, Answers};
use crate::confine::{self, SandboxArgs};
use crate::failure::Failure;

/// The address by default.
pub(super) const ADDRESS: &str = "127.0.0.1:9460";

/// How long what a round has found is not asked for before the observer ends.
const UNREAD: Duration = Duration::from_secs(30);
/// How long what a round has found is repeated.
const FRESH: Duration = Duration::from_secs(4);
/// The least time from one round to the next: readers who ask in turn cost no more than one.
const BETWEEN: Duration = Duration::from_secs(2);
/// How long a reader waits for a round: jobs that do not answer delay it by seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// The number of changes by `taut tune` that are shown.
const CHANGES: usize = 10;

/// What the page shows.
#[derive(Serialize)]
struct Machine<'a> {
    /// The machine's name.
    host: String,
    status: &'a Overview,
    limits: Limits,
    /// The relay at the default control socket.
    relay: Option<admin::State>,
    /// The taps of `taut snoop`.
    taps: Option<Vec<Tap>>,
    /// The last changes by `taut tune` to connections that are open, if it runs.
    tune: Option<Vec<Tuned>>,
    /// What `taut guest status` prints, if its programs are loaded.
    guest: Option<String>,
}

/// A tap without its flows: their peers are not for every user of the machine.
#[derive(Serialize)]
struct Tap {
    tap: String,
    state: String,
    why: Option<String>,
    flows: usize,
    exposure: u64,
    retransmitted: u64,
    lost: u64,
}

/// A change of a connection.
#[derive(Serialize)]
struct Tuned {
    process: Option<String>,
    peer: String,
    what: String,
}

/// What a round has found, as JSON.
struct Found {
    status: Vec<u8>,
    machine: Vec<u8>,
    has_mesh: bool,
}

/// Rounds that a thread makes when they are asked for.
#[derive(Clone)]
struct Rounds {
    ask: SyncSender<()>,
    last: Arc<Last>,
}

/// What the last round has found.
#[derive(Default)]
struct Last {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of rounds so far.
    rounds: u64,
    found: Option<(Instant, Result<Arc<Found>, String>)>,
}

/// Serves the page until SIGTERM or SIGINT.
pub(super) fn run(address: Listen, sandbox: SandboxArgs) -> Result<(), Failure> {
    // Before the capability to use a port below 1024 is gone.
    let listener = address.open().map_err(|error| {
        Failure::Run(format!(
            "cannot serve the page at {address}: {error}; choose another address for --serve"
        ))
    })?;
    let confined = confine::page(sandbox).enter()?;
    let _log = crate::log::to_stderr()?;
    confined.log();
    serve(listener).map_err(|error| Failure::Run(format!("cannot serve the page: {error}")))
}

fn serve(listener: TcpListener) -> std::io::Result<()> {
    let addr = listener.local_addr()?;
    let rounds = Rounds::start()?;
    if !addr.ip().is_loopback() {
        tracing::warn!(
            "the page at {addr} has no password: anyone who can connect sees the connections of this machine; let only \
             operators reach it, or serve it at 127.0.0.1:{} and use ssh -L",
            addr.port()
        );
    }
    let mesh = Shared::new(admin::MESH_FRESH);
    let data = move |name| match name {
        "mesh.json" => match rounds.newest()?.has_mesh {
            true => mesh.collected(|| jobs::mesh().and_then(|mesh| json(&mesh))),
            false => Ok(b"null".to_vec()),
        },
        "status.json" => Ok(rounds.newest()?.status.clone()),
        _ => Ok(rounds.newest()?.machine.clone()),
    };
    site::run(
        listener,
        "the page of this machine",
        page(addr.port()),
        data,
    )
}

fn page(port: u16) -> Site {
    // The sections of the relay are below its heading here.
    let relay = admin::SECTIONS.replace("h2>", "h3>");
    let sections = include_str!("page/machine.html").replace("{relay}", &relay);
    let [relay, mesh] = admin::SCRIPTS;
    Site::new(&Content {
        title: "Taut",
        sections: &sections,
        scripts: &[relay, mesh, ("machine.js", include_str!("page/machine.js"))],
        data: &["status.json", "machine.json", "mesh.json"],
        command: "taut status",
        footer: "<code>taut why</code> explains each connection.",
        port,
    })
}

fn json(data: &impl Serialize) -> Collected {
    serde_json::to_vec(data).map_err(|error| format!("the data cannot be written: {error}"))
}

// === impl Rounds ===

impl Rounds {
    /// Starts the thread, which ends with the process.
    fn start() -> std::io::Result<Self> {
        // One question stands for all that are asked during a round.
        let (ask, asked) = sync_channel(1);
        let last = Arc::<Last>::default();
        let thread = std::thread::Builder::new().name("machine".to_owned());
        let ours = last.clone();
        thread.spawn(move || ours.observe(&asked))?;
        Ok(Self { ask, last })
    }

    /// Returns what the last round has found if that was just now, or else what the next one finds.
    fn newest(&self) -> Result<Arc<Found>, String> {
        // If one has been asked for already, that is as good.
        let _ = self.ask.try_send(());
        let state = self.last.lock();
        let before = state.rounds;
        let is_old = |state: &mut State| state.rounds == before && !state.is_fresh();
        let waited = self
            .last
            .changed
            .wait_timeout_while(state, PATIENCE, is_old);
        let (state, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.found {
            Some((_, found)) if !timed_out.timed_out() => found.clone(),
            _ => Err(format!(
                "the connections of this machine could not be read within {} s; is it overloaded?",
                PATIENCE.as_secs()
            )),
        }
    }
}

// === impl Last ===

impl Last {
    fn observe(&self, asked: &Receiver<()>) {
        while asked.recv().is_ok() {
            let mut watched = Watched::begin();
            loop {
                let began = Instant::now();
                let found = Found::of_round(&mut watched);
                let mut state = self.lock();
                state.rounds += 1;
                state.found = Some((Instant::now(), found));
                drop(state);
                self.changed.notify_all();
                if asked.recv_timeout(UNREAD).is_err() {
                    break;
                }
                std::thread::sleep(BETWEEN.saturating_sub(began.elapsed()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn is_fresh(&self) -> bool {
        self.found
            .as_ref()
            .is_some_and(|(at, _)| at.elapsed() < FRESH)
    }
}

// === impl Found ===

impl Found {
    fn of_round(watched: &mut Watched) -> Result<Arc<Self>, String> {
        let connections = watched.round().map_err(sentence)?;
        let (jobs, answers) = jobs::running();
        let status = Overview::of(connections, jobs);
        let Answers { relay, taps } = answers;
        let has_mesh = relay.as_ref().is_some_and(|relay| relay.name.is_some());
        let runs = |name| status.jobs.iter().any(|job| job.name == name);
        let machine = Machine {
            host: admin::host(),
            limits: watched.limits(),
            relay: relay.map(|relay| admin::State::new(*relay, jobs::sessions(admin::SESSIONS))),
            taps: taps.map(|taps| taps.into_iter().map(Tap::from).collect()),
            tune: runs("tune").then(|| tuned(watched)),
            guest: runs("guest").then(|| crate::guest::since_load().unwrap_or_else(sentence)),
            status: &status,
        };
        Ok(Arc::new(Self {
            status: status.json().map_err(sentence)?.into_bytes(),
            machine: json(&Versioned::new(&machine))?,
            has_mesh,
        }))
    }
}

fn sentence(failure: Failure) -> String {
    match failure {
        Failure::Usage(sentence) | Failure::Run(sentence) => sentence,
    }
}

/// Returns the last changes by `taut tune` to connections that are open, the newest first.
fn tuned(watched: &Watched) -> Vec<Tuned> {
    // Without its log, tune works all the same.
    let changes = log::read(Path::new(log::PATH)).unwrap_or_default();
    let mut changes: Vec<_> = changes
        .into_iter()
        .filter_map(|(cookie, changes)| Some((watched.get(cookie)?, changes.into_iter().last()?)))
        .collect();
    changes.sort_by_key(|(_, change)| std::cmp::Reverse(change.at));
    let tuned = changes.into_iter().take(CHANGES);
    tuned
        .map(|(seen, change)| Tuned {
            process: seen.process.map(|process| process.name.to_string()),
            peer: seen.tracked.last().connection.remote.to_string(),
            what: change.sentence(),
        })
        .collect()
}

// === impl Tap ===

impl From<taut_snoop::protocol::TapStatus> for Tap {
    fn from(status: taut_snoop::protocol::TapStatus) -> Self {
        Self {
            tap: status.tap,
            state: status.state,
            why: status.why,
            flows: status.flows.len(),
            exposure: status.exposure,
            retransmitted: status.retransmitted,
            lost: status.lost_after_early_ack,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_asked_for_by_readers_alone_and_made_once_for_all() {
        let (ask, asked) = sync_channel(1);
        let last = Arc::<Last>::default();
        let rounds = Rounds {
            ask,
            last: last.clone(),
        };
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let rounds = rounds.clone();
                std::thread::spawn(move || rounds.newest().map(|found| found.status.clone()))
            })
            .collect();
        // The first of them asks; the thread that would observe is this one.
        asked.recv().unwrap();
        let found = Found {
            status: b"{}".to_vec(),
            machine: Vec::new(),
            has_mesh: false,
        };
        let mut state = last.lock();
        state.rounds = 1;
        state.found = Some((Instant::now(), Ok(Arc::new(found))));
        drop(state);
        last.changed.notify_all();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Ok(b"{}".to_vec()));
        }
    }

    #[test]
    fn the_page_has_the_sections_of_a_relay_below_a_heading() {
        // A debug build looks for what could make HTML of data.
        page(9460);
    }
}
