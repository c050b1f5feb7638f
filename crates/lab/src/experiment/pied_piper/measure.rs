//! Downloads, many times, in several worlds at once: the time goes into waiting for the path, so
//! that worlds side by side hardly get in each other's way. Where a link did deliver late, the
//! download counts all the same (to leave it out would leave out the long ones) and is counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::route::Route;
use super::{Condition, Size, Way};
use crate::experiment::progress::Progress;
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::Times;

/// Worlds side by side.
pub(super) const LANES: [(Condition, usize); 2] = [(Condition::Clean, 3), (Condition::Lossy, 4)];

/// What is downloaded how often.
pub(super) struct Plan {
    jobs: BTreeMap<Condition, Vec<Job>>,
    lanes: BTreeMap<Condition, usize>,
}

/// A way, a size, and the number of the measurement. The ways' n-th measurements of a size meet the
/// same losses.
type Job = (Way, Size, u64);

/// Every download, in the order they were done.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: BTreeMap<(Condition, Way, Size), Vec<Times>>,
    /// Downloads during which a link delivered late.
    pub(super) disturbed: usize,
}

impl Measured {
    pub(super) fn downloads(&self) -> usize {
        self.times.values().map(Vec::len).sum()
    }
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let (clean, lossy) = match (request.runs, request.quick) {
            (Some(runs), _) => (runs, runs),
            (None, true) => (2, 3),
            // With loss, times spread over an order of magnitude.
            (None, false) => (8, 20),
        };
        let ways = Way::available();
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let mut jobs = BTreeMap::new();
        for (condition, runs, sizes) in [
            (Condition::Clean, clean, &Size::ALL[..]),
            (Condition::Lossy, lossy, &[Size::Mb10][..]),
        ] {
            let mut all = Vec::new();
            for run in 0..runs as u64 {
                for &way in &ways {
                    all.extend(sizes.iter().map(|&size| (way, size, run)));
                }
            }
            // In no order that could favour anyone.
            for i in (1..all.len()).rev() {
                all.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
            }
            if request.quick {
                // Jobs are taken from the end. The longest go first, or the last one would be
                // waited for alone.
                all.sort_by_key(|(way, size, _)| (*way == Way::EndToEnd, *size));
            }
            jobs.insert(condition, all);
        }
        let lanes = BTreeMap::from(LANES);
        Self { jobs, lanes }
    }

    pub(super) fn downloads(&self) -> u64 {
        self.jobs.values().map(|jobs| jobs.len() as u64).sum()
    }
}

/// Does what the plan says.
pub(super) fn measure(
    plan: &Plan,
    request: &Request,
    progress: &Progress,
) -> Result<Measured, ExperimentError> {
    let measured = Mutex::new(Measured::default());
    let failed = AtomicBool::new(false);
    let queues: BTreeMap<_, _> = plan
        .jobs
        .iter()
        .map(|(c, jobs)| (*c, Mutex::new(jobs.clone())))
        .collect();
    std::thread::scope(|scope| {
        let mut lanes = Vec::new();
        for (&condition, queue) in &queues {
            for _ in 0..plan.lanes[&condition] {
                let (number, measured, failed) = (lanes.len(), &measured, &failed);
                lanes.push(scope.spawn(move || {
                    let seed = request.seed;
                    let lane = Lane {
                        condition,
                        queue,
                        measured,
                        failed,
                        progress,
                        seed,
                    };
                    let result = Route::build(condition, number, request)
                        .and_then(|route| lane.work(&route));
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    result
                }));
            }
        }
        let results: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
    .map(|()| {
        measured
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    })
}

/// One world's share of the work.
struct Lane<'a> {
    condition: Condition,
    queue: &'a Mutex<Vec<Job>>,
    measured: &'a Mutex<Measured>,
    failed: &'a AtomicBool,
    progress: &'a Progress,
    seed: u64,
}

impl Lane<'_> {
    fn work(&self, route: &Route) -> Result<(), ExperimentError> {
        // When one lane has failed the experiment has; the others need not go on.
        while !self.failed.load(Ordering::Relaxed) {
            let job = self
                .queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let Some((way, size, run)) = job else { break };
            let (times, disturbed) = self.download(route, way, size, run)?;
            let key = (self.condition, way, size);
            let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
            measured.disturbed += usize::from(disturbed);
            measured.times.entry(key).or_default().push(times);
            drop(measured);
            self.progress.step();
        }
        Ok(())
    }

    /// One download, and whether a link delivered late meanwhile.
    fn download(
        &self,
        route: &Route,
        way: Way,
        size: Size,
        run: u64,
    ) -> Result<(Times, bool), ExperimentError> {
        route
            .world()
            .reseed(self.seed << 20 ^ run << 4 ^ size as u64);
        let before = route.world().link_reports()?;
        let times = route.download(way, size)?;
        let after = route.world().link_reports()?;
        let late = before.iter().zip(&after).any(|(b, a)| a.since(b).overrun());
        Ok((times, late))
    }
}
