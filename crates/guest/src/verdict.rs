//! Whether gaps matter on this machine.

use std::time::Duration;

use serde::Serialize;

use crate::figures::Gaps;

/// A smaller share of its time costs nobody anything that could be measured beside it.
const MATTERS: f64 = 0.01;
/// Gaps that are farther apart leave BBR ten round trips of 100 ms between them, in which its model is what it was.
const RARE: Duration = Duration::from_secs(1);
/// With less than seven tenths of its CPU BBR has been seen to lose its rate (arXiv 2601.05665).
const LOSES: f64 = 0.3;

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No gap was seen.
    Never,
    /// Some were, too few to matter.
    Rarely,
    /// Enough to disturb what BBR measures.
    Often,
    /// So much that BBR loses its rate.
    Mostly,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The programs see gaps by the tick.
    #[error(
        "it is not known whether this machine is off its CPUs: not one tick was seen. Either no CPU had anything to do in that time, or \
         the kernel's tick is no timer of high resolution (highres=off, see `grep hres_active /proc/timer_list`), or it has another \
         name than those that Taut knows"
    )]
    NoTicks,
    /// In no time at all.
    #[error(
        "it is not known whether this machine is off its CPUs: nothing was watched yet; run this again, or with --for 10s"
    )]
    NoTime,
}

// === impl Verdict ===

impl Verdict {
    /// Of gaps that each CPU has seen in this time: that of the worst. A connection is handled by one, and those that idle see
    /// no gaps.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn of(cpus: &[Gaps], elapsed: Duration) -> Result<Self, Unknown> {
        if elapsed.is_zero() {
            return Err(Unknown::NoTime);
        }
        if cpus.iter().all(|gaps| gaps.ticks == 0) {
            return Err(Unknown::NoTicks);
        }
        let worst = cpus.iter().map(|gaps| Self::of_cpu(gaps, elapsed)).max();
        worst.ok_or(Unknown::NoTicks)
    }

    fn of_cpu(gaps: &Gaps, elapsed: Duration) -> Self {
        let share = gaps.share(elapsed, 1);
        let is_rare = gaps.count as f64 * RARE.as_secs_f64() < elapsed.as_secs_f64();
        match gaps.count {
            0 => Self::Never,
            _ if share >= LOSES => Self::Mostly,
            _ if share >= MATTERS && !is_rare => Self::Often,
            _ => Self::Rarely,
        }
    }

    /// What is to be done about it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Never => {
                "this machine was never off its CPUs: there is nothing to repair, and nothing is recommended"
            }
            Self::Rarely => {
                "this machine is off its CPUs too rarely to matter to TCP: nothing is recommended"
            }
            Self::Often => {
                "this machine is off its CPUs often enough to disturb BBR: where its senders use BBR, `taut guest up --default bbr` \
                 keeps their rate; senders that use Cubic gain nothing worth mentioning"
            }
            Self::Mostly => {
                "this machine is off its CPUs so much that BBR loses its rate: where its senders use BBR, `taut guest up --default \
                 bbr` keeps it; senders that use Cubic gain nothing worth mentioning"
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// In ten seconds.
    fn gaps(count: u32, each: Duration) -> Gaps {
        Gaps {
            count: count.into(),
            total: each * count,
            ticks: 1000,
            ..Gaps::default()
        }
    }

    fn verdict(cpus: &[Gaps]) -> Verdict {
        Verdict::of(cpus, Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn who_has_seen_nothing_says_nothing() {
        let some = gaps(0, Duration::ZERO);
        let second = Duration::from_secs(1);
        assert_eq!(Verdict::of(&[], second), Err(Unknown::NoTicks));
        let none = [Gaps::default(), Gaps::default()];
        assert_eq!(Verdict::of(&none, second), Err(Unknown::NoTicks));
        let of_no_time = Verdict::of(std::slice::from_ref(&some), Duration::ZERO);
        assert_eq!(of_no_time, Err(Unknown::NoTime));
        assert_eq!(verdict(&[Gaps::default(), some]), Verdict::Never);
    }

    #[test]
    fn a_machine_that_is_never_off_its_cpus_is_told_so() {
        let idle = gaps(0, Duration::ZERO);
        assert_eq!(verdict(&[idle.clone(), idle]), Verdict::Never);
        assert!(Verdict::Never.sentence().contains("nothing is recommended"));
    }

    #[test]
    fn gaps_that_are_short_or_far_apart_do_not_matter() {
        for (count, ms) in [(10, 3), (5, 200), (9, 15)] {
            let gaps = gaps(count, Duration::from_millis(ms));
            assert_eq!(verdict(&[gaps]), Verdict::Rarely, "{count} of {ms} ms");
        }
    }

    #[test]
    fn a_quarter_of_a_cpu_is_where_bbr_loses_its_rate() {
        let each = Duration::from_millis(30);
        assert_eq!(verdict(&[gaps(250, each)]), Verdict::Mostly);
        assert_eq!(verdict(&[gaps(50, each)]), Verdict::Often);
    }

    #[test]
    fn cpus_that_idle_do_not_make_the_others_gaps_fewer() {
        let mut cpus = vec![gaps(0, Duration::ZERO); 64];
        cpus[17] = gaps(250, Duration::from_millis(30));
        assert_eq!(verdict(&cpus), Verdict::Mostly);
        // Nor do those of many add up to what none of them has.
        assert_eq!(
            verdict(&vec![gaps(5, Duration::from_millis(15)); 64]),
            Verdict::Rarely
        );
    }
}
