//! The hypervisor's scheduler: a thread that lets one of those who share a core run at a time.
//!
//! It stops and continues processes (SIGSTOP, SIGCONT) as [`Slices`] says. A guest is stopped by its
//! kernel's process alone; see [`super::guest::burner`] for what the processes that it traces do then.

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

/// Ends of slices whose lateness is kept: more than an hour's.
const KEPT: usize = 1 << 18;

/// Those who share a core. Who is not there has its turn all the same, and nobody runs then.
pub(in crate::experiment) struct Sharers {
    pub(in crate::experiment) driver: Option<Arc<Child>>,
    pub(in crate::experiment) guests: Vec<Option<Arc<Child>>>,
}

/// How well slices were kept.
#[derive(Clone, Debug, Default)]
pub(in crate::experiment) struct Kept {
    /// Of each slice, by how much it was longer or shorter than planned, in seconds.
    pub(in crate::experiment) off: Vec<f64>,
    /// Of each slice's end, how late the signals had been sent, in seconds.
    pub(in crate::experiment) late: Vec<f64>,
    pub(in crate::experiment) scheduling: Scheduling,
}

enum Call {
    /// Share the core by these slices from now on.
    Close(Slices, SyncSender<()>),
    /// Everybody runs.
    Open(SyncSender<()>),
    /// Everybody is stopped.
    Halt(SyncSender<()>),
    End,
}

/// The thread. Dropped, it ends, and everybody runs.
pub(in crate::experiment) struct Gate {
    calls: Sender<Call>,
    thread: Option<JoinHandle<Kept>>,
}

// === impl Gate ===

impl Gate {
    /// Starts the thread; everybody runs until the gate is closed.
    pub(in crate::experiment) fn start(sharers: Sharers) -> io::Result<Self> {
        let (calls, called) = mpsc::channel();
        let body = move || {
            let scheduling = raise();
            let mut keeper = Keeper {
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

    /// From now on the core is shared.
    pub(in crate::experiment) fn close(&self, slices: Slices) {
        self.ask(|done| Call::Close(slices, done));
    }

    /// From now on everybody runs.
    pub(in crate::experiment) fn open(&self) {
        self.ask(Call::Open);
    }

    /// From now on nobody runs.
    pub(in crate::experiment) fn halt(&self) {
        self.ask(Call::Halt);
    }

    fn ask(&self, call: impl FnOnce(SyncSender<()>) -> Call) {
        let (done, answer) = mpsc::sync_channel(1);
        // The thread ends only when it is told to.
        let _ = self.calls.send(call(done));
        let _ = answer.recv();
    }

    /// Ends it and tells how well it kept the slices.
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

/// Before the links' threads, which may run for longer at a time.
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

struct Keeper {
    sharers: Sharers,
    called: Receiver<Call>,
    kept: Kept,
}

// === impl Keeper ===

impl Keeper {
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

    /// Shares the core until it is called to do something else.
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
            // The machine stood still: what was missed is not made up for by slices of no length.
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
            // One that has ended is found out by whoever waits for its bytes.
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
