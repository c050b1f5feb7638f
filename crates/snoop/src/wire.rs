//! What is shared with the programs: the layouts of `bpf/snoop.h`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use taut_bpf::{CEnum as _, Counters, read_prefix};

use self::raw::{
    SnoopConfig, SnoopCopy, SnoopEvent, SnoopFlow, SnoopKey, SnoopMode, SnoopNet, SnoopPrefix,
};

taut_bpf::bindings!(
    /// The structs of `bpf/snoop.h`.
    pub(crate) mod raw from "snoop"
);

/// Why a flow is not touched.
pub use self::raw::SnoopBypass as Bypass;

/// FL_MODE of a flow (vsnoop-paper III-B), and what comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The handshake is under way.
    Syn,
    /// The guest has shown nothing of the connection yet: what comes is its own to acknowledge.
    Unproven,
    /// What comes in order is acknowledged.
    Active,
    /// A segment came out of order, or could not be answered by the host.
    UnexpectedSeq,
    /// The ring or the guest's window was full.
    NoBuf,
    /// It is never touched.
    Bypass(Bypass),
}

/// Of a guest's end and its peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The guest's end.
    pub guest: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The tag that the frames have beside their header.
    pub vlan: Option<u16>,
}

/// What is known of a flow. Sequence numbers wrap at 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// FL_MODE.
    pub mode: Mode,
    /// NEXT_SEQ: all before it is in the ring, or the guest has it.
    pub next_seq: u32,
    /// What the sender has an acknowledgement of.
    pub acked_seq: u32,
    /// VM_SEQ: what the guest has acknowledged.
    pub vm_seq: u32,
    /// The guest's right edge.
    pub rcv_edge: u32,
    /// How far has been promised at most with `--grow`.
    pub grown_edge: u32,
    /// Segments that were acknowledged for the guest.
    pub acked_segments: u64,
    /// Their bytes.
    pub acked_bytes: u64,
    /// The guest's acknowledgements that were dropped, for they said nothing new.
    pub suppressed: u64,
    /// The guest's segments whose acknowledgement was lifted.
    pub lifted: u64,
    /// When the last packet came: nanoseconds of CLOCK_MONOTONIC.
    pub seen_ns: u64,
    /// The most bytes that were acknowledged early and not yet by the guest.
    pub exposed_most: u32,
    /// When the guest was last heard in this flow, in ticks of 2^20 ns of CLOCK_MONOTONIC.
    pub heard: u32,
    /// The peer's first byte; 0 if the flow was met in its middle. Tells connections of the same key apart.
    pub begun: u32,
    /// What the peer has acknowledged of the guest's data.
    pub vm_una: u32,
    /// The window that the peer offers, not scaled.
    pub peer_window: u16,
    /// The latest TSval of the peer's.
    pub ts_peer: u32,
}

/// How a tap is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Acknowledge.
    pub on: bool,
    /// No window that the sender is told is wider, in bytes; 0: none is narrowed.
    pub buf_size: u32,
    /// Bytes that every connection of the guest takes, whatever window it offers; 0: promise no
    /// more than it offers.
    pub guest_rcvbuf: u32,
    /// Acknowledge before the guest has shown that there is a connection, where the place in the
    /// accept queue is this connection's alone.
    pub start_early: bool,
    /// Flows with ECT too.
    pub ecn: bool,
    /// Places of the ring, of which each flow with something in it is told its share; 0: windows are not
    /// bounded by it.
    pub ring: u32,
    /// How many those are.
    pub sharing: u32,
    /// For so many times 2^20 ns after it was heard the guest is taken to be awake, and an acknowledgement
    /// is of several full segments; 0: each is acknowledged. See [`Config::AWAKE`].
    pub awake_ticks: u32,
    /// Bytes of a flow that may be acknowledged early and not yet by the guest. See [`Config::EXPOSURE`].
    pub exposure: u32,
    /// For so many times 2^20 ns the guest may acknowledge nothing of them before no more are acknowledged early.
    /// See [`Config::EXPOSURE_TICKS`].
    pub exposure_ticks: u32,
    /// Networks of peers that are distrusted now: entries of the programs' map.
    pub distrusted: u32,
    /// The guest's own Ethernet address, if it is known. Otherwise nothing is acknowledged early at a tap at which
    /// more than one was seen.
    pub guest_mac: Option<[u8; 6]>,
    /// Acknowledge early only for guests' addresses in the programs' map of networks.
    pub by_address: bool,
    /// A TTL that guests send with, besides 64, 128 and 255; 0: none.
    pub guest_ttl: u8,
    /// As many copies are retained for the guest as its share allows.
    pub full: bool,
}

/// Why a guest seems to lack what was acknowledged early, as the programs have seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Whose.
    pub key: Key,
    /// Bytes that were acknowledged early and that it does not acknowledge.
    pub lacks: u32,
    /// From the first of these to the end of the SACK block, or to the right edge, that shows it: bytes, negative
    /// if the edge is before.
    pub reach: i32,
    /// The guest has said so itself, by its window or by repeating itself; else it acknowledges selectively what
    /// came later (RFC 2018).
    pub contradicted: bool,
}

/// A network of peers that is trusted or not as a whole: 24 bits of an IPv4 address, 48 of an IPv6 address.
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

/// A frame for a guest, of which the host keeps a copy until the guest has acknowledged its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its flow.
    pub key: Key,
    /// The number of the tap.
    pub ifindex: u32,
    /// The sequence number of its first byte of data.
    pub seq: u32,
    /// Bytes of data.
    pub len: u32,
    /// Where its TCP header begins.
    pub l4_at: usize,
    /// Bytes of TCP's header, options included.
    pub header: usize,
    /// Bytes of data in each of its segments.
    pub segment: u32,
    /// The peer's first byte, as [`Flow::begun`].
    pub begun: u32,
    /// When it was put into the ring (CLOCK_MONOTONIC).
    pub at: Duration,
    /// Its bytes, from the Ethernet header to the end of its data.
    pub frame: Box<[u8]>,
}

/// Packets towards the guest, by their way out of the program.
pub type ToGuest = Counters<raw::SnoopToGuest>;
/// Packets from the guest, by their way out of the program.
pub type FromGuest = Counters<raw::SnoopFromGuest>;

/// The mark of a frame that the programs are to deliver to the guest as it is (SNOOP_DELIVERY).
pub(crate) const DELIVERY_MARK: u32 = raw::SNOOP_DELIVERY;

/// The bit beside a VLAN's number that says that there is one.
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
                Bypass::Touched => return None,
                why => Self::Bypass(why),
            },
        })
    }

    /// The name that users see, which is the paper's where it has one.
    pub fn label(self) -> &'static str {
        match self {
            Self::Syn => "SYN",
            Self::Unproven => "UNPROVEN",
            Self::Active => "ACTIVE",
            Self::UnexpectedSeq => "UNEXPECTED_SEQ",
            Self::NoBuf => "NO_BUF",
            Self::Bypass(_) => "BYPASS",
        }
    }
}

// === impl Key ===

impl Key {
    /// `None` if it is none.
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

/// An IPv4 address is in the first four.
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
    /// `None` if it is none.
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

    /// Bytes that the sender has been told of and the guest has not acknowledged: what would be lost
    /// with the guest.
    pub fn exposure(&self) -> u32 {
        self.ahead_of_guest(self.acked_seq)
    }

    /// The same, and what may still become such: what is held will be promised with one of the next segments.
    pub fn owed(&self) -> u32 {
        match self.mode {
            Mode::Bypass(_) => self.exposure(),
            _ => self.exposure().max(self.ahead_of_guest(self.next_seq)),
        }
    }

    fn ahead_of_guest(&self, seq: u32) -> u32 {
        let ahead = seq.wrapping_sub(self.vm_seq);
        // The guest may be further than what was told.
        if ahead.cast_signed() > 0 { ahead } else { 0 }
    }
}

// === impl Config ===

impl Config {
    /// More than a tick of the kernel's clock, and less than a slice of a scheduler's.
    pub const AWAKE: u32 = 9;

    /// What a flow's rate brings in the time that a guest waits for its CPU: 8 ms of 1 Gbit/s, and 84 ms of 100 Mbit/s.
    pub const EXPOSURE: u32 = 1 << 20;

    /// Half a second: a scheduler's round of sixteen guests with slices of 30 ms.
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
    /// Off, with the bounds that there are if nothing else is said.
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
    /// The one that an address is in.
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
    /// The key of `struct snoop_net`. An IPv4 address is mapped into IPv6.
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
    /// `None` if it is none.
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

    /// The sequence number after its data.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }
}

// === impl Doubt ===

impl Doubt {
    /// `None` if it is none.
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

/// Where the programs' time went.
pub(crate) type Spent = raw::SnoopSpent;

// === impl Spent ===

impl Spent {
    /// Both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            delivery: self.delivery + other.delivery,
            lookup: self.lookup + other.lookup,
            overhead: self.overhead + other.overhead,
            deliveries: self.deliveries + other.deliveries,
            lookups: self.lookups + other.lookups,
        }
    }

    /// What came after `before`.
    pub(crate) fn less(self, before: Self) -> Self {
        Self {
            delivery: self.delivery - before.delivery,
            lookup: self.lookup - before.lookup,
            overhead: self.overhead - before.overhead,
            deliveries: self.deliveries - before.deliveries,
            lookups: self.lookups - before.lookups,
        }
    }

    /// Nanoseconds of a delivery.
    pub(crate) fn delivery_ns(&self) -> f64 {
        self.less_measuring(self.delivery, self.deliveries)
    }

    /// Nanoseconds of a search for a flow.
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
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_is_what_it_was(guest: u32, peer: u32, ports: (u16, u16), vlan in prop::option::of(0u16..4096)) {
            let key = Key {
                guest: SocketAddr::new(Ipv4Addr::from(guest).into(), ports.0),
                peer: SocketAddr::new(Ipv4Addr::from(peer).into(), ports.1),
                vlan,
            };
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn a_key_of_ipv6_is_what_it_was(guest: u128, peer: u128, ports: (u16, u16)) {
            let key = Key {
                guest: SocketAddr::new(Ipv6Addr::from(guest).into(), ports.0),
                peer: SocketAddr::new(Ipv6Addr::from(peer).into(), ports.1),
                vlan: None,
            };
            prop_assert_eq!(Key::decode(&key.encode()), Some(key));
        }

        #[test]
        fn nothing_that_is_read_makes_it_panic(bytes: Vec<u8>) {
            let _ = (Doubt::decode(&bytes), Copy::decode(&bytes));
            let key = read_prefix(&bytes).map(|(key, _)| Key::decode(&key));
            let _ = (key, read_prefix(&bytes).map(|(flow, _)| Flow::decode(&flow)));
        }
    }
}
