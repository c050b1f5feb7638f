//! Listening sockets passed by systemd (socket activation, sd_listen_fds(3)), and what it is told.
//!
//! systemd keeps the port open before this process starts and while it restarts: connections that
//! arrive in between wait in the kernel's accept queue. Descriptors start at 3; `LISTEN_PID`,
//! `LISTEN_FDS` and `LISTEN_FDNAMES` give the PID of the receiving process, the number of
//! descriptors and their names. The variables stay set: child processes have other PIDs and ignore
//! them, and changing the environment is unsound while other threads run.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;
use crate::socket::listening_addr;

/// The largest number of sockets accepted from the service manager.
pub const MAX_SOCKETS: usize = 4096;

/// A listening TCP socket from the service manager.
#[derive(Debug)]
pub struct Activated {
    /// `FileDescriptorName=` of the socket unit, or the unit's name if that is not set.
    pub name: String,
    /// The address it listens on.
    pub addr: SocketAddr,
    /// The socket, for [`crate::socket::Listener::from_fd`].
    pub fd: OwnedFd,
}

/// An error in the sockets or variables that the service manager passed.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The variables contradict themselves.
    #[error("the service manager's LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES are invalid: {0}")]
    Environment(io::Error),
    /// The service manager passed more than [`MAX_SOCKETS`].
    #[error("the service manager passes {0} sockets; at most {MAX_SOCKETS} are supported")]
    TooMany(usize),
    /// A descriptor that is not a listening TCP socket.
    #[error(
        "descriptor {fd} from the service manager, named `{name}`, is not a listening TCP socket \
         ({source}); set ListenStream=ADDRESS:PORT and Accept=no in its socket unit"
    )]
    Socket {
        /// The descriptor's number.
        fd: RawFd,
        /// The name given by `LISTEN_FDNAMES`.
        name: String,
        /// The check that failed, as reported by [`listening_addr`].
        source: Errno,
    },
}

/// Tells the service manager that this process is now the main one of its service (`MAINPID` of sd_notify(3)). Does
/// nothing without a service manager, or if the service does not accept it (`NotifyAccess=`).
///
/// # Errors
/// The system's: the service manager's socket cannot be used.
pub fn become_main_process() -> io::Result<()> {
    sd_notify::notify(&[sd_notify::NotifyState::MainPid(std::process::id())])
}

/// Returns the sockets that the service manager passed to this process. Only the first call in a
/// process returns them; later calls return none. Call it before anything else opens descriptors,
/// because a wrong `LISTEN_FDS` could refer to those.
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
            // SAFETY: sd-notify has checked that each descriptor is open and not -1, and nothing
            // closes it during this call: only this function, once in a process, takes them.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            match listening_addr(borrowed) {
                Ok(addr) => Ok(Activated {
                    name,
                    addr,
                    // SAFETY: the descriptor is open (see above) and has no other owner:
                    // LISTEN_PID says that the service manager passed it to this process, and
                    // only this code, which runs once, takes such descriptors.
                    fd: unsafe { OwnedFd::from_raw_fd(fd) },
                }),
                Err(source) => Err(ActivationError::Socket { fd, name, source }),
            }
        })
        .collect()
}
