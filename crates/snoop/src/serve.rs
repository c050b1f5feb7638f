//! The serving process: its event loop, and the UNIX socket at which it answers requests.
//!
//! A request is one line of JSON, and so is the answer: `{"do":"status"}`,
//! `{"do":"off","tap":"tap0"}`, `{"do":"on","tap":"tap0"}`. The answer to `off` comes once the
//! tap's guest has everything that was acknowledged early.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use taut_exposition::SpawnError;
use taut_sys::control_socket::{self, ControlError};
use taut_sys::listen::Listen;

use crate::copies::{self, Waiter};
use crate::error::ProgramError;
use crate::metrics;
use crate::protocol::{Answer, Question, TapStatus};
use crate::qmp::Monitors;
use crate::qmp::policy::Restriction;
use crate::tap::TapError;
use crate::tap_supervisor::{Options, SCAN_INTERVAL, TapSupervisor};

/// Default path of the control socket, beside the records, so that the process needs no other directory.
pub const CONTROL: &str = "/run/taut/snoop/snoop.sock";

/// The maximum length of a request, in bytes.
const QUESTION_MAX: u64 = 4096;

/// The time limit for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time that a client waits for an answer that does not depend on a guest: a starting process
/// loads its programs at each tap before it answers.
pub const ANSWER: Duration = Duration::from_secs(30);

/// The maximum number of concurrent clients; further ones are turned away.
const ASKERS: usize = 16;

/// The interval at which a waiting client is checked for a closed connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The interval at which a draining tap is checked.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The time that a stopping process waits for guests to take what was acknowledged early; its
/// copies are lost when it ends.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The reason why taps cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The devices cannot be listed, or none of those that are named is a tap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The kernel lacks a feature that the programs need.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The control socket cannot be created, or another process answers there.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] SpawnError),
    /// Signals, threads or timers cannot be set up.
    #[error("cannot set up signals, threads and timers: {0}")]
    Setup(#[from] io::Error),
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process answers.
    #[error(
        "no `taut snoop` answers at {path}: {source}. If it has another control socket, name it with --control"
    )]
    Nobody {
        /// The path or address.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This user may not connect, or another user's process may answer.
    #[error(transparent)]
    Control(ControlError),
    /// The answer is not valid JSON.
    #[error(
        "the answer from {path} is not understood: {source}; is it a taut snoop of this version?"
    )]
    Garbled {
        /// The path or address.
        path: PathBuf,
        /// The system's error.
        source: serde_json::Error,
    },
    /// The answer takes longer than the client waits.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The process refused the request.
    #[error("{0}")]
    Refused(String),
}

enum Event {
    /// A client sent a request.
    Asked(Question, Asker),
    /// Copies of early-acknowledged segments are in the ring buffer.
    Copies,
    /// The machine of a tap's guest changed its state.
    Machine(String, Restriction),
    Stop,
}

/// A client that waits for its answer.
struct Asker {
    to: SyncSender<Answer>,
    waits: Weak<()>,
}

// === impl Asker ===

impl Asker {
    fn tell(&self, answer: Answer) {
        // The client may have disconnected.
        let _ = self.to.try_send(answer);
    }

    fn is_there(&self) -> bool {
        self.waits.strong_count() > 0
    }
}

/// Serves taps of the calling thread's network namespace until SIGTERM or SIGINT.
///
/// # Errors
/// [`ServeError`]; the taps are restored.
pub fn run(options: Options, control: &Path, metrics: Option<Listen>) -> Result<(), ServeError> {
    more_descriptors();
    options.require_some_tap(&crate::tap::devices()?)?;
    let (tell, told) = sync_channel(ASKERS);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let listener = control_socket::listen(control, false)?;
    let socket = SocketFile(control);
    if let Some(addr) = metrics {
        let tell = tell.clone();
        let encode = move || match tell_and_wait(&tell, Question::Status, || false) {
            Some(Answer::Taps(taps)) => metrics::encode(taps),
            _ => Err(std::fmt::Error),
        };
        taut_exposition::spawn(addr, "snoop-metrics", encode)?;
    }
    std::thread::Builder::new()
        .name("snoop-signals".into())
        .spawn({
            let tell = tell.clone();
            move || {
                for _ in signals.forever() {
                    // The receiver is gone if the main thread has ended.
                    let _ = tell.send(Event::Stop);
                }
            }
        })?;
    let supervisor = TapSupervisor::new(options.clone())?;
    let copies = Ticks::start(supervisor.waiter()?, tell.clone())?;
    let monitors = match options.qmp.is_empty() {
        true => None,
        false => {
            let tell = tell.clone();
            let tell = move |tap, restriction| tell.send(Event::Machine(tap, restriction)).is_ok();
            Some(Monitors::watch(options.qmp.clone(), tell)?)
        }
    };
    let answer = move |stream| {
        if let Err(error) = answer_one(stream, &tell) {
            tracing::debug!(%error, "an operator got no answer");
        }
    };
    std::thread::Builder::new()
        .name("snoop-control".into())
        .spawn(move || control_socket::answer_all(&listener, "snoop-asker", ASKERS, answer))?;

    options.records.sweep(&crate::tap::devices()?);
    let mut server = Server {
        supervisor,
        copies,
        monitors,
        draining: Vec::new(),
        look_at: Instant::now(),
        has_looked: false,
        stop_at: None,
    };
    let result = server.run(&told);
    let drained = server.supervisor.drained(|_| true).unwrap_or_default();
    // From here on, no request can be answered.
    drop(socket);
    drop(server);
    if let Some(refused_flows @ 1..) = drained {
        tracing::warn!(
            refused_flows,
            "stopped; guests refuse data of some connections that was acknowledged early, and it can no longer be retransmitted"
        );
    } else if drained.is_some() {
        tracing::info!("stopped; connections continue without early ACKs");
    } else {
        tracing::warn!(
            "stopped before guests had acknowledged everything that was acknowledged early; they can still take it from their rings, but it \
             can no longer be retransmitted"
        );
    }
    result
}

/// The state of the main thread.
struct Server {
    supervisor: TapSupervisor,
    copies: Ticks,
    monitors: Option<Monitors>,
    /// Clients that wait for a tap to be drained. At most [`ASKERS`]: one that disconnects frees its entry.
    draining: Vec<(u32, Asker)>,
    /// The time of the next scan.
    look_at: Instant,
    has_looked: bool,
    /// When a process that was asked to stop stops waiting for its guests.
    stop_at: Option<Instant>,
}

// === impl Server ===

impl Server {
    fn run(&mut self, told: &Receiver<Event>) -> Result<(), ServeError> {
        loop {
            self.do_what_is_due()?;
            if let Some(at) = self.stop_at
                && (Instant::now() >= at || self.has_drained_all())
            {
                return Ok(());
            }
            self.tell_drained();
            match told.recv_timeout(self.patience()) {
                // A second signal ends the wait.
                Ok(Event::Stop) if self.stop_at.is_some() => return Ok(()),
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Processes copies and scans for taps when it is time.
    ///
    /// # Errors
    /// That of the first scan, which is reported to the user. A later failure may pass; until
    /// then, no early ACK outlives the lease.
    fn do_what_is_due(&mut self) -> Result<(), ServeError> {
        let now = Instant::now();
        if self.copies.are_due(now) {
            let more = self.supervisor.retransmit(monotonic());
            self.copies.went_on(more, now);
        }
        if now >= self.look_at {
            match self.supervisor.scan(monotonic()) {
                Err(error) if !self.has_looked => return Err(error.into()),
                Err(error) => tracing::warn!("{error}"),
                Ok(()) => self.has_looked = true,
            }
            if let Some(monitors) = &self.monitors {
                monitors.set_taps(self.supervisor.names());
            }
            self.look_at = now + SCAN_INTERVAL;
            self.copies.due = Some(now);
        }
        Ok(())
    }

    fn has_drained_all(&mut self) -> bool {
        let drained = self.supervisor.drained(|_| true);
        drained.is_ok_and(|done| done.is_some())
    }

    /// Answers those who wait for taps that are drained now.
    fn tell_drained(&mut self) {
        self.draining.retain(|(index, asker)| {
            let drained = self.supervisor.drained(|tap| tap == *index);
            let refused = drained.unwrap_or_default();
            if let Some(refused) = refused {
                asker.tell(Answer::Drained { refused });
            }
            refused.is_none() && asker.is_there()
        });
    }

    /// Returns the time until something is due.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let looks_often = !self.draining.is_empty() || self.stop_at.is_some();
        let drain_look = looks_often.then(|| now + DRAIN_LOOK);
        let due = [drain_look, self.copies.due].into_iter().flatten();
        let next = due.fold(self.look_at, Instant::min);
        next.saturating_duration_since(now)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Asked(Question::On { .. }, asker) if self.stop_at.is_some() => {
                asker.tell(Answer::Error("taut snoop is stopping".into()));
            }
            Event::Asked(Question::Off { tap }, asker) => match self.supervisor.turn_off(&tap) {
                Some(index) => self.draining.push((index, asker)),
                None => asker.tell(unknown(&tap)),
            },
            Event::Asked(question, asker) => {
                if let Question::On { tap } = &question {
                    let index = self.supervisor.index_of(tap);
                    self.draining.retain(|(waits_for, asker)| {
                        let is_on = index == Some(*waits_for);
                        if is_on {
                            asker.tell(Answer::Error(format!("{tap} was turned on again")));
                        }
                        !is_on
                    });
                }
                asker.tell(answer(&mut self.supervisor, question));
            }
            Event::Copies => self.copies.due = Some(Instant::now()),
            Event::Machine(tap, restriction) => {
                self.supervisor.restrict(&tap, restriction, monotonic());
            }
            Event::Stop => {
                self.supervisor.turn_all_off();
                self.stop_at = Some(Instant::now() + STOP_WAIT);
            }
        }
    }
}

/// Removes the control socket when it is dropped, also if a later step of the start fails.
struct SocketFile<'a>(&'a Path);

impl Drop for SocketFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Schedules the processing of copies: frequently while there are any, not at all while there are
/// none.
struct Ticks {
    due: Option<Instant>,
    every: Duration,
    rested: SyncSender<()>,
}

// === impl Ticks ===

impl Ticks {
    /// Starts the thread that waits for copies.
    fn start(waiter: Waiter, tell: SyncSender<Event>) -> io::Result<Self> {
        let (rested, rests) = sync_channel(1);
        let wait = move || {
            while waiter.wait().is_ok() && tell.send(Event::Copies).is_ok() {
                // Waits until all copies have been processed.
                if rests.recv().is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("snoop-copies".into());
        thread.spawn(wait)?;
        Ok(Self {
            due: None,
            every: copies::TICK,
            rested,
        })
    }

    fn are_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    /// Schedules the next processing; `more` is set if copies remain.
    fn went_on(&mut self, more: bool, now: Instant) {
        self.due = more.then(|| now + self.every);
        if !more {
            // The thread is gone if waiting failed.
            let _ = self.rested.try_send(());
        }
    }
}

/// Sends a request to the serving process and waits up to `patience` for the answer.
///
/// # Errors
/// [`AskError`].
pub fn ask(control: &Path, question: &Question, patience: Duration) -> Result<Answer, AskError> {
    let nobody = |source| AskError::Nobody {
        path: control.to_owned(),
        source,
    };
    let garbled = |source| AskError::Garbled {
        path: control.to_owned(),
        source,
    };
    let connected = control_socket::connect(control).map_err(|error| {
        let is_absent = error.is_absent();
        match error {
            ControlError::Call { source, .. } if is_absent => nobody(source),
            error => AskError::Control(error),
        }
    });
    let mut stream = connected?;
    let mut line = serde_json::to_string(question).map_err(garbled)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(nobody)?;
    let answer = control_socket::read_answer(stream, patience);
    let answer = answer.map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Late(patience),
        _ => nobody(e),
    })?;
    match serde_json::from_str(&answer).map_err(garbled)? {
        Answer::Error(why) => Err(AskError::Refused(why)),
        answer => Ok(answer),
    }
}

fn answer_one(mut stream: UnixStream, tell: &SyncSender<Event>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => match tell_and_wait(tell, question, || is_gone(&stream)) {
            Some(answer) => answer,
            None => return Ok(()),
        },
        Err(error) => Answer::Error(format!("invalid question: {error}")),
    };
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Sends a request and waits for the answer. Returns `None` if the client disconnects first.
fn tell_and_wait(
    tell: &SyncSender<Event>,
    question: Question,
    gone: impl Fn() -> bool,
) -> Option<Answer> {
    let (to, answered) = sync_channel(1);
    let here = Arc::new(());
    let waits = Arc::downgrade(&here);
    let ends = || Answer::Error("taut snoop is stopping".into());
    if tell
        .send(Event::Asked(question, Asker { to, waits }))
        .is_err()
    {
        return Some(ends());
    }
    loop {
        match answered.recv_timeout(PAUSE) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Timeout) if gone() => return None,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Some(ends()),
        }
    }
}

/// Returns whether the client has closed the connection.
fn is_gone(stream: &UnixStream) -> bool {
    // Closed in both directions: a client may shut down its sending half after the question.
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec::default();
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

fn unknown(tap: &str) -> Answer {
    Answer::Error(format!(
        "{tap} is not served; `taut snoop status` lists the taps that are"
    ))
}

fn answer(supervisor: &mut TapSupervisor, question: Question) -> Answer {
    match question {
        Question::Status => match supervisor.status() {
            Ok(taps) => Answer::Taps(taps.into_iter().map(TapStatus::from).collect()),
            Err(error) => Answer::Error(error.to_string()),
        },
        Question::Off { tap } => unknown(&tap),
        Question::On { tap } => match supervisor.turn_on(&tap) {
            Ok(true) => Answer::Done,
            Ok(false) => unknown(&tap),
            Err(error) => Answer::Error(error.to_string()),
        },
    }
}

/// Raises the limit of file descriptors: a tap takes 28, and two more with clsact.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        let current = limit
            .current
            .map_or_else(|| "no limit".to_owned(), |n| n.to_string());
        tracing::warn!(%error, "cannot raise the limit of file descriptors; {current} suffice for few taps");
    }
}

/// Returns the current time of the programs' clock.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

#[cfg(test)]
mod tests;
