//! Threads of an experiment, and what they do on the hosts of its world.

use std::io;
use std::thread::ScopedJoinHandle;

use taut_netlab::world::World;

use crate::experiment::ExperimentError;

/// Runs `job` in a host's namespace.
pub(super) fn inside<T: Send>(
    world: &World,
    host: &str,
    job: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, ExperimentError> {
    let done = world.host(host).run(job)?;
    done.map_err(ExperimentError::machine(&format!("go on at the {host}")))
}

/// Joins a thread, and propagates its panic.
pub(super) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|p| std::panic::resume_unwind(p))
}
