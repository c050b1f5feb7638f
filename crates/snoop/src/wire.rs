//! Safe types for the structures of `bpf/snoop.h`, which the programs share with user space.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use strum::IntoStaticStr;
use taut_bpf::{CEnum as _, Counters, read_prefix};

use self::raw::{
    SnoopConfig, SnoopCopy, SnoopEvent, SnoopFlow, SnoopKey, SnoopMode, SnoopNet, SnoopPrefix,
};

taut_bpf::bindings!(
    /// The structs of `bpf/snoop.h`.
    pub(crate) mod raw from "snoop"
);

/// The reason why a flow is in BYPASS.
pub use self::raw::SnoopBypass as Bypass;

/// FL_MODE of a flow (vsnoop-paper III-B), and the states before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum Mode {
    /// The handshake is in progress.
    Syn,
    /// The guest has not confirmed the connection yet, and acknowledges its data itself.
    Unproven,
    /// Segments in order are acknowledged early.
    Active,
    /// A segment came out of order, or the host could not acknowledge it.
    UnexpectedSeq,
    /// The ring or the guest's window was full.
    NoBuf,
    /// No early ACKs for this flow.
    Bypass(Bypass),
}

/// Identifies a flow by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The frames' VLAN, if they are tagged.
    pub vlan: Option<u16>,
}

/// The programs' state of a flow. Sequence numbers wrap at 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// FL_MODE.
    pub mode: Mode,
    /// NEXT_SEQ: everything before it is in the ring, or the guest has it.
    pub next_seq: u32,
    /// The acknowledged edge: the sender has an ACK of everything before it.
    pub acked_seq: u32,
    /// VM_SEQ: the guest's acknowledgment number.
    pub vm_seq: u32,
    /// The guest's right edge.
    pub rcv_edge: u32,
    /// The farthest right edge with `--grow`.
    pub grown_edge: u32,
    /// Segments acknowledged early.
    pub acked_segments: u64,
    /// Bytes acknowledged early.
    pub acked_bytes: u64,
    /// The guest's ACKs that were dropped because they had no news for the sender.
    pub suppressed: u64,
    /// The guest's segments whose acknowledgment number was raised.
    pub lifted: u64,
    /// The time of the last packet, in nanoseconds of CLOCK_MONOTONIC.
    pub seen_ns: u64,
    /// Maximum exposure so far, in bytes.
    pub exposed_most: u32,
    /// The time at which the guest was last heard in this flow, in ticks of 2^20 ns of
    /// CLOCK_MONOTONIC.
    pub heard: u32,
    /// The peer's first byte; 0 if the flow was found in mid-flow. Distinguishes connections with
    /// the same key.
    pub begun: u32,
    /// The peer's acknowledgment number.
    pub vm_una: u32,
    /// The peer's latest window, not scaled.
    pub peer_window: u16,
    /// The peer's latest TSval.
    pub ts_peer: u32,
}

/// Configuration of the programs at a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether to give early ACKs.
    pub on: bool,
    /// Largest advertised window in bytes; 0: unlimited.
    pub buf_size: u32,
    /// Bytes that every connection of the guest buffers, regardless of its advertised window; 0: no
    /// early ACKs beyond the window.
    pub guest_rcvbuf: u32,
    /// Whether to give early ACKs before the guest has confirmed the connection, if its place in
    /// the accept queue is certain.
    pub start_early: bool,
    /// Whether to serve ECN-capable flows too.
    pub ecn: bool,
    /// Length of the ring, which limits each flow's window to its share; 0: no limit.
    pub ring: u32,
    /// Number of flows that share the ring.
    pub sharing: u32,
    /// Ticks of 2^20 ns for which a heard guest counts as awake, so that an ACK covers several full
    /// segments; 0: one ACK per segment. See [`Config::AWAKE`].
    pub awake_ticks: u32,
    /// The maximum number of bytes of a flow that are acknowledged early but not yet by the guest.
    /// See [`Config::EXPOSURE`].
    pub exposure: u32,
    /// Ticks of 2^20 ns without progress of the guest after which early ACKs of a flow stop. See
    /// [`Config::EXPOSURE_TICKS`].
    pub exposure_ticks: u32,
    /// Number of distrusted peer networks in the programs' map.
    pub distrusted: u32,
    /// The guest's own Ethernet address, if known. If unknown, a tap with several source addresses
    /// gets no early ACKs.
    pub guest_mac: Option<[u8; 6]>,
    /// Whether to give early ACKs only to guest addresses in the programs' map of networks.
    pub by_address: bool,
    /// An initial TTL of the guests, in addition to 64, 128 and 255; 0: none.
    pub guest_ttl: u8,
    /// Whether the guest's copies fill its share of the memory.
    pub full: bool,
}

/// Evidence that a guest lacks early-acknowledged data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The flow.
    pub key: Key,
    /// Bytes that were acknowledged early but not by the guest.
    pub lacks: u32,
    /// Bytes from the first of these to the evidence (the end of a SACK block, or the guest's right
    /// edge). Negative if the edge is before them.
    pub reach: i32,
    /// Whether the guest says so itself, by its window or by repeating itself. Otherwise it
    /// selectively acknowledges later data (RFC 2018).
    pub contradicted: bool,
}

/// A peer network, the unit of trust: 24 bits of an IPv4 address, 48 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    bytes: [u8; 6],
    version: u16,
}

/// A network of guests' addresses: CIDR, such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    address: IpAddr,
    bits: u8,
}

/// A copy of a frame for a guest, kept until the guest has acknowledged its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The flow.
    pub key: Key,
    /// The tap's interface index.
    pub ifindex: u32,
    /// The sequence number of the first byte of data.
    pub seq: u32,
    /// Bytes of data.
    pub len: u32,
    /// Offset of the TCP header.
    pub l4_at: usize,
    /// Length of the TCP header with options.
    pub header: usize,
    /// Bytes of data in each segment of the frame.
    pub segment: u32,
    /// The peer's first byte, as [`Flow::begun`].
    pub begun: u32,
    /// The time at which the frame was put into the ring (CLOCK_MONOTONIC).
    pub at: Duration,
    /// The frame from the Ethernet header to the end of its data.
    pub frame: Box<[u8]>,
}

/// Packets towards the guest, by exit of the program.
pub type ToGuest = Counters<raw::SnoopToGuest>;
/// Packets from the guest, by exit of the program.
pub type FromGuest = Counters<raw::SnoopFromGuest>;

/// The mark of a frame that the programs pass to the guest unchanged (SNOOP_DELIVERY).
pub(crate) const DELIVERY_MARK: u32 = raw::SNOOP_DELIVERY;

/// The flag in the VLAN number's field that marks a tagged frame.
const TAGGED: u16 = 0x8000;

// === impl Mode ===

impl Mode {
    fn decode(mode: u8, bypass: u8) -> Option<Self> {
        Some(match SnoopMode::from_raw(mode.into())? {
            SnoopMode::Syn => Self::Syn,
            SnoopMode::Unproven => Self::Unproven,
            SnoopMode::Active => Self::Active,
            SnoopMode::UnexpectedSeq => Self::UnexpectedSeq,
            SnoopMode::NoBuf => Self::NoBuf,
            SnoopMode::Bypass => match Bypass::from_raw(bypass.into())? {
                Bypass::NoBypass => return None,
                why => Self::Bypass(why),
            },
        })
    }

    /// Returns the displayed name: the paper's, if the paper has one.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

// === impl Key ===

impl Key {
    /// Converts the value. Returns `None` if it is invalid.
    pub(crate) fn decode(key: &SnoopKey) -> Option<Self> {
        let ip = match key.version {
            4 => |[a, b, c, d, ..]: [u8; 16]| IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            6 => |bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return None,
        };
        Some(Self {
            guest: SocketAddr::new(ip(key.guest), key.guest_port.get()),
            peer: SocketAddr::new(ip(key.peer), key.peer_port.get()),
            vlan: (key.vlan & TAGGED != 0).then_some(key.vlan & !TAGGED),
        })
    }

    pub(crate) fn encode(&self) -> SnoopKey {
        SnoopKey {
            guest: octets(self.guest.ip()),
            peer: octets(self.peer.ip()),
            guest_port: self.guest.port().into(),
            peer_port: self.peer.port().into(),
            vlan: self.vlan.map_or(0, |vlan| vlan | TAGGED),
            version: if self.guest.is_ipv4() { 4 } else { 6 },
        }
    }
}

/// Returns the address as bytes. An IPv4 address fills the first four.
fn octets(address: IpAddr) -> [u8; 16] {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => octets = v6.octets(),
    }
    octets
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.peer, self.guest)
    }
}

// === impl Flow ===

impl Flow {
    /// Converts the value. Returns `None` if it is invalid.
    pub(crate) fn decode(flow: &SnoopFlow) -> Option<Self> {
        Some(Self {
            next_seq: flow.next_seq,
            acked_seq: flow.acked_seq,
            vm_seq: flow.vm_seq,
            rcv_edge: flow.rcv_edge,
            grown_edge: flow.grown_edge,
            begun: flow.begun,
            vm_una: flow.vm_una,
            ts_peer: flow.ts_peer,
            heard: flow.heard,
            exposed_most: flow.exposed_most,
            peer_window: flow.peer_window,
            mode: Mode::decode(flow.mode, flow.bypass)?,
            seen_ns: flow.seen_ns,
            acked_segments: flow.acked_segments,
            acked_bytes: flow.acked_bytes,
            suppressed: flow.suppressed,
            lifted: flow.lifted,
        })
    }

    /// Returns the number of bytes that are acknowledged early but not yet by the guest. They would
    /// be lost with the guest.
    pub fn exposure(&self) -> u32 {
        self.ahead_of_guest(self.acked_seq)
    }

    /// Like [`Flow::exposure`], but includes held segments, which the next early ACK would cover.
    pub fn owed(&self) -> u32 {
        match self.mode {
            Mode::Bypass(_) => self.exposure(),
            _ => self.exposure().max(self.ahead_of_guest(self.next_seq)),
        }
    }

    fn ahead_of_guest(&self, seq: u32) -> u32 {
        let ahead = seq.wrapping_sub(self.vm_seq);
        // The guest may be ahead of the acknowledged edge.
        if ahead.cast_signed() > 0 { ahead } else { 0 }
    }
}

// === impl Config ===

impl Config {
    /// The default of `awake_ticks`: more than a tick of the kernel's clock, less than a
    /// scheduler's time slice.
    pub const AWAKE: u32 = 9;

    /// The default of `exposure`: the data that arrives while a guest waits for its CPU, 8 ms at 1
    /// Gbit/s or 84 ms at 100 Mbit/s.
    pub const EXPOSURE: u32 = 1 << 20;

    /// The default of `exposure_ticks`, half a second: a scheduling round of sixteen guests with
    /// slices of 30 ms.
    pub const EXPOSURE_TICKS: u32 = 477;

    pub(crate) fn encode(&self, until: Duration) -> SnoopConfig {
        SnoopConfig {
            on: self.on.into(),
            buf_size: self.buf_size,
            guest_rcvbuf: self.guest_rcvbuf,
            start_early: self.start_early.into(),
            ecn: self.ecn.into(),
            ring: self.ring,
            sharing: self.sharing,
            awake_ticks: self.awake_ticks,
            exposure: self.exposure,
            exposure_ticks: self.exposure_ticks,
            distrusted: self.distrusted,
            guest_mac: self.guest_mac.unwrap_or_default(),
            mac_known: self.guest_mac.is_some().into(),
            by_address: self.by_address.into(),
            guest_ttl: self.guest_ttl,
            full: self.full.into(),
            unused: [0; 2],
            until_ns: u64::try_from(until.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Default for Config {
    /// Returns a configuration that is off, with the default limits.
    fn default() -> Self {
        Self {
            on: false,
            buf_size: 0,
            guest_rcvbuf: 0,
            start_early: false,
            ecn: false,
            ring: 0,
            sharing: 0,
            awake_ticks: 0,
            exposure: Self::EXPOSURE,
            exposure_ticks: Self::EXPOSURE_TICKS,
            distrusted: 0,
            guest_mac: None,
            by_address: false,
            guest_ttl: 0,
            full: false,
        }
    }
}

// === impl Prefix ===

impl Prefix {
    /// Returns the network of an address.
    pub fn of(address: IpAddr) -> Self {
        let mut bytes = [0; 6];
        match address {
            IpAddr::V4(v4) => bytes[..3].copy_from_slice(&v4.octets()[..3]),
            IpAddr::V6(v6) => bytes.copy_from_slice(&v6.octets()[..6]),
        }
        let version = if address.is_ipv4() { 4 } else { 6 };
        Self { bytes, version }
    }

    pub(crate) fn encode(&self) -> SnoopPrefix {
        SnoopPrefix {
            bytes: self.bytes,
            version: self.version,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.bytes;
        if self.version == 4 {
            return write!(f, "{}/24", Ipv4Addr::new(a, b, c, 0));
        }
        let mut octets = [0; 16];
        octets[..6].copy_from_slice(&[a, b, c, d, e, g]);
        write!(f, "{}/48", Ipv6Addr::from(octets))
    }
}

// === impl Net ===

impl Net {
    /// Returns the key of `struct snoop_net`. An IPv4 address is mapped into IPv6.
    pub(crate) fn encode(&self) -> SnoopNet {
        let (addr, prefix_len) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), u32::from(self.bits) + 96),
            IpAddr::V6(v6) => (v6.octets(), u32::from(self.bits)),
        };
        SnoopNet { prefix_len, addr }
    }
}

impl std::str::FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let wrong =
            || format!("`{text}` is not a network such as 10.1.0.0/16, fd00::/8 or 10.1.0.7");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            "" if !text.contains('/') => most,
            bits => bits.parse().map_err(|_| wrong())?,
        };
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

// === impl Copy ===

impl Copy {
    /// Converts the value. Returns `None` if it is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (copy, frame) = read_prefix::<SnoopCopy>(bytes)?;
        let (l4_at, header) = (usize::from(copy.l4_at), usize::from(copy.header));
        let frame = frame.get(..l4_at + header + copy.len as usize)?;
        let plausible = l4_at >= 34 && header >= 20;
        plausible.then_some(Self {
            key: Key::decode(&copy.key)?,
            ifindex: copy.ifindex,
            seq: copy.seq,
            len: copy.len,
            l4_at,
            header,
            segment: if copy.gso_size > 0 {
                copy.gso_size
            } else {
                copy.len
            },
            begun: copy.begun,
            at: Duration::from_nanos(copy.at_ns),
            frame: frame.into(),
        })
    }

    /// Returns the sequence number after the data.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }
}

// === impl Doubt ===

impl Doubt {
    /// Converts the value. Returns `None` if it is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (event, _) = read_prefix::<SnoopEvent>(bytes)?;
        Some(Self {
            key: Key::decode(&event.key)?,
            lacks: event.acked_seq.wrapping_sub(event.vm_seq),
            reach: event.reach.wrapping_sub(event.vm_seq).cast_signed(),
            contradicted: event.contradicted != 0,
        })
    }
}

/// The split of the programs' time.
pub(crate) type Spent = raw::SnoopSpent;

// === impl Spent ===

impl Spent {
    /// Returns the sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            delivery: self.delivery + other.delivery,
            lookup: self.lookup + other.lookup,
            overhead: self.overhead + other.overhead,
            deliveries: self.deliveries + other.deliveries,
            lookups: self.lookups + other.lookups,
        }
    }

    /// Returns what was added since `before`.
    pub(crate) fn less(self, before: Self) -> Self {
        Self {
            delivery: self.delivery - before.delivery,
            lookup: self.lookup - before.lookup,
            overhead: self.overhead - before.overhead,
            deliveries: self.deliveries - before.deliveries,
            lookups: self.lookups - before.lookups,
        }
    }

    /// Returns the nanoseconds per delivery.
    pub(crate) fn delivery_ns(&self) -> f64 {
        self.less_measuring(self.delivery, self.deliveries)
    }

    /// Returns the nanoseconds per search for a flow.
    pub(crate) fn lookup_ns(&self) -> f64 {
        self.less_measuring(self.lookup, self.lookups)
    }

    fn less_measuring(&self, sum: u64, count: u64) -> f64 {
        let each = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        each(sum, count) - each(self.overhead, self.deliveries)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use proptest::prelude::*;
    use taut_bpf::CEnum as _;

    use super::*;

    /// Metrics and `taut snoop status` take the labels from the header: renaming a counter there
    /// renames it for users.
    #[test]
    fn every_counter_of_the_programs_is_in_the_guide() {
        let guide = include_str!("../../../docs/snoop-status.md");
        let labels = [raw::SnoopToGuest::LABELS, raw::SnoopFromGuest::LABELS].concat();
        assert!(labels.len() > 40, "{labels:?}");
        for label in labels {
            let name = format!("`{label}`");
            assert!(
                guide.contains(&name),
                "docs/snoop-status.md has no counter {name}"
            );
        }
    }

    proptest! {
        #[test]
        fn an_ipv4_key_survives_a_round_trip(guest: u32, peer: u32, ports: (u16, u16), vlan in prop::option::of(0u16..4096)) {
            let key = Key {
                guest: SocketAddr::new(Ipv4Addr::from(guest).into(), ports.0),
                peer: SocketAddr::new(Ipv4Addr::from(peer).into(), ports.1),
                vlan,
            };
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn an_ipv6_key_survives_a_round_trip(guest: u128, peer: u128, ports: (u16, u16)) {
            let key = Key {
                guest: SocketAddr::new(Ipv6Addr::from(guest).into(), ports.0),
                peer: SocketAddr::new(Ipv6Addr::from(peer).into(), ports.1),
                vlan: None,
            };
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn no_input_makes_the_decoders_panic(bytes: Vec<u8>) {
            let _ = (Doubt::decode(&bytes), Copy::decode(&bytes));
            let key = read_prefix(&bytes).map(|(key, _)| Key::decode(&key));
            let _ = (key, read_prefix(&bytes).map(|(flow, _)| Flow::decode(&flow)));
        }
    }
}
