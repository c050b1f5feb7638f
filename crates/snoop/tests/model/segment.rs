//! A TCP segment, its options, and the frame that carries it.

use std::fmt;

use crate::seq::Seq;

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;
/// The bit before the byte of flags (RFC 9768).
pub(crate) const AE: u16 = 0x100;

/// The two bits of ECN in IP's header (RFC 3168 5).
pub(crate) const ECN: u8 = 3;
pub(crate) const CE: u8 = 3;

pub(crate) type Mac = [u8; 6];

pub(crate) const GUEST_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];
pub(crate) const OTHER_MAC: Mac = [2, 0, 0, 0, 0, 9];

const ETHERNET: usize = 14;
const TCP: usize = 20;

/// The longest frame: headers, options and two full segments of the widest.
pub(crate) const FRAME_MAX: usize = 3400;

/// TCP's options as they are in a segment, padded to whole words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    bytes: [u8; 40],
    len: u8,
}

/// Options, read (RFC 9293 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(Seq, Seq)>,
    /// The first block: its start and end.
    pub(crate) sack: Option<(Seq, Seq)>,
    /// The kind of the last of those that a host cannot answer for: 19, 29, 30, 34.
    pub(crate) foreign: Option<u8>,
    /// A kind that is none of RFC 9293's, RFC 7323's, RFC 2018's or the above.
    pub(crate) unknown: bool,
}

/// A TCP segment in its IP packet and Ethernet frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) options: Options,
    /// Bytes of data.
    pub(crate) len: u16,
    pub(crate) ttl: u8,
    /// The two bits of ECN.
    pub(crate) ecn: u8,
    pub(crate) from: Mac,
    pub(crate) to: Mac,
    /// TCP's checksum is right.
    pub(crate) sums_up: bool,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) v6: bool,
    /// The guest's address is in none of the networks that were said to be guests'.
    pub(crate) foreign: bool,
    pub(crate) guest_port: u16,
    pub(crate) peer_port: u16,
}

// === impl Options ===

impl Options {
    pub(crate) const NONE: Self = Self {
        bytes: [0; 40],
        len: 0,
    };

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Those of these bytes, at most 40.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::NONE.and(bytes)
    }

    /// With these bytes after what there is, if they have room.
    pub(crate) fn and(mut self, bytes: &[u8]) -> Self {
        let at = usize::from(self.len);
        if let Some(to) = self.bytes.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
            self.len += bytes.len() as u8;
        }
        self
    }

    /// Filled up to whole words with NOPs.
    pub(crate) fn padded(mut self) -> Self {
        while !self.len.is_multiple_of(4) {
            self = self.and(&[1]);
        }
        self
    }

    /// The timestamps, as nearly every host puts them: behind two NOPs (RFC 7323 A).
    pub(crate) fn timestamps(self, value: Seq, echo: Seq) -> Self {
        self.and(&[1, 1, 8, 10])
            .and(&value.0.to_be_bytes())
            .and(&echo.0.to_be_bytes())
    }

    /// SACK with these blocks, as many as have room (RFC 2018 3).
    pub(crate) fn sack(self, blocks: &[(Seq, Seq)]) -> Self {
        let room = (40 - usize::from(self.len)).saturating_sub(4) / 8;
        let blocks = &blocks[..blocks.len().min(room)];
        if blocks.is_empty() {
            return self;
        }
        let mut options = self.and(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
        for (start, end) in blocks {
            options = options
                .and(&start.0.to_be_bytes())
                .and(&end.0.to_be_bytes());
        }
        options
    }

    /// Reads them; `None` if they are malformed.
    pub(crate) fn read(&self) -> Option<Said> {
        let mut said = Said::default();
        let mut rest = self.as_bytes();
        let word = |b: &[u8]| Seq(u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        loop {
            let (kind, body) = match *rest {
                [] | [0, ..] => return Some(said),
                [1, ..] => {
                    rest = &rest[1..];
                    continue;
                }
                [kind, size, ..] if size >= 2 => (kind, rest.get(2..usize::from(size))?),
                _ => return None,
            };
            rest = &rest[2 + body.len()..];
            match (kind, body.len()) {
                (2, 2) => said.mss = Some(u16::from_be_bytes([body[0], body[1]])),
                (3, 1) => said.scale = Some(body[0]),
                (5, 8..) => said.sack = Some((word(body), word(&body[4..]))),
                (8, 8) => said.timestamps = Some((word(body), word(&body[4..]))),
                (19 | 29 | 30 | 34, _) => said.foreign = Some(kind),
                (2..=5 | 8, _) => {}
                _ => said.unknown = true,
            }
        }
    }
}

// === impl Segment ===

impl Segment {
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// What comes after the segment in the sender's numbers: SYN and FIN count (RFC 9293 3.4).
    pub(crate) fn end(&self) -> Seq {
        let bits = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq + u32::from(self.len) + bits
    }

    pub(crate) fn data_end(&self) -> Seq {
        self.seq + u32::from(self.len)
    }

    pub(crate) fn said(&self) -> Said {
        self.options
            .read()
            .expect("the segments here are well-formed")
    }

    pub(crate) fn tsval(&self) -> Option<Seq> {
        self.said().timestamps.map(|(value, _)| value)
    }

    /// Writes the frame and returns its length.
    pub(crate) fn write(&self, ends: &Ends, from_guest: bool, frame: &mut [u8]) -> usize {
        let options = self.options.as_bytes();
        let tcp_len = TCP + options.len() + usize::from(self.len);
        let ip_len = ends.ip_len();
        let l4 = ETHERNET + ip_len;
        let len = l4 + tcp_len;
        let frame = &mut frame[..len];
        frame[..6].copy_from_slice(&self.to);
        frame[6..12].copy_from_slice(&self.from);
        let (from, to) = ends.addresses(from_guest);
        let ip = &mut frame[12..l4];
        if ends.v6 {
            ip[..2].copy_from_slice(&[0x86, 0xdd]);
            ip[2..6].copy_from_slice(&[0x60, self.ecn << 4 | 1, 2, 3]);
            ip[6..8].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            ip[8..10].copy_from_slice(&[6, self.ttl]);
        } else {
            ip[..2].copy_from_slice(&[8, 0]);
            ip[2..4].copy_from_slice(&[0x45, self.ecn]);
            ip[4..6].copy_from_slice(&((ip_len + tcp_len) as u16).to_be_bytes());
            ip[6..14].copy_from_slice(&[0, 0, 0x40, 0, self.ttl, 6, 0, 0]);
        }
        let at = ip.len() - from.len() - to.len();
        ip[at..at + from.len()].copy_from_slice(&from);
        ip[at + from.len()..].copy_from_slice(&to);
        if !ends.v6 {
            let sum = !fold(sum(&ip[2..]));
            ip[12..14].copy_from_slice(&sum.to_be_bytes());
        }
        let tcp = &mut frame[l4..];
        let (source, destination) = ends.ports(from_guest);
        tcp[..2].copy_from_slice(&source.to_be_bytes());
        tcp[2..4].copy_from_slice(&destination.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        let words = (TCP + options.len()) as u16 / 4;
        tcp[12..14].copy_from_slice(&(words << 12 | self.flags).to_be_bytes());
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        tcp[16..20].fill(0);
        tcp[TCP..TCP + options.len()].copy_from_slice(options);
        // Data that says where it belongs.
        for (at, byte) in (0..).zip(&mut tcp[TCP + options.len()..]) {
            *byte = (self.seq + at).0 as u8;
        }
        let pseudo = sum(&from) + sum(&to) + 6 + tcp_len as u64;
        let mut check = !fold(pseudo + sum(tcp));
        if !self.sums_up {
            check ^= 1;
        }
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        len
    }

    /// Reads a frame that [`Segment::write`] has written, or that a program has made of such a one.
    ///
    /// # Errors
    /// A sentence: what is wrong with it.
    pub(crate) fn read(ends: &Ends, from_guest: bool, frame: &[u8]) -> Result<Self, String> {
        let l4 = ETHERNET + ends.ip_len();
        if frame.len() < l4 + TCP {
            return Err(format!("a frame of {} bytes is too short", frame.len()));
        }
        let (ip, tcp) = (&frame[ETHERNET..l4], &frame[l4..]);
        let (from, to) = ends.addresses(from_guest);
        let at = ip.len() - from.len() - to.len();
        if ip[at..] != [&from[..], &to[..]].concat() {
            return Err("the addresses are others".into());
        }
        let (total, ecn, ttl) = if ends.v6 {
            if frame[12..14] != [0x86, 0xdd] || ip[0] != 0x60 || ip[6] != 6 || ip[1] & 15 != 1 {
                return Err("no TCP in IPv6".into());
            }
            let total = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            (total, ip[1] >> 4 & ECN, ip[7])
        } else {
            if frame[12..14] != [8, 0] || ip[0] != 0x45 || ip[9] != 6 {
                return Err("no TCP in IPv4".into());
            }
            if fold(sum(ip)) != 0xffff {
                return Err("the IP header's sum is wrong".into());
            }
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            (total.wrapping_sub(ip.len()), ip[1] & ECN, ip[8])
        };
        if total != tcp.len() {
            return Err(format!(
                "IP says {total} bytes of TCP, and there are {}",
                tcp.len()
            ));
        }
        let (source, destination) = ends.ports(from_guest);
        if tcp[..4] != [source.to_be_bytes(), destination.to_be_bytes()].concat() {
            return Err("the ports are others".into());
        }
        let header = usize::from(tcp[12] >> 4) * 4;
        if header < TCP || header > tcp.len() {
            return Err(format!("a TCP header of {header} bytes"));
        }
        let pseudo = sum(&from) + sum(&to) + 6 + tcp.len() as u64;
        let long = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        Ok(Self {
            seq: Seq(long(4)),
            ack: Seq(long(8)),
            flags: u16::from_be_bytes([tcp[12], tcp[13]]) & 0xfff,
            window: u16::from_be_bytes([tcp[14], tcp[15]]),
            options: Options::of(&tcp[TCP..header]),
            len: (tcp.len() - header) as u16,
            ttl,
            ecn,
            from: mac(&frame[6..]),
            to: mac(frame),
            sums_up: fold(pseudo + sum(tcp)) == 0xffff,
        })
    }

    /// As a line of a report, numbers of each side from its first one.
    pub(crate) fn shown(&self, from_guest: bool, peer_first: Seq, guest_first: Seq) -> String {
        let (own, other) = match from_guest {
            true => (guest_first, peer_first),
            false => (peer_first, guest_first),
        };
        let names = [
            (SYN, "SYN"),
            (FIN, "FIN"),
            (RST, "RST"),
            (PSH, "PSH"),
            (URG, "URG"),
            (ECE, "ECE"),
            (CWR, "CWR"),
            (AE, "AE"),
        ];
        let mut text = format!("seq {}+{}", self.seq.from(own), self.len);
        for (flag, name) in names {
            if self.has(flag) {
                text += &format!(" {name}");
            }
        }
        if self.has(ACK) {
            text += &format!(" ack {}", self.ack.from(other));
        }
        text += &format!(" win {}", self.window);
        match self.options.read() {
            None => text += " malformed options",
            Some(said) => {
                if let Some((value, echo)) = said.timestamps {
                    text += &format!(" ts {}/{}", value.0, echo.0);
                }
                if let Some((start, end)) = said.sack {
                    text += &format!(" sack {}..{}", start.from(other), end.from(other));
                }
                if let Some(scale) = said.scale {
                    text += &format!(" scale {scale}");
                }
                if let Some(mss) = said.mss {
                    text += &format!(" mss {mss}");
                }
                if let Some(kind) = said.foreign {
                    text += &format!(" kind {kind}");
                }
                if said.unknown {
                    text += " unknown option";
                }
            }
        }
        if self.ecn != 0 {
            text += &format!(" ecn {}", self.ecn);
        }
        if self.ttl != 64 {
            text += &format!(" ttl {}", self.ttl);
        }
        if self.from != GUEST_MAC && self.from != PEER_MAC {
            text += " from another MAC";
        }
        if self.to != GUEST_MAC && self.to != PEER_MAC {
            text += " to another MAC";
        }
        if !self.sums_up {
            text += " wrong checksum";
        }
        text
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(false, Seq(0), Seq(0)))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

// === impl Ends ===

impl Ends {
    fn ip_len(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    fn addresses(&self, from_guest: bool) -> (Vec<u8>, Vec<u8>) {
        let net = if self.foreign { 9 } else { 8 };
        let (guest, peer) = (self.address(net, 1), self.address(8, 2));
        if from_guest {
            (guest, peer)
        } else {
            (peer, guest)
        }
    }

    fn address(&self, net: u8, last: u8) -> Vec<u8> {
        match self.v6 {
            false => vec![10, net, 0, last],
            true => [
                &[0xfd, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
                &[last],
            ]
            .concat(),
        }
    }

    fn ports(&self, from_guest: bool) -> (u16, u16) {
        if from_guest {
            (self.guest_port, self.peer_port)
        } else {
            (self.peer_port, self.guest_port)
        }
    }

    /// As `struct snoop_key` has them.
    pub(crate) fn key(&self) -> [u8; 40] {
        let mut key = [0; 40];
        let (guest, peer) = self.addresses(true);
        key[..guest.len()].copy_from_slice(&guest);
        key[16..16 + peer.len()].copy_from_slice(&peer);
        key[32..34].copy_from_slice(&self.guest_port.to_be_bytes());
        key[34..36].copy_from_slice(&self.peer_port.to_be_bytes());
        let version: u16 = if self.v6 { 6 } else { 4 };
        key[38..].copy_from_slice(&version.to_ne_bytes());
        key
    }
}

fn mac(bytes: &[u8]) -> Mac {
    [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]
}

/// The sum of RFC 1071, not folded.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let whole: u64 = pairs
        .iter()
        .map(|p| u64::from(u16::from_be_bytes(*p)))
        .sum();
    whole + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
