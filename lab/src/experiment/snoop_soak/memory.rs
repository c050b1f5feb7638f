//! Takes the guest's TCP memory away and gives it back.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::plan::{Phase, shortages};
use taut_netlab::world::TcpMemory;

/// Lets the guest's TCP memory run out repeatedly until `over` signals the end; returns how often
/// it ran out.
pub(super) fn exhaust(memory: &TcpMemory, phase: &Phase, over: &Receiver<()>) -> io::Result<u64> {
    let mut times = 0;
    for (enough, short) in shortages(phase.seed) {
        match over.recv_timeout(enough) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
        match memory.exhaust() {
            Ok(()) => times += 1,
            // The usage grew after it was read and before it was set as the limit.
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => continue,
            Err(e) => return Err(e),
        }
        let ended = over.recv_timeout(short);
        memory.release()?;
        if !matches!(ended, Err(RecvTimeoutError::Timeout)) {
            break;
        }
    }
    Ok(times)
}
