//! Descriptors for experiments that hold many sessions.

use std::io;

use taut_sys::limits::raise_open_file_limit;

/// Besides those of sessions: standard streams, worlds, links and a few to spare.
const OTHERS: u64 = 64;

/// Makes sure that this process can hold the client's and the server's end of every session; what
/// it starts inherits the limit.
pub(super) fn enough_descriptors(sessions: usize) -> io::Result<()> {
    let needed = 2 * sessions as u64 + OTHERS;
    let limit = raise_open_file_limit()?;
    if needed > limit {
        let message = format!("that takes {needed} descriptors, and this process may open {limit}");
        return Err(io::Error::other(message));
    }
    Ok(())
}
