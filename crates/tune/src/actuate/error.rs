//! Why a change was not made or not undone.

use std::borrow::Cow;

use taut_sys::Errno;
use taut_sys::privileges::{self, Capability};

use crate::journal::JournalWriteError;
use crate::routes::error::RouteError;
use crate::sysctl::SysctlError;

/// Why a change was not made or not undone.
#[derive(Debug, thiserror::Error)]
pub enum ActuateError {
    /// A socket could not be borrowed from its process, or could not be changed.
    #[error("process {pid}: its socket cannot be changed: {error}{}", socket_hint(*error))]
    Socket {
        /// The process.
        pid: u32,
        /// The kernel's error.
        error: Errno,
    },
    /// A setting of a namespace could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A route could not be changed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The BPF program for sockets without a known owner failed.
    #[error(
        "no process is known to have the socket, and it cannot be changed from inside the kernel: {0}"
    )]
    Ownerless(String),
    /// The change could not be written to the journal.
    #[error(transparent)]
    Journal(#[from] JournalWriteError),
}

fn socket_hint(error: Errno) -> Cow<'static, str> {
    match error {
        Errno::PERM | Errno::ACCESS => {
            let needed = [Capability::SysPtrace, Capability::NetAdmin];
            format!(" ({})", privileges::advice(&needed)).into()
        }
        Errno::BUSY => {
            " (too many sockets still wait at close, as their SO_LINGER says: later)".into()
        }
        Errno::NOPROTOOPT => " (it needs Linux 5.14)".into(),
        Errno::NOSYS => " (it needs Linux 5.6)".into(),
        Errno::MFILE => " (the process has more descriptors than are searched)".into(),
        _ => "".into(),
    }
}
