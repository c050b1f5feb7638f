//! Time that a hypervisor took from this machine's CPUs.

use taut_sys::steal::Steal as Times;

/// What share of it was taken, from look to look.
#[derive(Debug, Default)]
pub(crate) struct Steal {
    last: Option<Times>,
    share: Option<f64>,
}

// === impl Steal ===

impl Steal {
    /// Looks.
    pub(crate) fn look(&mut self) {
        self.see(Times::read());
    }

    /// Between the last two looks; nothing before the second.
    pub(crate) fn share(&self) -> Option<f64> {
        self.share
    }

    fn see(&mut self, now: Option<Times>) {
        let both = self.last.zip(now);
        let between = both.and_then(|(last, now)| now.share_since(last));
        // Two looks within a tick say nothing new.
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
