//! How much of the time this machine was kept from its CPUs, as one who sleeps sees it: where no hypervisor tells
//! (`steal` of /proc/stat is zero in many guests), sleeps that end late do.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use taut_sys::schedule;

/// A sleep.
const NAP: Duration = Duration::from_millis(5);
/// One that is longer by this ended late.
const LATE: Duration = Duration::from_millis(5);
/// A machine that shares its CPUs is away for less; who was stopped, or suspended, is not.
const LONGEST: Duration = Duration::from_secs(1);
/// Again and again: so many sleeps at least that ended late.
const AGAIN: u32 = 10;

/// Sleeps again and again until it is dropped, 200 times a second.
#[derive(Debug)]
pub(crate) struct Away {
    shared: Arc<Shared>,
    sleeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    slept: Mutex<Slept>,
}

/// What sleeps came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slept {
    all: Duration,
    late: Duration,
    late_times: u32,
}

/// How long a thread has waited for a CPU of this machine that others had. That is no time for which the machine did
/// not run.
struct Waited {
    schedstat: Option<File>,
    last: Duration,
}

// === impl Away ===

impl Away {
    /// Begins. Nothing where no thread is to be had.
    pub(crate) fn measure() -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let sleeper = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().spawn(move || shared.sleep())
        };
        Some(Self {
            shared,
            sleeper: Some(sleeper.ok()?),
        })
    }

    /// The share of the time until now.
    pub(crate) fn share(&self) -> f64 {
        self.shared.slept().share()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(sleeper) = self.sleeper.take() {
            // It cannot panic.
            let _ = sleeper.join();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn sleep(&self) {
        // Who goes first waits for nobody; in a guest that is busy another's wait would be the machine's absence, too.
        let goes_first = schedule::set_fifo_priority(1).is_ok();
        let mut waited = (!goes_first).then(Waited::of_this_thread);
        while !self.ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(NAP);
            let time = began.elapsed();
            let waited = waited.as_mut().map_or(Duration::ZERO, Waited::more);
            let mut slept = self.slept.lock().unwrap_or_else(PoisonError::into_inner);
            slept.add(time.saturating_sub(waited));
        }
    }

    fn slept(&self) -> Slept {
        *self.slept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Slept ===

impl Slept {
    fn add(&mut self, time: Duration) {
        if time > LONGEST {
            return;
        }
        self.all += time;
        let late = time.saturating_sub(NAP);
        if late > LATE {
            self.late += late;
            self.late_times += 1;
        }
    }

    fn share(&self) -> f64 {
        match self.late_times {
            AGAIN.. => self.late.as_secs_f64() / self.all.as_secs_f64(),
            _ => 0.0,
        }
    }
}

// === impl Waited ===

impl Waited {
    /// Knows nothing where the kernel does not tell (CONFIG_SCHED_INFO).
    fn of_this_thread() -> Self {
        let mut waited = Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            last: Duration::ZERO,
        };
        waited.more();
        waited
    }

    /// Since the last time.
    fn more(&mut self) -> Duration {
        let mut room = [0; 96];
        let read = self
            .schedstat
            .as_ref()
            .and_then(|file| file.read_at(&mut room, 0).ok());
        let text = read.and_then(|read| std::str::from_utf8(room.get(..read)?).ok());
        let Some(now) = text.and_then(parse) else {
            return Duration::ZERO;
        };
        let more = now.saturating_sub(self.last);
        self.last = now;
        more
    }
}

/// Time on a CPU, time in wait for one, and turns.
fn parse(schedstat: &str) -> Option<Duration> {
    let waited = schedstat.split_ascii_whitespace().nth(1)?;
    waited.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slept(naps: &[u64]) -> Slept {
        let mut slept = Slept::default();
        for millis in naps {
            slept.add(Duration::from_millis(*millis));
        }
        slept
    }

    #[test]
    fn what_is_late_again_and_again_was_away() {
        assert_eq!(slept(&[5; 100]).share(), 0.0);
        assert_eq!(slept(&[10; 100]).share(), 0.0);
        // 30 of 35.
        assert!((slept(&[35; 10]).share() - 30.0 / 35.0).abs() < 1e-12);
        assert_eq!(slept(&[35; 9]).share(), 0.0);
    }

    #[test]
    fn who_was_stopped_was_not_away() {
        let mut naps = vec![35; 10];
        naps.push(60_000);
        assert_eq!(slept(&naps), slept(&[35; 10]));
    }

    #[test]
    fn time_in_wait_for_a_cpu_is_the_second_figure() {
        assert_eq!(parse("12 345 6\n"), Some(Duration::from_nanos(345)));
        assert_eq!(parse("12"), None);
    }

    #[test]
    fn its_thread_ends_with_it() {
        let away = Away::measure().unwrap();
        let shared = Arc::downgrade(&away.shared);
        drop(away);
        assert!(shared.upgrade().is_none());
    }
}
