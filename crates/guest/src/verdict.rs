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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// Of gaps that were seen in this time, by so many CPUs.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn of(gaps: &Gaps, elapsed: Duration, cpus: usize) -> Result<Self, Unknown> {
        if elapsed.is_zero() {
            return Err(Unknown::NoTime);
        }
        if gaps.ticks == 0 {
            return Err(Unknown::NoTicks);
        }
        let share = gaps.share(elapsed, cpus);
        // Of each CPU, so that many do not make many gaps of a few.
        let per_cpu = gaps.count as f64 / cpus.max(1) as f64;
        Ok(match gaps.count {
            0 => Self::Never,
            _ if share >= LOSES => Self::Mostly,
            _ if share >= MATTERS && per_cpu * RARE.as_secs_f64() >= elapsed.as_secs_f64() => {
                Self::Often
            }
            _ => Self::Rarely,
        })
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

    fn verdict(count: u64, each: Duration, cpus: usize) -> Verdict {
        let gaps = Gaps {
            count,
            total: each * u32::try_from(count).unwrap_or(u32::MAX),
            ticks: 1000,
            ..Gaps::default()
        };
        Verdict::of(&gaps, Duration::from_secs(10), cpus).unwrap()
    }

    #[test]
    fn who_has_seen_nothing_says_nothing() {
        let (none, some) = (
            Gaps::default(),
            Gaps {
                ticks: 1,
                ..Gaps::default()
            },
        );
        let second = Duration::from_secs(1);
        assert_eq!(Verdict::of(&none, second, 1), Err(Unknown::NoTicks));
        assert_eq!(Verdict::of(&some, Duration::ZERO, 1), Err(Unknown::NoTime));
        assert_eq!(Verdict::of(&some, second, 1), Ok(Verdict::Never));
    }

    #[test]
    fn a_machine_that_is_never_off_its_cpus_is_told_so() {
        assert_eq!(verdict(0, Duration::ZERO, 2), Verdict::Never);
        assert!(Verdict::Never.sentence().contains("nothing is recommended"));
    }

    #[test]
    fn gaps_that_are_short_or_far_apart_do_not_matter() {
        assert_eq!(verdict(10, Duration::from_millis(3), 1), Verdict::Rarely);
        assert_eq!(verdict(5, Duration::from_millis(200), 1), Verdict::Rarely);
        assert_eq!(verdict(10, Duration::from_millis(15), 8), Verdict::Rarely);
    }

    #[test]
    fn a_quarter_of_a_cpu_is_where_bbr_loses_its_rate() {
        assert_eq!(verdict(250, Duration::from_millis(30), 1), Verdict::Mostly);
        assert_eq!(verdict(50, Duration::from_millis(30), 1), Verdict::Often);
        assert_eq!(verdict(100, Duration::from_millis(30), 2), Verdict::Often);
    }
}
