//! TCP sockets: listeners that share a port, and non-blocking streams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

use crate::tcp_info::TcpInfo;
use crate::{Errno, raw_sockopt};

mod leg;
mod local_ports;

pub use leg::{Keepalive, LegOptions, can_limit_windows, receive_buffer_for};

mod path;

pub use path::{PathOptions, SourcePool};

pub mod receiver;
mod transparent;

pub use transparent::probe_transparent;

/// linux/sockios.h; the libc crate lacks it.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

/// A listening socket, one of several that share its port (SO_REUSEPORT).
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Checks that no other process listens on `addr`. With SO_REUSEPORT alone, two processes of
    /// one user could share a port unnoticed.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
    pub fn probe(addr: SocketAddr) -> Result<(), Errno> {
        let fd = Self::unbound(addr)?;
        rustix::net::bind(&fd, &addr)
    }

    /// Listens on `addr`; accepted streams inherit `options`. An IPv6 address accepts IPv6 only.
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
        options.apply(fd.as_fd(), Set::All)?;
        more(fd.as_fd())?;
        rustix::net::bind(&fd, &addr)?;
        rustix::net::listen(&fd, backlog)?;
        Ok(Self(fd))
    }

    /// Takes over a listening socket from the service manager or from the process that this one
    /// replaces. The process that bound an IPv6 socket decided whether it accepts IPv4.
    ///
    /// # Errors
    /// Those of [`listening_addr`] and [`LegOptions::probe`].
    pub fn from_fd(fd: OwnedFd, options: &LegOptions) -> Result<Self, Errno> {
        listening_addr(&fd)?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        options.apply(fd.as_fd(), Set::All)?;
        Ok(Self(fd))
    }

    /// Returns another descriptor of the same socket, for another process. The socket listens until
    /// its last descriptor is closed.
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

    /// Accepts the next waiting connection and returns it with its peer's address, which is never
    /// IPv4-mapped.
    ///
    /// # Errors
    /// `EAGAIN` if none is waiting; `ECONNABORTED` if the connection was aborted meanwhile;
    /// `EMFILE`, `ENFILE`, `ENOBUFS` or `ENOMEM` if a resource is exhausted.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, peer) = rustix::net::acceptfrom_with(&self.0, flags)?;
        let peer = peer.and_then(ip_addr).ok_or(Errno::AFNOSUPPORT)?;
        Ok((Stream::new(fd, None, NO_DELAY), peer))
    }

    /// Sets the options that streams accepted from now on inherit. Without a congestion control in
    /// `options` the kernel's default applies again.
    ///
    /// # Errors
    /// Those of [`LegOptions::probe`].
    pub fn set_options(&self, options: &LegOptions) -> Result<(), Errno> {
        options.replace(self.0.as_fd(), self.local_addr()?)
    }

    /// Sets the buffers of streams whose SYN arrives from now on ([`LegOptions::send_buffer`],
    /// [`LegOptions::receive_buffer`]).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn set_buffers(&self, send: usize, receive: usize) -> Result<(), Errno> {
        leg::set_send_buffer(self.0.as_fd(), send)?;
        leg::set_receive_buffer(self.0.as_fd(), receive)
    }

    /// Returns the listening address, with the port that the kernel chose if the bound port was 0.
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

/// A non-blocking TCP connection, established or being established.
///
/// Dropping it resets the connection unless [`Stream::end_gracefully`] was called.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    /// The port that the stream was connected to. An accepted stream has none.
    to_port: Option<u16>,
    /// The number of writes until TCP_NODELAY was set, and [`NO_DELAY`] from then on.
    writes: AtomicU8,
}

/// What a connection attempt sets of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// All of them.
    All,
    /// Not those that a short connection can do without: [`Stream::connect_sparingly`].
    Necessary,
}

/// The value of [`Stream::writes`] with which TCP_NODELAY is set: the second write sets it.
///
/// The kernel holds back a short segment only while an earlier short one is unacknowledged (tcp_nagle_check:
/// Nagle's algorithm with Minshall's modification), so never at the first write of a connection.
const NO_DELAY: u8 = 2;

impl Stream {
    fn new(fd: OwnedFd, to_port: Option<u16>, writes: u8) -> Self {
        Self {
            fd,
            to_port,
            writes: AtomicU8::new(writes),
        }
    }

    /// Starts to connect to `addr`. The stream becomes writable when the attempt has succeeded or
    /// failed; [`Stream::take_error`] returns the result.
    ///
    /// # Errors
    /// Those that the kernel detects at once: `ENETUNREACH`, `EADDRNOTAVAIL` (no port left),
    /// `EMFILE`, and `ECONNREFUSED` for local destinations; `EAFNOSUPPORT` if the options have
    /// source addresses, but none of this family.
    pub fn connect(addr: SocketAddr, options: &LegOptions) -> Result<Self, Errno> {
        Self::connect_with(addr, options, Set::All)
    }

    /// Connects like [`Stream::connect`], with fewer system calls for connections that are short. The
    /// second write sets TCP_NODELAY, which the first does not need. Keepalive is off until
    /// [`Stream::keep_alive`].
    ///
    /// # Errors
    /// Those of [`Stream::connect`].
    pub fn connect_sparingly(addr: SocketAddr, options: &LegOptions) -> Result<Self, Errno> {
        Self::connect_with(addr, options, Set::Necessary)
    }

    fn connect_with(addr: SocketAddr, options: &LegOptions, set: Set) -> Result<Self, Errno> {
        if !options.path.sources.addrs().is_empty() {
            return path::connect_from_pool(addr, options, set);
        }
        let fd = tcp_socket(addr)?;
        options.apply(fd.as_fd(), set)?;
        Self::start(fd, addr, set)
    }

    /// Starts to connect a socket whose options are `set`.
    fn start(fd: OwnedFd, addr: SocketAddr, set: Set) -> Result<Self, Errno> {
        let writes = match set {
            Set::All => NO_DELAY,
            Set::Necessary => 0,
        };
        match rustix::net::connect(&fd, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self::new(fd, Some(addr.port()), writes)),
            Err(e) => Err(e),
        }
    }

    /// Enables keepalive on an established connection. Its idle time counts from the last segment
    /// that arrived.
    pub fn keep_alive(&self, keepalive: &Keepalive) {
        // A connection that has ended refuses options; it needs none.
        let _ = keepalive.enable(self.as_fd());
    }

    /// Prepares for a write: sets TCP_NODELAY if the kernel could hold the bytes back.
    pub(crate) fn before_write(&self) {
        let writes = self.writes.load(Ordering::Relaxed);
        if writes == NO_DELAY {
            return;
        }
        self.writes.store(writes + 1, Ordering::Relaxed);
        if writes + 1 == NO_DELAY {
            // A connection that has ended refuses the option, and the write.
            let _ = sockopt::set_tcp_nodelay(&self.fd, true);
        }
    }

    /// Reads received data; 0 means the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` if there is no data; otherwise the connection's error.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.fd, buf, RecvFlags::empty()).map(|(n, _)| n)
    }

    /// Returns what a read would find: data (`Some(true)`), the end of the stream (`Some(false)`),
    /// or nothing yet (`None`).
    ///
    /// # Errors
    /// The connection's error.
    pub fn peek(&self) -> Result<Option<bool>, Errno> {
        match rustix::net::recv(&self.fd, &mut [0u8; 1][..], RecvFlags::PEEK) {
            Ok((n, _)) => Ok(Some(n > 0)),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Queues as much of `bytes` as the send queue has room for and returns the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN` if the send queue is full; otherwise the connection's error.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.before_write();
        rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL)
    }

    /// Sends a FIN after the queued data.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection has ended.
    pub fn shutdown_write(&self) -> Result<(), Errno> {
        rustix::net::shutdown(&self.fd, Shutdown::Write)
    }

    /// Sends a window probe, which the peer answers with its current receive window one round trip
    /// later. The accepting end of a connection cannot advertise more than 64 kB in its SYN-ACK
    /// (RFC 7323 2.2) and announces a larger window only with its next segment. Useful before
    /// sending much data on a new connection; any byte in either direction has the same effect. The
    /// stream is otherwise unchanged.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN; `EINVAL` or `ENOTCONN` if the stream is not connected.
    pub fn probe_peer_window(&self) -> Result<(), Errno> {
        let reuse = sockopt::socket_reuseaddr(&self.fd)?;
        // Leaving repair mode sends the probe (TCP_REPAIR_OFF).
        leg::set_repair(self.as_fd(), true)?;
        leg::set_repair(self.as_fd(), false)?;
        // Repair mode clears SO_REUSEADDR. An accepted stream without it would keep the next
        // process from listening on the port.
        sockopt::set_socket_reuseaddr(&self.fd, reuse)
    }

    /// Returns the kernel's statistics of the connection (TCP_INFO).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn info(&self) -> Result<TcpInfo, Errno> {
        TcpInfo::of(self)
    }

    /// Sets the options of a connection that exists. The window scale stays, and the window opens with
    /// the next acknowledgements.
    ///
    /// # Errors
    /// Those of [`LegOptions::probe`].
    pub fn set_options(&self, options: &LegOptions) -> Result<(), Errno> {
        options.replace(self.fd.as_fd(), self.local_addr()?)
    }

    /// Returns and clears the socket's pending error (SO_ERROR). Once it is cleared, reading a
    /// connection that was reset returns 0, as at an orderly end.
    ///
    /// # Errors
    /// The pending error.
    pub fn take_error(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.fd)?
    }

    /// Returns the number of bytes that the peer has not acknowledged, FIN included (SIOCOUTQ).
    pub fn unacknowledged(&self) -> usize {
        unacknowledged(self)
    }

    /// Returns the number of bytes that were never sent (SIOCOUTQNSD), because the peer's window or
    /// the congestion window is full.
    pub fn unsent(&self) -> usize {
        queue_length(self.as_fd(), SIOCOUTQNSD)
    }

    /// Returns the number of bytes that have arrived and were not read (SIOCINQ).
    pub fn unread(&self) -> usize {
        queue_length(self.as_fd(), libc::FIONREAD)
    }

    /// Returns the largest window that the connection would advertise (TCP_WINDOW_CLAMP), in bytes.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn window_clamp(&self) -> Result<u32, Errno> {
        receiver::window_clamp(self)
    }

    /// Limits the window that is advertised beyond what has arrived, from now on, in bytes. The kernel raises the
    /// limit itself while it tunes the receive buffer.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn set_window_clamp(&self, bytes: u32) -> Result<(), Errno> {
        receiver::set_window_clamp(self, bytes)
    }

    /// Returns the receive buffer.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn receive_buffer(&self) -> Result<receiver::ReceiveBuffer, Errno> {
        receiver::buffer(self)
    }

    /// Returns whether the kernel tunes the receive buffer; `false` if that is unknown.
    pub fn is_receive_buffer_tuned(&self) -> bool {
        receiver::is_buffer_tuned(self).unwrap_or(false)
    }

    /// Sets the receive buffer ([`receiver::set_buffer`]).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<(), Errno> {
        receiver::set_buffer(self, bytes)
    }

    /// Lets the kernel tune the receive buffer again.
    ///
    /// # Errors
    /// None in ordinary use since Linux 5.14.
    pub fn tune_receive_buffer(&self) -> Result<(), Errno> {
        receiver::tune_buffer(self)
    }

    /// Has the connection take bytes only while fewer than these are unsent, and report room when half of them are
    /// (TCP_NOTSENT_LOWAT).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn limit_unsent(&self, bytes: u32) -> Result<(), Errno> {
        raw_sockopt::set(self, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
    }

    /// Makes the close, even that at the end of this process, deliver the queued data and a FIN.
    pub fn end_gracefully(&self) {
        // On failure the connection has already ended and only needs to be closed.
        let _ = sockopt::set_socket_linger(&self.fd, None);
    }

    /// Closes with an RST and discards the queued data.
    pub fn abort(self) {
        let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// Returns whether both ends are the same socket. That happens (by simultaneous open) when a
    /// connection goes to a local port without a listener and the kernel chooses the same source
    /// port.
    pub fn is_its_own_peer(&self) -> bool {
        // The kernel chooses no source port outside of its range.
        if self
            .to_port
            .is_some_and(|port| !local_ports::contains(port))
        {
            return false;
        }
        let Ok(local) = self.local_addr() else {
            return false;
        };
        if self.to_port.is_some_and(|port| port != local.port()) {
            return false;
        }
        self.peer_addr() == Ok(local)
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// `ENOTCONN` if the stream is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr, Errno> {
        rustix::net::getpeername(&self.fd)?
            .and_then(ip_addr)
            .ok_or(Errno::NOTCONN)
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn local_addr(&self) -> Result<SocketAddr, Errno> {
        ip_addr(rustix::net::getsockname(&self.fd)?).ok_or(Errno::AFNOSUPPORT)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.fd
    }
}

/// Returns the number of bytes that the peer of a TCP socket has not acknowledged, FIN included
/// (SIOCOUTQ).
pub fn unacknowledged(socket: impl AsFd) -> usize {
    queue_length(socket.as_fd(), libc::TIOCOUTQ)
}

/// Returns the length of a queue; 0 for a connection that has ended, because no more of its bytes
/// will be acknowledged.
fn queue_length(socket: BorrowedFd<'_>, request: libc::Ioctl) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the borrowed descriptor is open; FIONREAD, SIOCOUTQ and SIOCOUTQNSD, the only requests
    // passed here, write one `int` to `bytes`.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut bytes) };
    if rc == 0 {
        usize::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

/// Returns the address that a listening TCP socket is bound to.
///
/// # Errors
/// `ENOTSOCK`; `EAFNOSUPPORT` if it is neither IPv4 nor IPv6; `EPROTOTYPE` if it is not TCP;
/// `EINVAL` if it does not listen.
pub fn listening_addr(socket: impl AsFd) -> Result<SocketAddr, Errno> {
    let family = sockopt::socket_domain(&socket)?;
    if family != AddressFamily::INET && family != AddressFamily::INET6 {
        return Err(Errno::AFNOSUPPORT);
    }
    // An MPTCP socket is a stream socket of another protocol.
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

/// Returns whether sockets of this process can use the congestion control `name`. If it is a
/// module, the kernel loads it, if permitted.
pub fn has_congestion_control(name: &str) -> bool {
    let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
    tcp_socket(any)
        .and_then(|fd| sockopt::set_tcp_congestion(fd, name))
        .is_ok()
}

/// Returns whether `ip` is an address of this network namespace.
pub fn is_local(ip: std::net::IpAddr) -> bool {
    let any_port = SocketAddr::new(ip, 0);
    tcp_socket(any_port)
        .and_then(|fd| rustix::net::bind(&fd, &any_port))
        .is_ok()
}

pub(crate) fn tcp_socket(addr: SocketAddr) -> Result<OwnedFd, Errno> {
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

/// Returns whether a socket of IPv6 also accepts IPv4, as those of systemd do by default.
pub fn is_dual_stack(socket: impl AsFd) -> bool {
    sockopt::ipv6_v6only(socket).is_ok_and(|only| !only)
}

/// Returns the address of an end in its canonical form: a connection of IPv4 at a dual-stack socket has
/// `::ffff:ADDRESS`, by which no rule, limit or log line would recognise it.
fn ip_addr(addr: SocketAddrAny) -> Option<SocketAddr> {
    let addr = SocketAddr::try_from(addr).ok()?;
    match addr.ip().to_canonical() {
        ip if ip.is_ipv4() => Some(SocketAddr::new(ip, addr.port())),
        _ => Some(addr),
    }
}
