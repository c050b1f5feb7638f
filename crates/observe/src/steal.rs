//! The share of CPU time that a hypervisor took from this machine, scan by scan.

use taut_sys::steal::Steal as Times;

/// Measures the share between the last two scans.
#[derive(Debug, Default)]
pub(crate) struct Steal {
    last: Option<Times>,
    share: Option<f64>,
}

// === impl Steal ===

impl Steal {
    /// Reads /proc/stat.
    pub(crate) fn update(&mut self) {
        self.see(Times::read());
    }

    /// Returns the share between the last two calls of [`Steal::update`]; `None` before the second.
    pub(crate) fn share(&self) -> Option<f64> {
        self.share
    }

    fn see(&mut self, now: Option<Times>) {
        let both = self.last.zip(now);
        let between = both.and_then(|(last, now)| now.share_since(last));
        // Keeps the share if no tick has passed since the last reading.
        if between.is_some() || now.is_none() {
            self.share = between;
        }
        self.last = now;
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
    fn the_share_is_of_all_time_between_two_readings() {
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
    fn a_malformed_line_is_no_reading() {
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
