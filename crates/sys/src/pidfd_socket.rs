//! A socket of another process, borrowed to set what nothing else sets (pidfd_getfd(2), Linux 5.6).
//!
//! What is borrowed is the socket itself. While it is held, a close by its owner closes nothing, so it is to be given back
//! at once: dropped. If its owner has closed it meanwhile that is the last close, which may wait for as long as the owner has
//! chosen (`SO_LINGER`); so it is done by a thread of its own.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::Errno;

/// linux/socket.h.
const SOCK_SNDBUF_LOCK: libc::c_int = 1;
const SOCK_RCVBUF_LOCK: libc::c_int = 2;
/// asm-generic/socket.h, which x86-64 and arm64 have.
const SO_BUF_LOCK: libc::c_int = 72;

/// A process's socket, for as long as this is there.
#[derive(Debug)]
pub struct PidfdSocket(Option<OwnedFd>);

/// A process, also when its number is given to another.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

/// The bounds of a socket's queues, in bytes with the overhead of buffers, as the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bound of the send queue.
    pub send: u32,
    /// Bound of the receive queue.
    pub receive: u32,
    /// Which of them the kernel leaves alone.
    pub locks: BufferLocks,
}

/// Buffers that the kernel does not size, because somebody has set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferLocks {
    /// The send buffer.
    pub send: bool,
    /// The receive buffer.
    pub receive: bool,
}

// === impl Pidfd ===

impl Pidfd {
    /// The process of this number.
    ///
    /// # Errors
    /// `ESRCH`: there is none (any more).
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let flags = PidfdFlags::empty();
        Ok(Self(pidfd_open(pid.ok_or(Errno::SRCH)?, flags)?))
    }

    /// Its descriptor of this number, if that is the socket with this cookie; `None`: it is something else, by now.
    ///
    /// # Errors
    /// `ESRCH`: the process has ended. `EPERM`: without CAP_SYS_PTRACE for a process of another.
    pub fn socket(&self, descriptor: RawFd, cookie: u64) -> Result<Option<PidfdSocket>, Errno> {
        let borrowed = match pidfd_getfd(&self.0, descriptor, PidfdGetfdFlags::empty()) {
            // It was closed.
            Err(Errno::BADF) => return Ok(None),
            other => PidfdSocket(Some(other?)),
        };
        // A number is given again as soon as it is free; what was borrowed stays what it is.
        let found = sockopt::socket_cookie(borrowed.fd()?);
        Ok((found == Ok(cookie)).then_some(borrowed))
    }
}

// === impl PidfdSocket ===

impl PidfdSocket {
    fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        // It is taken out when this is dropped.
        self.0.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Its buffers.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: before Linux 5.14.
    pub fn buffers(&self) -> Result<Buffers, Errno> {
        let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        Ok(Buffers {
            send: size(sockopt::socket_send_buffer_size(self.fd()?)?),
            receive: size(sockopt::socket_recv_buffer_size(self.fd()?)?),
            locks: locks(self.fd()?)?,
        })
    }

    /// Sets the send buffer, past `net.core.wmem_max`. The kernel sizes it no more ([`BufferLocks`]). Bytes with overhead.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN.
    pub fn set_send_buffer(&self, bytes: u32) -> Result<(), Errno> {
        // The kernel doubles what it is told.
        sockopt::set_socket_send_buffer_size_force(self.fd()?, bytes as usize / 2)
    }

    /// The same of the receive buffer and `net.core.rmem_max`. A window that was offered is not taken back.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<(), Errno> {
        sockopt::set_socket_recv_buffer_size_force(self.fd()?, bytes as usize / 2)
    }

    /// The widest window that it offers, in bytes of payload.
    ///
    /// # Errors
    /// The kernel's.
    pub fn window_clamp(&self) -> Result<u32, Errno> {
        let mut value: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes no more bytes than `value` has, which lives until the call returns, as `len` does.
        let done = unsafe {
            libc::getsockopt(
                self.fd()?.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_WINDOW_CLAMP,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        outcome(done)?;
        Ok(u32::try_from(value).unwrap_or(u32::MAX))
    }

    /// Sets the widest window that it offers, in bytes of payload (`TCP_WINDOW_CLAMP`). The kernel widens it only together with a buffer
    /// that it sizes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_window_clamp(&self, bytes: u32) -> Result<(), Errno> {
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: the kernel reads as many bytes as `value` has, which lives until the call returns.
        let done = unsafe {
            libc::setsockopt(
                self.fd()?.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_WINDOW_CLAMP,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        outcome(done)
    }

    /// Says which of its buffers the kernel leaves alone. Their sizes stay.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: before Linux 5.14.
    pub fn set_locks(&self, locks: BufferLocks) -> Result<(), Errno> {
        let send = if locks.send { SOCK_SNDBUF_LOCK } else { 0 };
        let receive = if locks.receive { SOCK_RCVBUF_LOCK } else { 0 };
        let value = send | receive;
        // SAFETY: the kernel reads as many bytes as `value` has, which lives until the call returns.
        let done = unsafe {
            libc::setsockopt(
                self.fd()?.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_BUF_LOCK,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        outcome(done)
    }
}

impl Drop for PidfdSocket {
    fn drop(&mut self) {
        let fd = self.0.take();
        let closer = std::thread::Builder::new().name("taut-close".to_owned());
        // Without a thread it is closed here.
        drop(closer.spawn(move || drop(fd)));
    }
}

fn locks(fd: BorrowedFd<'_>) -> Result<BufferLocks, Errno> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value` and the length to `len`; both live until the call
    // returns.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BUF_LOCK,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    outcome(done)?;
    Ok(BufferLocks {
        send: value & SOCK_SNDBUF_LOCK != 0,
        receive: value & SOCK_RCVBUF_LOCK != 0,
    })
}

fn outcome(done: libc::c_int) -> Result<(), Errno> {
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }

    fn own() -> Pidfd {
        Pidfd::open(std::process::id()).unwrap()
    }

    #[test]
    fn a_buffer_that_was_fixed_is_set_and_freed_from_outside() {
        let (near, _far) = connection();
        sockopt::set_socket_recv_buffer_size(&near, 50_000).unwrap();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        let borrowed = own().socket(near.as_raw_fd(), cookie).unwrap().unwrap();
        let fixed = borrowed.buffers().unwrap();
        assert_eq!(fixed.receive, 100_000);
        assert_eq!(
            fixed.locks,
            BufferLocks {
                send: false,
                receive: true
            }
        );

        borrowed.set_receive_buffer(200_000).unwrap();
        borrowed.set_send_buffer(300_000).unwrap();
        let set = borrowed.buffers().unwrap();
        assert_eq!((set.send, set.receive), (300_000, 200_000));
        assert_eq!(
            set.locks,
            BufferLocks {
                send: true,
                receive: true
            }
        );
        // Past the bound of who has no privileges.
        let bound = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let bound: u32 = bound.trim().parse().unwrap();
        borrowed
            .set_receive_buffer(bound.saturating_mul(4))
            .unwrap();
        assert_eq!(borrowed.buffers().unwrap().receive, bound.saturating_mul(4));

        borrowed.set_locks(BufferLocks::default()).unwrap();
        let free = borrowed.buffers().unwrap();
        assert_eq!((free.send, free.locks), (300_000, BufferLocks::default()));
    }

    #[test]
    fn a_number_that_is_another_sockets_by_now_lends_nothing() {
        let (near, far) = connection();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        assert!(own().socket(far.as_raw_fd(), cookie).unwrap().is_none());
        // Neither a file nor nothing at all.
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(own().socket(file.as_raw_fd(), cookie).unwrap().is_none());
        let number = file.into_raw_fd();
        // SAFETY: nobody else owns it.
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
        assert!(own().socket(1 << 20, cookie).unwrap().is_none());
    }

    #[test]
    fn a_process_that_ends_while_it_lends_is_an_error_and_no_other_process() {
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
