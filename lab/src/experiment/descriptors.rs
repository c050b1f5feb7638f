//! The descriptor limit of experiments with many sessions.

use std::io;

use taut_sys::limits::raise_open_file_limit;

/// Descriptors besides those of sessions: standard streams, worlds, links and some to spare.
const OTHERS: u64 = 64;

/// Checks that this process can hold the client's and the server's end of every session;
/// child processes inherit the limit.
pub(super) fn enough_descriptors(sessions: usize) -> io::Result<()> {
    let needed = 2 * sessions as u64 + OTHERS;
    let limit = raise_open_file_limit()?;
    if needed > limit {
        let message = format!(
            "{needed} descriptors are needed, and the limit of this process is {limit} (ulimit -n)"
        );
        return Err(io::Error::other(message));
    }
    Ok(())
}
