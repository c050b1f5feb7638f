//! TCP sockets: their options, splice(2), and the wait for them.

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

/// splice(2) from a TCP socket into a pipe and from the pipe into a TCP socket. Tried over a
/// connection of this process with itself on 127.0.0.1.
pub fn splice_through_pipe() -> Answer {
    match echo_by_splice() {
        // No loopback: that says nothing of splice.
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

/// epoll with a timeout in nanoseconds, not milliseconds.
pub fn epoll_pwait2() -> Answer {
    let poll = || -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Declared here rather than called through rustix, which falls back to epoll_pwait when
        // the kernel has no such call.
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: an all-zero `epoll_event` is a valid one.
        let mut event: libc::epoll_event = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open; `event` has room for the one event asked for; `now` and
        // `event` outlive the call; no signal mask is passed (null, of size 0).
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

/// Several listeners on one port, among which the kernel shares out the connections.
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

/// IPv6 sockets, with an address to use them on.
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

/// A limit on how long sent data may stay unacknowledged (RFC 5482).
pub fn user_timeout() -> Answer {
    Answer::of(tcp_socket(AddressFamily::INET).and_then(|s| Ok(set_tcp_user_timeout(&s, 1000)?)))
}

/// A source port chosen at connect(2), when the destination is known, not at bind(2).
pub fn bind_address_no_port() -> Answer {
    Answer::of(
        tcp_socket(AddressFamily::INET)
            .and_then(|s| set_ip_option(&s, libc::IP_BIND_ADDRESS_NO_PORT, 1)),
    )
}

/// A range of source ports for one socket.
pub fn local_port_range() -> Answer {
    /// linux/in.h; the range is in host order, the upper end in the high half.
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    const RANGE: libc::c_int = 50_000 << 16 | 40_000;
    Answer::of(
        tcp_socket(AddressFamily::INET).and_then(|s| set_ip_option(&s, IP_LOCAL_PORT_RANGE, RANGE)),
    )
}

/// A congestion control by its name, set on a socket that is never connected.
pub fn congestion_control(name: &str) -> Answer {
    unless_it_loads(&[&format!("tcp_{name}")], || {
        match tcp_socket(AddressFamily::INET).and_then(|s| Ok(set_tcp_congestion(&s, name)?)) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) && !is_root() => Answer::Unknown(
                "there, but net.ipv4.tcp_allowed_congestion_control has it not".to_owned(),
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
    // SAFETY: the descriptor is open, and the option's value is read from `value`, of the length
    // given, before the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
