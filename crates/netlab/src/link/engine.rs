//! The thread that carries a link: it reads frames from each TAP, passes them through the model, and
//! writes them to the other TAP.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use taut_sys::schedule;
use taut_sys::tap::Tap;

use super::counters::{PathCounters, Scheduling};
use super::frame::{self, Frame};
use super::path::{Moment, Path};
use super::shape::LinkSpec;

/// Frames read from one TAP, or trains written to it, before it is the other's turn.
const BURST: usize = 32;

/// The least interval between two snapshots of the counters while the link is busy.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(10);

/// A link's thread. Dropping it stops the thread and closes the TAPs, which removes them.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Wakes the thread to read its commands.
    wake: OwnedFd,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    snapshot: Arc<Mutex<Snapshot>>,
}

/// A command to a link's thread.
#[derive(Debug)]
enum Command {
    Stop,
    /// Draw losses from this seed from now on, then answer.
    Reseed(u64, SyncSender<()>),
    /// Cut these directions of the link or restore them, then answer.
    Cut([bool; 2], bool, SyncSender<()>),
}

/// The counters that other threads read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Snapshot {
    pub(crate) paths: [PathCounters; 2],
    /// Malformed frames from end 0 and end 1.
    pub(crate) malformed: [u64; 2],
    /// Trains from end 0 and end 1 that the other end's kernel rejected.
    pub(crate) refused: [u64; 2],
    pub(crate) scheduling: Scheduling,
    pub(crate) cpu: Duration,
}

// === impl Engine ===

impl Engine {
    /// Starts a thread that carries frames between the two TAPs.
    ///
    /// # Errors
    /// If a descriptor or the thread cannot be created.
    pub(crate) fn start(name: &str, taps: [Tap; 2], spec: &LinkSpec) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let fds = [taps[0].as_fd(), taps[1].as_fd(), wake.as_fd()];
        for (token, fd) in fds.into_iter().enumerate() {
            epoll::add(&poll, fd, EventData::new_u64(token as u64), EventFlags::IN)?;
        }
        let snapshot = Arc::new(Mutex::new(Snapshot::default()));
        let (commands, received) = mpsc::channel();
        let mut carrier = Carrier {
            taps,
            paths: [
                Path::new(spec.a_to_b, spec.mtu, spec.seed, 0),
                Path::new(spec.b_to_a, spec.mtu, spec.seed, 1),
            ],
            poll,
            wake: wake.try_clone()?,
            commands: received,
            began: Instant::now(),
            buffer: vec![0; Tap::MAX_READ],
            counts: Snapshot::default(),
            snapshot_at: Moment::default(),
            snapshot: Arc::clone(&snapshot),
        };
        let body = move || {
            carrier.counts.scheduling = raise_priority();
            carrier.run();
        };
        // A thread's name has 15 bytes.
        let name: String = format!("link {name}").chars().take(15).collect();
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        Ok(Self {
            wake,
            commands,
            thread: Some(thread),
            snapshot,
        })
    }

    /// Draws losses from another seed from now on. Returns when the thread does so.
    pub(crate) fn reseed(&self, seed: u64) {
        let (done, answer) = mpsc::sync_channel(1);
        self.command(Command::Reseed(seed, done));
        // An error means that the thread has ended, which shows: the link carries nothing any more.
        let _ = answer.recv();
    }

    /// Cuts the given directions of the link or restores them: from the first end to the second, and
    /// back. Returns when the thread has done so.
    pub(crate) fn cut(&self, directions: [bool; 2], is_cut: bool) {
        let (done, answer) = mpsc::sync_channel(1);
        self.command(Command::Cut(directions, is_cut, done));
        let _ = answer.recv();
    }

    fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        // Adding 1 to an eventfd fails only at 2^64 - 2.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already, and its lost frames show in the measurement.
            let _ = thread.join();
        }
    }
}

/// Raises the calling thread's priority as far as the kernel permits, and returns the result.
///
/// The link's thread runs for a few microseconds at a time and must do so on time. At nice -15, other
/// work on the machine makes it milliseconds late; SCHED_FIFO puts it ahead of ordinary threads (figures
/// in docs/design/lab-links.md). It cannot starve the hosts: all real-time threads together get 95 % of
/// a core (`sched_rt_runtime_us`).
fn raise_priority() -> Scheduling {
    // By default, waits end up to 50 us late: just within what the link promises.
    let _ = schedule::minimize_timer_slack();
    if schedule::set_fifo_priority(1).is_ok() {
        Scheduling::RealTime
    } else if schedule::set_niceness(-15).is_ok() {
        Scheduling::Nice
    } else {
        Scheduling::Ordinary
    }
}

/// The state of a link's thread.
struct Carrier {
    taps: [Tap; 2],
    /// `paths[i]` leads from `taps[i]` to the other.
    paths: [Path<Vec<u8>>; 2],
    poll: OwnedFd,
    wake: OwnedFd,
    commands: Receiver<Command>,
    began: Instant,
    buffer: Vec<u8>,
    counts: Snapshot,
    snapshot_at: Moment,
    snapshot: Arc<Mutex<Snapshot>>,
}

/// The epoll token of `wake`; those of the TAPs are 0 and 1.
const WAKE: u64 = 2;

// === impl Carrier ===

impl Carrier {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(4);
        loop {
            self.deliver(0);
            self.deliver(1);
            let wait = self.time_to_wait();
            self.update_snapshot(wait.is_none_or(|wait| wait > SNAPSHOT_INTERVAL));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, spare, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return tracing::error!("a link stops carrying traffic: epoll_wait: {e}"),
            }
            for event in &events {
                let from = match event.data.u64() {
                    WAKE if self.handle_commands() => return self.update_snapshot(true),
                    WAKE => continue,
                    token => usize::from(token == 1),
                };
                if let Err(e) = self.receive(from) {
                    // The device has been removed; waiting for it would only spin.
                    tracing::error!("a link stops carrying traffic: its TAP is gone: {e}");
                    return self.update_snapshot(true);
                }
            }
        }
    }

    /// Executes the commands that have come; returns `true` if one of them is to stop.
    fn handle_commands(&mut self) -> bool {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return true,
                Command::Reseed(seed, done) => {
                    for (stream, path) in self.paths.iter_mut().enumerate() {
                        path.reseed(seed, stream as u64);
                    }
                    let _ = done.send(());
                }
                Command::Cut(directions, is_cut, done) => {
                    let paths = self.paths.iter_mut().zip(directions);
                    for (path, _) in paths.filter(|(_, chosen)| *chosen) {
                        path.cut(is_cut);
                    }
                    let _ = done.send(());
                }
            }
        }
        false
    }

    fn now(&self) -> Moment {
        Moment::after(self.began.elapsed())
    }

    /// Returns the time until the next delivery; `None` if no segment is in flight.
    fn time_to_wait(&self) -> Option<Duration> {
        let due = self.paths.iter().filter_map(Path::next_due).min()?;
        Some(due.since(self.now()))
    }

    /// Delivers the trains from end `from` that are due.
    fn deliver(&mut self, from: usize) {
        for _ in 0..BURST {
            let now = self.now();
            let Some(mut train) = self.paths[from].poll_delivery(now) else {
                return;
            };
            if train.is_marked {
                frame::mark(&mut train.payload);
            }
            if self.taps[1 - from].write(&train.payload).is_err() {
                self.counts.refused[from] += 1;
            }
        }
    }

    /// Reads what end `from` has sent.
    fn receive(&mut self, from: usize) -> io::Result<()> {
        for _ in 0..BURST {
            let len = match self.taps[from].read(&mut self.buffer) {
                Ok(len) => len,
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(()),
                    _ => return Err(e),
                },
            };
            let now = self.now();
            match Frame::parse(&self.buffer[..len]) {
                Ok(frame) => {
                    self.paths[from].handle_frame(now, frame.segments(), |run| frame.cut(run));
                }
                Err(why) => {
                    self.counts.malformed[from] += 1;
                    tracing::debug!("a link dropped a frame: {why}");
                }
            }
        }
        Ok(())
    }

    /// Updates the snapshot: before each longer wait (`idle`), and at intervals while busy.
    fn update_snapshot(&mut self, idle: bool) {
        let now = self.now();
        if !idle && now.since(self.snapshot_at) < SNAPSHOT_INTERVAL {
            return;
        }
        self.snapshot_at = now;
        self.counts.paths = [*self.paths[0].counters(), *self.paths[1].counters()];
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        self.counts.cpu = Duration::try_from(cpu).unwrap_or_default();
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = self.counts;
    }
}
