//! The TCP connections of a network namespace, as the kernel lists them (sock_diag(7)).
//!
//! A list is no snapshot: the kernel walks its tables bucket by bucket, and connections come and go
//! meanwhile. Each is read under its own lock.

mod ends;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{NetlinkBuffer, NlasIterator};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send,
    socket_with,
};

pub use ends::{Ended, Ends};

use crate::Errno;
use crate::netlink::{DUMP, Message, REQUEST};
use crate::tcp_info::TcpInfo;

/// linux/netlink.h and linux/sock_diag.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// Attributes of linux/inet_diag.h.
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_CGROUP_ID: u16 = 21;

/// `struct inet_diag_msg`.
const MESSAGE: usize = 72;

/// Bytes of one answer; the kernel fills no more than 32 KiB.
const ROOM: usize = 64 << 10;

/// The kernel answers at once; this is against a kernel that does not.
const PATIENCE: Duration = Duration::from_secs(2);

/// No list of one family takes longer: a million connections are some seconds.
const LIST_MAX: Duration = Duration::from_secs(20);

/// States of a connection (RFC 9293 3.3.2). Those that are missing, `LISTEN` and `TIME-WAIT`, have
/// nothing to tell, and are not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Both directions are open.
    Established,
    /// A SYN went out.
    SynSent,
    /// A SYN came, and the handshake is not over.
    SynRecv,
    /// This end has closed, and the peer has not acknowledged it.
    FinWait1,
    /// This end has closed.
    FinWait2,
    /// The peer has closed.
    CloseWait,
    /// Both have closed, the peer first.
    LastAck,
    /// Both have closed at one time.
    Closing,
    /// It has ended: of [`Ends`] only.
    Closed,
}

/// All of [`State`], as `idiag_states` has them.
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

/// A connection's memory: what is in its queues, and the bounds of them. Bytes, as the kernel
/// accounts them: with the overhead of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In the receive queues.
    pub rmem_alloc: u32,
    /// Bound of the receive queues (`SO_RCVBUF`).
    pub rcvbuf: u32,
    /// On its way through the device's queues.
    pub wmem_alloc: u32,
    /// Bound of the send queue (`SO_SNDBUF`).
    pub sndbuf: u32,
    /// Set aside and not used.
    pub fwd_alloc: u32,
    /// In the send queue, retransmission included.
    pub wmem_queued: u32,
    /// Segments from the peer that were dropped at this socket.
    pub drops: u32,
}

/// The name of a congestion control (`TCP_CONGESTION`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CongestionControl([u8; 16]);

/// What sock_diag does not tell, and a program in the kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// The widest window that may be offered, in bytes.
    pub window_clamp: u32,
    /// The application has set its send buffer (`SO_SNDBUF`): the kernel leaves it alone.
    pub sndbuf_locked: bool,
    /// The application has set its receive buffer (`SO_RCVBUF`).
    pub rcvbuf_locked: bool,
    /// It looks for the path's MTU by itself (RFC 4821).
    pub mtu_probing: bool,
    /// What happened between looks; nothing where nobody counts.
    pub events: Option<Events>,
}

/// What happened to a connection since the first look at it.
///
/// A signal is what makes the congestion window smaller: a loss, a time-out, or ECN's echo
/// (`tcpEStatsPerfCongSignals` of RFC 4898).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Round trips that were measured.
    pub rtts: u32,
    /// All of them together.
    pub rtt_sum: Duration,
    /// The longest; zero before the first.
    pub rtt_most: Duration,
    /// Signals.
    pub signals: u32,
    /// Of them, those that began a fast retransmission.
    pub fast_retransmits: u32,
    /// The round trips before them, all together.
    pub signal_rtt_sum: Duration,
    /// The congestion windows that they found, all together, in segments.
    pub signal_cwnd_sum: u64,
    /// And the squares of these.
    pub signal_cwnd_squares: u64,
    /// Pairs of a signal and the next, less than 69 s apart.
    pub between: u32,
    /// Segments that were delivered from one to the next, all together.
    pub between_sum: u64,
    /// And the squares of these.
    pub between_squares: u64,
    /// Times from one to the next, all together, in 2^16 ns.
    pub between_times: u64,
    /// And the squares of these.
    pub between_time_squares: u64,
    /// And the products of either and the other.
    pub between_products: u64,
}

/// A connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// The kernel's name of the socket, which is given once in a boot; addresses come again.
    pub cookie: u64,
    /// State.
    pub state: State,
    /// Bytes that came and were not read (`CurAppRQueue` of RFC 4898).
    pub recv_queue: u32,
    /// Bytes that were written and are not acknowledged.
    pub send_queue: u32,
    /// Whose it is.
    pub uid: u32,
    /// Inode of its descriptor; 0: no process has it (any more).
    pub inode: u32,
    /// Memory; Linux 2.6.38.
    pub memory: Option<Memory>,
    /// Its congestion control.
    pub congestion_control: Option<CongestionControl>,
    /// Number of its cgroup (v2); Linux 5.7.
    pub cgroup: Option<u64>,
    /// What else there is; nothing of a handshake that came from the peer, until it is over.
    pub info: Option<TcpInfo>,
    /// What is not of sock_diag: for whoever has another source.
    pub inside: Option<Inside>,
}

/// How a list came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Connections that were handed over.
    pub connections: usize,
    /// Messages that are none that this code knows. A newer kernel's; they are left out.
    pub unknown: usize,
    /// The kernel says that the list is not whole.
    pub interrupted: bool,
}

/// Asks the kernel for lists of connections: those of the network namespace in which it was opened,
/// which lives as long as this does.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
    answer: Vec<u8>,
}

// === impl SockDiag ===

impl SockDiag {
    /// For the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no sock_diag.
    pub fn open() -> Result<Self, Errno> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // Then nobody but the kernel can answer. The namespace may be a stranger's, who is root there.
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self {
            socket,
            sequence: 0,
            answer: vec![0; ROOM],
        })
    }

    /// Hands over every TCP connection, IPv4's first, in no order.
    ///
    /// # Errors
    /// `ENOENT`: the kernel lists no TCP connections (CONFIG_INET_DIAG). `EAGAIN`, `ETIMEDOUT`: it does not answer,
    /// or without end. `EMSGSIZE`: it answers with more than it may.
    pub fn connections(&mut self, mut each: impl FnMut(Connection)) -> Result<Listed, Errno> {
        let mut listed = Listed::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "2 and 10"
            )]
            match self.list(family as u8, &mut listed, &mut each) {
                // A kernel without IPv6.
                Err(Errno::NOENT | Errno::AFNOSUPPORT) if family == libc::AF_INET6 => {}
                other => other?,
            }
        }
        Ok(listed)
    }

    fn list(
        &mut self,
        family: u8,
        listed: &mut Listed,
        each: &mut impl FnMut(Connection),
    ) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        send(
            &self.socket,
            request(family, self.sequence).bytes(),
            SendFlags::empty(),
        )?;
        let end = Instant::now() + LIST_MAX;
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
}

/// A request for the list of `family`.
fn request(family: u8, sequence: u32) -> Message {
    let asked = [INET_DIAG_INFO, INET_DIAG_CONG, INET_DIAG_SKMEMINFO];
    let extensions = asked.iter().fold(0u8, |bits, ext| bits | 1 << (ext - 1));
    #[expect(clippy::cast_possible_truncation, reason = "6")]
    let protocol = libc::IPPROTO_TCP as u8;
    // `struct inet_diag_req_v2`; its `struct inet_diag_sockid` is read for a single socket only.
    Message::default().message(SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, sequence, |message| {
        message
            .raw(&[family, protocol, extensions, 0])
            .raw(&STATES.to_ne_bytes())
            .raw(&[0; 48])
    })
}

/// Hands over the connections of a datagram. `true`: it was the last.
///
/// # Errors
/// The kernel's; `EBADMSG` for what is no netlink message.
fn parse(
    mut datagram: &[u8],
    sequence: u32,
    listed: &mut Listed,
    each: &mut impl FnMut(Connection),
) -> Result<bool, Errno> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(|_| Errno::BADMSG)?;
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
        // Of a list that was given up.
        if message.sequence_number() != sequence {
            continue;
        }
        listed.interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
        match message.message_type() {
            SOCK_DIAG_BY_FAMILY => match Connection::parse(message.payload()) {
                Some(connection) => {
                    listed.connections += 1;
                    each(connection);
                }
                None => listed.unknown += 1,
            },
            NLMSG_DONE => {
                return match code(message.payload()) {
                    Some(error) => Err(error),
                    None => Ok(true),
                };
            }
            NLMSG_ERROR => {
                if let Some(error) = code(message.payload()) {
                    return Err(error);
                }
            }
            _ => listed.unknown += 1,
        }
    }
    Ok(false)
}

/// The error at the beginning of a message, if it is one.
fn code(payload: &[u8]) -> Option<Errno> {
    let code = i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?);
    // Between -4095 and -1, as the kernel has them.
    (-4095..0)
        .contains(&code)
        .then(|| Errno::from_raw_os_error(-code))
}

// === impl Connection ===

impl Connection {
    /// Reads `struct inet_diag_msg` and the attributes after it; `None` for what is none, or is in
    /// a state that was not asked for.
    fn parse(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::of(*message.get(1)?)?, message)
    }

    /// The same of one that has ended, in whatever state it was then.
    fn parse_ended(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::Closed, message)
    }

    fn parse_in(state: State, message: &[u8]) -> Option<Self> {
        let fixed: &[u8; MESSAGE] = message.get(..MESSAGE)?.try_into().ok()?;
        let word =
            |at: usize| -> [u8; 4] { [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]] };
        let number = |at| u32::from_ne_bytes(word(at));
        let address = |port: usize, ip: usize| {
            let port = u16::from_be_bytes([fixed[port], fixed[port + 1]]);
            let ip = match i32::from(fixed[0]) {
                libc::AF_INET => IpAddr::from(word(ip)),
                libc::AF_INET6 => {
                    let ip: [u8; 16] = fixed[ip..ip + 16].try_into().ok()?;
                    // An IPv4 peer of an IPv6 socket.
                    Ipv6Addr::from(ip).to_canonical()
                }
                _ => return None,
            };
            Some(SocketAddr::new(ip, port))
        };
        let mut connection = Self {
            state,
            local: address(4, 8)?,
            remote: address(6, 24)?,
            cookie: u64::from(number(44)) | u64::from(number(48)) << 32,
            recv_queue: number(56),
            send_queue: number(60),
            uid: number(64),
            inode: number(68),
            memory: None,
            congestion_control: None,
            cgroup: None,
            info: None,
            inside: None,
        };
        for attribute in NlasIterator::new(&message[MESSAGE..]) {
            // What follows cannot be found any more.
            let Ok(attribute) = attribute else { break };
            let value = attribute.into_inner();
            let value = value
                .get(4..usize::from(attribute.length()))
                .unwrap_or_default();
            match attribute.kind() {
                INET_DIAG_INFO => connection.info = TcpInfo::parse(value),
                INET_DIAG_SKMEMINFO => connection.memory = Memory::parse(value),
                INET_DIAG_CONG => connection.congestion_control = CongestionControl::parse(value),
                INET_DIAG_CGROUP_ID => {
                    connection.cgroup = value.try_into().ok().map(u64::from_ne_bytes);
                }
                _ => {}
            }
        }
        Some(connection)
    }
}

// === impl State ===

impl State {
    /// The kernel's number of it (net/tcp_states.h).
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // Its second number is that of handshakes that have no socket yet.
            3 | 12 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => return None,
        })
    }

    /// As RFC 9293 writes it.
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

// === impl Memory ===

impl Memory {
    /// `SK_MEMINFO_*` of linux/sock_diag.h.
    fn parse(value: &[u8]) -> Option<Self> {
        let word = |index: usize| {
            let bytes = value.get(index * 4..index * 4 + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        Some(Self {
            rmem_alloc: word(0)?,
            rcvbuf: word(1)?,
            wmem_alloc: word(2)?,
            sndbuf: word(3)?,
            fwd_alloc: word(4)?,
            wmem_queued: word(5)?,
            // Linux 4.7 has it.
            drops: word(8).unwrap_or(0),
        })
    }
}

// === impl CongestionControl ===

impl CongestionControl {
    fn parse(value: &[u8]) -> Option<Self> {
        let mut name = [0; 16];
        let end = value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(value.len());
        // The kernel's names are ASCII, and shorter; a module could call itself anything.
        let text = value
            .get(..end)
            .filter(|text| text.iter().all(u8::is_ascii_graphic))?;
        name.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.0.len());
        // It is ASCII.
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl std::fmt::Debug for CongestionControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn all() -> Vec<Connection> {
        let mut found = Vec::new();
        let listed = SockDiag::open()
            .unwrap()
            .connections(|c| found.push(c))
            .unwrap();
        assert_eq!((listed.connections, listed.unknown), (found.len(), 0));
        found
    }

    fn of(found: &[Connection], local: SocketAddr) -> &Connection {
        found
            .iter()
            .find(|c| c.local == local)
            .expect("it is listed")
    }

    #[test]
    fn a_connection_is_listed_at_both_ends_with_what_went_over_it() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[7; 5000]).unwrap();
            server.read_exact(&mut [0; 4000]).unwrap();

            let found = all();
            let (near, far) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let (sent, came) = (of(&found, near), of(&found, far));
            assert_eq!((sent.remote, came.remote), (far, near));
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
            // Listeners are not listed.
            assert!(!found.iter().any(|c| c.local == far && c.remote.port() == 0));
        }
    }

    #[test]
    fn nobody_but_the_kernel_can_answer() {
        let diag = SockDiag::open().unwrap();
        let name = rustix::net::getsockname(&diag.socket).unwrap();
        let name = SocketAddrNetlink::try_from(name).unwrap();
        let stranger = SockDiag::open().unwrap().socket;
        let forged = rustix::net::sendto(&stranger, &[0; 16], SendFlags::empty(), &name);
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
        let closed = of(&found, client.local_addr().unwrap()).state;
        // The peer may take its time to acknowledge the FIN.
        assert!(
            matches!(closed, State::FinWait1 | State::FinWait2),
            "{closed:?}"
        );
        assert_eq!(
            of(&found, server.local_addr().unwrap()).state,
            State::CloseWait
        );
    }

    /// A message about `sequence`, as the kernel would send it.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let message = Message::default().message(kind, 0, sequence, |message| message.raw(body));
        message.bytes().to_vec()
    }

    fn parsed(datagram: &[u8]) -> (Result<bool, Errno>, Listed) {
        let mut listed = Listed::default();
        let end = parse(datagram, 1, &mut listed, &mut |_| {});
        (end, listed)
    }

    fn body() -> Vec<u8> {
        let mut body = vec![0; MESSAGE];
        (body[0], body[1]) = (2, 1);
        body
    }

    #[test]
    fn an_end_is_told_from_an_error_and_from_another_lists() {
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
    fn what_is_not_known_is_counted_and_left_out() {
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
    fn bytes_that_are_cut_or_changed_anywhere_do_no_harm() {
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
    fn a_name_is_text() {
        let name = |bytes: &[u8]| CongestionControl::parse(bytes).map(|n| n.as_str().to_owned());
        assert_eq!(name(b"cubic\0\0\0").as_deref(), Some("cubic"));
        assert_eq!(name(b"\x1b[31m\0"), None);
        assert_eq!(name(&[b'x'; 40]), None);
    }

    #[test]
    fn no_state_is_asked_for_that_has_nothing_to_tell() {
        assert_eq!(STATES & (1 << 6 | 1 << 10), 0);
        assert_eq!(STATES & (1 << 1 | 1 << 12), 1 << 1 | 1 << 12);
    }
}
