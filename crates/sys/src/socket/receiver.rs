//! Socket options that limit or stop what a connection receives.

use std::os::fd::{AsFd, AsRawFd as _};

use crate::{Errno, raw_sockopt};

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
