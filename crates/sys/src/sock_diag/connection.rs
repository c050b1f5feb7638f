//! A TCP connection at one moment, parsed from the kernel's sock_diag message.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{SocketId, State};
use crate::netlink::next_attribute;
use crate::tcp_info::TcpInfo;

/// Attributes of linux/inet_diag.h.
pub(super) const INET_DIAG_INFO: u16 = 2;
pub(super) const INET_DIAG_VEGASINFO: u16 = 3;
pub(super) const INET_DIAG_CONG: u16 = 4;
pub(super) const INET_DIAG_SKMEMINFO: u16 = 7;
const INET_DIAG_BBRINFO: u16 = 16;
const INET_DIAG_CGROUP_ID: u16 = 21;

/// Size of `struct inet_diag_msg`.
pub(super) const MESSAGE: usize = 72;

/// The socket memory of a connection (INET_DIAG_SKMEMINFO), in bytes including the overhead of
/// socket buffers unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory in the receive queues.
    pub rmem_alloc: u32,
    /// Limit of the receive queues (`SO_RCVBUF`).
    pub rcvbuf: u32,
    /// Memory in the queues below TCP: qdisc and device.
    pub wmem_alloc: u32,
    /// Limit of the send queue (`SO_SNDBUF`).
    pub sndbuf: u32,
    /// Memory reserved for the socket but not used.
    pub fwd_alloc: u32,
    /// Memory in the send queue, including segments kept for retransmission.
    pub wmem_queued: u32,
    /// Number of segments from the peer that this socket has dropped.
    pub drops: u32,
}

/// The name of a congestion control algorithm (`TCP_CONGESTION`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CongestionControl([u8; 16]);

/// BBR's model of the path (`struct tcp_bbr_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bbr {
    /// Estimated bottleneck bandwidth for this connection, in bytes per second.
    pub bandwidth: u64,
    /// Estimated round-trip propagation delay, in microseconds.
    pub min_rtt_us: u32,
    /// Factor between the bandwidth and the pacing rate, in units of 1/256.
    pub pacing_gain: u32,
    /// Factor between the bandwidth-delay product and the congestion window, in units of 1/256.
    pub cwnd_gain: u32,
}

/// Socket state that sock_diag does not export but a BPF iterator reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Internals {
    /// Largest window that the socket may advertise, in bytes.
    pub window_clamp: u32,
    /// Whether the application has set the send buffer (`SO_SNDBUF`), so that the kernel does not
    /// tune it.
    pub sndbuf_locked: bool,
    /// Whether the application has set the receive buffer (`SO_RCVBUF`), so that the kernel does
    /// not tune it.
    pub rcvbuf_locked: bool,
    /// Whether packetization-layer path MTU discovery is active (RFC 4821).
    pub mtu_probing: bool,
    /// The largest window that the peer has ever advertised, in bytes.
    pub max_window: u32,
    /// The oldest unacknowledged sequence number, less the number of bytes acknowledged.
    pub sent_base: u32,
    /// The next sequence number expected, less the number of bytes received.
    pub received_base: u32,
    /// Events since the first scan; `None` if no BPF program counts them.
    pub events: Option<Events>,
}

/// Counters of congestion events and round-trip times since the first scan of a connection.
///
/// A congestion signal is an event that reduces the congestion window: a loss, a time-out or an ECN
/// echo (`tcpEStatsPerfCongSignals` of RFC 4898). Counters named `between` are over pairs of
/// consecutive signals less than 69 s apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Number of RTT samples.
    pub rtts: u32,
    /// Sum of the RTT samples.
    pub rtt_sum: Duration,
    /// Largest RTT sample; zero before the first.
    pub rtt_most: Duration,
    /// Largest RTT sample since the scan before last began; zero if there was none.
    pub rtt_most_recent: Duration,
    /// Number of trains of acknowledgements that were measured.
    pub trains: u32,
    /// Rate of the fastest train since the scan before last began, in segments a second; 0 if there
    /// was none.
    pub train_most_recent: u32,
    /// Number of congestion signals.
    pub signals: u32,
    /// Number of signals that started a fast retransmission.
    pub fast_retransmits: u32,
    /// Sum of the smoothed RTTs at the signals.
    pub signal_rtt_sum: Duration,
    /// Sum of the congestion windows at the signals, in segments.
    pub signal_cwnd_sum: u64,
    /// Sum of the squares of those congestion windows.
    pub signal_cwnd_squares: u64,
    /// Number of pairs of consecutive signals.
    pub between: u32,
    /// Sum over the pairs of the segments delivered between the two signals.
    pub between_sum: u64,
    /// Sum of the squares of those segment counts.
    pub between_squares: u64,
    /// Sum over the pairs of the time between the two signals, in units of 2^16 ns.
    pub between_times: u64,
    /// Sum of the squares of those times.
    pub between_time_squares: u64,
    /// Sum of the products of segment count and time.
    pub between_products: u64,
}

/// A TCP connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address.
    pub remote: SocketAddr,
    /// Socket cookie: unique until reboot, unlike the addresses.
    pub cookie: u64,
    /// Whether the socket is an IPv6 socket, even if its peer is an IPv4 address.
    pub is_v6: bool,
    /// Index of the device that the socket is bound to; 0 if it is not bound.
    pub interface: u32,
    /// State of the connection.
    pub state: State,
    /// Bytes received but not read (`CurAppRQueue` of RFC 4898).
    pub recv_queue: u32,
    /// Bytes written but not acknowledged.
    pub send_queue: u32,
    /// User ID of the socket's owner.
    pub uid: u32,
    /// Inode of the socket; 0 if no process has it open.
    pub inode: u32,
    /// Socket memory; Linux 2.6.38.
    pub memory: Option<Memory>,
    /// Congestion control algorithm.
    pub congestion_control: Option<CongestionControl>,
    /// State of BBR; `None` with any other congestion control.
    pub bbr: Option<Bbr>,
    /// ID of the cgroup (v2); Linux 5.7.
    pub cgroup: Option<u64>,
    /// TCP_INFO; `None` for an incomplete passive handshake.
    pub info: Option<TcpInfo>,
    /// State that sock_diag does not export; `None` unless the caller has another source for it.
    pub internals: Option<Internals>,
}

// === impl Connection ===

impl Connection {
    /// Parses a `struct inet_diag_msg` and its attributes. Returns `None` for a malformed message
    /// or a state that was not requested.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::of(*message.get(1)?)?, message)
    }

    /// Parses a message about a destroyed socket, regardless of its last state.
    pub(super) fn parse_ended(message: &[u8]) -> Option<Self> {
        Self::parse_in(State::Closed, message)
    }

    /// Returns the identity that [`SockDiag::query`](super::SockDiag::query) uses to find the
    /// socket.
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
                    // IPv4-mapped if the peer of an IPv6 socket uses IPv4.
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
            bbr: None,
            cgroup: None,
            info: None,
            internals: None,
        };
        let mut attributes = &message[MESSAGE..];
        // Attributes after a malformed one cannot be located.
        while let Some((kind, value)) = next_attribute(&mut attributes) {
            match kind {
                INET_DIAG_INFO => connection.info = TcpInfo::parse(value),
                INET_DIAG_SKMEMINFO => connection.memory = Memory::parse(value),
                INET_DIAG_CONG => connection.congestion_control = CongestionControl::parse(value),
                INET_DIAG_BBRINFO => connection.bbr = Bbr::parse(value),
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
    /// Parses an array of `SK_MEMINFO_*` values (linux/sock_diag.h).
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
            // Since Linux 4.7.
            drops: word(8).unwrap_or(0),
        })
    }
}

// === impl Bbr ===

impl Bbr {
    /// What `pacing_gain` and `cwnd_gain` are for a factor of 1 (`BBR_UNIT`).
    pub const UNIT: u32 = 256;

    /// Parses a `struct tcp_bbr_info` (linux/inet_diag.h).
    fn parse(value: &[u8]) -> Option<Self> {
        let word = |index: usize| {
            let bytes = value.get(index * 4..index * 4 + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        Some(Self {
            bandwidth: u64::from(word(0)?) | u64::from(word(1)?) << 32,
            min_rtt_us: word(2)?,
            pacing_gain: word(3)?,
            cwnd_gain: word(4)?,
        })
    }
}

// === impl CongestionControl ===

impl CongestionControl {
    /// Parses a name, up to its final NUL if it has one. `None` if it is too long or not ASCII.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut name = [0; 16];
        let end = value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(value.len());
        // The kernel's own names are short ASCII; a module could use any bytes.
        let text = value
            .get(..end)
            .filter(|text| text.iter().all(u8::is_ascii_graphic))?;
        name.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self(name))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.0.len());
        // `parse` accepts ASCII only.
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
    fn bbrs_bandwidth_has_two_halves() {
        let words = [7u32, 1, 20_000, 739, 512];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let expected = Bbr {
            bandwidth: (1 << 32) + 7,
            min_rtt_us: 20_000,
            pacing_gain: 739,
            cwnd_gain: 512,
        };
        assert_eq!(Bbr::parse(&bytes), Some(expected));
        assert_eq!(Bbr::parse(&bytes[..19]), None);
    }

    #[test]
    fn a_name_must_be_printable_ascii() {
        let name = |bytes: &[u8]| CongestionControl::parse(bytes).map(|n| n.as_str().to_owned());
        assert_eq!(name(b"cubic\0\0\0").as_deref(), Some("cubic"));
        assert_eq!(name(b"\x1b[31m\0"), None);
        assert_eq!(name(&[b'x'; 40]), None);
    }
}
