//! Decides whether off-CPU gaps matter on this machine.

use std::time::Duration;

use serde::Serialize;

use crate::gaps::Gaps;

/// The share of the time below which gaps have no measurable effect.
const MATTERS: f64 = 0.01;
/// The distance of gaps that leaves BBR ten round trips of 100 ms, in which its model recovers.
const RARE: Duration = Duration::from_secs(1);
/// The share of gaps from which BBR loses its rate: it then has less than 70 % of its CPU (arXiv
/// 2601.05665).
const LOSES: f64 = 0.3;

/// The effect of the gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Descheduling {
    /// There were no gaps.
    Never,
    /// There were too few gaps to matter.
    Rarely,
    /// There were enough gaps to disturb BBR's measurements.
    Often,
    /// The gaps took enough time for BBR to lose its rate.
    Mostly,
}

/// The reason why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// No scheduler tick was observed, and the programs detect gaps by late ticks.
    #[error(
        "it is unknown whether this machine was descheduled: no scheduler tick was observed. Either no CPU had anything to run in that \
         time, or the kernel's tick is not a high-resolution timer (highres=off, see `grep hres_active /proc/timer_list`), or its \
         function has a name that Taut does not know"
    )]
    NoTicks,
    /// The span has no length.
    #[error(
        "it is unknown whether this machine was descheduled: the programs were loaded just now; run this again, or with --for 10s"
    )]
    NoTime,
}

// === impl Descheduling ===

impl Descheduling {
    /// Returns the verdict on the CPU with the worst gaps in this time. One CPU handles a
    /// connection, and idle CPUs have no gaps.
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

    /// Returns the verdict and the recommendation, in a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Never => "this machine was never descheduled: nothing is recommended",
            Self::Rarely => {
                "this machine is descheduled too rarely to matter to TCP: nothing is recommended"
            }
            Self::Often => {
                "this machine is descheduled often enough to disturb BBR: if its senders use BBR, `taut guest up --default bbr` \
                 keeps their rate; senders that use Cubic gain little"
            }
            Self::Mostly => {
                "this machine is descheduled so much that BBR loses its rate: if its senders use BBR, `taut guest up --default bbr` \
                 keeps it; senders that use Cubic gain little"
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// Returns one CPU's gaps in ten seconds: `count` gaps of length `each`.
    fn gaps(count: u32, each: Duration) -> Gaps {
        Gaps {
            count: count.into(),
            total: each * count,
            ticks: 1000,
            ..Gaps::default()
        }
    }

    fn verdict(cpus: &[Gaps]) -> Descheduling {
        Descheduling::of(cpus, Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn without_ticks_or_time_there_is_no_verdict() {
        let some = gaps(0, Duration::ZERO);
        let second = Duration::from_secs(1);
        assert_eq!(Descheduling::of(&[], second), Err(Unknown::NoTicks));
        let none = [Gaps::default(), Gaps::default()];
        assert_eq!(Descheduling::of(&none, second), Err(Unknown::NoTicks));
        let of_no_time = Descheduling::of(std::slice::from_ref(&some), Duration::ZERO);
        assert_eq!(of_no_time, Err(Unknown::NoTime));
        assert_eq!(verdict(&[Gaps::default(), some]), Descheduling::Never);
    }

    #[test]
    fn a_machine_without_gaps_needs_nothing() {
        let idle = gaps(0, Duration::ZERO);
        assert_eq!(verdict(&[idle.clone(), idle]), Descheduling::Never);
        assert!(
            Descheduling::Never
                .sentence()
                .contains("nothing is recommended")
        );
    }

    #[test]
    fn gaps_that_are_short_or_far_apart_do_not_matter() {
        for (count, ms) in [(10, 3), (5, 200), (9, 15)] {
            let gaps = gaps(count, Duration::from_millis(ms));
            assert_eq!(verdict(&[gaps]), Descheduling::Rarely, "{count} of {ms} ms");
        }
    }

    #[test]
    fn a_quarter_of_a_cpu_is_where_bbr_loses_its_rate() {
        let each = Duration::from_millis(30);
        assert_eq!(verdict(&[gaps(250, each)]), Descheduling::Mostly);
        assert_eq!(verdict(&[gaps(50, each)]), Descheduling::Often);
    }

    #[test]
    fn idle_cpus_do_not_dilute_the_gaps_of_a_busy_one() {
        let mut cpus = vec![gaps(0, Duration::ZERO); 64];
        cpus[17] = gaps(250, Duration::from_millis(30));
        assert_eq!(verdict(&cpus), Descheduling::Mostly);
        // Small gaps on many CPUs do not add up either.
        assert_eq!(
            verdict(&vec![gaps(5, Duration::from_millis(15)); 64]),
            Descheduling::Rarely
        );
    }
}
