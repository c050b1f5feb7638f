//! A thread that takes CPU time from a guest, as the hypervisor's other guests do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::thread::{CpuSet, sched_setaffinity};
use taut_sys::schedule;

/// The largest error of a slice's length, as a share of the length and in either direction, as in
/// [`super::slices`].
const JITTER: f64 = 0.05;
/// A slice that begins this much later than planned is late: a thirtieth of a slice.
const LATE: Duration = Duration::from_millis(1);
/// The thread's priority. It is higher than that of the links' and the gates' threads, which run on
/// other cores.
const PRIORITY: i32 = 3;

/// How much of a core's time the guest gets, and in which slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::experiment) struct Share {
    /// The length of a slice in which the core is taken.
    pub(in crate::experiment) off: Duration,
    /// The length of the slice after it, in which the guest has the core.
    pub(in crate::experiment) on: Duration,
}

/// How accurately slices were kept.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::experiment) struct Taken {
    pub(in crate::experiment) slices: u64,
    /// The number of slices that began later than planned by more than [`LATE`].
    pub(in crate::experiment) late: u64,
}

/// A thread that takes a core in slices. Dropping it ends the thread.
pub(in crate::experiment) struct Hog {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Taken>>>,
}

// === impl Share ===

impl Share {
    /// Returns the slices that leave this share of the core, taking the core for `off` at a time;
    /// `None` if the share is the whole core.
    pub(in crate::experiment) fn of(share: f64, off: Duration) -> Option<Self> {
        (share < 1.0).then(|| Self {
            off,
            on: off.mul_f64(share / (1.0 - share)),
        })
    }
}

// === impl Hog ===

impl Hog {
    pub(in crate::experiment) fn start(core: usize, share: Share, seed: u64) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name("hog".to_owned())
            .spawn(move || take(core, share, seed, &told))?;
        Ok(Self {
            ends,
            thread: Some(thread),
        })
    }

    /// Ends the thread and returns how accurately it kept its slices.
    pub(in crate::experiment) fn end(mut self) -> io::Result<Taken> {
        self.stop()
    }

    fn stop(&mut self) -> io::Result<Taken> {
        self.ends.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(Taken::default());
        };
        let taken = thread.join();
        taken.unwrap_or_else(|_| Err(io::Error::other("the thread that takes the core panicked")))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn take(core: usize, share: Share, seed: u64, ends: &AtomicBool) -> io::Result<Taken> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)?;
    schedule::minimize_timer_slack()?;
    schedule::set_fifo_priority(PRIORITY)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut drawn = |length: Duration| {
        let drawn = random.next_u64() as f64 / u64::MAX as f64;
        length.mul_f64(1.0 + JITTER * (2.0 * drawn - 1.0))
    };
    let mut taken = Taken::default();
    let mut due = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        let now = Instant::now();
        taken.slices += 1;
        taken.late += u64::from(now.saturating_duration_since(due) > LATE);
        let until = now + drawn(share.off);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        due = until + drawn(share.on);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_share() {
        let off = Duration::from_millis(30);
        assert_eq!(Share::of(1.0, off), None);
        let on = |share| Share::of(share, off).map(|share| share.on);
        assert_eq!(on(0.5), Some(off));
        assert_eq!(on(0.25), Some(Duration::from_millis(10)));
    }
}
