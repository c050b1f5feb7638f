//! Socket options of a relayed leg.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;

use super::path::PathOptions;
use super::{Listener, Set, Stream, tcp_socket};
use crate::{Errno, raw_sockopt};

/// linux/tcp.h: leaves repair mode and sends a window probe.
const TCP_REPAIR_OFF: libc::c_int = 0;
const TCP_REPAIR_ON: libc::c_int = 1;

/// Keepalive parameters, which decide when the kernel gives up on a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which the first probe is sent.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection fails with `ETIMEDOUT`.
    pub probes: u32,
}

/// The socket options of a relayed leg. [`LegOptions::new`] keeps the kernel's defaults, for legs
/// towards the Internet; a leg between relays sets more options.
///
/// There is no initial congestion window, because no socket option sets it: the congestion control
/// or the route does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegOptions {
    /// Keepalive parameters, to detect dead peers.
    pub keepalive: Keepalive,
    /// Congestion control for sending. `None`: the kernel's default.
    pub congestion: Option<String>,
    /// Send buffer in bytes (SO_SNDBUF), before the kernel doubles it for its overhead. `None`: the
    /// kernel tunes it within `net.ipv4.tcp_wmem`.
    pub send_buffer: Option<usize>,
    /// Receive buffer in bytes (SO_RCVBUF), before the kernel doubles it. It also sets the receive
    /// window from the first acknowledgement on. `None`: the kernel starts at 64 kB and tunes it
    /// within `net.ipv4.tcp_rmem`.
    pub receive_buffer: Option<usize>,
    /// Upper limit of the sending rate in bytes per second (SO_MAX_PACING_RATE). `None`: no limit.
    pub pacing_ceiling: Option<u64>,
    /// Time after which unacknowledged data ends the connection (TCP_USER_TIMEOUT, RFC 5482).
    /// `None`: the kernel gives up after `net.ipv4.tcp_retries2` retransmissions.
    pub user_timeout: Option<Duration>,
    /// How packets are sent.
    pub path: PathOptions,
}

impl LegOptions {
    /// Returns the kernel's defaults with these keepalive parameters.
    pub fn new(keepalive: Keepalive) -> Self {
        Self {
            keepalive,
            congestion: None,
            send_buffer: None,
            receive_buffer: None,
            pacing_ceiling: None,
            user_timeout: None,
            path: PathOptions::default(),
        }
    }

    /// Checks, on an unused socket, that the kernel accepts these options.
    ///
    /// # Errors
    /// `ENOENT` if the kernel lacks the congestion control; `EPERM` if it is not allowed for
    /// unprivileged processes (`net.ipv4.tcp_allowed_congestion_control`).
    pub fn probe(&self) -> Result<(), Errno> {
        let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
        self.apply(tcp_socket(any)?.as_fd(), Set::All)
    }

    /// Sets the options. Must run before connect(2) or listen(2): the kernel chooses the window
    /// scale for the SYN from the buffer at that time (RFC 7323 2.2). Accepted connections inherit
    /// all the options of their listener.
    pub(super) fn apply(&self, fd: BorrowedFd<'_>, set: Set) -> Result<(), Errno> {
        if set == Set::All {
            // A relay must not delay data: bytes that one leg delivers, the other sends at once.
            sockopt::set_tcp_nodelay(fd, true)?;
            self.keepalive.enable(fd)?;
        }
        // Without this option, the urgent byte would be missing from the relayed stream. It cannot wait
        // until urgent data arrives: of two urgent bytes, the kernel would have dropped the first.
        sockopt::set_socket_oobinline(fd, true)?;
        if let Some(name) = &self.congestion {
            sockopt::set_tcp_congestion(fd, name)?;
        }
        if let Some(bytes) = self.send_buffer {
            set_send_buffer(fd, bytes)?;
        }
        if let Some(bytes) = self.receive_buffer {
            set_receive_buffer(fd, bytes)?;
        }
        if let Some(rate) = self.pacing_ceiling {
            set_max_pacing_rate(fd, rate)?;
        }
        if let Some(time) = self.user_timeout {
            let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(fd, millis)?;
        }
        self.path.apply(fd)?;
        // Until the end of the stream has been forwarded, a close must abort: if this process is
        // killed, both peers see an RST and never a FIN that makes half a file look complete.
        sockopt::set_socket_linger(fd, Some(Duration::ZERO))
    }

    /// Sets the options of a socket that may have had others. Without a congestion control, a limit of the
    /// rate or a time-out in them, the kernel's default applies again; buffers stay.
    pub(super) fn replace(&self, fd: BorrowedFd<'_>, local: SocketAddr) -> Result<(), Errno> {
        self.apply(fd, Set::All)?;
        if self.user_timeout.is_none() {
            sockopt::set_tcp_user_timeout(fd, 0)?;
        }
        if self.pacing_ceiling.is_none() {
            set_max_pacing_rate(fd, u64::MAX)?;
        }
        if self.congestion.is_none() {
            let default = sockopt::tcp_congestion(tcp_socket(local)?)?;
            sockopt::set_tcp_congestion(fd, &default)?;
        }
        Ok(())
    }
}

// === impl Keepalive ===

impl Keepalive {
    /// Enables keepalive. The switch comes first: the kernel then counts the idle time from the last
    /// segment that arrived (tcp_sock_set_keepidle_locked), and otherwise from now.
    pub(super) fn enable(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepintvl(fd, self.interval)?;
        sockopt::set_tcp_keepcnt(fd, self.probes)?;
        sockopt::set_tcp_keepidle(fd, self.idle)
    }
}

/// Returns the receive buffer ([`LegOptions::receive_buffer`]) with which a connection begins with this
/// window. The kernel counts half of the doubled value as window, but some kernels from 6.6 on begin with
/// a quarter. A connection over loopback shows which; without one, half is assumed.
pub fn receive_buffer_for(window: usize) -> usize {
    static SHARE: OnceLock<usize> = OnceLock::new();
    let halves = *SHARE.get_or_init(|| match first_window() {
        Ok((buffer, window)) => halves(buffer, window),
        Err(_) => 1,
    });
    window.saturating_mul(halves)
}

/// Returns how many times a window its buffer must be, after what a connection had. The kernel rounds
/// windows to segments.
fn halves(buffer: usize, window: usize) -> usize {
    1 + usize::from(buffer >= window.saturating_mul(7) / 4)
}

/// Returns the receive buffer of a connection over loopback, as it is set, and its first window.
fn first_window() -> Result<(usize, usize), Errno> {
    let (_listener, stream) = over_loopback()?;
    let buffer = sockopt::socket_recv_buffer_size(&stream)? / 2;
    let window = usize::try_from(stream.info()?.rcv_ssthresh).unwrap_or(usize::MAX);
    Ok((buffer, window))
}

/// Returns whether a window that is closed opens again after [`Stream::set_window_clamp`] has raised its limit. It
/// does since Linux 6.7 (58d3aade20cd; also in 6.6.7 and 6.1.68). Before, it may stay closed for good. A connection over
/// loopback shows it.
pub fn can_limit_windows() -> bool {
    static OPENS: OnceLock<bool> = OnceLock::new();
    let known = OPENS.get().copied();
    known.unwrap_or_else(|| opens_again().is_ok_and(|opens| *OPENS.get_or_init(|| opens)))
}

fn opens_again() -> Result<bool, Errno> {
    let (listener, sender) = over_loopback()?;
    let patience = Timespec::try_from(Duration::from_millis(100)).map_err(|_| Errno::INVAL)?;
    let mut waits = [PollFd::new(&listener, PollFlags::IN)];
    rustix::event::poll(&mut waits, Some(&patience))?;
    let (receiver, _) = listener.accept()?;
    let bytes = [0; 16 << 10];
    loop {
        match sender.send(&bytes) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        }
    }
    let limit = receiver.window_clamp()?;
    let before = receiver.info()?.rcv_ssthresh;
    if sender.info()?.snd_wnd.is_none_or(|window| window >= before) {
        return Err(Errno::AGAIN);
    }
    receiver.set_window_clamp(limit.saturating_add(4096))?;
    Ok(receiver.info()?.rcv_ssthresh >= before)
}

/// Returns a connection over loopback, which its listener has not accepted.
fn over_loopback() -> Result<(Listener, Stream), Errno> {
    let keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    };
    let options = LegOptions {
        // Within what a process without privileges may set.
        receive_buffer: Some(200_000),
        ..LegOptions::new(keepalive)
    };
    let any_port = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
    let listener = Listener::bind(any_port, 1, &options)?;
    let stream = Stream::connect(listener.local_addr()?, &options)?;
    Ok((listener, stream))
}

pub(super) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    or_unforced(
        sockopt::set_socket_send_buffer_size_force(fd, bytes),
        || sockopt::set_socket_send_buffer_size(fd, bytes),
    )
}

pub(super) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    or_unforced(
        sockopt::set_socket_recv_buffer_size_force(fd, bytes),
        || sockopt::set_socket_recv_buffer_size(fd, bytes),
    )
}

/// Falls back to `unforced` without CAP_NET_ADMIN. The buffer is then limited to
/// `net.core.rmem_max` or `wmem_max`, which makes the leg slower but does not break it.
fn or_unforced(
    forced: Result<(), Errno>,
    unforced: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match forced {
        Err(Errno::PERM) => unforced(),
        other => other,
    }
}

/// Enters repair mode, or leaves it and sends a window probe.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, or in a state that does not allow repair.
pub(super) fn set_repair(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let value = if on { TCP_REPAIR_ON } else { TCP_REPAIR_OFF };
    raw_sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value)
}

fn set_max_pacing_rate(fd: BorrowedFd<'_>, bytes_a_second: u64) -> Result<(), Errno> {
    // The option is an unsigned long; its largest value means no limit.
    let rate = libc::c_ulong::try_from(bytes_a_second).unwrap_or(libc::c_ulong::MAX);
    raw_sockopt::set(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests;
