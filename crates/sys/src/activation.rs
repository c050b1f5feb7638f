//! Listening sockets that systemd has opened (socket activation, sd_listen_fds(3)).
//!
//! The port is then listened on before and between runs of this process: what connects while it
//! restarts waits in the kernel's queue. Descriptors come from 3 upwards; `LISTEN_PID`,
//! `LISTEN_FDS` and `LISTEN_FDNAMES` say for whom, how many, and what they are called. The
//! variables are left as they are: children of this process have other numbers, and removing them
//! is not safe beside other threads.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;
use crate::socket::listening_addr;

/// Sockets that are taken at most.
pub const MAX_SOCKETS: usize = 4096;

/// A listening TCP socket from the service manager.
#[derive(Debug)]
pub struct Activated {
    /// `FileDescriptorName=` of the socket unit; the unit's own name unless it was set.
    pub name: String,
    /// What it listens on.
    pub addr: SocketAddr,
    /// The socket, for [`crate::socket::Listener::from_fd`].
    pub fd: OwnedFd,
}

/// Why the service manager's sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The variables contradict themselves.
    #[error("the service manager's LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES do not fit: {0}")]
    Environment(io::Error),
    /// More than anybody means.
    #[error("the service manager hands over {0} sockets, {MAX_SOCKETS} is the most")]
    TooMany(usize),
    /// One that is no listening TCP socket.
    #[error(
        "descriptor {fd} from the service manager, called `{name}`, is no listening TCP socket \
         ({source}); use ListenStream=ADDRESS:PORT and Accept=no in its socket unit"
    )]
    Socket {
        /// The descriptor.
        fd: RawFd,
        /// Its name.
        name: String,
        /// What was found.
        source: Errno,
    },
}

/// Takes the sockets that were meant for this process. The first call gets them; later ones get
/// none. To be called at the start, before descriptors are opened whose numbers a wrong
/// `LISTEN_FDS` could name.
///
/// # Errors
/// [`ActivationError`].
pub fn take() -> Result<Vec<Activated>, ActivationError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let offered = sd_notify::listen_fds_with_names().map_err(ActivationError::Environment)?;
    if offered.len() > MAX_SOCKETS {
        return Err(ActivationError::TooMany(offered.len()));
    }
    offered
        .map(|(fd, name)| {
            // SAFETY: the library has found each descriptor open, none is -1, and nothing closes
            // it during this call: only this function, once in a process, takes them.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            match listening_addr(borrowed) {
                Ok(addr) => Ok(Activated {
                    name,
                    addr,
                    // SAFETY: the descriptor is open (see above), and it is owned by nobody else:
                    // LISTEN_PID says that the service manager gave it to this process, and this
                    // is the only place, run once, that takes what it gave.
                    fd: unsafe { OwnedFd::from_raw_fd(fd) },
                }),
                Err(source) => Err(ActivationError::Socket { fd, name, source }),
            }
        })
        .collect()
}
