//! Runs many downloads in several worlds at once. A download mostly waits for the path, so worlds
//! side by side hardly disturb one another.
//!
//! While links deliver late, fewer worlds download at a time, and what was late beside others is repeated.
//! A download that is late all the same counts: leaving such downloads out would leave out the long ones.
//! Which cells have many of them is reported.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::download::{Condition, Size, Way};
use super::plan::{Batch, Job};
use super::route::Setting;
use super::stage::Stage;
use super::window;
use crate::experiment::progress::Progress;
use crate::experiment::side_by_side::SideBySide;
use crate::experiment::{ExperimentError, Request, stats};
use crate::peer::curl::Times;

/// The least number of downloads by each way.
const LEAST: usize = 15;

/// All downloads, in the order in which they were made.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: BTreeMap<(Condition, Way, Size), Vec<Times>>,
    /// The number of downloads during which a link delivered late.
    late: BTreeMap<(Condition, Way, Size), usize>,
    /// The number of late downloads that were repeated.
    pub(super) repeated: u64,
    /// The client's window as the server saw it under [`Condition::Window`], in bytes.
    pub(super) window: Option<u64>,
    /// The number of worlds side by side, at first and at the end.
    pub(super) worlds: [usize; 2],
}

impl Measured {
    pub(super) fn downloads(&self) -> usize {
        self.times.values().map(Vec::len).sum()
    }

    /// Returns the number of downloads during which a link delivered late.
    pub(super) fn disturbed(&self) -> usize {
        self.late.values().sum()
    }

    /// Returns the cells in which a link was late in at least half of the downloads.
    pub(super) fn doubtful(&self) -> impl Iterator<Item = (Condition, Way, Size)> {
        self.times.iter().filter_map(|(key, times)| {
            let late = self.late.get(key).copied().unwrap_or(0);
            (2 * late >= times.len()).then_some(*key)
        })
    }

    /// Returns whether a way has enough downloads of a size under a condition.
    fn is_decided(&self, key: (Condition, Way, Size)) -> bool {
        let times = self.times.get(&key).map(Vec::as_slice).unwrap_or_default();
        let is_narrow = |quantity: fn(&Times) -> f64| {
            let samples: Vec<f64> = times.iter().map(quantity).collect();
            stats::is_narrow(&samples, &[1.0])
        };
        times.len() >= LEAST
            && is_narrow(|times| times.first_byte)
            && is_narrow(|times| times.total)
    }

    /// Returns a quantity of every download of one kind; empty if there was none.
    pub(super) fn samples(
        &self,
        condition: Condition,
        way: Way,
        size: Size,
        quantity: impl Fn(&Times) -> f64,
    ) -> Vec<f64> {
        let times = self.times.get(&(condition, way, size));
        times.into_iter().flatten().map(quantity).collect()
    }
}

/// Makes all downloads of `batches`.
pub(super) fn measure(
    batches: &[Batch],
    request: &Request,
    progress: &Progress,
) -> Result<Measured, ExperimentError> {
    let measured = Mutex::new(Measured::default());
    let failed = AtomicBool::new(false);
    let worlds = batches.iter().map(|batch| batch.lanes).sum();
    let planned = batches.iter().map(|batch| batch.jobs.len()).sum();
    let side_by_side = SideBySide::new(worlds, planned);
    let queues: Vec<Mutex<VecDeque<Job>>> = batches
        .iter()
        .map(|batch| Mutex::new(batch.jobs.clone()))
        .collect();
    std::thread::scope(|scope| {
        let mut lanes = Vec::new();
        for (batch, queue) in batches.iter().zip(&queues) {
            for number_here in 0..batch.lanes {
                let lane = Lane {
                    batch,
                    queue,
                    measured: &measured,
                    failed: &failed,
                    side_by_side: &side_by_side,
                    progress,
                    request,
                    first: number_here == 0,
                };
                let number = lanes.len();
                lanes.push(scope.spawn(move || {
                    let result = lane.build(number).and_then(|stage| lane.work(&stage));
                    if result.is_err() {
                        lane.failed.store(true, Ordering::Relaxed);
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
        let mut measured = measured
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        measured.worlds = [worlds, side_by_side.most()];
        measured
    })
}

/// One world, which makes a share of a batch's downloads.
struct Lane<'a> {
    batch: &'a Batch,
    queue: &'a Mutex<VecDeque<Job>>,
    measured: &'a Mutex<Measured>,
    failed: &'a AtomicBool,
    side_by_side: &'a SideBySide,
    progress: &'a Progress,
    request: &'a Request,
    /// Whether this is the first world of its condition.
    first: bool,
}

impl Lane<'_> {
    fn build(&self, number: usize) -> Result<Stage, ExperimentError> {
        let setting = Setting::of(self.batch.condition);
        Stage::build(
            setting,
            &self.batch.ways(),
            &Size::ALL,
            number,
            self.request,
        )
    }

    fn work(&self, stage: &Stage) -> Result<(), ExperimentError> {
        if self.first && self.batch.condition == Condition::Window {
            let window = window::on_the_wire(stage)?;
            self.measured().window = Some(window);
        }
        // After an error in one lane the experiment has failed, so the other lanes stop.
        while !self.failed.load(Ordering::Relaxed) {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((way, size, run)) = queue.pop_front() else {
                break;
            };
            drop(queue);
            let key = (self.batch.condition, way, size);
            if self.request.runs.is_none() && self.measured().is_decided(key) {
                self.progress.step();
                continue;
            }
            let turn = self.side_by_side.turn();
            let (times, late) = self.download(stage, way, size, run)?;
            if turn.ended(late) {
                self.measured().repeated += 1;
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.push_back((way, size, run));
                continue;
            }
            let mut measured = self.measured();
            *measured.late.entry(key).or_default() += usize::from(late);
            measured.times.entry(key).or_default().push(times);
            drop(measured);
            self.progress.step();
        }
        Ok(())
    }

    fn measured(&self) -> std::sync::MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one download; also returns whether a link delivered late during it.
    fn download(
        &self,
        stage: &Stage,
        way: Way,
        size: Size,
        run: u64,
    ) -> Result<(Times, bool), ExperimentError> {
        let world = stage.world();
        world.reseed(self.request.seed << 20 ^ run << 4 ^ size as u64);
        let before = world.link_reports()?;
        let times = stage.download(way, size)?;
        let after = world.link_reports()?;
        let late = before.iter().zip(&after).any(|(b, a)| a.since(b).overrun());
        Ok((times, late))
    }
}
