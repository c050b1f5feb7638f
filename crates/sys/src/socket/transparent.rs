//! Sockets with addresses that are not this machine's (IP_TRANSPARENT, ip(7)).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::{LegOptions, Listener, Stream, tcp_socket};
use crate::Errno;

impl Listener {
    /// As [`Listener::bind`], for connections to any address that interception gives to it.
    /// Accepted streams have the address the client asked for ([`Stream::local_addr`]), and answer
    /// from it.
    ///
    /// # Errors
    /// As [`Listener::bind`], and `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW.
    pub fn bind_transparent(
        addr: SocketAddr,
        backlog: i32,
        options: &LegOptions,
    ) -> Result<Self, Errno> {
        Self::bind_with(addr, backlog, options, |fd| set_transparent(fd, addr))
    }
}

impl Stream {
    /// As [`Stream::connect`], from the address `source`, which need not be this machine's; the
    /// kernel chooses the port, and one that only this destination uses up.
    ///
    /// # Errors
    /// As [`Stream::connect`], `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW, and `EAFNOSUPPORT`
    /// when the two addresses are of different families.
    pub fn connect_from(
        addr: SocketAddr,
        source: IpAddr,
        options: &LegOptions,
    ) -> Result<Self, Errno> {
        if addr.is_ipv4() != source.is_ipv4() {
            return Err(Errno::AFNOSUPPORT);
        }
        let fd = tcp_socket(addr)?;
        options.apply(fd.as_fd())?;
        set_transparent(fd.as_fd(), addr)?;
        // Without it a port would be taken from all destinations at once. An IPv6 socket takes
        // it at the same level.
        set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        rustix::net::bind(&fd, &SocketAddr::new(source, 0))?;
        match rustix::net::connect(&fd, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self(fd)),
            Err(e) => Err(e),
        }
    }
}

/// Finds out whether sockets of this process may have others' addresses.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW.
pub fn probe_transparent() -> Result<(), Errno> {
    let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
    set_transparent(tcp_socket(any)?.as_fd(), any)
}

fn set_transparent(fd: BorrowedFd<'_>, family_of: SocketAddr) -> Result<(), Errno> {
    match family_of {
        SocketAddr::V4(_) => set(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        SocketAddr::V6(_) => set(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    }
}

/// Switches a socket option on that is an `int`.
fn set(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads one int through the
    // pointer, which is what the length says and what is there.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
