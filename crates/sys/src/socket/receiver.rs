//! Socket options that limit or stop what a connection receives.

use std::os::fd::{AsFd, AsRawFd as _};

use std::sync::OnceLock;

use rustix::net::{AddressFamily, SocketType, socket, sockopt};

use crate::{Errno, raw_sockopt};

/// asm-generic/socket.h, which x86-64 and arm64 use. Linux 5.14 brought the second.
const SO_MEMINFO: libc::c_int = 55;
pub(crate) const SO_BUF_LOCK: libc::c_int = 72;
/// A bit of `SO_BUF_LOCK` (linux/socket.h).
pub(crate) const SOCK_RCVBUF_LOCK: libc::c_int = 2;

/// Returns the largest window that a connection would advertise, in bytes (TCP_WINDOW_CLAMP, tcp(7)).
///
/// # Errors
/// Those of getsockopt(2).
pub fn window_clamp(socket: impl AsFd) -> Result<u32, Errno> {
    raw_sockopt::get(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)
}

/// Limits the window that a connection advertises from now on, beyond what has arrived, in bytes
/// (TCP_WINDOW_CLAMP). The kernel raises the limit by itself only while it tunes the receive buffer.
///
/// # Errors
/// `EINVAL` if the socket is closed.
pub fn set_window_clamp(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    raw_sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// The receive buffer of a connection, in bytes including overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// What is used.
    pub used: u32,
    /// The size.
    pub size: u32,
}

/// Returns the receive buffer of a connection (SO_MEMINFO).
///
/// # Errors
/// Those of getsockopt(2).
pub fn buffer(socket: impl AsFd) -> Result<ReceiveBuffer, Errno> {
    // linux/sock_diag.h: SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_RCVBUF.
    let [used, size, ..]: [u32; 9] = raw_sockopt::get(socket, libc::SOL_SOCKET, SO_MEMINFO)?;
    Ok(ReceiveBuffer { used, size })
}

/// Returns whether the kernel tunes the receive buffer of a connection.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn is_buffer_tuned(socket: impl AsFd) -> Result<bool, Errno> {
    let locks: libc::c_int = raw_sockopt::get(socket, libc::SOL_SOCKET, SO_BUF_LOCK)?;
    Ok(locks & SOCK_RCVBUF_LOCK == 0)
}

/// Sets the receive buffer of a connection in bytes including overhead. The kernel no longer tunes it afterwards. Data for
/// which a smaller one has no room is dropped, also if its window was advertised.
///
/// # Errors
/// `EPERM` beyond `net.core.rmem_max` without CAP_NET_ADMIN, as it was when it was asked for first; nothing has changed then.
pub fn set_buffer(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    // The kernel doubles the value.
    let half = bytes as usize / 2;
    match sockopt::set_socket_recv_buffer_size_force(&socket, half) {
        Err(Errno::PERM) if bytes <= largest_buffer() => {
            sockopt::set_socket_recv_buffer_size(&socket, half)
        }
        done => done,
    }
}

/// Returns the largest receive buffer that any user can set, with overhead: that of `net.core.rmem_max` when it was asked
/// for first.
fn largest_buffer() -> u32 {
    static LARGEST: OnceLock<u32> = OnceLock::new();
    let largest = || {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_recv_buffer_size(&socket, i32::MAX as usize / 2)?;
        Ok::<_, Errno>(buffer(&socket)?.size)
    };
    *LARGEST.get_or_init(|| largest().unwrap_or(0))
}

/// Lets the kernel tune the receive buffer of a connection again.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn tune_buffer(socket: impl AsFd) -> Result<(), Errno> {
    let locks: libc::c_int = raw_sockopt::get(&socket, libc::SOL_SOCKET, SO_BUF_LOCK)?;
    let others = locks & !SOCK_RCVBUF_LOCK;
    raw_sockopt::set(&socket, libc::SOL_SOCKET, SO_BUF_LOCK, others)
}

/// For tests: makes a socket drop every incoming packet, or accept packets again (SO_ATTACH_FILTER,
/// socket(7)).
///
/// # Errors
/// `ENOENT` if there is no filter to remove.
pub fn drop_input(socket: impl AsFd, drops: bool) -> Result<(), Errno> {
    if !drops {
        let ignored: libc::c_int = 0;
        return raw_sockopt::set(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, ignored);
    }
    // The program returns 0, which keeps 0 bytes of the packet.
    let mut program = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let filter = libc::sock_fprog {
        len: 1,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the borrowed descriptor is open; the kernel reads one `sock_fprog` and the program
    // that it points to, and both outlive the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(raw_sockopt::last_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_largest_buffer_of_any_user_is_that_of_the_sysctl() {
        let max = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let max: u32 = max.trim().parse().unwrap();
        // The kernel doubles it.
        assert_eq!(largest_buffer(), 2 * max);
    }

    #[test]
    fn a_buffer_that_was_set_is_tuned_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = listener.accept().unwrap().0;
        assert!(is_buffer_tuned(&receiver).unwrap());
        set_buffer(&receiver, 200_000).unwrap();
        let expected = ReceiveBuffer {
            used: 0,
            size: 200_000,
        };
        assert_eq!(buffer(&receiver), Ok(expected));
        assert!(!is_buffer_tuned(&receiver).unwrap());
        tune_buffer(&receiver).unwrap();
        assert!(is_buffer_tuned(&receiver).unwrap());
        assert_eq!(buffer(&receiver), Ok(expected));
    }

    #[test]
    fn a_socket_that_dropped_its_input_receives_it_after_the_filter_is_removed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        set_window_clamp(&receiver, 4096).unwrap();
        drop_input(&receiver, true).unwrap();
        sender.write_all(b"x").unwrap();
        let brief = Some(Duration::from_millis(1));
        receiver.set_read_timeout(brief).unwrap();
        let nothing = receiver.read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        drop_input(&receiver, false).unwrap();
        receiver.set_read_timeout(None).unwrap();
        // The kernel retransmits the byte.
        assert_eq!(receiver.read(&mut [0]).unwrap(), 1);
        assert_eq!(drop_input(&receiver, false), Err(Errno::NOENT));
    }
}
