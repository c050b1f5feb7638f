//! Addresses to listen on, as every job's configuration has them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;

use rustix::net::sockopt;

use crate::Errno;
use crate::socket::tcp_socket;

/// The length of the accept queue of [`Listen::open`].
const BACKLOG: i32 = 128;

/// Where to listen: `ADDRESS:PORT`, or `:PORT` for every IPv4 and IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At this address.
    At(SocketAddr),
    /// At this port of every address of the families that this machine has.
    All(u16),
}

/// A text that is no [`Listen`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an address to listen on: write ADDRESS:PORT, [ADDRESS]:PORT, or :PORT for all addresses"
)]
pub struct ListenError(String);

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().map(Self::All).ok(),
            None => text.parse().map(Self::At).ok(),
        };
        parsed.ok_or_else(|| ListenError(text.escape_default().to_string()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(addr) => addr.fmt(f),
            Self::All(port) => write!(f, ":{port}"),
        }
    }
}

impl Listen {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        match self {
            Self::At(addr) => addr.port(),
            Self::All(port) => *port,
        }
    }

    /// Returns the addresses that the text stands for on a machine with both families, IPv4 first.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        match *self {
            Self::At(addr) => vec![addr],
            Self::All(port) => vec![
                (Ipv4Addr::UNSPECIFIED, port).into(),
                (Ipv6Addr::UNSPECIFIED, port).into(),
            ],
        }
    }

    /// Returns the addresses to bind on this machine, one socket each: of `:PORT` those of the families
    /// that it has.
    pub fn addrs_here(&self) -> Vec<SocketAddr> {
        self.addrs_with(has_family)
    }

    fn addrs_with(&self, has_family: impl Fn(SocketAddr) -> bool) -> Vec<SocketAddr> {
        let all = self.addrs();
        match self {
            // A machine with neither family gets the error of bind(2).
            Self::All(_) if all.iter().any(|addr| has_family(*addr)) => {
                all.into_iter().filter(|addr| has_family(*addr)).collect()
            }
            _ => all,
        }
    }

    /// Listens with one non-blocking socket: at `:PORT` and `[::]:PORT` for both families (with the peers of
    /// IPv4 as `::ffff:ADDRESS`), and at `:PORT` for IPv4 alone on a machine without IPv6.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES`, `EADDRNOTAVAIL` and others of socket(2), bind(2) and listen(2).
    pub fn open(&self) -> io::Result<TcpListener> {
        let addr = self.addrs_here().pop().ok_or(Errno::AFNOSUPPORT)?;
        let fd = tcp_socket(addr)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if addr.is_ipv6() {
            // net.ipv6.bindv6only may have another default.
            sockopt::set_ipv6_v6only(&fd, false)?;
        }
        rustix::net::bind(&fd, &addr)?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(fd.into())
    }
}

/// Returns whether this machine has the family of `addr`, and this process may use it.
fn has_family(addr: SocketAddr) -> bool {
    !matches!(tcp_socket(addr), Err(Errno::AFNOSUPPORT))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    fn listen(text: &str) -> Listen {
        text.parse().unwrap()
    }

    #[test]
    fn a_bare_port_means_the_families_that_the_machine_has() {
        let all = listen(":80");
        let with = |has: fn(SocketAddr) -> bool| {
            let addrs = all.addrs_with(has);
            addrs.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(with(|_| true), ["0.0.0.0:80", "[::]:80"]);
        assert_eq!(with(|addr| addr.is_ipv4()), ["0.0.0.0:80"]);
        assert_eq!(with(|addr| addr.is_ipv6()), ["[::]:80"]);
        assert_eq!(with(|_| false).len(), 2, "the error is that of bind");
        assert_eq!(all.addrs().len(), 2);
        // An address that was written is not left out.
        let v6 = listen("[::1]:80");
        assert_eq!(v6.addrs_with(|addr| addr.is_ipv4()), v6.addrs());
    }

    #[test]
    fn a_text_is_an_address_or_a_bare_port() {
        for text in ["127.0.0.1:80", "[::1]:80", ":0", ":65535"] {
            assert_eq!(listen(text).to_string(), text);
        }
        for text in ["80", "localhost:80", "127.0.0.1", ":65536", ":", "::1:80x"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_socket_takes_connections_of_both_families() {
        let listener = listen(":0").open().unwrap();
        let port = listener.local_addr().unwrap().port();
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if has_family((Ipv6Addr::LOCALHOST, 0).into()) {
            std::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }
}
