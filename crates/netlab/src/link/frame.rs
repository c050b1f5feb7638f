//! Frames of a TAP with virtio-net headers, and cutting runs of segments out of them.
//!
//! A host with segmentation offload sends TCP super-frames: one set of headers before up to 64 KiB of
//! payload, to be sent as segments of `gso_size` bytes. [`Frame::cut`] returns the frame that stands
//! for segments `i..j`, a smaller super-frame with the headers that those segments would have had (as
//! Linux's `tcp_gso_segment` and `inet_gso_segment` build them).

use std::ops::Range;

use taut_sys::tap::VnetHeader;

use super::checksum;
use super::path::Segments;

/// An error that keeps a frame from being carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends within its headers.
    #[error("the frame is shorter than its headers")]
    Short,
    /// The field of the partial checksum lies beyond the end.
    #[error("the checksum field lies outside the frame")]
    ChecksumOutside,
    /// It is not one of the two kinds of TCP super-frame that the TAP offers to the kernel.
    #[error("the GSO type {0} is unknown")]
    UnknownGso(u8),
    /// The headers of a super-frame contradict its virtio-net header.
    #[error("the headers of a super-frame contradict each other: {0}")]
    Contradiction(&'static str),
}

const ETHERNET: usize = 14;
/// The offset of the Ethernet type.
const ETHERTYPE: usize = 12;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A frame, borrowed from the buffer that it was read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    header: VnetHeader,
    bytes: &'a [u8],
    tcp: Option<Super>,
}

/// The layout of a super-frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Super {
    ipv4: bool,
    tcp_at: usize,
    payload_at: usize,
    segment: usize,
    count: usize,
}

// === impl Frame ===

impl<'a> Frame<'a> {
    /// Parses what was read from a TAP: a virtio-net header and an Ethernet frame.
    ///
    /// # Errors
    /// If the frame cannot be carried. The caller drops and counts it.
    pub fn parse(read: &'a [u8]) -> Result<Self, Malformed> {
        let header = VnetHeader::read(read).ok_or(Malformed::Short)?;
        let bytes = &read[VnetHeader::LEN..];
        if bytes.len() < ETHERNET {
            return Err(Malformed::Short);
        }
        if header.flags & VnetHeader::NEEDS_CSUM != 0 {
            let end = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
            if end > bytes.len() {
                return Err(Malformed::ChecksumOutside);
            }
        }
        let tcp = match header.gso_type & !VnetHeader::GSO_ECN {
            VnetHeader::GSO_NONE => None,
            VnetHeader::GSO_TCPV4 => Some(Super::parse(&header, bytes, true)?),
            VnetHeader::GSO_TCPV6 => Some(Super::parse(&header, bytes, false)?),
            _ => return Err(Malformed::UnknownGso(header.gso_type)),
        };
        Ok(Self { header, bytes, tcp })
    }

    /// Returns the lengths of the frame's segments on the wire.
    pub fn segments(&self) -> Segments {
        // A frame is at most 64 KiB, so all lengths fit.
        let wire = |len: usize| len as u32;
        let (flow, is_ect) = (
            flow(self.bytes),
            ecn(self.bytes).is_some_and(|ecn| ecn != 0),
        );
        match &self.tcp {
            None => Segments {
                count: 1,
                each: wire(self.bytes.len()),
                last: wire(self.bytes.len()),
                flow,
                is_ect,
            },
            Some(tcp) => {
                let payload = self.bytes.len() - tcp.payload_at;
                let last = payload - (tcp.count - 1) * tcp.segment;
                let each = if tcp.count == 1 { last } else { tcp.segment };
                Segments {
                    count: tcp.count,
                    each: wire(tcp.payload_at + each),
                    last: wire(tcp.payload_at + last),
                    flow,
                    is_ect,
                }
            }
        }
    }

    /// Returns the frame that stands for the segments `run`, with its virtio-net header before it, ready
    /// to be written to a TAP.
    ///
    /// # Panics
    /// If `run` is empty or not within [`Self::segments`].
    pub fn cut(&self, run: Range<usize>) -> Vec<u8> {
        let count = self.tcp.map_or(1, |tcp| tcp.count);
        assert!(
            run.start < run.end && run.end <= count,
            "segments {run:?} of {count}"
        );
        match &self.tcp {
            Some(tcp) => tcp.cut(self.header, self.bytes, run),
            None => [&self.header.to_bytes(), self.bytes].concat(),
        }
    }
}

// === impl Super ===

impl Super {
    fn parse(header: &VnetHeader, frame: &[u8], ipv4: bool) -> Result<Self, Malformed> {
        use Malformed::Contradiction;
        if header.flags & VnetHeader::NEEDS_CSUM == 0
            || usize::from(header.csum_offset) != TCP_CHECKSUM
        {
            return Err(Contradiction("no partial TCP checksum"));
        }
        let tcp_at = usize::from(header.csum_start);
        let ip = &frame[ETHERNET..];
        let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
        if ipv4 {
            let fixed = ip.first_chunk::<20>().ok_or(Malformed::Short)?;
            if ethertype != IPV4 || fixed[0] >> 4 != 4 || fixed[9] != TCP {
                return Err(Contradiction("not TCP over IPv4"));
            }
            let header_len = usize::from(fixed[0] & 0x0f) * 4;
            if header_len < fixed.len() || tcp_at != ETHERNET + header_len {
                return Err(Contradiction(
                    "the IPv4 header does not end where TCP begins",
                ));
            }
            if usize::from(u16::from_be_bytes([fixed[2], fixed[3]])) != ip.len() {
                return Err(Contradiction("the IPv4 total length is not the frame's"));
            }
            // A set MF flag or an offset (RFC 791): everything but DF.
            if u16::from_be_bytes([fixed[6], fixed[7]]) & 0xbfff != 0 {
                return Err(Contradiction("a fragment"));
            }
        } else {
            let fixed = ip.first_chunk::<40>().ok_or(Malformed::Short)?;
            if ethertype != IPV6 || fixed[0] >> 4 != 6 {
                return Err(Contradiction("not IPv6"));
            }
            // Extension headers may come first; csum_start says where TCP begins.
            if tcp_at < ETHERNET + fixed.len() {
                return Err(Contradiction("TCP begins inside the IPv6 header"));
            }
            if usize::from(u16::from_be_bytes([fixed[4], fixed[5]])) + fixed.len() != ip.len() {
                return Err(Contradiction("the IPv6 payload length is not the frame's"));
            }
        }
        let tcp = frame.get(tcp_at..).ok_or(Malformed::Short)?;
        let fixed = tcp.first_chunk::<20>().ok_or(Malformed::Short)?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        if header_len < fixed.len() || header_len > tcp.len() {
            return Err(Contradiction("the TCP header's length"));
        }
        let payload = tcp.len() - header_len;
        let segment = usize::from(header.gso_size);
        if segment == 0 || payload == 0 {
            return Err(Contradiction("nothing to segment"));
        }
        Ok(Self {
            ipv4,
            tcp_at,
            payload_at: tcp_at + header_len,
            segment,
            count: payload.div_ceil(segment),
        })
    }

    fn cut(&self, mut header: VnetHeader, frame: &[u8], run: Range<usize>) -> Vec<u8> {
        let payload = &frame[self.payload_at..];
        let skipped = run.start * self.segment;
        let payload = &payload[skipped..payload.len().min(run.end * self.segment)];
        let first = run.start == 0;
        let last = run.end == self.count;

        // GSO_ECN says that only the first segment may carry CWR; other runs have no CWR.
        header.gso_type = match (run.len(), first) {
            (1, _) => VnetHeader::GSO_NONE,
            (_, true) => header.gso_type,
            (_, false) => header.gso_type & !VnetHeader::GSO_ECN,
        };
        header.gso_size = if run.len() == 1 { 0 } else { header.gso_size };
        // The kernel's own figure may count only the linear part of its buffer.
        header.hdr_len = self.payload_at as u16;

        let mut out = Vec::with_capacity(VnetHeader::LEN + self.payload_at + payload.len());
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(&frame[..self.payload_at]);
        out.extend_from_slice(payload);
        let cut = &mut out[VnetHeader::LEN..];

        let ip_len = (cut.len() - ETHERNET) as u16;
        let ip = &mut cut[ETHERNET..self.tcp_at];
        if self.ipv4 {
            put16(ip, 2, ip_len);
            // The segments of a super-frame have consecutive identifications.
            put16(ip, 4, get16(ip, 4).wrapping_add(run.start as u16));
            put16(ip, 10, 0);
            let sum = checksum::complete(checksum::sum(ip));
            put16(ip, 10, sum);
        } else {
            put16(ip, 4, ip_len - 40);
        }

        let tcp = &mut cut[self.tcp_at..];
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&seq.wrapping_add(skipped as u32).to_be_bytes());
        if !last {
            tcp[13] &= !(FIN | PSH);
        }
        if !first {
            tcp[13] &= !CWR;
        }
        // The field holds the pseudo-header's sum, in which only the length changes. Updating it for
        // that (RFC 1624) is right for any addresses, a routing header's included.
        let (old_len, new_len) = ((frame.len() - self.tcp_at) as u16, tcp.len() as u16);
        let partial = checksum::replace(get16(tcp, TCP_CHECKSUM), old_len, new_len);
        put16(tcp, TCP_CHECKSUM, partial);
        out
    }
}

/// Sets the mark of congestion (CE, RFC 3168) of what [`Frame::cut`] returned, if it is an IP packet.
pub fn mark(cut: &mut [u8]) {
    let Some(frame) = cut.get_mut(VnetHeader::LEN..) else {
        return;
    };
    if ecn(frame).is_none() {
        return;
    }
    let is_ipv4 = get16(frame, ETHERTYPE) == IPV4;
    let ip = &mut frame[ETHERNET..];
    let before = get16(ip, 0);
    // The last bits of IPv4's first 16, and of the traffic class after IPv6's 4 bits of version.
    let after = before | if is_ipv4 { 0x0003 } else { 0x0030 };
    put16(ip, 0, after);
    if is_ipv4 {
        let sum = checksum::replace(!get16(ip, 10), before, after);
        put16(ip, 10, checksum::complete(sum));
    }
}

/// Returns the ECN field (RFC 3168) of a frame that is a whole IPv4 or IPv6 packet.
fn ecn(frame: &[u8]) -> Option<u16> {
    let ip = frame.get(ETHERNET..)?;
    match get16(frame, ETHERTYPE) {
        IPV4 if ip.len() >= 20 => Some(get16(ip, 0) & 0x3),
        IPV6 if ip.len() >= 40 => Some(get16(ip, 0) >> 4 & 0x3),
        _ => None,
    }
}

/// Returns a number of the flow of a frame: a hash of addresses, protocol and ports. Frames that are
/// not IP have the same, and fragments have no ports.
fn flow(frame: &[u8]) -> u32 {
    let Some(ip) = frame.get(ETHERNET..).filter(|_| ecn(frame).is_some()) else {
        return 0;
    };
    let (addresses, protocol, ports) = match get16(frame, ETHERTYPE) {
        IPV4 => {
            let is_fragment = get16(ip, 6) & 0x3fff != 0;
            let at = usize::from(ip[0] & 0x0f) * 4;
            (&ip[12..20], &ip[9], (!is_fragment).then_some(at))
        }
        _ => (&ip[8..40], &ip[6], Some(40)),
    };
    let ports = ports.filter(|_| matches!(*protocol, TCP | UDP));
    let ports = ports.and_then(|at| ip.get(at..at + 4)).unwrap_or_default();
    // FNV-1a.
    let bytes = addresses.iter().chain([protocol]).chain(ports);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
