//! A network namespace for the length of one probe.

use std::{io, thread};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{Answer, is_root};

/// Runs `probe` on a thread of its own in a new network namespace, which ends with the thread.
///
/// The loopback device of the namespace is there, down, as interface 1.
pub(super) fn in_private(probe: impl FnOnce() -> Answer + Send) -> Answer {
    if !is_root() {
        return Answer::NeedsRoot;
    }
    let run = || {
        // SAFETY: of what `unshare` can part, only the network is named, and that is an attribute of
        // this thread alone: no memory, no descriptor table that other threads count on.
        match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            Ok(()) => probe(),
            Err(e) => Answer::of_error(&e.into()),
        }
    };
    thread::scope(
        |scope| match thread::Builder::new().spawn_scoped(scope, run) {
            Ok(handle) => handle
                .join()
                .unwrap_or_else(|_| Answer::Unknown("the probe failed".into())),
            Err(e) => Answer::Unknown(format!("no thread for the probe: {e}")),
        },
    )
}

/// Whether a network namespace can be made.
pub(super) fn try_one() -> Answer {
    in_private(|| Answer::of(io::Result::Ok(())))
}
