//! Connections whose SYN offers an option that the other side does not accept.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::TcpFastOpenConnect};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::plan::Offer;
use crate::experiment::streams::connect_within;

/// Connects from an address within `limit`.
pub(super) fn connect(
    from: IpAddr,
    to: SocketAddr,
    offer: Offer,
    limit: Duration,
) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    if offer == Offer::FastOpen {
        // The first SYN to a server requests a cookie. The server sends none, so no later SYN
        // carries data.
        setsockopt(&socket, TcpFastOpenConnect, &true)?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    connect_within(&socket, to, limit)?;
    Ok(socket.into())
}
