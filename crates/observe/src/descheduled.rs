//! Measures for how much of the time this machine was descheduled, by how late its sleeping threads
//! wake. This is the only sign of it where the hypervisor does not report steal time (`steal` in
//! /proc/stat is zero in many guests).

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use taut_sys::schedule;

/// The length of one sleep.
const NAP: Duration = Duration::from_millis(5);
/// A sleep that ends more than this after its time counts as late.
const LATE: Duration = Duration::from_millis(5);
/// The maximum length of a sleep that counts. In a longer one the machine was stopped or suspended,
/// not descheduled by a neighbour.
const LONGEST: Duration = Duration::from_secs(1);
/// The minimum number of late sleeps for a nonzero share: a few are chance.
const AGAIN: u32 = 10;
/// The minimum number of late sleeps for a share of more than half of the time, which is no chance.
const AGAIN_IF_MOST: u32 = 3;

/// A thread that sleeps 200 times a second and measures how late it wakes. Dropping the meter ends
/// the thread.
#[derive(Debug)]
pub(crate) struct DescheduledMeter {
    shared: Arc<Shared>,
    sleeper: Option<JoinHandle<()>>,
    /// The sums at the last scans, as many as the measured time covers.
    sums: VecDeque<Sleeps>,
    scans: usize,
}

#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    sleeps: Mutex<Sleeps>,
}

/// Sums over all sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sleeps {
    total: Duration,
    late: Duration,
    late_count: u32,
}

/// Measures how long a thread waited for a CPU while other tasks of this machine ran. The machine
/// was not descheduled in that time.
struct RunQueueWait {
    schedstat: Option<File>,
    last: Duration,
}

// === impl DescheduledMeter ===

impl DescheduledMeter {
    /// Starts to measure the time of the last `scans` scans. Returns `None` if no thread can be
    /// started.
    pub(crate) fn start(scans: usize) -> Option<Self> {
        let shared = Arc::new(Shared::default());
        let sleeper = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().spawn(move || shared.sleep())
        };
        Some(Self {
            shared,
            sleeper: Some(sleeper.ok()?),
            sums: VecDeque::new(),
            scans: scans.max(2),
        })
    }

    /// Begins a scan. Returns the share of the measured time for which the machine was descheduled.
    pub(crate) fn scan(&mut self) -> f64 {
        let now = self.shared.sleeps();
        if self.sums.len() >= self.scans {
            self.sums.pop_front();
        }
        self.sums.push_back(now);
        let first = self.sums.front().copied().unwrap_or(now);
        now.since(first).share()
    }
}

impl Drop for DescheduledMeter {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(sleeper) = self.sleeper.take() {
            // The thread cannot panic.
            let _ = sleeper.join();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn sleep(&self) {
        // A real-time thread does not wait for ordinary threads. In a busy guest the run-queue wait
        // of an ordinary thread would count as a gap.
        let is_real_time = schedule::set_fifo_priority(1).is_ok();
        let mut run_queue = (!is_real_time).then(RunQueueWait::of_this_thread);
        while !self.ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(NAP);
            let time = began.elapsed();
            let waited = run_queue
                .as_mut()
                .map_or(Duration::ZERO, RunQueueWait::since_last);
            let mut sleeps = self.sleeps.lock().unwrap_or_else(PoisonError::into_inner);
            sleeps.add(time.saturating_sub(waited));
        }
    }

    fn sleeps(&self) -> Sleeps {
        *self.sleeps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Sleeps ===

impl Sleeps {
    fn add(&mut self, time: Duration) {
        if time > LONGEST {
            return;
        }
        self.total += time;
        let late = time.saturating_sub(NAP);
        if late > LATE {
            self.late += late;
            self.late_count += 1;
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            late: self.late.saturating_sub(earlier.late),
            late_count: self.late_count.saturating_sub(earlier.late_count),
        }
    }

    fn share(&self) -> f64 {
        let is_most = self.late * 2 > self.total;
        match self.late_count {
            AGAIN.. => {}
            AGAIN_IF_MOST.. if is_most => {}
            _ => return 0.0,
        }
        self.late.as_secs_f64() / self.total.as_secs_f64()
    }
}

// === impl RunQueueWait ===

impl RunQueueWait {
    /// Returns a meter for the calling thread. It measures zero if the kernel does not report waits
    /// (without CONFIG_SCHED_INFO).
    fn of_this_thread() -> Self {
        let mut wait = Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            last: Duration::ZERO,
        };
        wait.since_last();
        wait
    }

    /// Returns the time spent waiting since the last call.
    fn since_last(&mut self) -> Duration {
        let mut room = [0; 96];
        let read = self
            .schedstat
            .as_ref()
            .and_then(|file| file.read_at(&mut room, 0).ok());
        let text = read.and_then(|read| std::str::from_utf8(room.get(..read)?).ok());
        let Some(now) = text.and_then(parse) else {
            return Duration::ZERO;
        };
        let since = now.saturating_sub(self.last);
        self.last = now;
        since
    }
}

/// Parses the second figure of schedstat: the time spent waiting on a run queue.
fn parse(schedstat: &str) -> Option<Duration> {
    let waited = schedstat.split_ascii_whitespace().nth(1)?;
    waited.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeps(millis: &[u64]) -> Sleeps {
        let mut sleeps = Sleeps::default();
        for millis in millis {
            sleeps.add(Duration::from_millis(*millis));
        }
        sleeps
    }

    #[test]
    fn repeated_late_sleeps_are_descheduled_time() {
        assert_eq!(sleeps(&[5; 100]).share(), 0.0);
        assert_eq!(sleeps(&[10; 100]).share(), 0.0);
        // Each sleep of 35 ms is 30 ms late.
        assert!((sleeps(&[35; 10]).share() - 30.0 / 35.0).abs() < 1e-12);
        assert!(sleeps(&[35; 3]).share() > 0.8);
        assert_eq!(sleeps(&[35; 2]).share(), 0.0);
        let mut few = vec![5; 60];
        few.extend([35; 9]);
        assert_eq!(sleeps(&few).share(), 0.0);
    }

    #[test]
    fn a_stop_is_not_descheduled_time() {
        let mut naps = vec![35; 10];
        naps.push(60_000);
        assert_eq!(sleeps(&naps), sleeps(&[35; 10]));
    }

    #[test]
    fn time_on_the_run_queue_is_the_second_figure() {
        assert_eq!(parse("12 345 6\n"), Some(Duration::from_nanos(345)));
        assert_eq!(parse("12"), None);
    }

    #[test]
    fn only_the_sleeps_of_the_last_scans_count() {
        let mut meter = DescheduledMeter::start(3).unwrap();
        let mut scan = |millis: &[u64]| {
            let mut all = meter.shared.sleeps.lock().unwrap();
            millis
                .iter()
                .for_each(|millis| all.add(Duration::from_millis(*millis)));
            drop(all);
            meter.scan()
        };
        // The thread adds sleeps of its own, which dilute the share.
        scan(&[]);
        assert!(scan(&[905; 100]) > 0.9);
        assert!(scan(&[]) > 0.9);
        assert!(scan(&[]) < 0.5);
    }

    #[test]
    fn dropping_the_meter_ends_its_thread() {
        let meter = DescheduledMeter::start(6).unwrap();
        let shared = Arc::downgrade(&meter.shared);
        drop(meter);
        assert!(shared.upgrade().is_none());
    }
}
