//! Probes of TCP socket options, splice(2) and epoll.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::sockopt::{set_socket_reuseport, set_tcp_congestion, set_tcp_user_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::module::unless_it_loads;
use super::{Answer, is_root};
use crate::{kernel_tls, raw_sockopt};

/// Probes splice(2) from a TCP socket into a pipe and from the pipe into a TCP socket, over a
/// connection of this process with itself on 127.0.0.1.
pub fn splice_through_pipe() -> Answer {
    match echo_by_splice() {
        // There is no loopback address, so splice could not be tried.
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => Answer::Unknown(e.to_string()),
        outcome => Answer::of(outcome),
    }
}

fn echo_by_splice() -> io::Result<()> {
    const WORD: &[u8] = b"taut";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    near.write_all(WORD)?;
    let taken = splice(&far, None, &write, None, WORD.len(), SpliceFlags::empty())?;
    splice(&read, None, &far, None, taken, SpliceFlags::empty())?;
    let mut back = [0; WORD.len()];
    near.read_exact(&mut back[..taken])
}

/// Probes for epoll timeouts in nanoseconds instead of milliseconds (epoll_pwait2(2)).
pub fn epoll_pwait2() -> Answer {
    let poll = || -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Called directly, because rustix falls back to epoll_pwait on kernels without this call.
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `epoll_event` is plain data for which all zeroes is a valid value.
        let mut event: libc::epoll_event = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open; `event` has room for the one requested event; `now` and
        // `event` outlive the call; the signal mask may be null.
        let ready = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll.as_raw_fd(),
                &raw mut event,
                1,
                &raw const now,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if ready < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    Answer::of(poll())
}

/// Probes for several listeners on one port, among which the kernel distributes connections
/// (SO_REUSEPORT).
pub fn reuseport() -> Answer {
    let twice = || -> io::Result<()> {
        let first = tcp_socket(AddressFamily::INET)?;
        set_socket_reuseport(&first, true)?;
        bind(&first, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let second = tcp_socket(AddressFamily::INET)?;
        set_socket_reuseport(&second, true)?;
        Ok(bind(&second, &getsockname(&first)?)?)
    };
    Answer::of(twice())
}

/// Probes for IPv6 sockets and an IPv6 address to bind them to.
pub fn ipv6() -> Answer {
    let bound = || -> io::Result<()> {
        let socket = tcp_socket(AddressFamily::INET6)?;
        Ok(bind(&socket, &SocketAddr::from((Ipv6Addr::LOCALHOST, 0)))?)
    };
    match bound() {
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
            Answer::No("no IPv6 address, not even ::1".to_owned())
        }
        outcome => Answer::of(outcome),
    }
}

/// Probes for a limit on how long sent data may stay unacknowledged (TCP_USER_TIMEOUT, RFC 5482).
pub fn user_timeout() -> Answer {
    Answer::of(tcp_socket(AddressFamily::INET).and_then(|s| Ok(set_tcp_user_timeout(&s, 1000)?)))
}

/// Probes for source ports chosen at connect(2), when the destination is known, instead of at
/// bind(2) (IP_BIND_ADDRESS_NO_PORT).
pub fn bind_address_no_port() -> Answer {
    Answer::of(
        tcp_socket(AddressFamily::INET)
            .and_then(|s| set_ip_option(&s, libc::IP_BIND_ADDRESS_NO_PORT, 1)),
    )
}

/// Probes for TLS in the kernel with the cipher that relays use, on a connection of this process with
/// itself on 127.0.0.1.
pub fn kernel_tls() -> Answer {
    unless_it_loads(&["tls"], || match kernel_tls::probe() {
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => Answer::Unknown(e.to_string()),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
            Answer::No("the kernel has no TLS (CONFIG_TLS)".to_owned())
        }
        outcome => Answer::of(outcome),
    })
}

/// Probes for a range of source ports per socket (IP_LOCAL_PORT_RANGE).
pub fn local_port_range() -> Answer {
    /// linux/in.h; the range is in host byte order, with the upper end in the high half.
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    const RANGE: libc::c_int = 50_000 << 16 | 40_000;
    Answer::of(
        tcp_socket(AddressFamily::INET).and_then(|s| set_ip_option(&s, IP_LOCAL_PORT_RANGE, RANGE)),
    )
}

/// Probes for the congestion control `name`, set on a socket that is never connected.
pub fn congestion_control(name: &str) -> Answer {
    unless_it_loads(&[&format!("tcp_{name}")], || {
        match tcp_socket(AddressFamily::INET).and_then(|s| Ok(set_tcp_congestion(&s, name)?)) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) && !is_root() => Answer::Unknown(
                "present, but not listed in net.ipv4.tcp_allowed_congestion_control".to_owned(),
            ),
            outcome => Answer::of(outcome),
        }
    })
}

fn tcp_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn set_ip_option(socket: impl AsFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    Ok(raw_sockopt::set(socket, libc::IPPROTO_IP, option, value)?)
}
