//! The plan: the measurements, their number, duration, and order.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::contender::Contender;
use crate::experiment::Request;
use crate::experiment::workload::measured::{Job, Times, shuffle};

const IDLE_SESSIONS: usize = 8_000;
const IDLE_SESSIONS_QUICK: usize = 2_000;
const IDLE_SESSIONS_SMOKE: usize = 10;
/// The number of sessions for relays that need a process, or a channel of one connection, for each
/// session.
const IDLE_SESSIONS_FEW: usize = 200;

/// The duration of each measurement in the smallest form, in milliseconds.
const SMOKE: u64 = 50;

/// The whole plan.
pub(super) struct Plan {
    /// The contenders whose idle sessions are measured, in this order.
    pub(super) idle: Vec<Contender>,
    /// The rounds. In every round each contender does each job once, in random order, so that other
    /// work of the machine affects all contenders equally.
    pub(super) rounds: Vec<Vec<(Job, Contender)>>,
    pub(super) times: Times,
    sessions: usize,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let (rounds, idle_rounds) = request.form.pick((5, 2), (3, 1), (1, 1));
        let rounds = request.runs.unwrap_or(rounds);
        let idle_rounds = request.runs.unwrap_or(idle_rounds).min(idle_rounds);
        let milliseconds =
            |quick, full| Duration::from_millis(request.form.pick(full, quick, SMOKE));
        let mut idle = Vec::new();
        for _ in 0..idle_rounds {
            let mut round = Contender::ALL.to_vec();
            round.retain(|contender| !contender.is_for_bulk());
            shuffle(&mut round, &mut random);
            idle.append(&mut round);
        }
        let rounds = (0..rounds).map(|_| {
            let jobs = Job::ALL.into_iter();
            let mut round: Vec<_> = jobs
                .flat_map(|job| Contender::ALL.map(|contender| (job, contender)))
                .filter(|(job, contender)| *job == Job::Bulk || !contender.is_for_bulk())
                .collect();
            shuffle(&mut round, &mut random);
            round
        });
        Self {
            idle,
            rounds: rounds.collect(),
            times: Times {
                bulk: milliseconds(500, 1_500),
                storm: milliseconds(500, 1_500),
                echo: milliseconds(500, 1_000),
            },
            sessions: request
                .form
                .pick(IDLE_SESSIONS, IDLE_SESSIONS_QUICK, IDLE_SESSIONS_SMOKE),
        }
    }

    pub(super) fn steps(&self) -> u64 {
        (self.idle.len() + self.rounds.iter().map(Vec::len).sum::<usize>()) as u64
    }

    /// Returns the number of sessions that this contender has to hold.
    pub(super) fn idle_sessions(&self, contender: Contender) -> usize {
        match contender.holds_thousands() {
            true => self.sessions,
            false => IDLE_SESSIONS_FEW.min(self.sessions),
        }
    }
}
