//! Measures every route of every pair, in worlds side by side: a download mostly waits for the path.
//!
//! Building a world and starting its relays keeps the processors busy, partly in the kernel, so
//! that the threads of links run late. So no download is made in any world meanwhile. A download
//! during which one of its links delivered late is made again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError, RwLock};

use super::choice::Predicted;
use super::option::{Mode, Route};
use super::rig::Rig;
use super::sites::{PAIRS, Pair};
use crate::experiment::progress::Progress;
use crate::experiment::retry::Retry;
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::Times;

/// What is measured.
pub(super) struct Plan {
    /// The number of cities with a relay.
    pub(super) sites: usize,
    /// The worlds, those that take longest first.
    pub(super) worlds: Vec<(Pair, Mode)>,
    /// The number of downloads by each route.
    runs: usize,
    /// The number of worlds at a time.
    lanes: usize,
}

/// The downloads by one route of a pair.
pub(super) type Samples = BTreeMap<Route, Vec<Times>>;

/// All downloads.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: BTreeMap<(Pair, Mode), Samples>,
    /// The planner's routes for each pair, the choice first.
    pub(super) predicted: BTreeMap<Pair, Vec<Predicted>>,
    /// The number of cities.
    pub(super) sites: usize,
    /// The number of downloads during which a link delivered late at every attempt. They do not count.
    pub(super) late: u64,
    /// The number of routes by which fewer than half of the downloads count.
    pub(super) too_few: u64,
    /// The number of downloads that were made again.
    pub(super) repeated: u64,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        // The pair of the smallest form needs no other city than its own.
        let (sites, pairs, runs, lanes) = request.form.pick(
            (10, &PAIRS[..], 5, 5),
            (7, &PAIRS[..3], 1, 5),
            (2, &PAIRS[2..3], 1, 1),
        );
        let far = pairs.iter().filter(|pair| !pair.is_local());
        let mut worlds: Vec<_> = pairs.iter().map(|&pair| (pair, Mode::Turbo)).collect();
        worlds.extend(far.map(|&pair| (pair, Mode::Cubic)));
        Self {
            sites,
            worlds,
            runs: request.runs.unwrap_or(runs).max(1),
            lanes,
        }
    }
}

/// Makes all downloads.
pub(super) fn measure(
    plan: &Plan,
    request: &Request,
    progress: &Progress,
) -> Result<Measured, ExperimentError> {
    let queue: Mutex<VecDeque<(Pair, Mode)>> = Mutex::new(plan.worlds.iter().copied().collect());
    let measured = Mutex::new(Measured {
        sites: plan.sites,
        ..Measured::default()
    });
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    };
    // A lane that keeps the machine busy holds it for writing, and downloads hold it for reading.
    let machine = RwLock::new(());
    let lane = || -> Result<(), ExperimentError> {
        while let Some((pair, mode)) = next() {
            let build = || Rig::build(pair, mode, plan.sites, request);
            let rig = alone(&machine, build).inspect_err(|_| stop(&queue))?;
            let mut retry = Retry::new(false, plan.runs * rig.routes().count());
            let made = downloads(&rig, plan.runs, &mut retry, &machine);
            let (samples, late) = made.inspect_err(|_| stop(&queue))?;
            let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
            measured.late += late;
            measured.repeated += retry.count;
            let routes = rig.routes().map(|route| samples.get(route));
            let counted = routes.map(|times| times.map_or(0, Vec::len));
            measured.too_few += counted.filter(|counted| 2 * counted < plan.runs).count() as u64;
            measured.times.insert((pair, mode), samples);
            measured
                .predicted
                .entry(pair)
                .or_insert(rig.predicted.clone());
            drop(measured);
            alone(&machine, || drop(rig));
            progress.step();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..plan.lanes).map(|_| scope.spawn(lane)).collect();
        let results: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, ExperimentError>(())
    })?;
    Ok(measured
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Leaves nothing to do for the other lanes, after one has failed.
fn stop(queue: &Mutex<VecDeque<(Pair, Mode)>>) {
    queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Runs a job while no download is made.
fn alone<T>(machine: &RwLock<()>, job: impl FnOnce() -> T) -> T {
    let _alone = machine.write().unwrap_or_else(PoisonError::into_inner);
    job()
}

/// Returns the downloads by every route, and the number of those that are left out because a link
/// delivered late at every attempt. Leaving them out does not select among results: it depends on
/// the links alone.
fn downloads(
    rig: &Rig,
    runs: usize,
    retry: &mut Retry,
    machine: &RwLock<()>,
) -> Result<(Samples, u64), ExperimentError> {
    let (mut samples, mut late) = (Samples::new(), 0);
    // One round after the other, so that a drift of the machine affects all routes equally.
    for _ in 0..runs {
        for route in rig.routes() {
            let once = || {
                let _beside_others = machine.read().unwrap_or_else(PoisonError::into_inner);
                rig.download(route)
            };
            let download = retry.measure(once, |download| download.was_late)?;
            if download.was_late {
                late += 1;
                continue;
            }
            let of_route = samples.entry(route.clone()).or_default();
            of_route.push(download.times);
        }
    }
    Ok((samples, late))
}
