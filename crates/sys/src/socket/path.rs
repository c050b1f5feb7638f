//! Socket options that choose the path of a leg's packets: mark, DSCP, device and source address.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
use rustix::net::{AddressFamily, sockopt};

use super::{LegOptions, Set, Stream, tcp_socket};
use crate::{Errno, raw_sockopt};

/// The value that enables a boolean option.
const ON: libc::c_int = 1;

/// How packets of a leg are sent. The default leaves all to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathOptions {
    /// The mark of the packets for policy routing and firewalls (SO_MARK).
    pub mark: Option<u32>,
    /// The differentiated services code point, 0 to 63 (RFC 2474; IP_TOS, IPV6_TCLASS).
    pub dscp: Option<u8>,
    /// The device that the packets leave by (SO_BINDTODEVICE).
    pub device: Option<String>,
    /// The source addresses; empty: the kernel's choice.
    pub sources: SourcePool,
}

/// Source addresses that connections take in turn.
#[derive(Clone, Debug, Default)]
pub struct SourcePool {
    addrs: Arc<[IpAddr]>,
    next: Arc<AtomicUsize>,
}

// === impl SourcePool ===

impl SourcePool {
    /// Returns a pool of these addresses.
    pub fn new(addrs: Vec<IpAddr>) -> Self {
        Self {
            addrs: addrs.into(),
            next: Arc::default(),
        }
    }

    /// Returns the addresses.
    pub fn addrs(&self) -> &[IpAddr] {
        &self.addrs
    }

    /// Returns the addresses of the family of `to`, in the order in which to try them. Each call
    /// begins with another one.
    fn for_family(&self, to: SocketAddr) -> impl Iterator<Item = IpAddr> + '_ {
        let same = move |addr: &&IpAddr| addr.is_ipv4() == to.is_ipv4();
        let count = self.addrs.iter().filter(same).count();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let all = move || self.addrs.iter().filter(same).copied();
        all().skip(first).chain(all().take(first))
    }
}

impl PartialEq for SourcePool {
    fn eq(&self, other: &Self) -> bool {
        self.addrs == other.addrs
    }
}

impl Eq for SourcePool {}

// === impl PathOptions ===

impl PathOptions {
    /// Sets the options except for the source address.
    pub(super) fn apply(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if let Some(mark) = self.mark {
            raw_sockopt::set(fd, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        }
        if let Some(dscp) = self.dscp {
            // The lower two bits are for explicit congestion notification.
            let class = dscp << 2;
            match sockopt::socket_domain(fd)? {
                AddressFamily::INET6 => sockopt::set_ipv6_tclass(fd, u32::from(class))?,
                _ => sockopt::set_ip_tos(fd, class)?,
            }
        }
        if let Some(device) = &self.device {
            setsockopt(&fd, BindToDevice, &device.into())
                .map_err(|e| Errno::from_raw_os_error(e as i32))?;
        }
        Ok(())
    }
}

/// Connects from the next source address of the pool. If that has no free port, tries the others.
pub(super) fn connect_from_pool(
    addr: SocketAddr,
    options: &LegOptions,
    set: Set,
) -> Result<Stream, Errno> {
    let mut last = Errno::AFNOSUPPORT;
    for source in options.path.sources.for_family(addr) {
        let fd = tcp_socket(addr)?;
        options.apply(fd.as_fd(), set)?;
        // Otherwise bind(2) would reserve the port for all destinations. IPv6 sockets use the same
        // level for this option.
        raw_sockopt::set(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, ON)?;
        rustix::net::bind(&fd, &SocketAddr::new(source, 0))?;
        match Stream::start(fd, addr, set) {
            Err(Errno::ADDRNOTAVAIL) => last = Errno::ADDRNOTAVAIL,
            started => return started,
        }
    }
    Err(last)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::socket::Keepalive;

    fn options() -> LegOptions {
        LegOptions::new(Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            probes: 4,
        })
    }

    #[test]
    fn connections_take_the_addresses_of_the_pool_in_turn() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut options = options();
        let pool = ["127.0.0.8", "::1", "127.0.0.9"].map(|ip| ip.parse().unwrap());
        options.path.sources = SourcePool::new(pool.to_vec());
        let streams: Vec<_> = (0..4)
            .map(|_| Stream::connect(server.local_addr().unwrap(), &options).unwrap())
            .collect();
        let from: Vec<_> = (0..4)
            .map(|_| server.accept().unwrap().1.ip().to_string())
            .collect();
        assert_eq!(from, ["127.0.0.8", "127.0.0.9", "127.0.0.8", "127.0.0.9"]);
        drop(streams);
        options.path.sources = SourcePool::new(vec!["::1".parse().unwrap()]);
        let other = Stream::connect(server.local_addr().unwrap(), &options).unwrap_err();
        assert_eq!(other, Errno::AFNOSUPPORT);
    }

    #[test]
    fn the_socket_has_the_class_the_device_and_the_user_timeout() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(listen).unwrap();
            let mut options = options();
            options.path.dscp = Some(46);
            options.user_timeout = Some(Duration::from_secs(7));
            options.path.device = Some("lo".into());
            let stream = Stream::connect(server.local_addr().unwrap(), &options);
            let stream = match stream {
                Ok(stream) => stream,
                Err(Errno::PERM) => {
                    taut_sys_testing::skip::skip("this user may not bind to a device");
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            let class = match listen.starts_with('[') {
                true => sockopt::ipv6_tclass(&stream).unwrap(),
                false => u32::from(sockopt::ip_tos(&stream).unwrap()),
            };
            assert_eq!(class, 46 << 2);
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 7000);
            options.path.device = Some("no-such".into());
            let error = Stream::connect(server.local_addr().unwrap(), &options).unwrap_err();
            assert_eq!(error, Errno::NODEV);
        }
    }

    #[test]
    fn the_socket_has_the_mark() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut options = options();
        options.path.mark = Some(0x1234);
        match Stream::connect(server.local_addr().unwrap(), &options) {
            Err(Errno::PERM) => taut_sys_testing::skip::skip("this user may not set marks"),
            stream => {
                let mark = raw_sockopt::get(stream.unwrap(), libc::SOL_SOCKET, libc::SO_MARK);
                assert_eq!(mark, Ok(0x1234_u32));
            }
        }
    }
}
