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
    BrokenPromise,
    /// It looks like that.
    Doubt,
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
    pub told_seq: u32,
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
}

/// How a tap is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

/// A guest lacks what was promised for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Whose.
    pub key: Key,
    /// What it has.
    pub vm_seq: u32,
    /// What the sender was told that it has.
    pub told_seq: u32,
}

/// A guest seems to lack what was promised for it: it acknowledges selectively what came after it
/// (RFC 2018).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Whose.
    pub key: Key,
    /// Bytes that were promised and that it does not acknowledge.
    pub lacks: u32,
    /// From the first of these to the end of what it has, in bytes.
    pub reach: u32,
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
        "unlearnt", "out_of_order", "misdirected", "ce", "options", "beyond_window", "budget", "checksum", "in_parts", "not_cloned",
        "ring_full", "overtaken", "no_ack", "held", "acked",
    }
}

exits! {
    /// Packets from the guest, by their way out of the program (`enum snoop_from_guest`).
    FromGuest {
        "not_tcp", "malformed", "ours", "leftover", "flows_full", "no_flow", "syn", "rst", "fin", "bypass",
        "passed", "suppressed", "lifted", "not_lifted", "doubt",
    }
}

/// Bytes of `struct snoop_key`, `struct snoop_flow` and `struct snoop_event`.
pub(crate) const KEY: usize = 40;
pub(crate) const FLOW: usize = 168;
const EVENT: usize = KEY + 12;

/// Where `mode` and `bypass` are in `struct snoop_flow`.
const MODE_AT: usize = 117;

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
            10 => Self::BrokenPromise,
            11 => Self::Doubt,
            _ => return None,
        })
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
            Self::BrokenPromise => "broken_promise",
            Self::Doubt => "doubt",
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
        let mut read = Reader(bytes.get(..FLOW)?);
        let _lock = read.u32()?;
        let next_seq = read.u32()?;
        let told_seq = read.u32()?;
        let vm_seq = read.u32()?;
        let rcv_edge = read.u32()?;
        let _told_edge = read.u32()?;
        let grown_edge = read.u32()?;
        // What only the programs need: from `far_edge` to `mss`.
        let _: [u8; 18 * 4 + 2 + 12 + 2] = read.take()?;
        let [_scale, mode, bypass, _flags, _tos, _ttl, _counted] = read.take()?;
        let _: [u8; 5] = read.take()?;
        let seen_ns = read.u64()?;
        Some(Self {
            mode: Mode::decode(mode, bypass)?,
            next_seq,
            told_seq,
            vm_seq,
            rcv_edge,
            grown_edge,
            acked_segments: read.u64()?,
            acked_bytes: read.u64()?,
            suppressed: read.u64()?,
            lifted: read.u64()?,
            seen_ns,
        })
    }

    /// Marks the flow of these bytes: its guest has lost what was promised.
    pub(crate) fn break_promise(bytes: &mut [u8]) {
        if let Some([mode, bypass]) = bytes.get_mut(MODE_AT..MODE_AT + 2) {
            (*mode, *bypass) = (5, 10);
        }
    }

    /// Bytes that the sender has been told of and the guest has not acknowledged: what would be lost
    /// with the guest.
    pub fn promised(&self) -> u32 {
        self.ahead_of_guest(self.told_seq)
    }

    /// The same, and what may still become such: what is held will be promised with one of the next segments.
    pub fn owed(&self) -> u32 {
        match self.mode {
            Mode::Bypass(_) => self.promised(),
            _ => self.promised().max(self.ahead_of_guest(self.next_seq)),
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

    pub(crate) fn encode(&self, until: Duration) -> [u8; 40] {
        let words = [
            u32::from(self.on),
            self.buf_size,
            self.guest_rcvbuf,
            u32::from(self.start_early),
            u32::from(self.ecn),
            self.ring,
            self.sharing,
            self.awake_ticks,
        ];
        let mut bytes = [0; 40];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        bytes[32..].copy_from_slice(&until.to_ne_bytes());
        bytes
    }
}

// === impl Doubt ===

impl Doubt {
    /// `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..EVENT)?;
        let mut rest = Reader(&bytes[KEY..]);
        let (vm_seq, told_seq, sack_end) = (rest.u32()?, rest.u32()?, rest.u32()?);
        Some(Self {
            key: Key::decode(bytes)?,
            lacks: told_seq.wrapping_sub(vm_seq),
            reach: sack_end.wrapping_sub(vm_seq),
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
            let name = name.strip_prefix("TG_").or(name.strip_prefix("FG_"));
            (name? != "EXITS").then(|| name.unwrap().to_lowercase())
        };
        body.lines().filter_map(name).collect()
    }

    #[test]
    fn the_ways_out_are_those_of_the_programs() {
        let header = include_str!("bpf/snoop.h");
        assert_eq!(names(header, "snoop_to_guest"), ToGuest::LABELS);
        assert_eq!(names(header, "snoop_from_guest"), FromGuest::LABELS);
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
            let _ = (Key::decode(&bytes), Flow::decode(&bytes), Doubt::decode(&bytes));
        }
    }
}
