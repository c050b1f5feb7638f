//! Connections that end, as the kernel tells it.

use std::os::fd::OwnedFd;

use netlink_packet_core::NetlinkBuffer;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with, sockopt,
};

use super::{Connection, ROOM, SOCK_DIAG_BY_FAMILY};
use crate::Errno;

/// Groups SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY of linux/sock_diag.h, as bits.
const GROUPS: u32 = 1 << 0 | 1 << 2;

/// What may wait to be read, in bytes. The kernel counts twice as much, and takes it from the ordinary
/// bound of buffers only when the caller may not (CAP_NET_ADMIN).
const BUFFER: usize = 4 << 20;

/// DestroyedSockets of connections in the network namespace in which it was opened, which lives as long as this does.
///
/// A socket's end is when the kernel lets go of it: after the last acknowledgement, or when it goes into
/// TIME-WAIT. Handshakes that were never completed have none.
#[derive(Debug)]
pub struct DestroyedSockets {
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// What was read of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestroyedStats {
    /// Connections that were handed over.
    pub connections: usize,
    /// Messages that are none that this code knows.
    pub unknown: usize,
    /// The kernel had no room for some: how often that was.
    pub missed: usize,
}

// === impl DestroyedSockets ===

impl DestroyedSockets {
    /// Of the network namespace that the calling thread is in, from now on.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no sock_diag; `EPERM`: the caller may not listen.
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
            answer: vec![0; ROOM],
        })
    }

    /// Hands over every connection that has ended since the last time, and does not wait for more. Who asked the
    /// kernel to tell of ends after a connection's had been told does not hear of it.
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
            // The root of a namespace may send to its groups, too.
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

/// Hands over the connections of a datagram.
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

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Waits for the end of the one with this end.
    fn end_of(ends: &mut DestroyedSockets, local: SocketAddr) -> Connection {
        let began = Instant::now();
        let mut found = None;
        while began.elapsed() < PATIENCE {
            ends.read(|c| {
                if c.local == local {
                    found = Some(c);
                }
            })
            .unwrap();
            if let Some(found) = found {
                return found;
            }
            std::thread::yield_now();
        }
        panic!("no end of {local} is told")
    }

    #[test]
    fn what_ends_is_told_with_all_that_went_over_it() {
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
            let end = end_of(&mut ends, near);
            assert_eq!((end.remote, end.state), (far, State::Closed));
            assert_eq!(end.info.as_ref().unwrap().bytes_sent, Some(5000));
            assert_ne!(end.cookie, 0);
        }
    }

    #[test]
    fn a_strangers_word_is_not_taken_for_the_kernels() {
        let mut ends = DestroyedSockets::open().unwrap();
        let stranger = DestroyedSockets::open().unwrap();
        let mut body = vec![0; MESSAGE];
        (body[0], body[1]) = (2, 7);
        body[8..12].copy_from_slice(&[192, 0, 2, 1]);
        let forged = Message::default().message(SOCK_DIAG_BY_FAMILY, 0, 0, |m| m.raw(&body));
        let to = SocketAddrNetlink::new(0, GROUPS);
        // Who may, may send to a group; and it is one that we would understand.
        if sendto(&stranger.socket, forged.bytes(), SendFlags::empty(), &to).is_ok() {
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
    fn bytes_that_are_none_are_counted() {
        for bytes in [&[0; 3][..], &[0xff; 40], &[0; 16]] {
            let mut ended = DestroyedStats::default();
            parse(bytes, &mut ended, &mut |_| panic!("it is none"));
            assert_eq!(ended.unknown, 1);
        }
    }
}
