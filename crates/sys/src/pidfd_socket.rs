//! Socket options of another process's socket, set through pidfd_getfd(2) (Linux 5.6).
//!
//! The duplicate descriptor refers to the same socket. While it is open, a close by the owner does
//! not close the connection, so drop a [`PidfdSocket`] as soon as possible. If the owner has closed
//! its descriptor meanwhile, the drop is the last close. With `SO_LINGER` that blocks for as long as the
//! owner chose, so it happens on a thread of its own; while [`MAX_CLOSING`] do, none is duplicated.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::socket::receiver::{self, SO_BUF_LOCK, SOCK_RCVBUF_LOCK};
use crate::{Errno, raw_sockopt};

/// A bit of `SO_BUF_LOCK` (linux/socket.h).
const SOCK_SNDBUF_LOCK: libc::c_int = 1;

/// The number of threads that close duplicates from which on no descriptor is duplicated.
pub const MAX_CLOSING: usize = 64;

/// The number of threads that close duplicates.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// A duplicate of another process's socket. Keeps the socket open until it is dropped.
#[derive(Debug)]
pub struct PidfdSocket(Option<OwnedFd>);

/// A process, as a pidfd: it never refers to a later process with the same PID.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

/// The limits of a socket's queues (`sk_sndbuf`, `sk_rcvbuf`), in bytes including the overhead of
/// socket buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Limit of the send queue.
    pub send: u32,
    /// Limit of the receive queue.
    pub receive: u32,
    /// The buffers that the kernel does not auto-tune.
    pub locks: BufferLocks,
}

/// The buffers that are excluded from the kernel's auto-tuning because their size was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferLocks {
    /// The send buffer.
    pub send: bool,
    /// The receive buffer.
    pub receive: bool,
}

// === impl Pidfd ===

impl Pidfd {
    /// Opens the process with this PID.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, or no longer.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let flags = PidfdFlags::empty();
        Ok(Self(pidfd_open(pid.ok_or(Errno::SRCH)?, flags)?))
    }

    /// Duplicates descriptor `descriptor` of the process if it is the socket with this cookie.
    /// Returns `None` if the number is unused or refers to another file by now.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended; `EPERM` for another user's process without
    /// CAP_SYS_PTRACE; `EBUSY` while [`MAX_CLOSING`] duplicates wait to be closed.
    pub fn socket(&self, descriptor: RawFd, cookie: u64) -> Result<Option<PidfdSocket>, Errno> {
        if closing() >= MAX_CLOSING {
            return Err(Errno::BUSY);
        }
        let socket = match pidfd_getfd(&self.0, descriptor, PidfdGetfdFlags::empty()) {
            // The process has closed the descriptor.
            Err(Errno::BADF) => return Ok(None),
            other => PidfdSocket(Some(other?)),
        };
        // Descriptor numbers are reused at once, so only the duplicate can be checked reliably.
        let found = sockopt::socket_cookie(socket.fd()?);
        Ok((found == Ok(cookie)).then_some(socket))
    }
}

// === impl PidfdSocket ===

impl PidfdSocket {
    fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        // The descriptor is `None` only during drop.
        self.0.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Reads the limits of the socket's queues and their locks.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before Linux 5.14.
    pub fn buffers(&self) -> Result<Buffers, Errno> {
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        Ok(Buffers {
            send: size(sockopt::socket_send_buffer_size(self.fd()?)?),
            receive: size(sockopt::socket_recv_buffer_size(self.fd()?)?),
            locks: locks(self.fd()?)?,
        })
    }

    /// Sets the send buffer in bytes including overhead, even beyond `net.core.wmem_max`. The
    /// kernel no longer tunes the buffer afterwards ([`BufferLocks`]).
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN.
    pub fn set_send_buffer(&self, bytes: u32) -> Result<(), Errno> {
        // The kernel doubles the value.
        sockopt::set_socket_send_buffer_size_force(self.fd()?, bytes as usize / 2)
    }

    /// Sets the receive buffer in bytes including overhead, even beyond `net.core.rmem_max`. The
    /// kernel no longer tunes the buffer afterwards. A window that was already advertised is not
    /// withdrawn.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<(), Errno> {
        sockopt::set_socket_recv_buffer_size_force(self.fd()?, bytes as usize / 2)
    }

    /// Returns the largest window that the socket advertises, in bytes of payload
    /// (`TCP_WINDOW_CLAMP`).
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn window_clamp(&self) -> Result<u32, Errno> {
        receiver::window_clamp(self.fd()?)
    }

    /// Sets the largest window that the socket advertises, in bytes of payload
    /// (`TCP_WINDOW_CLAMP`). The kernel raises the clamp by itself only while it tunes the receive
    /// buffer.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_window_clamp(&self, bytes: u32) -> Result<(), Errno> {
        receiver::set_window_clamp(self.fd()?, bytes)
    }

    /// Sets which buffers are excluded from the kernel's auto-tuning. Their sizes do not change.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before Linux 5.14.
    pub fn set_locks(&self, locks: BufferLocks) -> Result<(), Errno> {
        let send = if locks.send { SOCK_SNDBUF_LOCK } else { 0 };
        let receive = if locks.receive { SOCK_RCVBUF_LOCK } else { 0 };
        raw_sockopt::set(self.fd()?, libc::SOL_SOCKET, SO_BUF_LOCK, send | receive)
    }
}

impl Drop for PidfdSocket {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else {
            return;
        };
        // It may be another file than a socket, too, whose close may wait for a server.
        if matches!(sockopt::socket_linger(&fd), Ok(None | Some(Duration::ZERO))) {
            return;
        }
        let closed = Closing::begin();
        let closer = std::thread::Builder::new().name("taut-close".to_owned());
        // If no thread can be started, dropping the closure closes the descriptor here.
        drop(closer.spawn(move || {
            drop(fd);
            drop(closed);
        }));
    }
}

/// Counts a thread that closes a duplicate, until it is dropped.
struct Closing;

impl Closing {
    fn begin() -> Self {
        CLOSING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the number of duplicates that wait to be closed.
pub fn closing() -> usize {
    CLOSING.load(Ordering::Relaxed)
}

fn locks(fd: BorrowedFd<'_>) -> Result<BufferLocks, Errno> {
    let value: libc::c_int = raw_sockopt::get(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?;
    Ok(BufferLocks {
        send: value & SOCK_SNDBUF_LOCK != 0,
        receive: value & SOCK_RCVBUF_LOCK != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Instant;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }

    /// Returns this process. What waits to be closed is counted for all threads, so one test at a time
    /// has it.
    fn own() -> (Pidfd, MutexGuard<'static, ()>) {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        (Pidfd::open(std::process::id()).unwrap(), alone)
    }

    #[test]
    fn a_locked_buffer_is_set_and_unlocked_from_outside() {
        let (own, _alone) = own();
        let (near, _far) = connection();
        sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        let socket = own.socket(near.as_raw_fd(), cookie).unwrap().unwrap();
        let fixed = socket.buffers().unwrap();
        assert_eq!(fixed.receive, 100_000);
        assert_eq!(
            fixed.locks,
            BufferLocks {
                send: false,
                receive: true
            }
        );

        socket.set_receive_buffer(200_000).unwrap();
        socket.set_send_buffer(300_000).unwrap();
        let set = socket.buffers().unwrap();
        assert_eq!((set.send, set.receive), (300_000, 200_000));
        assert_eq!(
            set.locks,
            BufferLocks {
                send: true,
                receive: true
            }
        );
        // This size is beyond the limit for unprivileged processes.
        let bound = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let bound: u32 = bound.trim().parse().unwrap();
        socket.set_receive_buffer(bound.saturating_mul(4)).unwrap();
        assert_eq!(socket.buffers().unwrap().receive, bound.saturating_mul(4));

        socket.set_locks(BufferLocks::default()).unwrap();
        let free = socket.buffers().unwrap();
        assert_eq!((free.send, free.locks), (300_000, BufferLocks::default()));
    }

    #[test]
    fn a_descriptor_number_that_refers_to_another_file_yields_no_socket() {
        let (own, _alone) = own();
        let (near, far) = connection();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        assert!(own.socket(far.as_raw_fd(), cookie).unwrap().is_none());
        // Neither a file nor an unused number is accepted.
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(own.socket(file.as_raw_fd(), cookie).unwrap().is_none());
        let number = file.into_raw_fd();
        // SAFETY: `into_raw_fd` has given up the only owner.
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
        assert!(own.socket(1 << 20, cookie).unwrap().is_none());
    }

    #[test]
    fn sockets_that_linger_at_close_are_closed_by_a_bounded_number_of_threads() {
        let (own, _alone) = own();
        let mut peers = Vec::new();
        let mut borrow = || {
            let (near, far) = connection();
            sockopt::set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
            near.set_nonblocking(true).unwrap();
            while (&near).write(&[0; 1 << 16]).is_ok() {}
            peers.push(far);
            let cookie = sockopt::socket_cookie(&near).unwrap();
            let borrowed = own.socket(near.as_raw_fd(), cookie);
            // If it was duplicated, that is the last descriptor from now on. Otherwise this close
            // must not wait.
            match borrowed.is_ok() {
                true => drop(near),
                false => sockopt::set_socket_linger(&near, None).unwrap(),
            }
            borrowed
        };
        // A child that another test has just forked may have a socket, too, which then does not linger
        // here.
        let mut lent = 0;
        let refused = loop {
            match borrow() {
                Ok(borrowed) => drop(borrowed),
                Err(error) => break error,
            }
            lent += 1;
            assert!(lent < 4 * MAX_CLOSING, "{} wait", closing());
        };
        assert_eq!(refused, Errno::BUSY);
        assert!(lent >= MAX_CLOSING, "{lent}");
        // A peer that closes with unread data resets the connection, and nothing lingers.
        peers.clear();
        let start = Instant::now();
        while closing() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", closing());
            std::thread::yield_now();
        }
        // A socket that resets its connection at close does not wait.
        let (near, _far) = connection();
        sockopt::set_socket_linger(&near, Some(Duration::ZERO)).unwrap();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        own.socket(near.as_raw_fd(), cookie).unwrap().unwrap();
        assert_eq!(closing(), 0);
    }

    #[test]
    fn a_process_that_has_ended_is_an_error_and_never_another_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let lender = Pidfd::open(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(lender.socket(0, 1).unwrap_err(), Errno::SRCH);
        assert_eq!(Pidfd::open(child.id()).unwrap_err(), Errno::SRCH);
        assert_eq!(Pidfd::open(u32::MAX).unwrap_err(), Errno::SRCH);
    }
}
