//! Notifications of destroyed TCP sockets (SKNLGRP_INET_TCP_DESTROY, sock_diag(7)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::NetlinkBuffer;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt,
};

use super::{ANSWER_BUFFER, Connection, SOCK_DIAG_BY_FAMILY};
use crate::Errno;

/// Groups SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY of linux/sock_diag.h, as bits.
const GROUPS: u32 = 1 << 0 | 1 << 2;

/// Size of the socket buffer in bytes, which the kernel doubles. Without CAP_NET_ADMIN it is
/// limited by `net.core.rmem_max`.
const BUFFER: usize = 4 << 20;

/// A subscription to the destroyed TCP sockets of the network namespace where it was opened. The
/// namespace exists while this value exists.
///
/// The kernel destroys a socket after the last acknowledgement or when it enters TIME-WAIT. It does
/// not report handshakes that were never completed.
#[derive(Debug)]
pub struct DestroyedSockets {
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// Statistics of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestroyedStats {
    /// Connections passed to the callback.
    pub connections: usize,
    /// Messages that could not be parsed.
    pub unknown: usize,
    /// The number of times that the socket buffer overflowed and notifications were lost.
    pub missed: usize,
}

impl AsFd for DestroyedSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// === impl DestroyedSockets ===

impl DestroyedSockets {
    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no sock_diag; `EPERM` if the caller may not join the
    /// multicast groups.
    pub fn open() -> Result<Self, Errno> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::SOCK_DIAG),
        )?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        }
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self {
            socket,
            answer: vec![0; ANSWER_BUFFER],
        })
    }

    /// Calls `each` with every connection that has ended since the last call, without blocking.
    /// Connections that ended before [`Self::open`] are not reported.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn read(&mut self, mut each: impl FnMut(Connection)) -> Result<DestroyedStats, Errno> {
        let mut ended = DestroyedStats::default();
        loop {
            let (filled, whole, from) =
                match recvfrom(&self.socket, &mut self.answer[..], RecvFlags::TRUNC) {
                    Ok(read) => read,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return Ok(ended),
                    Err(Errno::NOBUFS) => {
                        ended.missed += 1;
                        continue;
                    }
                    Err(e) => return Err(e),
                };
            // Root of the namespace may send to the multicast groups, too.
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            if whole > filled {
                ended.unknown += 1;
                continue;
            }
            parse(&self.answer[..filled], &mut ended, &mut each);
        }
    }
}

/// Calls `each` with the connections in a datagram.
fn parse(mut datagram: &[u8], ended: &mut DestroyedStats, each: &mut impl FnMut(Connection)) {
    while !datagram.is_empty() {
        let Ok(message) = NetlinkBuffer::new_checked(datagram) else {
            ended.unknown += 1;
            return;
        };
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
        let connection = match message.message_type() {
            SOCK_DIAG_BY_FAMILY => Connection::parse_ended(message.payload()),
            _ => None,
        };
        match connection {
            Some(connection) => {
                ended.connections += 1;
                each(connection);
            }
            None => ended.unknown += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::net::{SendFlags, sendto};

    use super::*;
    use crate::netlink::Message;
    use crate::sock_diag::State;
    use crate::sock_diag::connection::MESSAGE;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Waits until the connection between these addresses ends.
    fn end_of(ends: &mut DestroyedSockets, local: SocketAddr, remote: SocketAddr) -> Connection {
        let began = Instant::now();
        let mut found = None;
        while began.elapsed() < TIMEOUT {
            ends.read(|c| {
                if (c.local, c.remote) == (local, remote) {
                    found = Some(c);
                }
            })
            .unwrap();
            if let Some(found) = found {
                return found;
            }
            std::thread::yield_now();
        }
        panic!("the end of {local} is not reported")
    }

    #[test]
    fn a_destroyed_socket_is_reported_with_its_byte_counts() {
        let mut ends = DestroyedSockets::open().unwrap();
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[7; 5000]).unwrap();
            let (near, far) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            drop(client);
            assert_eq!(server.read_to_end(&mut Vec::new()).unwrap(), 5000);
            drop(server);
            let end = end_of(&mut ends, near, far);
            assert_eq!(end.state, State::Closed);
            assert_eq!(end.info.as_ref().unwrap().bytes_sent, Some(5000));
            assert_ne!(end.cookie, 0);
        }
    }

    #[test]
    fn a_message_of_another_process_is_ignored() {
        let mut ends = DestroyedSockets::open().unwrap();
        let other = DestroyedSockets::open().unwrap();
        let mut body = vec![0; MESSAGE];
        (body[0], body[1]) = (2, 7);
        body[8..12].copy_from_slice(&[192, 0, 2, 1]);
        let forged = Message::default().message(SOCK_DIAG_BY_FAMILY, 0, 0, |m| m.raw(&body));
        let to = SocketAddrNetlink::new(0, GROUPS);
        // A privileged process may send to the group, and this message would parse.
        if sendto(&other.socket, forged.bytes(), SendFlags::empty(), &to).is_ok() {
            let mut heard = Vec::new();
            ends.read(|c| heard.push(c.local)).unwrap();
            assert!(!heard.contains(&"192.0.2.1:0".parse().unwrap()));
        }
        let mut understood = 0;
        parse(forged.bytes(), &mut DestroyedStats::default(), &mut |_| {
            understood += 1
        });
        assert_eq!(understood, 1);
    }

    #[test]
    fn malformed_messages_are_counted() {
        for bytes in [&[0; 3][..], &[0xff; 40], &[0; 16]] {
            let mut ended = DestroyedStats::default();
            parse(bytes, &mut ended, &mut |_| panic!("malformed"));
            assert_eq!(ended.unknown, 1);
        }
    }
}
