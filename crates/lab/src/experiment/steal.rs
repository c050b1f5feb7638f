//! Steal time: when this machine is a guest, the time in which its host did not run it.
//!
//! An experiment that takes CPU time from its guests cannot tell it from time that the host takes from the
//! whole machine.

use std::fs;

/// The machine's CPU time since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steal {
    stolen: u64,
    all: u64,
}

// === impl Steal ===

impl Steal {
    /// Reads the current figures; `None` if the kernel does not report them.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal guest guest_nice`. User time includes guest
    /// time.
    fn parse(stat: &str) -> Option<Self> {
        let figures = stat.lines().next()?.strip_prefix("cpu ")?;
        let figures: Vec<u64> = figures
            .split_whitespace()
            .map_while(|figure| figure.parse().ok())
            .take(8)
            .collect();
        Some(Self {
            stolen: *figures.get(7)?,
            all: figures.iter().sum(),
        })
    }

    /// Returns the share of CPU time since `then` in which runnable CPUs were not run by the host.
    pub(super) fn share_since(self, then: Self) -> f64 {
        let all = self.all.saturating_sub(then.all).max(1);
        self.stolen.saturating_sub(then.stolen) as f64 / all as f64
    }

    /// Returns a sentence for an outcome's notes; empty if the kernel does not report steal.
    pub(super) fn note_since(then: Option<Self>) -> Option<String> {
        let share = Self::now()?.share_since(then?);
        Some(format!(
            "The host of this machine did not run its CPUs for {:.1} % of the time (steal).",
            share * 100.0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let then = Steal::parse("cpu  10 0 10 70 5 0 5 0 3 0\ncpu0 1\n").unwrap();
        assert_eq!((then.stolen, then.all), (0, 100));
        let now = Steal::parse("cpu  50 0 50 200 5 0 5 90 33 0\n").unwrap();
        assert_eq!(now.share_since(then), 0.3);
        assert_eq!(then.share_since(then), 0.0);
    }

    #[test]
    fn a_kernel_that_does_not_say_is_heard_as_such() {
        assert_eq!(Steal::parse("cpu  1 2 3 4\n"), None);
        assert_eq!(Steal::parse(""), None);
        assert!(Steal::now().is_some());
    }
}
