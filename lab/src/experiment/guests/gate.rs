//! The hypervisor's scheduler: a thread that lets one member of a shared core run at a time.
//!
//! It stops and continues processes (SIGSTOP, SIGCONT) as [`Slices`] says. To stop a guest, it
//! stops the guest's kernel process only; see [`super::guest::burner`] for the processes that the
//! kernel traces.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_sys::child::Child;
use taut_sys::schedule;

use super::slices::{Slices, Turn};
use taut_netlab::link::counters::Scheduling;

/// The number of slice ends whose lateness is kept: more than an hour's.
const KEPT: usize = 1 << 18;

/// The members of a shared core. An absent member keeps its turn, in which no process runs.
pub(in crate::experiment) struct Sharers {
    pub(in crate::experiment) driver: Option<Arc<Child>>,
    pub(in crate::experiment) guests: Vec<Option<Arc<Child>>>,
}

/// How accurately slices were kept.
#[derive(Clone, Debug, Default)]
pub(in crate::experiment) struct Kept {
    /// The error of each slice's length, in seconds.
    pub(in crate::experiment) off: Vec<f64>,
    /// The lateness of the signals at each slice's end, in seconds.
    pub(in crate::experiment) late: Vec<f64>,
    pub(in crate::experiment) scheduling: Scheduling,
}

enum Call {
    /// Share the core by these slices from now on.
    Close(Slices, SyncSender<()>),
    /// Let every guest run.
    Open(SyncSender<()>),
    /// Stop every guest.
    Halt(SyncSender<()>),
    End,
}

/// The gate's thread. Dropping it ends the thread and lets every guest run.
pub(in crate::experiment) struct Gate {
    calls: Sender<Call>,
    thread: Option<JoinHandle<Kept>>,
}

// === impl Gate ===

impl Gate {
    /// Starts the thread. All members run until the gate is closed.
    pub(in crate::experiment) fn start(sharers: Sharers) -> io::Result<Self> {
        let (calls, called) = mpsc::channel();
        let body = move || {
            let scheduling = raise();
            let mut keeper = Scheduler {
                sharers,
                called,
                kept: Kept {
                    scheduling,
                    ..Kept::default()
                },
            };
            keeper.run();
            keeper.all(Signal::CONT);
            keeper.kept
        };
        let thread = std::thread::Builder::new()
            .name("gate".to_owned())
            .spawn(body)?;
        Ok(Self {
            calls,
            thread: Some(thread),
        })
    }

    /// Shares the core from now on, in these slices.
    pub(in crate::experiment) fn close(&self, slices: Slices) {
        self.ask(|done| Call::Close(slices, done));
    }

    /// Lets all members run from now on.
    pub(in crate::experiment) fn open(&self) {
        self.ask(Call::Open);
    }

    /// Stops all members from now on.
    pub(in crate::experiment) fn halt(&self) {
        self.ask(Call::Halt);
    }

    fn ask(&self, call: impl FnOnce(SyncSender<()>) -> Call) {
        let (done, answer) = mpsc::sync_channel(1);
        // The thread ends only on request.
        let _ = self.calls.send(call(done));
        let _ = answer.recv();
    }

    /// Ends the thread and returns how accurately it kept the slices.
    pub(in crate::experiment) fn end(mut self) -> Kept {
        self.stop()
    }

    fn stop(&mut self) -> Kept {
        let _ = self.calls.send(Call::End);
        let thread = self.thread.take();
        thread
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// Raises the priority of the calling thread above that of the links' threads, which may run for
/// longer at a time.
fn raise() -> Scheduling {
    let _ = schedule::minimize_timer_slack();
    if schedule::set_fifo_priority(2).is_ok() {
        Scheduling::RealTime
    } else if schedule::set_niceness(-20).is_ok() {
        Scheduling::Nice
    } else {
        Scheduling::Ordinary
    }
}

struct Scheduler {
    sharers: Sharers,
    called: Receiver<Call>,
    kept: Kept,
}

// === impl Scheduler ===

impl Scheduler {
    fn run(&mut self) {
        let mut call = self.called.recv();
        loop {
            call = match call {
                Ok(Call::Close(slices, done)) => self.share(slices, &done),
                Ok(Call::Open(done)) => {
                    self.all(Signal::CONT);
                    let _ = done.send(());
                    self.called.recv()
                }
                Ok(Call::Halt(done)) => {
                    self.all(Signal::STOP);
                    let _ = done.send(());
                    self.called.recv()
                }
                Ok(Call::End) | Err(_) => return,
            };
        }
    }

    /// Shares the core until the next command.
    fn share(
        &mut self,
        mut slices: Slices,
        closed: &SyncSender<()>,
    ) -> Result<Call, mpsc::RecvError> {
        self.all(Signal::STOP);
        if !slices.has_driver() {
            self.signal(Turn::Driver, Signal::CONT);
        }
        let mut slice = slices.take();
        let mut due = Instant::now();
        let mut began = due;
        self.signal(slice.turn, Signal::CONT);
        let _ = closed.send(());
        loop {
            due += slice.length;
            let left = due.saturating_duration_since(Instant::now());
            match self.called.recv_timeout(left) {
                Ok(call) => return Ok(call),
                Err(RecvTimeoutError::Disconnected) => return Err(mpsc::RecvError),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let next = slices.take();
            self.signal(slice.turn, Signal::STOP);
            self.signal(next.turn, Signal::CONT);
            let now = Instant::now();
            if self.kept.off.len() < KEPT {
                let actual = now.duration_since(began).as_secs_f64();
                self.kept.off.push(actual - slice.length.as_secs_f64());
                let late = now.saturating_duration_since(due);
                self.kept.late.push(late.as_secs_f64());
            }
            (slice, began) = (next, now);
            // The whole machine was stopped. Slices of no length would not make up for the missed
            // ones.
            if now.saturating_duration_since(due) > Duration::from_millis(10) {
                due = now;
            }
        }
    }

    fn signal(&self, turn: Turn, signal: Signal) {
        let who = match turn {
            Turn::Driver => self.sharers.driver.as_ref(),
            Turn::Guest(guest) => self.sharers.guests.get(guest).and_then(Option::as_ref),
        };
        if let Some(who) = who {
            // If the process has ended, the experiment notices when it waits for the process's
            // bytes.
            let _ = who.signal(signal);
        }
    }

    fn all(&self, signal: Signal) {
        self.signal(Turn::Driver, signal);
        for guest in 0..self.sharers.guests.len() {
            self.signal(Turn::Guest(guest), signal);
        }
    }
}
