//! A connection, as the kernel tells of it at one moment.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netlink_packet_core::NlasIterator;

use super::{SocketId, State};
use crate::tcp_info::TcpInfo;

/// Attributes of linux/inet_diag.h.
pub(super) const INET_DIAG_INFO: u16 = 2;
pub(super) const INET_DIAG_CONG: u16 = 4;
pub(super) const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_CGROUP_ID: u16 = 21;

/// `struct inet_diag_msg`.
pub(super) const MESSAGE: usize = 72;

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
pub struct Internals {
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
    /// It is an IPv6 socket, whoever its peer is.
    pub is_v6: bool,
    /// The device to which it is bound; 0: none.
    pub interface: u32,
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
    pub internals: Option<Internals>,
}

// === impl Connection ===

impl Connection {
    /// Reads `struct inet_diag_msg` and the attributes after it; `None` for what is none, or is in
    /// a state that was not asked for.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::of(*message.get(1)?)?, message)
    }

    /// The same of one that has ended, in whatever state it was then.
    pub(super) fn parse_ended(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::Closed, message)
    }

    /// By this it is found again.
    pub fn id(&self) -> SocketId {
        let address = |address: IpAddr| match (address, self.is_v6) {
            (IpAddr::V4(ip), true) => ip.to_ipv6_mapped().octets(),
            (IpAddr::V6(ip), _) => ip.octets(),
            (IpAddr::V4(ip), false) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&ip.octets());
                bytes
            }
        };
        let family = if self.is_v6 {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        SocketId {
            family: u8::try_from(family).unwrap_or_default(),
            local_port: self.local.port(),
            remote_port: self.remote.port(),
            local: address(self.local.ip()),
            remote: address(self.remote.ip()),
            interface: self.interface,
            cookie: self.cookie,
        }
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
            is_v6: i32::from(fixed[0]) == libc::AF_INET6,
            interface: number(40),
            recv_queue: number(56),
            send_queue: number(60),
            uid: number(64),
            inode: number(68),
            memory: None,
            congestion_control: None,
            cgroup: None,
            info: None,
            internals: None,
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
    use super::*;

    #[test]
    fn a_name_is_text() {
        let name = |bytes: &[u8]| CongestionControl::parse(bytes).map(|n| n.as_str().to_owned());
        assert_eq!(name(b"cubic\0\0\0").as_deref(), Some("cubic"));
        assert_eq!(name(b"\x1b[31m\0"), None);
        assert_eq!(name(&[b'x'; 40]), None);
    }
}
