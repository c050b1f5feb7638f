//! Time that a hypervisor took from this machine's CPUs.

use std::fs;

/// What share of it was taken, from look to look.
#[derive(Debug, Default)]
pub(crate) struct Steal {
    last: Option<Times>,
    share: Option<f64>,
}

/// Ticks of all CPUs since the machine began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    all: u64,
    stolen: u64,
}

// === impl Steal ===

impl Steal {
    /// Looks.
    pub(crate) fn look(&mut self) {
        let now = fs::read_to_string("/proc/stat").ok();
        self.see(now.as_deref().and_then(Times::parse));
    }

    /// Between the last two looks; nothing before the second.
    pub(crate) fn share(&self) -> Option<f64> {
        self.share
    }

    fn see(&mut self, now: Option<Times>) {
        let between = self.last.zip(now).and_then(|(last, now)| {
            let all = now.all.checked_sub(last.all).filter(|all| *all > 0)?;
            Some(now.stolen.saturating_sub(last.stolen) as f64 / all as f64)
        });
        // Two looks within a tick say nothing new.
        if between.is_some() || now.is_none() {
            self.share = between;
        }
        self.last = now;
    }
}

// === impl Times ===

impl Times {
    /// Of the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and steal. (What guests of this
    /// machine had is in user.)
    fn parse(stat: &str) -> Option<Self> {
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

    fn stat(idle: u64, steal: u64) -> Option<Times> {
        Times::parse(&format!(
            "cpu  10 0 5 {idle} 1 0 2 {steal} 0 0\ncpu0 1 2 3\n"
        ))
    }

    #[test]
    fn it_is_the_share_of_all_time_between_two_looks() {
        let mut steal = Steal::default();
        steal.see(stat(100, 50));
        assert_eq!(steal.share(), None);
        steal.see(stat(175, 75));
        assert_eq!(steal.share(), Some(0.25));
        steal.see(stat(175, 75));
        assert_eq!(steal.share(), Some(0.25), "no time has passed");
        steal.see(None);
        assert_eq!(steal.share(), None);
    }

    #[test]
    fn what_is_no_such_line_says_nothing() {
        for text in [
            "",
            "cpu",
            "cpu  1 2 3",
            "cpu  a b c d e f g h",
            "intr 1 2 3 4 5 6 7 8",
        ] {
            assert_eq!(Times::parse(text), None, "{text}");
        }
    }
}
