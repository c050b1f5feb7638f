//! TCP sockets: listeners that share a port, and streams that are never blocking.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

use crate::Errno;
use crate::tcp_info::TcpInfo;

mod leg;

pub use leg::{Keepalive, LegOptions};

pub mod receiver;
mod transparent;

pub use transparent::probe_transparent;

/// linux/sockios.h; libc has no name for it.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// A listening socket, one of several that share its port (SO_REUSEPORT).
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Finds out whether `addr` can be listened on by nobody else's leave: SO_REUSEPORT alone
    /// would let two processes of one user share a port without either knowing.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
    pub fn probe(addr: SocketAddr) -> Result<(), Errno> {
        let fd = Self::unbound(addr)?;
        rustix::net::bind(&fd, &addr)
    }

    /// Listens on `addr`; accepted streams inherit `options`. An IPv6 address takes IPv6 only.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`, `EMFILE`.
    pub fn bind(addr: SocketAddr, backlog: i32, options: &LegOptions) -> Result<Self, Errno> {
        Self::bind_with(addr, backlog, options, |_| Ok(()))
    }

    fn bind_with(
        addr: SocketAddr,
        backlog: i32,
        options: &LegOptions,
        more: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Self, Errno> {
        let fd = Self::unbound(addr)?;
        sockopt::set_socket_reuseport(&fd, true)?;
        options.apply(fd.as_fd())?;
        more(fd.as_fd())?;
        rustix::net::bind(&fd, &addr)?;
        rustix::net::listen(&fd, backlog)?;
        Ok(Self(fd))
    }

    /// Listens by a socket that somebody else has bound: the service manager, or the process that
    /// this one takes over from. What bound it has also said whether an IPv6 address takes IPv4.
    ///
    /// # Errors
    /// Those of [`listening_addr`], and those of [`LegOptions::probe`].
    pub fn from_fd(fd: OwnedFd, options: &LegOptions) -> Result<Self, Errno> {
        listening_addr(&fd)?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        options.apply(fd.as_fd())?;
        Ok(Self(fd))
    }

    /// The same socket by one more descriptor, to be handed to another process. The port is
    /// listened on until the last of them is closed.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }

    fn unbound(addr: SocketAddr) -> Result<OwnedFd, Errno> {
        let fd = tcp_socket(addr)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        Ok(fd)
    }

    /// Takes the next connection that is waiting, with its peer's address.
    ///
    /// # Errors
    /// `EAGAIN` when none is waiting; `ECONNABORTED` when it went away; `EMFILE`, `ENFILE`,
    /// `ENOBUFS`, `ENOMEM` when this machine is short of something.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, peer) = rustix::net::acceptfrom_with(&self.0, flags)?;
        let peer = peer.and_then(ip_addr).ok_or(Errno::AFNOSUPPORT)?;
        Ok((Stream(fd), peer))
    }

    /// Has the streams that are accepted from now on inherit `options`. Without a congestion control
    /// among them it is the kernel's default again.
    ///
    /// # Errors
    /// Those of [`LegOptions::probe`].
    pub fn set_options(&self, options: &LegOptions) -> Result<(), Errno> {
        options.apply(self.0.as_fd())?;
        if options.congestion.is_none() {
            let default = sockopt::tcp_congestion(tcp_socket(self.local_addr()?)?)?;
            sockopt::set_tcp_congestion(&self.0, &default)?;
        }
        Ok(())
    }

    /// The address it listens on, with the port the kernel chose if it was asked to.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn local_addr(&self) -> Result<SocketAddr, Errno> {
        ip_addr(rustix::net::getsockname(&self.0)?).ok_or(Errno::AFNOSUPPORT)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A TCP connection, or one on its way. No call on it blocks.
///
/// Dropping it resets the connection unless [`Stream::end_gracefully`] was called.
#[derive(Debug)]
pub struct Stream(OwnedFd);

impl Stream {
    /// Starts to connect to `addr`. The stream is writable when that has been decided;
    /// [`Stream::take_error`] then tells how.
    ///
    /// # Errors
    /// What the kernel knows at once: `ENETUNREACH`, `EADDRNOTAVAIL` (no port left), `EMFILE`,
    /// and for local destinations `ECONNREFUSED`.
    pub fn connect(addr: SocketAddr, options: &LegOptions) -> Result<Self, Errno> {
        let fd = tcp_socket(addr)?;
        options.apply(fd.as_fd())?;
        match rustix::net::connect(&fd, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self(fd)),
            Err(e) => Err(e),
        }
    }

    /// Reads what has arrived; 0 is the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` when nothing has arrived; otherwise the connection's error.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.0, buf, RecvFlags::empty()).map(|(n, _)| n)
    }

    /// Whether a read would give data (`Some(true)`), the end of the stream (`Some(false)`) or
    /// nothing yet (`None`).
    ///
    /// # Errors
    /// The connection's error.
    pub fn peek(&self) -> Result<Option<bool>, Errno> {
        match rustix::net::recv(&self.0, &mut [0u8; 1][..], RecvFlags::PEEK) {
            Ok((n, _)) => Ok(Some(n > 0)),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Queues as much of `bytes` as there is room for.
    ///
    /// # Errors
    /// `EAGAIN` without room; otherwise the connection's error.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    /// Sends FIN after what is queued.
    ///
    /// # Errors
    /// `ENOTCONN` when the connection is gone.
    pub fn shutdown_write(&self) -> Result<(), Errno> {
        rustix::net::shutdown(&self.0, Shutdown::Write)
    }

    /// Has the peer say what its receive window is: sends a window probe, which the peer answers
    /// with an acknowledgement, a round trip later. An end that accepted a connection and has not sent
    /// anything since has not told more of its window than the 64 kB that fit a SYN-ACK (RFC 7323
    /// 2.2), however large it is. For an end that is to send much as the first thing it does;
    /// a byte either way does the same. The stream stays as it was.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN; `EINVAL` or `ENOTCONN` when it is not connected.
    pub fn probe_peer_window(&self) -> Result<(), Errno> {
        let reuse = sockopt::socket_reuseaddr(&self.0)?;
        // Leaving repair mode is what sends the probe (TCP_REPAIR_OFF); nothing happens in between.
        leg::set_repair(self.as_fd(), true)?;
        leg::set_repair(self.as_fd(), false)?;
        // It leaves this off, and an accepted stream without it would keep the next process from
        // listening on the port.
        sockopt::set_socket_reuseaddr(&self.0, reuse)
    }

    /// The kernel's account of the connection.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn info(&self) -> Result<TcpInfo, Errno> {
        TcpInfo::of(self)
    }

    /// Fetches and clears the socket's error. Beware: once cleared, a read of a connection that
    /// was reset returns 0, as at an orderly end.
    pub fn take_error(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.0)?
    }

    /// Bytes that the peer has not acknowledged yet, FIN included (SIOCOUTQ).
    pub fn unacknowledged(&self) -> usize {
        unacknowledged(self)
    }

    /// Bytes that have not been sent even once (SIOCOUTQNSD): the peer's window or the
    /// congestion window holds them back.
    pub fn unsent(&self) -> usize {
        queue_length(self.as_fd(), SIOCOUTQNSD)
    }

    /// From now on closing, and so the end of this process, delivers what is queued and then FIN.
    pub fn end_gracefully(&self) {
        // If this fails the connection is gone already, and closing is all there is to do.
        let _ = sockopt::set_socket_linger(&self.0, None);
    }

    /// Closes with RST; what is queued is discarded.
    pub fn abort(self) {
        let _ = sockopt::set_socket_linger(&self.0, Some(Duration::ZERO));
    }

    /// Whether the connection is one with itself. Connecting to a local port that nobody listens
    /// on gives that when the kernel happens to choose the same port as the source.
    pub fn is_its_own_peer(&self) -> bool {
        matches!((self.local_addr(), self.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN` while it is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr, Errno> {
        rustix::net::getpeername(&self.0)?
            .and_then(ip_addr)
            .ok_or(Errno::NOTCONN)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn local_addr(&self) -> Result<SocketAddr, Errno> {
        ip_addr(rustix::net::getsockname(&self.0)?).ok_or(Errno::AFNOSUPPORT)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Bytes that the peer of a TCP socket has not acknowledged yet, FIN included (SIOCOUTQ).
pub fn unacknowledged(socket: impl AsFd) -> usize {
    queue_length(socket.as_fd(), libc::TIOCOUTQ)
}

/// 0 for a connection that is gone: nothing of it will ever be acknowledged.
fn queue_length(socket: BorrowedFd<'_>, request: libc::Ioctl) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ and SIOCOUTQNSD, the only requests passed here, write one int through the
    // pointer and nothing else; a borrowed descriptor is open.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut bytes) };
    if rc == 0 {
        usize::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

/// The address that `socket` listens on, if it is a TCP socket that listens.
///
/// # Errors
/// `ENOTSOCK`; `EAFNOSUPPORT`: neither IPv4 nor IPv6; `EPROTOTYPE`: not TCP; `EINVAL`: it does
/// not listen.
pub fn listening_addr(socket: impl AsFd) -> Result<SocketAddr, Errno> {
    let family = sockopt::socket_domain(&socket)?;
    if family != AddressFamily::INET && family != AddressFamily::INET6 {
        return Err(Errno::AFNOSUPPORT);
    }
    // MPTCP is a stream as well, and another protocol.
    let tcp = sockopt::socket_type(&socket)? == SocketType::STREAM
        && sockopt::socket_protocol(&socket)? == Some(rustix::net::ipproto::TCP);
    if !tcp {
        return Err(Errno::PROTOTYPE);
    }
    if !sockopt::socket_acceptconn(&socket)? {
        return Err(Errno::INVAL);
    }
    ip_addr(rustix::net::getsockname(&socket)?).ok_or(Errno::AFNOSUPPORT)
}

/// Whether sockets of this process can have the congestion control `name`. Asking for one that is
/// a module loads it, where that is permitted.
pub fn has_congestion_control(name: &str) -> bool {
    let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
    tcp_socket(any)
        .and_then(|fd| sockopt::set_tcp_congestion(fd, name))
        .is_ok()
}

/// Whether `ip` belongs to this machine (as seen from this network namespace).
pub fn is_local(ip: std::net::IpAddr) -> bool {
    let any_port = SocketAddr::new(ip, 0);
    tcp_socket(any_port)
        .and_then(|fd| rustix::net::bind(&fd, &any_port))
        .is_ok()
}

fn tcp_socket(addr: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        Some(rustix::net::ipproto::TCP),
    )
}

fn ip_addr(addr: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(addr).ok()
}
