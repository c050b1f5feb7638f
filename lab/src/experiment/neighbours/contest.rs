//! One contest: Cubic flows of others fill the link, and flows of the mesh join them.

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::case::Case;
use super::stage::{FILE, Stage};
use crate::experiment::flows::{self, Arrivals, Flow, all_active};
use crate::experiment::{ExperimentError, Request};

/// How long the Cubic flows have the link for themselves: some thirty round trips, so that they have
/// left slow start.
const HEAD_START: Duration = Duration::from_secs(3);
/// The largest difference between the starts of flows of one side.
const APART: Duration = Duration::from_millis(50);
/// How long after the join the measurement begins: a handover of the link takes a few round trips.
const SETTLE: Duration = Duration::from_secs(1);

/// A side of a contest: the flows that join, or the Cubic flows that were there before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Joined,
    Others,
}

/// The arrivals of all flows.
#[derive(Clone, Debug)]
pub(super) struct Contest {
    joined: Vec<Arrivals>,
    others: Vec<Arrivals>,
    /// Whether a link delivered late.
    pub(super) disturbed: bool,
}

/// Holds a contest in a world of its own, so that no relay knows the link from an earlier one.
pub(super) fn hold(
    case: Case,
    run: u64,
    bytes: usize,
    request: &Request,
) -> Result<Contest, ExperimentError> {
    let seed = request.seed << 20 ^ run;
    let stage = Stage::build(case, bytes / (2 * case.flows), seed, request)?;
    // Every kind gets the same random delays.
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut delay = || APART.mul_f64((random.next_u64() >> 11) as f64 / (1u64 << 53) as f64);
    let mut flow = |host, at, after| Flow {
        client: stage.world.host(host),
        at,
        file: FILE.to_owned(),
        digest: stage.digest,
        delay: after + delay(),
    };
    let others: Vec<Flow<'_>> = (0..case.flows)
        .map(|_| flow("left", stage.others, Duration::ZERO))
        .collect();
    let joined: Vec<Flow<'_>> = (0..case.flows)
        .map(|_| flow("client", stage.mesh, HEAD_START))
        .collect();
    let before = stage.world.link_reports()?;
    let begin = Instant::now();
    let (joined, others) = std::thread::scope(|scope| {
        let start = |flow| scope.spawn(move || Flow::run(flow, begin));
        let others: Vec<_> = others.iter().map(start).collect();
        let joined: Vec<_> = joined.iter().map(start).collect();
        let results = |handles: Vec<ScopedJoinHandle<'_, _>>| {
            let handles = handles.into_iter().map(|handle| handle.join());
            let results = handles
                .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            results.collect::<Result<Vec<Arrivals>, ExperimentError>>()
        };
        Ok::<_, ExperimentError>((results(joined)?, results(others)?))
    })?;
    let after = stage.world.link_reports()?;
    Ok(Contest {
        joined,
        others,
        disturbed: before.iter().zip(&after).any(|(b, a)| a.since(b).overrun()),
    })
}

// === impl Contest ===

impl Contest {
    /// Returns the rates of the flows that joined and of the Cubic flows, in Mbit/s, while all were
    /// active. Returns `None` if they never were, apart from the time until they settled.
    fn rates(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        let (from, to) = all_active(self.joined.iter().chain(&self.others))?;
        let from = from + SETTLE;
        if from >= to {
            return None;
        }
        let of = |flows: &[Arrivals]| flows.iter().map(|flow| flow.rate(from, to)).collect();
        Some((of(&self.joined), of(&self.others)))
    }

    /// Returns when the last flow ended.
    pub(super) fn end(&self) -> Duration {
        let flows = self.joined.iter().chain(&self.others);
        let ends = flows.filter_map(|flow| Some(flow.active()?.1));
        ends.max().unwrap_or_default()
    }

    /// Returns the sum of the rates of a side's flows in each of `bins` intervals of `width`, in
    /// Mbit/s.
    pub(super) fn rates_over_time(&self, side: Side, width: Duration, bins: u32) -> Vec<f64> {
        let flows = match side {
            Side::Joined => &self.joined,
            Side::Others => &self.others,
        };
        let mut sum = vec![0.0; bins as usize];
        for flow in flows {
            for (sum, rate) in sum.iter_mut().zip(flow.rates(width, bins)) {
                *sum += rate;
            }
        }
        sum
    }

    /// Returns Jain's index of all rates.
    pub(super) fn jain(&self) -> Option<f64> {
        let (joined, others) = self.rates()?;
        flows::jain(&[joined, others].concat())
    }

    /// Returns the rate of all Cubic flows together, in Mbit/s.
    pub(super) fn others_rate(&self) -> Option<f64> {
        Some(self.rates()?.1.iter().sum())
    }

    /// Returns the rate of all flows that joined together, in Mbit/s.
    pub(super) fn joined_rate(&self) -> Option<f64> {
        Some(self.rates()?.0.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(from: u64, to: u64, bytes: usize) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for at in (from..=to).step_by(10) {
            arrivals.note(Duration::from_millis(at), bytes);
        }
        arrivals
    }

    #[test]
    fn shares_are_those_of_the_time_in_which_all_flows_are_active_and_have_settled() {
        let contest = Contest {
            joined: vec![steady(3_000, 8_000, 3_000)],
            others: vec![steady(0, 9_000, 1_000)],
            disturbed: false,
        };
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-9;
        assert!(close(contest.joined_rate(), 2.4));
        assert!(close(contest.others_rate(), 0.8));
        assert!(close(contest.jain(), 0.8));
        let over_time = contest.rates_over_time(Side::Joined, Duration::from_secs(1), 5);
        assert_eq!(over_time, [0.0, 0.0, 0.0, 2.4, 2.4]);
        assert_eq!(contest.end(), Duration::from_millis(9_000));
        let short = Contest {
            joined: vec![steady(3_000, 3_900, 3_000)],
            ..contest
        };
        assert_eq!(short.jain(), None);
    }
}
