//! Sockets with non-local addresses (IP_TRANSPARENT, ip(7)).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::{LegOptions, Listener, Set, Stream, tcp_socket};
use crate::{Errno, raw_sockopt};

/// The value that enables a boolean option.
const ON: libc::c_int = 1;

impl Listener {
    /// Listens like [`Listener::bind`], but also accepts intercepted connections to other
    /// addresses. An accepted stream has the client's original destination as its
    /// [`Stream::local_addr`] and replies from that address.
    ///
    /// # Errors
    /// Those of [`Listener::bind`], and `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW.
    pub fn bind_transparent(
        addr: SocketAddr,
        backlog: i32,
        options: &LegOptions,
    ) -> Result<Self, Errno> {
        Self::bind_with(addr, backlog, options, |fd| set_transparent(fd, addr))
    }
}

impl Stream {
    /// Connects like [`Stream::connect_sparingly`], but from the address `source`, which need not be local.
    /// The kernel chooses a port that is free for this destination.
    ///
    /// # Errors
    /// Those of [`Stream::connect`]; `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW; `EAFNOSUPPORT`
    /// if the two addresses are of different families.
    pub fn connect_from(
        addr: SocketAddr,
        source: IpAddr,
        options: &LegOptions,
    ) -> Result<Self, Errno> {
        if addr.is_ipv4() != source.is_ipv4() {
            return Err(Errno::AFNOSUPPORT);
        }
        let fd = tcp_socket(addr)?;
        options.apply(fd.as_fd(), Set::Necessary)?;
        set_transparent(fd.as_fd(), addr)?;
        // Otherwise bind(2) would reserve the port for all destinations. IPv6 sockets use the same
        // level for this option.
        raw_sockopt::set(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, ON)?;
        rustix::net::bind(&fd, &SocketAddr::new(source, 0))?;
        Self::start(fd, addr, Set::Necessary)
    }
}

/// Checks that this process may create sockets with non-local addresses.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN or CAP_NET_RAW.
pub fn probe_transparent() -> Result<(), Errno> {
    let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
    set_transparent(tcp_socket(any)?.as_fd(), any)
}

fn set_transparent(fd: BorrowedFd<'_>, family_of: SocketAddr) -> Result<(), Errno> {
    match family_of {
        SocketAddr::V4(_) => raw_sockopt::set(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, ON),
        SocketAddr::V6(_) => raw_sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, ON),
    }
}
