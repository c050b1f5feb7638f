//! Steal time as reported by the hypervisor (`/proc/stat`). Not every hypervisor reports it.

use std::fs;

/// CPU time of all CPUs since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steal {
    all: u64,
    stolen: u64,
}

// === impl Steal ===

impl Steal {
    /// Reads `/proc/stat`. Returns `None` if it cannot be read or has no steal column.
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the stolen share of the time since `earlier`, 0 to 1. Returns `None` within one
    /// tick.
    pub fn share_since(self, earlier: Self) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        Some(self.stolen.saturating_sub(earlier.stolen) as f64 / all as f64)
    }

    /// Returns the stolen share of the time since boot.
    pub fn share(self) -> Option<f64> {
        self.share_since(Self { all: 0, stolen: 0 })
    }

    /// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and
    /// steal. (User includes the time of this machine's own guests.)
    pub fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_ascii_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        Some(Self {
            all: ticks.iter().sum(),
            stolen: *ticks.get(7)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(idle: u64, steal: u64) -> Option<Steal> {
        Steal::parse(&format!(
            "cpu  10 0 5 {idle} 1 0 2 {steal} 0 0\ncpu0 1 2 3\n"
        ))
    }

    #[test]
    fn the_share_is_of_all_time_between_two_readings() {
        let (first, second) = (stat(100, 50), stat(175, 75));
        let share = |a: Option<Steal>, b: Option<Steal>| a?.share_since(b?);
        assert_eq!(share(second, first), Some(0.25));
        assert_eq!(share(first, first), None, "no time has passed");
        assert_eq!(stat(32, 50).and_then(Steal::share), Some(0.5));
    }

    #[test]
    fn a_line_of_another_form_is_none() {
        for text in [
            "",
            "cpu",
            "cpu  1 2 3",
            "cpu  a b c d e f g h",
            "intr 1 2 3",
        ] {
            assert_eq!(Steal::parse(text), None, "{text}");
        }
    }
}
