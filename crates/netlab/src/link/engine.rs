//! The thread that carries a link: frames from each TAP through the model into the other.

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
use super::frame::Frame;
use super::path::{Moment, Path};
use super::shape::LinkSpec;

/// Frames taken from one TAP, or trains delivered to one, before the other has its turn.
const BURST: usize = 32;

/// How often, at most, counters are shown to other threads while the link is busy.
const PUBLISH_EVERY: Duration = Duration::from_millis(10);

/// A running link. Dropping it stops the thread; its TAPs vanish with it.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Wakes the thread to look at what it was sent.
    call: OwnedFd,
    calls: Sender<Call>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Mutex<Published>>,
}

/// What a link's thread can be asked to do.
#[derive(Debug)]
enum Call {
    Stop,
    /// Losses come from here on from this seed; answered when it has been done.
    Reseed(u64, SyncSender<()>),
    /// From here on nothing gets through, or everything does again; answered when it is so.
    Cut(bool, SyncSender<()>),
}

/// What other threads may see.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Published {
    pub(crate) paths: [PathCounters; 2],
    /// Frames from end 0 and end 1 that could not be carried.
    pub(crate) malformed: [u64; 2],
    /// Trains from end 0 and end 1 that the other end's kernel refused.
    pub(crate) refused: [u64; 2],
    pub(crate) scheduling: Scheduling,
    pub(crate) cpu: Duration,
}

// === impl Engine ===

impl Engine {
    /// Starts carrying frames between the two TAPs.
    ///
    /// # Errors
    /// When the kernel gives no descriptor or thread.
    pub(crate) fn start(name: &str, taps: [Tap; 2], spec: &LinkSpec) -> io::Result<Self> {
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let fds = [taps[0].as_fd(), taps[1].as_fd(), call.as_fd()];
        for (token, fd) in fds.into_iter().enumerate() {
            epoll::add(&poll, fd, EventData::new_u64(token as u64), EventFlags::IN)?;
        }
        let shared = Arc::new(Mutex::new(Published::default()));
        let (calls, called) = mpsc::channel();
        let mut carrier = Carrier {
            taps,
            paths: [
                Path::new(spec.a_to_b, spec.seed, 0),
                Path::new(spec.b_to_a, spec.seed, 1),
            ],
            poll,
            call: call.try_clone()?,
            called,
            began: Instant::now(),
            buffer: vec![0; Tap::MAX_READ],
            seen: Published::default(),
            published_at: Moment::default(),
            shared: Arc::clone(&shared),
        };
        let body = move || {
            carrier.seen.scheduling = raise();
            carrier.run();
        };
        // A thread's name has 15 bytes.
        let name: String = format!("link {name}").chars().take(15).collect();
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        Ok(Self {
            call,
            calls,
            thread: Some(thread),
            shared,
        })
    }

    /// Draws losses from another seed from now on.
    pub(crate) fn reseed(&self, seed: u64) {
        let (done, answer) = mpsc::sync_channel(1);
        self.ask(Call::Reseed(seed, done));
        // No answer: the thread is gone, which shows in what it no longer carries.
        let _ = answer.recv();
    }

    /// Cuts the link in both directions, or mends it.
    pub(crate) fn cut(&self, is_cut: bool) {
        let (done, answer) = mpsc::sync_channel(1);
        self.ask(Call::Cut(is_cut, done));
        let _ = answer.recv();
    }

    fn ask(&self, call: Call) {
        let _ = self.calls.send(call);
        // An eventfd takes a one unless it holds 2^64 - 2 of them.
        let _ = rustix::io::write(&self.call, &1_u64.to_ne_bytes());
    }

    pub(crate) fn published(&self) -> Published {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ask(Call::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the frames it lost show as a broken measurement.
            let _ = thread.join();
        }
    }
}

/// The link's thread runs for a few microseconds at a time and must do so on time. Where the kernel
/// lets it, it goes before ordinary threads: with a raised share alone, other work on the machine makes
/// it milliseconds late (docs/design/lab-links.md has the figures). It cannot starve the
/// hosts: real-time threads together get 95 % of a core (`sched_rt_runtime_us`).
fn raise() -> Scheduling {
    // Without it waits end up to 50 us late: within what the link promises, if only just.
    let _ = schedule::minimize_timer_slack();
    if schedule::set_fifo_priority(1).is_ok() {
        Scheduling::RealTime
    } else if schedule::set_niceness(-15).is_ok() {
        Scheduling::Nice
    } else {
        Scheduling::Ordinary
    }
}

struct Carrier {
    taps: [Tap; 2],
    /// `paths[i]` leads from `taps[i]` to the other.
    paths: [Path<Vec<u8>>; 2],
    poll: OwnedFd,
    call: OwnedFd,
    called: Receiver<Call>,
    began: Instant,
    buffer: Vec<u8>,
    seen: Published,
    published_at: Moment,
    shared: Arc<Mutex<Published>>,
}

const CALL: u64 = 2;

// === impl Carrier ===

impl Carrier {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(4);
        loop {
            self.deliver(0);
            self.deliver(1);
            let wait = self.time_to_wait();
            self.publish(wait.is_none_or(|wait| wait > PUBLISH_EVERY));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, spare, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Nothing that a link could do about it, and nothing it would carry after it.
                Err(e) => return tracing::error!("a link's thread cannot wait: {e}"),
            }
            for event in &events {
                let from = match event.data.u64() {
                    CALL if self.stopped_by_calls() => return self.publish(true),
                    CALL => continue,
                    token => usize::from(token == 1),
                };
                if let Err(e) = self.take(from) {
                    // The device was taken away; waiting on it further would only spin.
                    tracing::error!("a link ends, its TAP is gone: {e}");
                    return self.publish(true);
                }
            }
        }
    }

    /// Does what it was asked; `true` when that is to stop.
    fn stopped_by_calls(&mut self) -> bool {
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        while let Ok(call) = self.called.try_recv() {
            match call {
                Call::Stop => return true,
                Call::Reseed(seed, done) => {
                    for (stream, path) in self.paths.iter_mut().enumerate() {
                        path.reseed(seed, stream as u64);
                    }
                    let _ = done.send(());
                }
                Call::Cut(is_cut, done) => {
                    for path in &mut self.paths {
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

    fn time_to_wait(&self) -> Option<Duration> {
        let due = self.paths.iter().filter_map(Path::next_due).min()?;
        Some(due.since(self.now()))
    }

    /// Hands over what has come due from end `from`.
    fn deliver(&mut self, from: usize) {
        for _ in 0..BURST {
            let now = self.now();
            let Some(train) = self.paths[from].poll_delivery(now) else {
                return;
            };
            if self.taps[1 - from].write(&train).is_err() {
                self.seen.refused[from] += 1;
            }
        }
    }

    /// Takes in what end `from` has sent.
    fn take(&mut self, from: usize) -> io::Result<()> {
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
                    self.seen.malformed[from] += 1;
                    tracing::debug!("a link dropped a frame: {why}");
                }
            }
        }
        Ok(())
    }

    /// Shows the counters, before each longer wait and every so often in between.
    fn publish(&mut self, idle: bool) {
        let now = self.now();
        if !idle && now.since(self.published_at) < PUBLISH_EVERY {
            return;
        }
        self.published_at = now;
        self.seen.paths = [*self.paths[0].counters(), *self.paths[1].counters()];
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        self.seen.cpu = Duration::try_from(cpu).unwrap_or_default();
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = self.seen;
    }
}
