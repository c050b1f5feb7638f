//! Socket options by which an application hinders its own receiving. For tests.

use std::os::fd::{AsFd, AsRawFd as _};

use super::last_error;
use crate::Errno;

/// Limits the window that a connection advertises from now on, in bytes (TCP_WINDOW_CLAMP, tcp(7)).
///
/// # Errors
/// `EINVAL` if the socket is closed.
pub fn set_window_clamp(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| Errno::INVAL)?;
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &bytes)
}

/// Makes a socket drop every incoming packet, or accept packets again (SO_ATTACH_FILTER, socket(7)).
///
/// # Errors
/// `ENOENT` if there is no filter to remove.
pub fn drop_input(socket: impl AsFd, drops: bool) -> Result<(), Errno> {
    if !drops {
        let ignored: libc::c_int = 0;
        return set_option(&socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &ignored);
    }
    // The program returns 0: keep 0 bytes of the packet.
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
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

fn set_option<T>(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    // SAFETY: the borrowed descriptor is open. The kernel reads `size_of::<T>()` bytes from `value`; the
    // program that a `sock_fprog` points to is owned by the caller and outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(last_error()),
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
