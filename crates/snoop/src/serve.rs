//! Taps served by a process, which answers questions at a UNIX socket.
//!
//! A question is one line of JSON, and so is the answer: `{"do":"status"}`, `{"do":"off","tap":"tap0"}`,
//! `{"do":"on","tap":"tap0"}`. The answer to `off` comes when nothing that was promised at that tap is
//! still to be taken by its guest.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::copies::{self, Waiter};
use crate::metrics;
use crate::program::ProgramError;
use crate::protocol::{Answer, Question, TapStatus};
use crate::qmp::Monitors;
use crate::qmp::policy::Restriction;
use crate::tap::TapError;
use crate::tap_supervisor::{Options, SCAN_INTERVAL, TapSupervisor};

/// Where questions are answered, if nothing else is said.
pub const CONTROL: &str = "/run/taut/snoop.sock";

/// The longest question, in bytes.
const QUESTION_MAX: u64 = 4096;

/// Who asks has so long for the question.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer that does not wait for a guest is awaited for so long: a process that begins loads its
/// programs for each tap before it answers.
pub const ANSWER: Duration = Duration::from_secs(30);

/// Who may ask at one time; the others are turned away.
const ASKERS: usize = 16;

/// How often it is looked whether who waits for an answer is still there, and how long nobody is heard
/// after a question could not be taken for want of something.
const PAUSE: Duration = Duration::from_millis(100);

/// How often it is looked whether a tap is drained.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How long at most a process that is told to end waits for guests to take what was acknowledged early: its copies
/// end with it.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Why taps are not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The devices cannot be listed.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The kernel lacks something that the programs need.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// There is no place for questions.
    #[error("cannot answer at {path}: {source}; choose another --control")]
    Control {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process answers there.
    #[error(
        "another process serves taps already and answers at {0}; stop it, or choose another --control"
    )]
    Taken(PathBuf),
    /// There is no place for scrapers.
    #[error("cannot serve metrics at {addr}: {source}; choose another --metrics")]
    Metrics {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The process's own set-up failed.
    #[error("cannot set up signals and timers: {0}")]
    Setup(#[from] io::Error),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers.
    #[error("nobody answers at {path}: {source}; is `taut snoop --tap ...` running?")]
    Nobody {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The answer is none.
    #[error("what came from {path} is no answer: {source}")]
    Garbled {
        /// Where.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// There is no answer yet.
    #[error("there is no answer after {0:?}")]
    Late(Duration),
    /// The answer is no.
    #[error("{0}")]
    Refused(String),
}

enum Event {
    /// A question and where its answer goes.
    Asked(Question, Asker),
    /// Something was acknowledged early.
    Copies,
    /// The state of the machine of the guest at a tap has changed.
    Machine(String, Restriction),
    Stop,
}

/// Who waits for an answer.
struct Asker {
    to: SyncSender<Answer>,
    waits: Weak<()>,
}

// === impl Asker ===

impl Asker {
    fn tell(&self, answer: Answer) {
        // It may have gone.
        let _ = self.to.try_send(answer);
    }

    fn is_there(&self) -> bool {
        self.waits.strong_count() > 0
    }
}

/// Serves taps of the calling thread's network namespace until SIGTERM or SIGINT.
///
/// # Errors
/// [`ServeError`]; the taps are as they were.
pub fn run(
    options: Options,
    control: &Path,
    metrics: Option<SocketAddr>,
) -> Result<(), ServeError> {
    more_descriptors();
    let (tell, told) = sync_channel(ASKERS);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let scrapers = metrics.map(bind).transpose()?;
    let listener = listen(control)?;
    if let Some(scrapers) = scrapers {
        std::thread::Builder::new()
            .name("snoop-metrics".into())
            .spawn({
                let tell = tell.clone();
                move || serve_metrics(scrapers, tell)
            })?;
    }
    std::thread::Builder::new()
        .name("snoop-signals".into())
        .spawn({
            let tell = tell.clone();
            move || {
                for _ in signals.forever() {
                    // Nobody is there if it has ended already.
                    let _ = tell.send(Event::Stop);
                }
            }
        })?;
    let mut supervisor = TapSupervisor::new(options.clone())?;
    let mut copies = Ticks::start(supervisor.waiter()?, tell.clone())?;
    let monitors = match options.qmp.is_empty() {
        true => None,
        false => {
            let tell = tell.clone();
            let tell = move |tap, restriction| tell.send(Event::Machine(tap, restriction)).is_ok();
            Some(Monitors::watch(options.qmp.clone(), tell)?)
        }
    };
    std::thread::Builder::new()
        .name("snoop-control".into())
        .spawn(move || answer_all(&listener, &tell))?;

    options.records.sweep(&crate::tap::devices()?);
    // As many as there are askers at most: who has gone has made room.
    let mut draining: Vec<(String, Asker)> = Vec::new();
    let mut look_at = Instant::now();
    let mut looked = false;
    let mut stop_at: Option<Instant> = None;
    let result = loop {
        let now = Instant::now();
        if copies.are_due(now) {
            copies.went_on(supervisor.retransmit(monotonic()), now);
        }
        if now >= look_at {
            // At the first, it is a fault that somebody should hear of; later it may pass, and until it
            // does nothing is promised for longer than the lease.
            match supervisor.scan(monotonic()) {
                Err(error) if !looked => break Err(error.into()),
                Err(error) => tracing::warn!("{error}"),
                Ok(()) => looked = true,
            }
            if let Some(monitors) = &monitors {
                monitors.set_taps(supervisor.names());
            }
            look_at = now + SCAN_INTERVAL;
            copies.due = Some(now);
        }
        if let Some(at) = stop_at
            && (now >= at || supervisor.are_drained(|_| true).unwrap_or(true))
        {
            break Ok(());
        }
        draining.retain(|(tap, asker)| {
            let done = supervisor.is_drained(tap).unwrap_or(false);
            if done {
                asker.tell(Answer::Done);
            }
            !done && asker.is_there()
        });
        let mut patience = look_at.saturating_duration_since(Instant::now());
        if !draining.is_empty() || stop_at.is_some() {
            patience = patience.min(DRAIN_LOOK);
        }
        if let Some(at) = copies.due {
            patience = patience.min(at.saturating_duration_since(Instant::now()));
        }
        match told.recv_timeout(patience) {
            Ok(Event::Asked(Question::On { .. }, asker)) if stop_at.is_some() => {
                asker.tell(Answer::Error("the process is about to end".into()));
            }
            Ok(Event::Asked(Question::Off { tap }, asker)) if supervisor.turn_off(&tap) => {
                draining.push((tap, asker));
            }
            Ok(Event::Asked(question, asker)) => {
                if let Question::On { tap } = &question {
                    draining.retain(|(waits_for, asker)| {
                        if waits_for == tap {
                            asker.tell(Answer::Error(format!("{tap} was turned on again")));
                        }
                        waits_for != tap
                    });
                }
                asker.tell(answer(&mut supervisor, question));
            }
            Ok(Event::Copies) => copies.due = Some(Instant::now()),
            Ok(Event::Machine(tap, restriction)) => {
                supervisor.restrict(&tap, restriction, monotonic())
            }
            Err(RecvTimeoutError::Timeout) => {}
            // A second signal does not wait.
            Ok(Event::Stop) if stop_at.is_none() => {
                supervisor.turn_all_off();
                stop_at = Some(Instant::now() + STOP_WAIT);
            }
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break Ok(()),
        }
    };
    let drained = supervisor.are_drained(|_| true).unwrap_or(false);
    // Nobody is left to answer.
    let _ = std::fs::remove_file(control);
    drop(supervisor);
    if drained {
        tracing::info!("stopped; connections go on, acknowledged by their guests alone");
    } else {
        tracing::warn!(
            "stopped before guests had acknowledged everything that was acknowledged early; what is in their rings is theirs \
             to take, and can no longer be retransmitted"
        );
    }
    result
}

/// When copies are looked at: often while there are any, and never while there are none.
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
                // Until the copies have been looked at, and there were no more.
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

    /// They were looked at, and `more` says whether there are some still.
    fn went_on(&mut self, more: bool, now: Instant) {
        self.due = more.then(|| now + self.every);
        if !more {
            // The thread has ended if it could not wait.
            let _ = self.rested.try_send(());
        }
    }
}

/// Asks the process that serves taps, and waits for the answer no longer than `patience`.
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
    let mut stream = UnixStream::connect(control).map_err(nobody)?;
    let mut line = serde_json::to_string(question).map_err(garbled)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(nobody)?;
    stream.set_read_timeout(Some(patience)).map_err(nobody)?;
    let mut answer = String::new();
    let heard = BufReader::new(stream).read_line(&mut answer);
    heard.map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Late(patience),
        _ => nobody(e),
    })?;
    match serde_json::from_str(&answer).map_err(garbled)? {
        Answer::Error(why) => Err(AskError::Refused(why)),
        answer => Ok(answer),
    }
}

fn bind(addr: SocketAddr) -> Result<TcpListener, ServeError> {
    let listener = TcpListener::bind(addr).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| ServeError::Metrics { addr, source })
}

fn serve_metrics(listener: TcpListener, tell: SyncSender<Event>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let encode = move || match tell_and_wait(&tell, Question::Status, || false) {
        Some(Answer::Taps(taps)) => metrics::encode(taps),
        _ => Err(std::fmt::Error),
    };
    let served = runtime.and_then(|runtime| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            taut_exposition::serve(listener, encode).await;
            Ok(())
        })
    });
    if let Err(error) = served {
        tracing::error!(%error, "cannot serve metrics");
    }
}

/// A listener that only its owner may ask at. What a killed process has left is replaced.
fn listen(control: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Control {
        path: control.to_owned(),
        source,
    };
    if let Some(folder) = control.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    if UnixStream::connect(control).is_ok() {
        return Err(ServeError::Taken(control.to_owned()));
    }
    match std::fs::symlink_metadata(control) {
        Ok(found) if found.file_type().is_socket() => {
            std::fs::remove_file(control).map_err(failed)?;
        }
        Ok(_) => return Err(failed(io::ErrorKind::AlreadyExists.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    // Nobody else may ask, from the first moment.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = UnixListener::bind(control).map_err(failed);
    umask(before);
    listener
}

fn answer_all(listener: &UnixListener, tell: &SyncSender<Event>) {
    let askers = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Without descriptors it would fail again at once.
            std::thread::sleep(PAUSE);
            continue;
        };
        if askers.load(Ordering::Relaxed) >= ASKERS {
            continue;
        }
        askers.fetch_add(1, Ordering::Relaxed);
        let (tell, counted) = (tell.clone(), askers.clone());
        let asker = std::thread::Builder::new().name("snoop-asker".into());
        let started = asker.spawn(move || {
            if let Err(error) = answer_one(stream, &tell) {
                tracing::debug!(%error, "a question has no answer");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            askers.fetch_sub(1, Ordering::Relaxed);
        }
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
        Err(error) => Answer::Error(format!("that is no question: {error}")),
    };
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// `None`: who asked has `gone` before there was an answer.
fn tell_and_wait(
    tell: &SyncSender<Event>,
    question: Question,
    gone: impl Fn() -> bool,
) -> Option<Answer> {
    let (to, answered) = sync_channel(1);
    let here = Arc::new(());
    let waits = Arc::downgrade(&here);
    let ends = || Answer::Error("the process is about to end".into());
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

/// Whether the other end has closed.
fn is_gone(stream: &UnixStream) -> bool {
    // Both ways: who has sent its question may close its half.
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec::default();
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

fn answer(supervisor: &mut TapSupervisor, question: Question) -> Answer {
    let unknown = |tap: &str| Answer::Error(format!("no tap {tap} is served"));
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

/// A tap takes 26 descriptors, and two more with clsact.
fn more_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, "cannot raise the limit of descriptors; {:?} are enough for few taps", limit.current);
    }
}

/// The clock of the programs.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

#[cfg(test)]
mod tests;
