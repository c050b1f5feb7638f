//! Connections whose SYN offers what the other side does not take up.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::TcpFastOpenConnect};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::plan::Offer;

/// Connects within `limit`. A kernel that cannot make the offer connects without.
pub(super) fn connect(to: &SocketAddr, offer: Offer, limit: Duration) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let protocol = match offer {
        Offer::Mptcp => ipproto::MPTCP,
        Offer::Nothing | Offer::FastOpen => ipproto::TCP,
    };
    let flags = SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(family, SocketType::STREAM, flags, Some(protocol)) else {
        return TcpStream::connect_timeout(to, limit);
    };
    if offer == Offer::FastOpen {
        // The first SYN to a server asks it for a cookie. It gives none, so that no other SYN has data.
        setsockopt(&socket, TcpFastOpenConnect, &true)?;
    }
    // (This one bounds connect() too.)
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    match rustix::net::connect(&socket, to) {
        Ok(()) => Ok(socket.into()),
        Err(rustix::io::Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e.into()),
    }
}
