//! Runs the downloads in many worlds at once. Where loss keeps a download slow, it mostly waits, so
//! such worlds hardly disturb one another. Of those that fill their links, a few run at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::download::{Size, Way};
use super::path::Path;
use super::plan::{Batch, Job};
use super::stage::{Files, Stage};
use crate::experiment::progress::Progress;
use crate::experiment::side_by_side::SideBySide;
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::Times;

/// How many downloads may fill their links at the same time.
const AT_LINE_RATE: usize = 2;

/// All downloads, in the order in which they were made.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) times: BTreeMap<(Path, Way, Size), Vec<Times>>,
    /// The number of downloads during which a link delivered late.
    pub(super) disturbed: usize,
    /// The number of late downloads that were repeated.
    pub(super) repeated: u64,
    /// The number of worlds side by side, at first and at the end.
    pub(super) worlds: [usize; 2],
}

impl Measured {
    pub(super) fn downloads(&self) -> usize {
        self.times.values().map(Vec::len).sum()
    }
}

/// Makes all downloads of `batches`.
pub(super) fn measure(
    batches: &[Batch],
    request: &Request,
    progress: &Progress,
) -> Result<Measured, ExperimentError> {
    let mut sizes: Vec<Size> = batches.iter().flat_map(Batch::sizes).collect();
    sizes.sort();
    sizes.dedup();
    let worlds = batches.iter().map(|batch| batch.lanes).sum();
    let planned = batches.iter().map(|batch| batch.jobs.len()).sum();
    let run = Run {
        side_by_side: SideBySide::new(worlds, planned),
        files: Files::write(sizes, request.seed)?,
        measured: Mutex::default(),
        failed: AtomicBool::new(false),
        full_rate: FullRate::default(),
        progress,
        request,
    };
    let queues: Vec<Mutex<VecDeque<Job>>> = batches
        .iter()
        .map(|batch| Mutex::new(batch.jobs.clone()))
        .collect();
    std::thread::scope(|scope| {
        let run = &run;
        let mut lanes = Vec::new();
        for (batch, queue) in batches.iter().zip(&queues) {
            for _ in 0..batch.lanes {
                let number = lanes.len();
                lanes.push(scope.spawn(move || {
                    let result = run.lane(batch, queue, number);
                    if result.is_err() {
                        run.failed.store(true, Ordering::Relaxed);
                    }
                    result
                }));
            }
        }
        let results: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, ExperimentError>(())
    })?;
    let measured = run.measured.into_inner();
    let mut measured = measured.unwrap_or_else(PoisonError::into_inner);
    measured.worlds = [worlds, run.side_by_side.most()];
    Ok(measured)
}

/// State that the worlds share.
struct Run<'a> {
    files: Files,
    measured: Mutex<Measured>,
    failed: AtomicBool,
    full_rate: FullRate,
    side_by_side: SideBySide,
    progress: &'a Progress,
    request: &'a Request,
}

impl Run<'_> {
    /// Makes one world's share of a batch's downloads.
    fn lane(
        &self,
        batch: &Batch,
        queue: &Mutex<VecDeque<Job>>,
        number: usize,
    ) -> Result<(), ExperimentError> {
        let stage = Stage::build(batch.path, &batch.ways, &self.files, number, self.request)?;
        // After an error in one world the experiment has failed, so the others stop.
        while !self.failed.load(Ordering::Relaxed) {
            let Some((way, size, run)) = lock(queue).pop_front() else {
                break;
            };
            let _turn = way.fills_its_link().then(|| self.full_rate.turn());
            let side_by_side = self.side_by_side.turn();
            let world = stage.world();
            // All ways have the same seed.
            world.reseed(self.request.seed << 32 ^ run << 28 ^ size.0 as u64);
            let before = world.link_reports()?;
            let times = stage.download(way, size, &self.files)?;
            let after = world.link_reports()?;
            let late = before.iter().zip(&after).any(|(b, a)| a.since(b).overrun());
            if side_by_side.ended(late) {
                lock(&self.measured).repeated += 1;
                lock(queue).push_back((way, size, run));
                continue;
            }
            let mut measured = lock(&self.measured);
            measured.disturbed += usize::from(late);
            let key = (batch.path, way, size);
            measured.times.entry(key).or_default().push(times);
            drop(measured);
            self.progress.step();
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bounds the number of downloads that fill their links.
#[derive(Default)]
struct FullRate {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// The right to fill a link, until this is dropped.
struct Turn<'a>(&'a FullRate);

impl FullRate {
    fn turn(&self) -> Turn<'_> {
        let taken = lock(&self.taken);
        let wait = self.freed.wait_while(taken, |taken| *taken >= AT_LINE_RATE);
        *wait.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.freed.notify_one();
    }
}
