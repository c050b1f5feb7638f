//! The TCP connections of a network namespace, dumped by the kernel (sock_diag(7)).
//!
//! A dump is not a snapshot: the kernel walks its hash tables bucket by bucket, while connections
//! start and end. Each connection is read under its own lock.

mod connection;
mod destroyed;
mod id;
mod listener;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with,
};

pub use connection::{Bbr, CongestionControl, Connection, Events, Internals, Memory};
use connection::{INET_DIAG_CONG, INET_DIAG_INFO, INET_DIAG_SKMEMINFO, INET_DIAG_VEGASINFO};
pub use destroyed::{DestroyedSockets, DestroyedStats};
pub use id::SocketId;
pub use listener::Listener;

use crate::Errno;
use crate::netlink::{
    ANSWER_TIMEOUT, DUMP, DUMP_INTERRUPTED, Message, NLMSG_DONE, NLMSG_ERROR, REQUEST, code,
    next_message,
};

/// linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `idiag_timer` of `struct inet_diag_msg`, and its value for TIME-WAIT.
const TIMER: usize = 2;
const TIMER_WAIT: u8 = 3;

/// The size of the receive buffer in bytes; an answer of the kernel has 32 KiB or less.
const ANSWER_BUFFER: usize = 64 << 10;

/// The number of connections requested in one message. Their answers wait in the socket's buffer,
/// which has room for 80 or more.
const MAX_PER_REQUEST: usize = 32;

/// Time limit of a dump of one family; a million connections take some seconds.
const DUMP_TIMEOUT: Duration = Duration::from_secs(20);

/// The state of a connection (RFC 9293 3.3.2). `LISTEN` and `TIME-WAIT` are missing: such sockets
/// have no measurements and are not requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Both directions are open.
    Established,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received, and the handshake is not complete.
    SynRecv,
    /// This end has closed; the FIN is not acknowledged.
    FinWait1,
    /// This end has closed; the FIN is acknowledged.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both ends have closed, the peer first.
    LastAck,
    /// Both ends have closed at the same time.
    Closing,
    /// The connection has ended. Only [`DestroyedSockets`] reports it.
    Closed,
}

/// The bits of all dumped states, for `idiag_states`.
const STATES: u32 = {
    let mut bits = 0;
    let mut number = 0;
    while number < 32 {
        if State::of(number).is_some() {
            bits |= 1 << number;
        }
        number += 1;
    }
    bits
};

/// The bit of the state of a socket that listens.
const LISTEN: u32 = 1 << listener::STATE;

/// Statistics of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpStats {
    /// Connections, or listeners, passed to the callback.
    pub connections: usize,
    /// Sockets in TIME-WAIT, which are omitted. Includes sockets in FIN-WAIT-2 that no process
    /// owns: the kernel keeps them as TIME-WAIT sockets.
    pub waiting: usize,
    /// Messages that could not be parsed, for example of a newer kernel. They are omitted.
    pub unknown: usize,
    /// The kernel flagged the dump as incomplete (NLM_F_DUMP_INTR).
    pub interrupted: bool,
}

/// Dumps the connections of the network namespace where it was opened. The namespace exists while
/// this value exists.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
    answer: Vec<u8>,
}

// === impl SockDiag ===

impl SockDiag {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no sock_diag.
    pub fn open() -> Result<Self, Errno> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // A connected socket receives from the kernel only. Root of an untrusted namespace could
        // otherwise forge answers.
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Self {
            socket,
            sequence: 0,
            answer: vec![0; ANSWER_BUFFER],
        })
    }

    /// Calls `each` with every TCP connection: IPv4 sockets first, otherwise in no particular
    /// order.
    ///
    /// # Errors
    /// `ENOENT` if the kernel cannot dump TCP connections (CONFIG_INET_DIAG); `EAGAIN` if it does
    /// not answer; `ETIMEDOUT` if the dump does not end; `EMSGSIZE` if an answer exceeds the
    /// buffer.
    pub fn dump(&mut self, mut each: impl FnMut(Connection)) -> Result<DumpStats, Errno> {
        self.dump_in(STATES, &mut |payload| {
            Connection::parse(payload).map(&mut each).is_some()
        })
    }

    /// Calls `each` with every socket that listens for TCP connections.
    ///
    /// # Errors
    /// Those of [`Self::dump`].
    pub fn listeners(&mut self, mut each: impl FnMut(Listener)) -> Result<DumpStats, Errno> {
        self.dump_in(LISTEN, &mut |payload| {
            Listener::parse(payload).map(&mut each).is_some()
        })
    }

    /// Calls `each` with the answers about sockets in these states; it returns whether it
    /// understands them.
    fn dump_in(
        &mut self,
        states: u32,
        each: &mut impl FnMut(&[u8]) -> bool,
    ) -> Result<DumpStats, Errno> {
        let mut listed = DumpStats::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "2 and 10"
            )]
            match self.list(family as u8, states, &mut listed, each) {
                // The kernel has no IPv6.
                Err(Errno::NOENT | Errno::AFNOSUPPORT) if family == libc::AF_INET6 => {}
                other => other?,
            }
        }
        Ok(listed)
    }

    fn list(
        &mut self,
        family: u8,
        states: u32,
        listed: &mut DumpStats,
        each: &mut impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        send(
            &self.socket,
            request(family, states, self.sequence).bytes(),
            SendFlags::empty(),
        )?;
        let end = Instant::now() + DUMP_TIMEOUT;
        while Instant::now() < end {
            let (filled, whole) = match recv(&self.socket, &mut self.answer[..], RecvFlags::TRUNC) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if whole > filled {
                return Err(Errno::MSGSIZE);
            }
            if parse(&self.answer[..filled], self.sequence, listed, each)? {
                return Ok(());
            }
        }
        Err(Errno::TIMEDOUT)
    }

    /// Calls `each` with those of the `wanted` connections that still exist. Cheaper than
    /// [`Self::dump`] if few of many connections are wanted.
    ///
    /// # Errors
    /// Those of [`Self::dump`].
    pub fn query(
        &mut self,
        wanted: &[SocketId],
        mut each: impl FnMut(Connection),
    ) -> Result<DumpStats, Errno> {
        let mut listed = DumpStats::default();
        let end = Instant::now() + DUMP_TIMEOUT;
        for wanted in wanted.chunks(MAX_PER_REQUEST) {
            if Instant::now() > end {
                return Err(Errno::TIMEDOUT);
            }
            self.sequence = self.sequence.wrapping_add(1);
            let message = wanted.iter().fold(Message::default(), |message, id| {
                push_request(
                    message,
                    REQUEST,
                    (id.family, STATES),
                    self.sequence,
                    &id.bytes(),
                )
            });
            send(&self.socket, message.bytes(), SendFlags::empty())?;
            let mut missing = wanted.len();
            while missing > 0 {
                let (filled, whole) =
                    match recv(&self.socket, &mut self.answer[..], RecvFlags::TRUNC) {
                        Err(Errno::INTR) => continue,
                        other => other?,
                    };
                if whole > filled {
                    return Err(Errno::MSGSIZE);
                }
                let answered =
                    |listed: &DumpStats| listed.connections + listed.waiting + listed.unknown;
                let before = answered(&listed);
                match parse(
                    &self.answer[..filled],
                    self.sequence,
                    &mut listed,
                    &mut |payload| Connection::parse(payload).map(&mut each).is_some(),
                ) {
                    // The connection has ended, or another connection has its addresses now.
                    Err(Errno::NOENT | Errno::STALE) => missing -= 1,
                    Err(error) => return Err(error),
                    Ok(_) => missing -= (answered(&listed) - before).min(missing),
                }
            }
        }
        Ok(listed)
    }
}

/// Returns the request for a dump of the sockets of `family` in these states.
fn request(family: u8, states: u32, sequence: u32) -> Message {
    // The kernel reads `struct inet_diag_sockid` only in requests for a single socket.
    push_request(
        Message::default(),
        REQUEST | DUMP,
        (family, states),
        sequence,
        &[0; id::BYTES],
    )
}

/// Appends a `struct inet_diag_req_v2`.
fn push_request(
    message: Message,
    flags: u16,
    (family, states): (u8, u32),
    sequence: u32,
    id: &[u8; id::BYTES],
) -> Message {
    // A request for Vegas' state is one for that of any congestion control; BBR's own attribute has
    // no bit in the request.
    let asked = [
        INET_DIAG_INFO,
        INET_DIAG_VEGASINFO,
        INET_DIAG_CONG,
        INET_DIAG_SKMEMINFO,
    ];
    let extensions = asked.iter().fold(0u8, |bits, ext| bits | 1 << (ext - 1));
    #[expect(clippy::cast_possible_truncation, reason = "6")]
    let protocol = libc::IPPROTO_TCP as u8;
    message.message(SOCK_DIAG_BY_FAMILY, flags, sequence, |message| {
        message
            .raw(&[family, protocol, extensions, 0])
            .raw(&states.to_ne_bytes())
            .raw(id)
    })
}

/// Calls `each` with the answers in a datagram; it returns whether it understands them. Returns
/// whether the datagram was the last one.
///
/// # Errors
/// The error that the kernel reports; `EBADMSG` for a malformed message.
fn parse(
    mut datagram: &[u8],
    sequence: u32,
    listed: &mut DumpStats,
    each: &mut impl FnMut(&[u8]) -> bool,
) -> Result<bool, Errno> {
    while !datagram.is_empty() {
        let message = next_message(&mut datagram).ok_or(Errno::BADMSG)?;
        // This answers a request that was abandoned.
        if message.sequence != sequence {
            continue;
        }
        listed.interrupted |= message.flags & DUMP_INTERRUPTED != 0;
        match message.kind {
            SOCK_DIAG_BY_FAMILY if message.payload.get(TIMER) == Some(&TIMER_WAIT) => {
                listed.waiting += 1;
            }
            SOCK_DIAG_BY_FAMILY => match each(message.payload) {
                true => listed.connections += 1,
                false => listed.unknown += 1,
            },
            NLMSG_DONE => {
                return match code(message.payload) {
                    Some(error) => Err(error),
                    None => Ok(true),
                };
            }
            NLMSG_ERROR => {
                if let Some(error) = code(message.payload) {
                    return Err(error);
                }
            }
            _ => listed.unknown += 1,
        }
    }
    Ok(false)
}

// === impl State ===

impl State {
    /// Converts the kernel's number (net/tcp_states.h). Returns `None` for states that are not
    /// dumped.
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is TCP_NEW_SYN_RECV, a handshake without a full socket.
            3 | 12 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => return None,
        })
    }

    /// Returns the name as in RFC 9293.
    pub fn name(self) -> &'static str {
        match self {
            Self::Established => "ESTABLISHED",
            Self::SynSent => "SYN-SENT",
            Self::SynRecv => "SYN-RECEIVED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::Closing => "CLOSING",
            Self::Closed => "CLOSED",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::connection::MESSAGE;
    use super::*;

    fn all() -> Vec<Connection> {
        let mut found = Vec::new();
        let listed = SockDiag::open().unwrap().dump(|c| found.push(c)).unwrap();
        assert_eq!((listed.connections, listed.unknown), (found.len(), 0));
        found
    }

    /// Another process may have a connection from the same address to elsewhere.
    fn of(found: &[Connection], local: SocketAddr, remote: SocketAddr) -> &Connection {
        found
            .iter()
            .find(|c| (c.local, c.remote) == (local, remote))
            .expect("it is listed")
    }

    #[test]
    fn both_ends_of_a_connection_are_dumped_with_their_byte_counts() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[7; 5000]).unwrap();
            server.read_exact(&mut [0; 4000]).unwrap();

            let found = all();
            let (near, far) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let (sent, came) = (of(&found, near, far), of(&found, far, near));
            assert_eq!(sent.state, State::Established);
            assert_eq!(sent.info.as_ref().unwrap().bytes_sent, Some(5000));
            assert_eq!(came.info.as_ref().unwrap().bytes_received, Some(5000));
            assert_eq!(came.recv_queue, 1000);
            assert!(came.memory.unwrap().rmem_alloc >= 1000);
            assert!(sent.memory.unwrap().sndbuf > 0);
            assert_ne!(sent.cookie, came.cookie);
            let name = rustix::net::sockopt::tcp_congestion(&client).unwrap();
            assert_eq!(sent.congestion_control.unwrap().as_str(), name);
            assert_ne!(sent.inode, 0);
            // Listeners are not dumped.
            assert!(!found.iter().any(|c| c.local == far && c.remote.port() == 0));
        }
    }

    #[test]
    fn only_the_kernel_can_answer() {
        let diag = SockDiag::open().unwrap();
        let name = rustix::net::getsockname(&diag.socket).unwrap();
        let name = SocketAddrNetlink::try_from(name).unwrap();
        let other = SockDiag::open().unwrap().socket;
        let forged = rustix::net::sendto(&other, &[0; 16], SendFlags::empty(), &name);
        assert_eq!(forged, Err(Errno::CONNREFUSED));
    }

    #[test]
    fn half_closed_connections_have_their_states() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((&server).read(&mut [0; 1]).unwrap(), 0);
        let found = all();
        let (near, far) = (client.local_addr().unwrap(), server.local_addr().unwrap());
        let closed = of(&found, near, far).state;
        // The peer may not have acknowledged the FIN yet.
        assert!(
            matches!(closed, State::FinWait1 | State::FinWait2),
            "{closed:?}"
        );
        assert_eq!(of(&found, far, near).state, State::CloseWait);
    }

    /// Returns a message about `sequence`, as the kernel would send it.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let message = Message::default().message(kind, 0, sequence, |message| message.raw(body));
        message.bytes().to_vec()
    }

    fn parsed(datagram: &[u8]) -> (Result<bool, Errno>, DumpStats) {
        let mut listed = DumpStats::default();
        let end = parse(datagram, 1, &mut listed, &mut |payload| {
            Connection::parse(payload).is_some()
        });
        (end, listed)
    }

    fn body() -> Vec<u8> {
        let mut body = vec![0; MESSAGE];
        (body[0], body[1]) = (2, 1);
        body
    }

    #[test]
    fn the_end_of_a_dump_differs_from_an_error_and_from_another_dumps_end() {
        assert_eq!(
            parsed(&message(NLMSG_DONE, 1, &0i32.to_ne_bytes())).0,
            Ok(true)
        );
        assert_eq!(
            parsed(&message(NLMSG_DONE, 9, &0i32.to_ne_bytes())).0,
            Ok(false)
        );
        let refused = (-libc::ENOENT).to_ne_bytes();
        assert_eq!(
            parsed(&message(NLMSG_DONE, 1, &refused)).0,
            Err(Errno::NOENT)
        );
        assert_eq!(
            parsed(&message(NLMSG_ERROR, 1, &refused)).0,
            Err(Errno::NOENT)
        );
        let nonsense = i32::MIN.to_ne_bytes();
        assert_eq!(parsed(&message(NLMSG_ERROR, 1, &nonsense)).0, Ok(false));
    }

    #[test]
    fn unknown_messages_are_counted_and_left_out() {
        let mut datagram = message(SOCK_DIAG_BY_FAMILY, 1, &body());
        let mut other = body();
        other[0] = 99;
        datagram.extend(message(SOCK_DIAG_BY_FAMILY, 1, &other));
        datagram.extend(message(77, 1, &[]));
        let (end, listed) = parsed(&datagram);
        assert_eq!(end, Ok(false));
        assert_eq!((listed.connections, listed.unknown), (1, 2));
    }

    #[test]
    fn truncated_or_changed_bytes_do_no_harm() {
        let mut full = body();
        for (kind, value) in [
            (INET_DIAG_INFO, vec![1; 240]),
            (INET_DIAG_SKMEMINFO, vec![1; 36]),
        ] {
            full.extend(u16::try_from(value.len() + 4).unwrap().to_ne_bytes());
            full.extend(kind.to_ne_bytes());
            full.extend(value);
        }
        let datagram = message(SOCK_DIAG_BY_FAMILY, 1, &full);
        assert_eq!(parsed(&datagram).1.connections, 1);
        for at in 0..datagram.len() {
            let _ = parsed(&datagram[..at]);
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut changed = datagram.clone();
                changed[at] = value;
                let _ = parsed(&changed);
            }
        }
    }

    #[test]
    fn listeners_and_time_wait_sockets_are_not_requested() {
        assert_eq!(STATES & (1 << 6 | 1 << 10), 0);
        assert_eq!(STATES & (1 << 1 | 1 << 12), 1 << 1 | 1 << 12);
    }
}
