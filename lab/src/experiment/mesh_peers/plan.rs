//! The plan: the measurements, their duration and order, and when there are enough.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::contender::Contender;
use crate::experiment::workload::measured::{Job, Times, shuffle};
use crate::experiment::{Request, stats};

/// The duration of each measurement in the smallest form, in milliseconds.
const SMOKE: u64 = 50;

/// The plan of a run.
pub(super) struct Plan {
    /// The contenders whose idle sessions are measured, in this order.
    pub(super) idle: Vec<Contender>,
    /// The number of idle sessions.
    pub(super) sessions: usize,
    /// The number of connections in a pool whose memory is measured.
    pub(super) pooled: u32,
    /// How often it is measured.
    pub(super) pools: usize,
    pub(super) times: Times,
    /// The number of rounds.
    pub(super) least: usize,
    pub(super) most: usize,
    random: Pcg64Mcg,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let (least, most) = match request.runs {
            Some(runs) => (runs, runs),
            None => request.form.pick((5, 9), (3, 3), (1, 1)),
        };
        let milliseconds =
            |quick, full| Duration::from_millis(request.form.pick(full, quick, SMOKE));
        let mut idle: Vec<_> = Contender::ALL.into_iter().filter(|c| c.idles()).collect();
        shuffle(&mut idle, &mut random);
        Self {
            idle,
            sessions: request.form.pick(1_000, 200, 10),
            pooled: request.form.pick(500, 200, 10),
            pools: request.form.pick(5, 1, 1),
            times: Times {
                bulk: milliseconds(400, 1_500),
                storm: milliseconds(400, 1_500),
                echo: milliseconds(300, 1_000),
            },
            least,
            most,
            random,
        }
    }

    /// Returns the next round, in which each contender does each of its jobs once. The contenders
    /// do the same job one directly after the other: the figures of one job are compared in pairs,
    /// and other work of the machine affects both of a pair.
    pub(super) fn round(&mut self) -> Vec<(Job, Contender)> {
        let mut jobs = Job::ALL.to_vec();
        shuffle(&mut jobs, &mut self.random);
        let mut round = Vec::new();
        for job in jobs {
            let mut contenders = Contender::ALL.to_vec();
            contenders.retain(|contender| contender.does(job));
            shuffle(&mut contenders, &mut self.random);
            round.extend(contenders.into_iter().map(|contender| (job, contender)));
        }
        round
    }

    /// Returns whether `rounds` rounds are enough, in which these ratios were measured.
    pub(super) fn is_enough(&self, rounds: usize, ratios: &[Vec<f64>]) -> bool {
        let is_narrow = |samples: &Vec<f64>| stats::is_narrow(samples, &[1.0]);
        rounds >= self.most || rounds >= self.least && ratios.iter().all(is_narrow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Form;

    fn plan(quick: bool, runs: Option<usize>) -> Plan {
        Plan::of(&Request {
            runs,
            ..Request::of_test(Form::of(quick))
        })
    }

    #[test]
    fn in_a_round_each_contender_does_each_of_its_jobs_once_and_beside_the_others() {
        let round = plan(false, None).round();
        for job in Job::ALL {
            let of_job = |(other, _): &&(Job, Contender)| *other == job;
            let mut found: Vec<_> = round.iter().filter(of_job).map(|(_, c)| *c).collect();
            found.sort();
            let all = Contender::ALL.into_iter().filter(|c| c.does(job));
            assert_eq!(found, all.collect::<Vec<_>>());
        }
        let changes = round.windows(2).filter(|two| two[0].0 != two[1].0).count();
        assert_eq!(changes, Job::ALL.len() - 1);
    }

    #[test]
    fn rounds_go_on_until_every_ratio_is_narrow() {
        let plan = plan(false, None);
        let narrow = vec![1.5; 7];
        let wide: Vec<f64> = (0..7).map(f64::from).collect();
        assert!(!plan.is_enough(plan.least - 1, std::slice::from_ref(&narrow)));
        assert!(plan.is_enough(plan.least, std::slice::from_ref(&narrow)));
        assert!(!plan.is_enough(plan.least, &[narrow.clone(), wide.clone()]));
        assert!(!plan.is_enough(plan.least, &[narrow, Vec::new()]));
        assert!(plan.is_enough(plan.most, &[wide]));
    }

    #[test]
    fn a_given_number_of_rounds_is_kept_to() {
        let plan = plan(true, Some(1));
        assert!(!plan.is_enough(0, &[]));
        assert!(plan.is_enough(1, &[vec![1.0, 9.0]]));
    }
}
