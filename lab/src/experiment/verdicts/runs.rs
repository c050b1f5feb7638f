//! Runs the worlds of an experiment, several at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::family::Part;
use crate::experiment::ExperimentError;
use crate::experiment::progress::Progress;

/// Calls `run` for each of `parts` and each number below `runs`, with `at_a_time` worlds at a time.
/// Returns the results by part and number. `title` stands before the progress.
///
/// # Errors
/// The first error; no world is started after it.
pub(super) fn run_all<T: Send>(
    title: &str,
    parts: &[Part],
    runs: usize,
    at_a_time: usize,
    run: impl Fn(Part, usize) -> Result<T, ExperimentError> + Sync,
) -> Result<Vec<T>, ExperimentError> {
    // One run of each part after the other, so that other work of the machine affects all parts
    // equally.
    let plan: Vec<(usize, Part)> = (0..runs)
        .flat_map(|number| parts.iter().map(move |part| (number, *part)))
        .collect();
    let progress = Progress::new(title, plan.len() as u64);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let Some(&(number, part)) = plan.get(next.fetch_add(1, Ordering::Relaxed))
                    else {
                        return;
                    };
                    let done = run(part, number);
                    if done.is_err() {
                        next.store(plan.len(), Ordering::Relaxed);
                    }
                    let done = done.map(|done| ((part, number), done));
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push(done);
                    progress.step();
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut done = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    done.sort_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, done)| done).collect())
}
