//! UDP sockets of a server: several threads share a port, and an answer leaves from the address to which
//! its query was sent.
//!
//! A client drops an answer from another address. On a machine with several addresses, a socket that is
//! bound to all of them does not know which one to answer from, unless it asks the kernel for it with
//! each datagram (IP_PKTINFO, ip(7); IPV6_RECVPKTINFO, RFC 3542 section 4.2).

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    SockaddrStorage, bind, recvmsg, sendmsg, setsockopt, socket, sockopt,
};

use crate::Errno;

/// A UDP socket that does not block.
#[derive(Debug)]
pub struct UdpPort {
    fd: OwnedFd,
    /// Room for the control messages of a datagram.
    control: Vec<u8>,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Its sender.
    pub source: SocketAddr,
    /// Its length in bytes. A longer datagram is cut to the buffer.
    pub len: usize,
    /// Where it was sent to, for [`UdpPort::send`].
    pub sent_to: LocalAddr,
}

/// An address of this machine to which a datagram was sent.
#[derive(Clone, Copy, Debug)]
pub struct LocalAddr(Option<PacketInfo>);

#[derive(Clone, Copy, Debug)]
enum PacketInfo {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

// === impl UdpPort ===

impl UdpPort {
    /// Binds `addr`, alone or with other sockets of this kind: the kernel spreads the clients over them
    /// (SO_REUSEPORT). A socket for IPv6 takes no IPv4. `buffer` is the requested receive buffer in
    /// bytes; the kernel may grant less (net.core.rmem_max).
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES` and others of socket(2), setsockopt(2) and bind(2).
    pub fn bind(addr: SocketAddr, buffer: usize) -> Result<Self, Errno> {
        let family = match addr {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(family, SockType::Datagram, flags, None).map_err(errno)?;
        setsockopt(&fd, sockopt::ReusePort, &true).map_err(errno)?;
        setsockopt(&fd, sockopt::RcvBuf, &buffer).map_err(errno)?;
        match addr {
            SocketAddr::V4(_) => setsockopt(&fd, sockopt::Ipv4PacketInfo, &true).map_err(errno)?,
            SocketAddr::V6(_) => {
                setsockopt(&fd, sockopt::Ipv6V6Only, &true).map_err(errno)?;
                setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true).map_err(errno)?;
            }
        }
        bind(fd.as_raw_fd(), &SockaddrStorage::from(addr)).map_err(errno)?;
        Ok(Self {
            fd,
            control: nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo),
        })
    }

    /// Receives a datagram into `buffer`. Returns `None` if none has arrived.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Errno> {
        let mut parts = [IoSliceMut::new(buffer)];
        let control = Some(&mut self.control[..]);
        let fd = self.fd.as_raw_fd();
        let message = recvmsg::<SockaddrStorage>(fd, &mut parts, control, MsgFlags::empty());
        let message = match message {
            Ok(message) => message,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
            Err(error) => return Err(errno(error)),
        };
        let mut sent_to = None;
        for control in message.cmsgs().map_err(errno)? {
            match control {
                ControlMessageOwned::Ipv4PacketInfo(info) => sent_to = Some(PacketInfo::V4(info)),
                ControlMessageOwned::Ipv6PacketInfo(info) => sent_to = Some(PacketInfo::V6(info)),
                _ => {}
            }
        }
        let source = message.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
        });
        // Every datagram of IP has a sender.
        let source = source.ok_or(Errno::AFNOSUPPORT)?;
        Ok(Some(Received {
            source,
            len: message.bytes,
            sent_to: LocalAddr(sent_to),
        }))
    }

    /// Sends `datagram` to `to` from the address to which a query was sent.
    ///
    /// # Errors
    /// `EAGAIN` if the send buffer is full, and others of sendmsg(2).
    pub fn send(&self, datagram: &[u8], to: SocketAddr, from: LocalAddr) -> Result<(), Errno> {
        let (v4, v6);
        let control = match from.0 {
            // The route decides on the device, which may not be that of the query.
            Some(PacketInfo::V4(info)) => {
                v4 = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ..info
                };
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            // A link-local address means something on its own device alone.
            Some(PacketInfo::V6(info)) => {
                v6 = libc::in6_pktinfo {
                    ipi6_ifindex: match info.ipi6_addr.s6_addr {
                        [0xfe, 0x80..0xc0, ..] => info.ipi6_ifindex,
                        _ => 0,
                    },
                    ..info
                };
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
            None => None,
        };
        let (parts, to) = ([IoSlice::new(datagram)], SockaddrStorage::from(to));
        let fd = self.fd.as_raw_fd();
        sendmsg(fd, &parts, control.as_slice(), MsgFlags::empty(), Some(&to))
            .map(drop)
            .map_err(errno)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_leaves_from_the_address_to_which_the_query_was_sent() {
        let mut port = UdpPort::bind("0.0.0.0:0".parse().unwrap(), 1 << 16).unwrap();
        let bound = nix::sys::socket::getsockname::<SockaddrStorage>(port.fd.as_raw_fd()).unwrap();
        let number = bound.as_sockaddr_in().unwrap().port();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        // Not the address that the kernel would choose.
        client.connect(("127.0.0.53", number)).unwrap();
        client.send(b"query").unwrap();
        let mut buffer = [0; 100];
        let got = loop {
            let mut wait = [rustix::event::PollFd::new(
                &port,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut wait, None).unwrap();
            if let Some(got) = port.receive(&mut buffer).unwrap() {
                break got;
            }
        };
        assert_eq!(&buffer[..got.len], b"query");
        assert_eq!(got.source, client.local_addr().unwrap());
        port.send(b"answer", got.source, got.sent_to).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 6);
    }

    #[test]
    fn two_sockets_share_a_port() {
        let first = UdpPort::bind("[::1]:0".parse().unwrap(), 1 << 16).unwrap();
        let bound = nix::sys::socket::getsockname::<SockaddrStorage>(first.fd.as_raw_fd()).unwrap();
        let number = bound.as_sockaddr_in6().unwrap().port();
        let second = UdpPort::bind(
            SocketAddr::new([0, 0, 0, 0, 0, 0, 0, 1].into(), number),
            1 << 16,
        );
        assert!(second.is_ok(), "{second:?}");
    }
}
