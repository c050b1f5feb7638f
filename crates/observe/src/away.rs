//! How much of the time this machine was kept from its CPUs, as one who sleeps sees it: where no hypervisor tells
//! (`steal` of /proc/stat is zero in many guests), sleeps that end late do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A sleep.
const NAP: Duration = Duration::from_millis(5);
/// One that is longer by this ended late; whoever is woken waits for less where a CPU has room.
const LATE: Duration = Duration::from_millis(5);

/// Sleeps again and again until it is dropped, 200 times a second.
#[derive(Debug)]
pub(crate) struct Away {
    seen: Arc<Seen>,
    began: Instant,
    sleeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Seen {
    ends: AtomicBool,
    late_nanos: AtomicU64,
}

// === impl Away ===

impl Away {
    /// Begins. Nothing where no thread is to be had.
    pub(crate) fn measure() -> Option<Self> {
        let seen = Arc::new(Seen::default());
        let sleeper = {
            let seen = Arc::clone(&seen);
            std::thread::Builder::new().spawn(move || seen.sleep())
        };
        Some(Self {
            seen,
            began: Instant::now(),
            sleeper: Some(sleeper.ok()?),
        })
    }

    /// The share of the time until now.
    pub(crate) fn share(&self) -> f64 {
        let late = Duration::from_nanos(self.seen.late_nanos.load(Ordering::Relaxed));
        let all = self.began.elapsed().max(NAP);
        (late.as_secs_f64() / all.as_secs_f64()).min(1.0)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.seen.ends.store(true, Ordering::Relaxed);
        if let Some(sleeper) = self.sleeper.take() {
            // It cannot panic.
            let _ = sleeper.join();
        }
    }
}

// === impl Seen ===

impl Seen {
    fn sleep(&self) {
        while !self.ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(NAP);
            let late = late(began.elapsed()).as_nanos();
            let late = u64::try_from(late).unwrap_or(u64::MAX);
            self.late_nanos.fetch_add(late, Ordering::Relaxed);
        }
    }
}

/// By how much a sleep was too long.
fn late(slept: Duration) -> Duration {
    match slept.saturating_sub(NAP) {
        late if late > LATE => late,
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_much_too_long_was_away() {
        let millis = Duration::from_millis;
        assert_eq!(late(millis(4)), Duration::ZERO);
        assert_eq!(late(millis(10)), Duration::ZERO);
        assert_eq!(late(millis(35)), millis(30));
    }

    #[test]
    fn a_share_is_of_the_time_and_its_thread_ends() {
        let away = Away::measure().unwrap();
        away.seen.late_nanos.store(u64::MAX / 2, Ordering::Relaxed);
        assert_eq!(away.share(), 1.0);
        let seen = Arc::downgrade(&away.seen);
        drop(away);
        assert!(seen.upgrade().is_none());
    }
}
