//! Threads for several calls that block.

use std::thread::Builder;

/// Runs `job` for all items at the same time, each on a thread of its own, and returns the results in their
/// order. An item for which no thread can be started is run on this one. A panic in `job` is resumed.
pub(super) fn at_once<T: Sync, R: Send>(items: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let job = &job;
    std::thread::scope(|scope| {
        let start = |item| Builder::new().spawn_scoped(scope, move || job(item));
        let started: Vec<_> = items.iter().map(start).collect();
        let results = items
            .iter()
            .zip(started)
            .map(|(item, thread)| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => job(item),
            });
        results.collect()
    })
}
