//! A network namespace for the duration of one probe.

use std::{io, thread};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{Answer, is_root};

/// Runs `probe` on a new thread in a new network namespace, which ends with the thread.
///
/// The namespace has a loopback device, interface 1, which is down.
pub(super) fn in_private(probe: impl FnOnce() -> Answer + Send) -> Answer {
    if !is_root() {
        return Answer::NeedsRoot;
    }
    let run = || {
        // SAFETY: unsharing is unsound only for the descriptor table (CLONE_FILES). This call
        // unshares the network namespace alone, which is an attribute of this thread.
        match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            Ok(()) => probe(),
            Err(e) => Answer::of_error(&e.into()),
        }
    };
    thread::scope(
        |scope| match thread::Builder::new().spawn_scoped(scope, run) {
            Ok(handle) => handle
                .join()
                .unwrap_or_else(|_| Answer::Unknown("the probe panicked".into())),
            Err(e) => Answer::Unknown(format!("cannot start a thread for the probe: {e}")),
        },
    )
}

/// Probes whether a network namespace can be created.
pub(super) fn try_one() -> Answer {
    in_private(|| Answer::of(io::Result::Ok(())))
}
