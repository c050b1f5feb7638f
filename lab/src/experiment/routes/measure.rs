//! Measures every route of every pair, in worlds side by side: a download mostly waits for the path.
//!
//! Building a world and starting its relays keeps the processors busy, partly in the kernel, so
//! that the threads of links run late. So no download is made in any world meanwhile. A download
//! during which one of its links delivered late is made again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError, RwLock};

use super::choice::Predicted;
use super::option::{Mode, Route};
use super::rig::{Download, Rig};
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
    /// The number of downloads during which a link delivered late at every attempt.
    pub(super) late: u64,
    /// The number of routes by which fewer than half of the downloads were on time.
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
            let made = made.inspect_err(|_| stop(&queue))?;
            let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
            measured.late += made.late;
            measured.repeated += retry.count;
            measured.too_few += made.too_few;
            measured.times.insert((pair, mode), made.samples);
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

/// What the downloads by the routes of a pair gave.
struct Downloads {
    samples: Samples,
    /// The number during which a link delivered late at every attempt.
    late: u64,
    /// The number of routes by which fewer than half were on time.
    too_few: u64,
}

/// Downloads by every route. Late downloads are left out, unless fewer than half by a route were on
/// time: then they stay, and the calibration says so. This does not select among results: it depends on
/// the links alone.
fn downloads(
    rig: &Rig,
    runs: usize,
    retry: &mut Retry,
    machine: &RwLock<()>,
) -> Result<Downloads, ExperimentError> {
    let mut made: BTreeMap<Route, Vec<Download>> = BTreeMap::new();
    // One round after the other, so that a drift of the machine affects all routes equally.
    for _ in 0..runs {
        for route in rig.routes() {
            let once = || {
                let _beside_others = machine.read().unwrap_or_else(PoisonError::into_inner);
                rig.download(route)
            };
            let download = retry.measure(once, |download| download.was_late)?;
            made.entry(route.clone()).or_default().push(download);
        }
    }
    Ok(on_time(made))
}

fn on_time(made: BTreeMap<Route, Vec<Download>>) -> Downloads {
    let (mut samples, mut late, mut too_few) = (Samples::new(), 0, 0);
    for (route, mut downloads) in made {
        let of_route = downloads
            .iter()
            .filter(|download| download.was_late)
            .count();
        late += of_route as u64;
        if 2 * of_route > downloads.len() {
            too_few += 1;
        } else {
            downloads.retain(|download| !download.was_late);
        }
        let times = downloads.into_iter().map(|download| download.times);
        samples.insert(route, times.collect());
    }
    Downloads {
        samples,
        late,
        too_few,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of downloads that count, and that of routes by which too few were on time.
    fn counted(late: &[bool]) -> (usize, u64) {
        let of = |&was_late: &bool| Download {
            times: Times {
                connect: 0.1,
                first_byte: 0.2,
                total: 0.3,
            },
            was_late,
        };
        let made = BTreeMap::from([(Route::default(), late.iter().map(of).collect())]);
        let downloads = on_time(made);
        (
            downloads.samples[&Route::default()].len(),
            downloads.too_few,
        )
    }

    #[test]
    fn late_downloads_count_only_where_too_few_are_on_time() {
        assert_eq!(counted(&[false, true, false]), (2, 0));
        assert_eq!(counted(&[true, false]), (1, 0));
        assert_eq!(counted(&[true, true, false]), (3, 1));
        assert_eq!(counted(&[true]), (1, 1));
    }
}
