//! What a leg asks of its socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::tcp_socket;
use crate::Errno;

/// linux/tcp.h: leave repair mode and send a window probe.
const TCP_REPAIR_OFF: libc::c_int = 0;
const TCP_REPAIR_ON: libc::c_int = 1;

/// When the kernel gives up on a peer that no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence after which the first probe is sent.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection fails with `ETIMEDOUT`.
    pub probes: u32,
}

/// What a relayed leg asks of its socket: a leg's profile. With [`LegOptions::new`] it is the
/// kernel's defaults, which is what a leg towards the Internet has; a leg between relays adds to them.
///
/// The initial congestion window is not among them, because no socket option sets it: the leg's
/// congestion control does, or its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegOptions {
    /// Probes to find dead peers.
    pub keepalive: Keepalive,
    /// The congestion control of what is sent on it; `None`: the kernel's default.
    pub congestion: Option<String>,
    /// The send buffer in bytes (SO_SNDBUF), before the kernel doubles it for its own overhead.
    /// `None`: the kernel sizes it, between the bounds of `net.ipv4.tcp_wmem`.
    pub send_buffer: Option<usize>,
    /// The receive buffer in bytes (SO_RCVBUF), before the kernel doubles it. It is also the receive
    /// window, from the first acknowledgement on: the initial window of what comes. `None`: the
    /// kernel begins with 64 kB and sizes it, between the bounds of `net.ipv4.tcp_rmem`.
    pub receive_buffer: Option<usize>,
    /// Bytes a second that it never sends faster than (SO_MAX_PACING_RATE). `None`: no ceiling.
    pub pacing_ceiling: Option<u64>,
}

impl LegOptions {
    /// The kernel's defaults.
    pub fn new(keepalive: Keepalive) -> Self {
        Self {
            keepalive,
            congestion: None,
            send_buffer: None,
            receive_buffer: None,
            pacing_ceiling: None,
        }
    }

    /// Finds out whether sockets take these options.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has no such congestion control. `EPERM`: it has, but not for everybody
    /// (`net.ipv4.tcp_allowed_congestion_control`).
    pub fn probe(&self) -> Result<(), Errno> {
        let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
        self.apply(tcp_socket(any)?.as_fd())
    }

    /// To be called before connect(2) and listen(2): the window scale is chosen at the SYN, from the
    /// buffer there is then (RFC 7323 2.2).
    pub(super) fn apply(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // A relay adds no waiting of its own: what one leg delivers the other sends at once.
        sockopt::set_tcp_nodelay(fd, true)?;
        // Urgent data stays in the stream, or its byte would vanish from what is relayed.
        sockopt::set_socket_oobinline(fd, true)?;
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, self.keepalive.idle)?;
        sockopt::set_tcp_keepintvl(fd, self.keepalive.interval)?;
        sockopt::set_tcp_keepcnt(fd, self.keepalive.probes)?;
        if let Some(name) = &self.congestion {
            sockopt::set_tcp_congestion(fd, name)?;
        }
        if let Some(bytes) = self.send_buffer {
            or_unforced(
                sockopt::set_socket_send_buffer_size_force(fd, bytes),
                || sockopt::set_socket_send_buffer_size(fd, bytes),
            )?;
        }
        if let Some(bytes) = self.receive_buffer {
            or_unforced(
                sockopt::set_socket_recv_buffer_size_force(fd, bytes),
                || sockopt::set_socket_recv_buffer_size(fd, bytes),
            )?;
        }
        if let Some(rate) = self.pacing_ceiling {
            set_max_pacing_rate(fd, rate)?;
        }
        // Until the end of the stream has been forwarded, closing means aborting: if this process
        // is killed, both peers see RST, never a FIN that makes half a file look whole.
        sockopt::set_socket_linger(fd, Some(Duration::ZERO))
    }
}

/// Without CAP_NET_ADMIN a buffer is cut to `net.core.rmem_max` or `wmem_max`, and that is no error:
/// the leg is slower, not broken.
fn or_unforced(
    forced: Result<(), Errno>,
    unforced: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match forced {
        Err(Errno::PERM) => unforced(),
        other => other,
    }
}

/// Enters repair mode, or leaves it, which sends a window probe.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, or in a state in which a connection cannot be repaired.
pub(super) fn set_repair(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let value = if on { TCP_REPAIR_ON } else { TCP_REPAIR_OFF };
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value)
}

fn set_max_pacing_rate(fd: BorrowedFd<'_>, bytes_a_second: u64) -> Result<(), Errno> {
    // An unsigned long, of which the highest value stands for no ceiling.
    let rate = libc::c_ulong::try_from(bytes_a_second).unwrap_or(libc::c_ulong::MAX);
    set_option(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate)
}

/// An integer that the kernel reads as an option's value.
trait Integer: Copy {}
impl Integer for libc::c_int {}
impl Integer for libc::c_ulong {}

fn set_option<T: Integer>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> Result<(), Errno> {
    // SAFETY: a borrowed descriptor is open; the kernel reads the option's value, of the length
    // given, from `value` before the call returns; an integer has no padding.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(super::last_error())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests;
