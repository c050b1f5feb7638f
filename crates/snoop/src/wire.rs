//! What is shared with the programs: the layouts of `bpf/snoop.h`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

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

/// Why a flow is not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// One end has sent FIN.
    Closing,
    /// Urgent data.
    Urgent,
    /// Signed segments (RFC 2385).
    Md5,
    /// Signed segments (RFC 5925).
    TcpAo,
    /// Multipath (RFC 8684), whose DATA_ACK is the guest's to give.
    Mptcp,
    /// Accurate ECN (RFC 9768), whose counters only the guest has.
    AccEcn,
    /// Data in the SYN (RFC 7413).
    FastOpen,
    /// Packets that may be marked (RFC 3168): DCTCP counts each mark.
    Ect,
    /// An option that is not known here.
    Option,
    /// The guest lacks what was acknowledged for it.
    LostAfterEarlyAck,
    /// It looks like that.
    Doubt,
    /// The guest says that it lacks what was acknowledged early.
    Contradicted,
    /// The endpoint is behind the guest: its TTL is not one that systems send with.
    Forwarded,
    /// The endpoint may be behind the guest: its Ethernet address is not known to be the guest's.
    OtherMac,
    /// The guest's end is in none of the networks that guests are in (`--guest-net`).
    OtherAddress,
    /// Several flows of the peer's network had to be repaired.
    DistrustedPeer,
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

macro_rules! exits {
    ($(#[$doc:meta])* $name:ident { $($label:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name([u64; $name::LABELS.len()]);

        impl $name {
            /// What the ways out are called, in the programs' order.
            pub const LABELS: &'static [&'static str] = &[$($label),*];

            pub(crate) fn read<E>(mut count: impl FnMut(u32) -> Result<u64, E>) -> Result<Self, E> {
                let mut counts = [0; Self::LABELS.len()];
                for (exit, to) in (0..).zip(&mut counts) {
                    *to = count(exit)?;
                }
                Ok(Self(counts))
            }

            /// Packets that left by each.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                Self::LABELS.iter().copied().zip(self.0)
            }

            /// Packets that left by this one; 0 if there is none of this name.
            pub fn of(&self, label: &str) -> u64 {
                self.iter().find(|(l, _)| *l == label).map_or(0, |(_, n)| n)
            }
        }
    };
}

exits! {
    /// Packets towards the guest, by their way out of the program (`enum snoop_to_guest`).
    ToGuest {
        "not_tcp", "malformed", "ours", "off", "no_flow", "flows_full", "syn", "rst", "bypass", "no_data",
        "unlearnt", "out_of_order", "misdirected", "ce", "options", "beyond_window", "budget", "exposure", "overdue",
        "not_kept", "checksum", "in_parts", "not_cloned",
        "ring_full", "overtaken", "no_ack", "held", "acked",
    }
}

exits! {
    /// Packets from the guest, by their way out of the program (`enum snoop_from_guest`).
    FromGuest {
        "not_tcp", "malformed", "ours", "leftover", "flows_full", "no_flow", "syn", "rst", "fin", "bypass",
        "passed", "suppressed", "lifted", "not_lifted", "doubt", "contradicted", "forwarded", "other_mac", "other_address",
    }
}

/// The mark of a frame that the programs are to deliver to the guest as it is (SNOOP_DELIVERY).
pub(crate) const DELIVERY_MARK: u32 = 0x7461_7574;

/// Bytes of `struct snoop_key`, `struct snoop_flow` and `struct snoop_event`.
pub(crate) const KEY: usize = 40;
pub(crate) const FLOW: usize = 192;
const EVENT: usize = KEY + 16;
/// Bytes of `struct snoop_copy`, and of `struct snoop_config`.
const COPY: usize = KEY + 32;
const CONFIG: usize = 64;

/// Where `mode` and `bypass` are in `struct snoop_flow`.
const MODE_AT: usize = 137;

/// The bit beside a VLAN's number that says that there is one.
const TAGGED: u16 = 0x8000;

// === impl Mode ===

impl Mode {
    fn decode(mode: u8, bypass: u8) -> Option<Self> {
        Some(match mode {
            0 => Self::Syn,
            1 => Self::Unproven,
            2 => Self::Active,
            3 => Self::UnexpectedSeq,
            4 => Self::NoBuf,
            5 => Self::Bypass(Bypass::decode(bypass)?),
            _ => return None,
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

// === impl Bypass ===

impl Bypass {
    fn decode(bypass: u8) -> Option<Self> {
        Some(match bypass {
            1 => Self::Closing,
            2 => Self::Urgent,
            3 => Self::Md5,
            4 => Self::TcpAo,
            5 => Self::Mptcp,
            6 => Self::AccEcn,
            7 => Self::FastOpen,
            8 => Self::Ect,
            9 => Self::Option,
            10 => Self::LostAfterEarlyAck,
            11 => Self::Doubt,
            12 => Self::Contradicted,
            13 => Self::Forwarded,
            14 => Self::OtherMac,
            15 => Self::OtherAddress,
            16 => Self::DistrustedPeer,
            _ => return None,
        })
    }

    /// As `enum snoop_bypass` has it, of which these are in order after the one that stands for none.
    pub(crate) fn encode(self) -> u8 {
        self as u8 + 1
    }

    /// The name that users see.
    pub fn label(self) -> &'static str {
        match self {
            Self::Closing => "closing",
            Self::Urgent => "urgent",
            Self::Md5 => "md5",
            Self::TcpAo => "tcp_ao",
            Self::Mptcp => "mptcp",
            Self::AccEcn => "accecn",
            Self::FastOpen => "fast_open",
            Self::Ect => "ect",
            Self::Option => "option",
            Self::LostAfterEarlyAck => "lost_after_early_ack",
            Self::Doubt => "doubt",
            Self::Contradicted => "contradicted",
            Self::Forwarded => "forwarded",
            Self::OtherMac => "other_mac",
            Self::OtherAddress => "other_address",
            Self::DistrustedPeer => "distrusted_peer",
        }
    }
}

// === impl Key ===

impl Key {
    /// `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut read = Reader(bytes);
        let guest: [u8; 16] = read.take()?;
        let peer: [u8; 16] = read.take()?;
        let guest_port = u16::from_be_bytes(read.take()?);
        let peer_port = u16::from_be_bytes(read.take()?);
        let vlan = read.u16()?;
        let ip = match read.u16()? {
            4 => |[a, b, c, d, ..]: [u8; 16]| IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            6 => |bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return None,
        };
        Some(Self {
            guest: SocketAddr::new(ip(guest), guest_port),
            peer: SocketAddr::new(ip(peer), peer_port),
            vlan: (vlan & TAGGED != 0).then_some(vlan & !TAGGED),
        })
    }

    pub(crate) fn encode(&self) -> [u8; KEY] {
        let mut bytes = [0; KEY];
        let mut address = |at: usize, address: IpAddr| match address {
            IpAddr::V4(v4) => bytes[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
        };
        address(0, self.guest.ip());
        address(16, self.peer.ip());
        bytes[32..34].copy_from_slice(&self.guest.port().to_be_bytes());
        bytes[34..36].copy_from_slice(&self.peer.port().to_be_bytes());
        let vlan = self.vlan.map_or(0, |vlan| vlan | TAGGED);
        bytes[36..38].copy_from_slice(&vlan.to_ne_bytes());
        let version: u16 = if self.guest.is_ipv4() { 4 } else { 6 };
        bytes[38..40].copy_from_slice(&version.to_ne_bytes());
        bytes
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.peer, self.guest)
    }
}

// === impl Flow ===

impl Flow {
    /// `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FLOW] = bytes.first_chunk()?;
        let word = |at: usize| Reader(&bytes[at..]).u32();
        let long = |at: usize| Reader(&bytes[at..]).u64();
        Some(Self {
            next_seq: word(4)?,
            acked_seq: word(8)?,
            vm_seq: word(12)?,
            rcv_edge: word(16)?,
            grown_edge: word(24)?,
            begun: word(36)?,
            vm_una: word(44)?,
            ts_peer: word(52)?,
            heard: word(84)?,
            exposed_most: word(100)?,
            peer_window: Reader(&bytes[134..]).u16()?,
            mode: Mode::decode(bytes[MODE_AT], bytes[MODE_AT + 1])?,
            seen_ns: long(152)?,
            acked_segments: long(160)?,
            acked_bytes: long(168)?,
            suppressed: long(176)?,
            lifted: long(184)?,
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

    pub(crate) fn encode(&self, until: Duration) -> [u8; CONFIG] {
        let words = [
            u32::from(self.on),
            self.buf_size,
            self.guest_rcvbuf,
            u32::from(self.start_early),
            u32::from(self.ecn),
            self.ring,
            self.sharing,
            self.awake_ticks,
            self.exposure,
            self.exposure_ticks,
            self.distrusted,
        ];
        let mut bytes = [0; CONFIG];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        bytes[44..50].copy_from_slice(&self.guest_mac.unwrap_or_default());
        bytes[50] = u8::from(self.guest_mac.is_some());
        bytes[51] = u8::from(self.by_address);
        bytes[52] = self.guest_ttl;
        bytes[53] = u8::from(self.full);
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        bytes[56..].copy_from_slice(&until.to_ne_bytes());
        bytes
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

    pub(crate) fn encode(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&self.bytes);
        bytes[6..].copy_from_slice(&self.version.to_ne_bytes());
        bytes
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
    pub(crate) fn encode(&self) -> [u8; 20] {
        let (octets, bits) = match self.address {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), u32::from(self.bits) + 96),
            IpAddr::V6(v6) => (v6.octets(), u32::from(self.bits)),
        };
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&bits.to_ne_bytes());
        bytes[4..].copy_from_slice(&octets);
        bytes
    }
}

impl std::str::FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let wrong = || format!("`{text}` is no network such as 10.1.0.0/16, fd00::/8 or 10.1.0.7");
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
        let mut rest = Reader(bytes.get(KEY..COPY)?);
        let (ifindex, seq, len) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let (l4_at, header) = (usize::from(rest.u16()?), usize::from(rest.u16()?));
        let gso_size = rest.u32()?;
        let begun = rest.u32()?;
        let at = Duration::from_nanos(rest.u64()?);
        let frame = bytes.get(COPY..COPY + l4_at + header + len as usize)?;
        let plausible = l4_at >= 34 && header >= 20;
        plausible.then_some(Self {
            key: Key::decode(bytes)?,
            ifindex,
            seq,
            len,
            l4_at,
            header,
            segment: if gso_size > 0 { gso_size } else { len },
            begun,
            at,
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
        let bytes = bytes.get(..EVENT)?;
        let mut rest = Reader(&bytes[KEY..]);
        let (vm_seq, acked_seq, reach) = (rest.u32()?, rest.u32()?, rest.u32()?);
        Some(Self {
            key: Key::decode(bytes)?,
            lacks: acked_seq.wrapping_sub(vm_seq),
            reach: reach.wrapping_sub(vm_seq).cast_signed(),
            contradicted: rest.u32()? != 0,
        })
    }
}

/// Where the programs' time went (`struct spent`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    delivery: u64,
    lookup: u64,
    nothing: u64,
    deliveries: u64,
    lookups: u64,
}

// === impl Spent ===

impl Spent {
    /// `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        Some(Self {
            delivery: rest.u64()?,
            lookup: rest.u64()?,
            nothing: rest.u64()?,
            deliveries: rest.u64()?,
            lookups: rest.u64()?,
        })
    }

    /// Both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            delivery: self.delivery + other.delivery,
            lookup: self.lookup + other.lookup,
            nothing: self.nothing + other.nothing,
            deliveries: self.deliveries + other.deliveries,
            lookups: self.lookups + other.lookups,
        }
    }

    /// What came after `before`.
    pub(crate) fn less(self, before: Self) -> Self {
        Self {
            delivery: self.delivery - before.delivery,
            lookup: self.lookup - before.lookup,
            nothing: self.nothing - before.nothing,
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
        each(sum, count) - each(self.nothing, self.deliveries)
    }
}

/// Reads one field after the other.
struct Reader<'a>(&'a [u8]);

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use proptest::prelude::*;

    use super::*;

    /// The names of an enum of the header.
    fn names(header: &str, of: &str) -> Vec<String> {
        let body = header
            .split_once(&format!("enum {of} {{"))
            .unwrap()
            .1
            .split_once("};")
            .unwrap()
            .0;
        let name = |line: &str| {
            let name = line.trim().split([',', '\t', ' ', '/']).next()?;
            let name = name.strip_prefix("SNOOP_")?;
            let way = name.strip_prefix("TG_").or(name.strip_prefix("FG_"));
            let name = way.unwrap_or(name);
            (name != "EXITS").then(|| name.to_lowercase())
        };
        body.lines().filter_map(name).collect()
    }

    #[test]
    fn the_ways_out_are_those_of_the_programs() {
        let header = include_str!("bpf/snoop.h");
        assert_eq!(names(header, "snoop_to_guest"), ToGuest::LABELS);
        assert_eq!(names(header, "snoop_from_guest"), FromGuest::LABELS);
    }

    #[test]
    fn reasons_to_leave_a_flow_alone_are_those_of_the_programs() {
        let header = include_str!("bpf/snoop.h");
        let names = names(header, "snoop_bypass");
        assert_eq!(names[0], "touched");
        for (number, name) in (1..).zip(&names[1..]) {
            let why = Bypass::decode(number).unwrap();
            assert_eq!((why.label(), why.encode()), (&**name, number));
        }
        assert_eq!(Bypass::decode(names.len() as u8), None);
    }

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
            let _ = (Key::decode(&bytes), Flow::decode(&bytes), Doubt::decode(&bytes), Copy::decode(&bytes));
        }
    }
}
