//! Parses the parts of a frame that the checker needs.

use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TransportSlice};
use taut_sys::tap::VnetHeader;

use crate::experiment::peer_networks::guest_addr;
use taut_netlab::link::checksum;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

/// A connection of the guest, or of the host behind it. (There is one guest, one such host, and one
/// peer.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FlowId {
    pub(super) v6: bool,
    pub(super) behind: bool,
    pub(super) peer_port: u16,
    pub(super) guest_port: u16,
}

/// A TCP segment, or a frame of several segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) flow: FlowId,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// The number of data bytes.
    pub(super) len: u32,
    /// The window scale in a SYN.
    pub(super) scale: Option<u8>,
    /// TSval and TSecr.
    pub(super) stamps: Option<(u32, u32)>,
    /// Whether the checksums are right: TCP's, which may be a partial sum, and IPv4's.
    pub(super) sound: bool,
}

// === impl Segment ===

impl Segment {
    /// Parses a frame from a TAP; `None` if it is not TCP.
    pub(super) fn read(read: &[u8], from_guest: bool) -> Option<Self> {
        let vnet = VnetHeader::read(read)?;
        let bytes = read.get(VnetHeader::LEN..)?;
        let packet = SlicedPacket::from_ethernet(bytes).ok()?;
        let TransportSlice::Tcp(tcp) = packet.transport.as_ref()? else {
            return None;
        };
        let segment = tcp.slice();
        let mut pseudo = Vec::with_capacity(40);
        let (ends, header_is_right) = match packet.net.as_ref()? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                pseudo.extend(header.source());
                pseudo.extend(header.destination());
                let ends = [header.source_addr(), header.destination_addr()];
                let sum = checksum::sum(header.slice());
                (ends.map(IpAddr::from), sum == 0xffff)
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                pseudo.extend(header.source());
                pseudo.extend(header.destination());
                let ends = [header.source_addr(), header.destination_addr()];
                (ends.map(IpAddr::from), true)
            }
            NetSlice::Arp(_) => return None,
        };
        let v6 = ends[0].is_ipv6();
        let behind = ends[usize::from(!from_guest)] != guest_addr(v6);
        pseudo.extend(u32::try_from(segment.len()).ok()?.to_be_bytes());
        pseudo.extend([0, 0, 0, 6]);
        let pseudo = checksum::sum(&pseudo);
        let sum_is_right = if vnet.flags & VnetHeader::NEEDS_CSUM != 0 {
            let starts = bytes.len() - segment.len();
            // Zero has two representations in ones' complement, which must compare as equal.
            tcp.checksum() % 0xffff == pseudo % 0xffff
                && usize::from(vnet.csum_start) == starts
                && vnet.csum_offset == 16
        } else {
            checksum::add(pseudo, checksum::sum(segment)) == 0xffff
        };
        let mut found = Self {
            flow: if from_guest {
                FlowId {
                    v6,
                    behind,
                    peer_port: tcp.destination_port(),
                    guest_port: tcp.source_port(),
                }
            } else {
                FlowId {
                    v6,
                    behind,
                    peer_port: tcp.source_port(),
                    guest_port: tcp.destination_port(),
                }
            },
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            flags: segment[13],
            window: tcp.window_size(),
            len: u32::try_from(tcp.payload().len()).ok()?,
            scale: None,
            stamps: None,
            sound: header_is_right && sum_is_right,
        };
        for option in tcp.options_iterator().flatten() {
            match option {
                TcpOptionElement::WindowScale(scale) => found.scale = Some(scale.min(14)),
                TcpOptionElement::Timestamp(value, echo) => found.stamps = Some((value, echo)),
                _ => {}
            }
        }
        Some(found)
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sequence number after the segment. SYN and FIN count too (RFC 9293 3.4).
    pub(super) fn end(&self) -> u32 {
        let ends = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq.wrapping_add(self.len).wrapping_add(ends)
    }
}

/// Completes the checksum of a one-segment frame, as a network card would.
pub(super) fn complete_checksum(frame: &mut [u8]) {
    let Some(vnet) = VnetHeader::read(frame) else {
        return;
    };
    if vnet.flags & VnetHeader::NEEDS_CSUM == 0 || vnet.gso_type != VnetHeader::GSO_NONE {
        return;
    }
    let start = VnetHeader::LEN + usize::from(vnet.csum_start);
    let at = start + usize::from(vnet.csum_offset);
    if at + 2 > frame.len() {
        return;
    }
    // The field already holds the sum of the pseudo-header.
    let sum = checksum::complete(checksum::sum(&frame[start..]));
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame[..VnetHeader::LEN].copy_from_slice(&VnetHeader::default().to_bytes());
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame(v6: bool, data: &[u8]) -> Vec<u8> {
        let mut frame = VnetHeader::default().to_bytes().to_vec();
        let eth = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let options = [
            TcpOptionElement::WindowScale(7),
            TcpOptionElement::Timestamp(5, 6),
        ];
        if v6 {
            let ip = eth.ipv6([1; 16], [2; 16], 64);
            let tcp = ip.tcp(1000, 80, 7, 500).ack(9);
            tcp.options(&options)
                .unwrap()
                .write(&mut frame, data)
                .unwrap();
        } else {
            let ip = eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
            let tcp = ip.tcp(1000, 80, 7, 500).ack(9);
            tcp.options(&options)
                .unwrap()
                .write(&mut frame, data)
                .unwrap();
        }
        frame
    }

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        for v6 in [false, true] {
            let segment = Segment::read(&frame(v6, b"hello"), false).unwrap();
            let flow = FlowId {
                v6,
                behind: true,
                peer_port: 1000,
                guest_port: 80,
            };
            let expected = Segment {
                flow,
                seq: 7,
                ack: 9,
                flags: ACK,
                window: 500,
                len: 5,
                scale: Some(7),
                stamps: Some((5, 6)),
                sound: true,
            };
            assert_eq!(segment, expected);
            assert_eq!(segment.end(), 12);
        }
    }

    #[test]
    fn any_byte_that_is_changed_shows() {
        for v6 in [false, true] {
            let right = frame(v6, b"hello");
            // From the addresses on: both checksums cover them.
            for at in VnetHeader::LEN + 26..right.len() {
                let mut wrong = right.clone();
                wrong[at] ^= 0x10;
                let read = Segment::read(&wrong, false);
                assert!(read.is_none_or(|segment| !segment.sound), "byte {at}");
            }
        }
    }

    #[test]
    fn a_partial_checksum_is_judged_and_completed() {
        for v6 in [false, true] {
            let whole = frame(v6, b"hello");
            let l4 = if v6 { 54 } else { 34 };
            let mut partial = whole.clone();
            let vnet = VnetHeader {
                flags: VnetHeader::NEEDS_CSUM,
                csum_start: l4,
                csum_offset: 16,
                ..VnetHeader::default()
            };
            partial[..VnetHeader::LEN].copy_from_slice(&vnet.to_bytes());
            assert!(!Segment::read(&partial, false).unwrap().sound);
            // The sum of the pseudo-header is the whole sum less the sum of the segment.
            let at = VnetHeader::LEN + usize::from(l4);
            let mut bare = whole[at..].to_vec();
            bare[16..18].fill(0);
            let complete = u16::from_be_bytes([whole[at + 16], whole[at + 17]]);
            let pseudo = checksum::replace(!complete, checksum::sum(&bare), 0);
            partial[at + 16..at + 18].copy_from_slice(&pseudo.to_be_bytes());
            assert!(Segment::read(&partial, false).unwrap().sound);
            complete_checksum(&mut partial);
            assert_eq!(partial, whole);
        }
    }
}
