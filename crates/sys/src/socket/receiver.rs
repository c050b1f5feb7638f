//! What an application can do to a connection's receiving half behind the sender's back. Tests use it.

use std::os::fd::{AsFd, AsRawFd as _};

use super::last_error;
use crate::Errno;

/// Bounds the window that a connection offers from now on (TCP_WINDOW_CLAMP, tcp(7)).
///
/// # Errors
/// `EINVAL`: the socket is closed.
pub fn set_window_clamp(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| Errno::INVAL)?;
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &bytes)
}

/// Has a socket drop every packet that comes for it (SO_ATTACH_FILTER, socket(7)), or take them again.
///
/// # Errors
/// `ENOENT`: there is no filter to take away.
pub fn drop_input(socket: impl AsFd, drops: bool) -> Result<(), Errno> {
    if !drops {
        let ignored: libc::c_int = 0;
        return set_option(&socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &ignored);
    }
    // "Keep 0 bytes of it."
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
    // SAFETY: the descriptor is open while it is borrowed. The kernel reads as many bytes through the pointer as the
    // length says, which are those of `value`; what the only caller with a pointer in it points to outlives the call.
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
    fn a_socket_that_drops_its_input_receives_it_when_it_takes_it_again() {
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
        // Retransmitted by the kernel.
        assert_eq!(receiver.read(&mut [0]).unwrap(), 1);
        assert_eq!(drop_input(&receiver, false), Err(Errno::NOENT));
    }
}
