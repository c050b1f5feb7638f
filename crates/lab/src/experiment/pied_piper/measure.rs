//! Downloads, many times, in several worlds at once: the time goes into waiting for the path, so
//! that worlds side by side do not get in each other's way. Where they do, the links notice, and
//! the download is done again.

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

/// How often a download is tried until one was not disturbed. The last one counts all the same, and
/// is counted: the calibration does not hold then.
const TRIES: usize = 4;

/// What is downloaded how often.
pub(super) struct Plan {
    jobs: BTreeMap<Condition, Vec<Job>>,
    lanes: BTreeMap<Condition, usize>,
}

type Job = (Way, Size);

/// Every download, in the order they were done.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: BTreeMap<(Condition, Way, Size), Vec<Times>>,
    /// Downloads that were done again because a link was late.
    pub(super) disturbed: usize,
    /// Downloads that were disturbed at every try.
    pub(super) unreliable: usize,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let (clean, lossy) = match (request.runs, request.quick) {
            (Some(runs), _) => (runs, runs),
            (None, true) => (2, 3),
            // With loss, times spread over an order of magnitude.
            (None, false) => (10, 20),
        };
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let mut jobs = BTreeMap::new();
        for (condition, runs, sizes) in [
            (Condition::Clean, clean, &Size::ALL[..]),
            (Condition::Lossy, lossy, &[Size::Mb10][..]),
        ] {
            let mut all = Vec::new();
            for _ in 0..runs {
                for way in Way::ALL {
                    all.extend(sizes.iter().map(|&size| (way, size)));
                }
            }
            // In no order that could favour anyone.
            for i in (1..all.len()).rev() {
                all.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
            }
            if request.quick {
                // Jobs are taken from the end. The longest go first, or the last one would be
                // waited for alone.
                all.sort_by_key(|(way, size)| (*way == Way::EndToEnd, *size));
            }
            jobs.insert(condition, all);
        }
        let lanes = BTreeMap::from([(Condition::Clean, 3), (Condition::Lossy, 4)]);
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
                    let lane = Lane {
                        condition,
                        queue,
                        measured,
                        failed,
                        progress,
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
            let Some((way, size)) = job else { break };
            let (times, disturbed) = self.undisturbed(route, way, size)?;
            let key = (self.condition, way, size);
            let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
            measured.disturbed += disturbed;
            measured.unreliable += usize::from(disturbed == TRIES);
            measured.times.entry(key).or_default().push(times);
            drop(measured);
            self.progress.step();
        }
        Ok(())
    }

    /// Downloads until no link was late meanwhile; how often one was comes with it.
    fn undisturbed(
        &self,
        route: &Route,
        way: Way,
        size: Size,
    ) -> Result<(Times, usize), ExperimentError> {
        let mut disturbed = 0;
        loop {
            let before = route.world().link_reports()?;
            let times = route.download(way, size)?;
            let after = route.world().link_reports()?;
            let late = before.iter().zip(&after).any(|(b, a)| a.since(b).overrun());
            disturbed += usize::from(late);
            if !late || disturbed == TRIES {
                return Ok((times, disturbed));
            }
        }
    }
}
