//! Builds the frame that retransmits a part of a retained segment to the guest.

use std::ops::Range;

use crate::wire::{Copy, Flow};

/// Offset of IP in a frame, and length of an IPv4 header without options.
const IP_AT: usize = 14;
const IPV4: usize = 20;
/// The Ethernet type of a VLAN's tag (IEEE 802.1Q).
const TAG: [u8; 2] = [0x81, 0];
/// The protocol number of TCP.
const TCP: u8 = 6;
/// Flags of TCP (RFC 9293 3.1).
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// The two bits of ECN in the byte of differentiated services (RFC 3168 5).
const ECN: u8 = 0b11;
/// Options of TCP.
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_TIMESTAMPS: u8 = 8;

/// Returns the bytes of `range` of a copy as the peer would send them now: with its latest
/// acknowledgment number, window and timestamp that the guest has seen, so that the guest accepts
/// the frame (RFC 5961 5.2, RFC 7323 5.3). A retransmission is not ECN-capable (RFC 3168 6.1.5).
pub(crate) fn retransmission(copy: &Copy, range: &Range<u32>, flow: &Flow) -> Vec<u8> {
    let headers = copy.l4_at + copy.header;
    let from = headers + range.start.wrapping_sub(copy.seq) as usize;
    let to = headers + range.end.wrapping_sub(copy.seq) as usize;
    let mut frame = copy.frame[..headers].to_vec();
    frame.extend_from_slice(copy.frame.get(from..to).unwrap_or_default());
    write_ip(&mut frame, copy.l4_at);
    write_tcp(&mut frame[copy.l4_at..], copy.header, range, flow);
    let addresses = match is_v4(copy.l4_at) {
        true => IP_AT + 12..IP_AT + IPV4,
        false => IP_AT + 8..copy.l4_at,
    };
    let len = (frame.len() - copy.l4_at) as u64;
    let pseudo = sum(&frame[addresses], len + u64::from(TCP));
    let checksum = !fold(sum(&frame[copy.l4_at..], pseudo));
    frame[copy.l4_at + 16..copy.l4_at + 18].copy_from_slice(&checksum.to_be_bytes());
    if let Some(vlan) = copy.key.vlan {
        let [high, low] = vlan.to_be_bytes();
        frame.splice(12..12, [TAG[0], TAG[1], high, low]);
    }
    frame
}

fn is_v4(l4_at: usize) -> bool {
    l4_at == IP_AT + IPV4
}

fn write_ip(frame: &mut [u8], l4_at: usize) {
    let len = (frame.len() - IP_AT) as u16;
    let ip = &mut frame[IP_AT..l4_at];
    if is_v4(l4_at) {
        ip[1] &= !ECN;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[10..12].fill(0);
        let checksum = !fold(sum(ip, 0));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        ip[1] &= !(ECN << 4);
        let payload = len - (l4_at - IP_AT) as u16;
        ip[4..6].copy_from_slice(&payload.to_be_bytes());
    }
}

fn write_tcp(tcp: &mut [u8], header: usize, range: &Range<u32>, flow: &Flow) {
    tcp[4..8].copy_from_slice(&range.start.to_be_bytes());
    tcp[8..12].copy_from_slice(&flow.vm_una.to_be_bytes());
    tcp[13] = ACK | PSH;
    tcp[14..16].copy_from_slice(&flow.peer_window.to_be_bytes());
    tcp[16..18].fill(0);
    let mut at = 20;
    while at + 1 < header {
        match (tcp[at], usize::from(tcp[at + 1])) {
            (OPTION_END, _) => break,
            (OPTION_NOP, _) => at += 1,
            (OPTION_TIMESTAMPS, 10) if at + 10 <= header => {
                tcp[at + 2..at + 6].copy_from_slice(&flow.ts_peer.to_be_bytes());
                at += 10;
            }
            // A SACK block from the time of the copy is outdated.
            (_, size) => {
                let end = (at + size.max(2)).min(header);
                tcp[at..end].fill(OPTION_NOP);
                at = end;
            }
        }
    }
}

/// Sums 16-bit words (RFC 1071) without folding.
fn sum(bytes: &[u8], start: u64) -> u64 {
    bytes.chunks(2).fold(start, |sum, pair| {
        sum + u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
    })
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::net::SocketAddr;
    use std::time::Duration;

    use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Key, Mode};

    const SEQ: u32 = u32::MAX - 500;

    fn copy(v6: bool, data: &[u8], stamps: bool, vlan: Option<u16>) -> Copy {
        let mut tcp = TcpHeader::new(5000, 80, SEQ, 77);
        (tcp.ack, tcp.acknowledgment_number) = (true, 4);
        if stamps {
            let options = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 3];
            tcp.set_options_raw(&options).unwrap();
        }
        let header = tcp.header_len();
        let eth = PacketBuilder::ethernet2([1; 6], [2; 6]);
        let mut frame = Vec::new();
        let (guest, peer): (SocketAddr, SocketAddr) = if v6 {
            let builder = eth.ipv6([1; 16], [2; 16], 64).tcp_header(tcp);
            builder.write(&mut frame, data).unwrap();
            (([0x202; 8], 80).into(), ([0x101; 8], 5000).into())
        } else {
            let builder = eth.ipv4([1; 4], [2; 4], 64).tcp_header(tcp);
            builder.write(&mut frame, data).unwrap();
            (([2; 4], 80).into(), ([1; 4], 5000).into())
        };
        frame[15] |= if v6 { 0x30 } else { 3 };
        Copy {
            key: Key { guest, peer, vlan },
            ifindex: 1,
            seq: SEQ,
            len: data.len() as u32,
            l4_at: if v6 { 54 } else { 34 },
            header,
            segment: data.len() as u32,
            begun: 0,
            at: Duration::ZERO,
            frame: frame.into(),
        }
    }

    const FLOW: Flow = Flow {
        mode: Mode::Active,
        next_seq: 0,
        acked_seq: 0,
        vm_seq: 0,
        rcv_edge: 0,
        grown_edge: 0,
        acked_segments: 0,
        acked_bytes: 0,
        suppressed: 0,
        lifted: 0,
        seen_ns: 0,
        exposed_most: 0,
        heard: 0,
        begun: 0,
        vm_una: 1234,
        peer_window: 555,
        ts_peer: 0x0102_0304,
    };

    proptest! {
        #[test]
        fn a_part_of_a_segment_becomes_a_valid_frame(
            v6: bool, stamps: bool, vlan in prop::option::of(0u16..4096),
            data in prop::collection::vec(any::<u8>(), 1..3000), cut: (prop::sample::Index, prop::sample::Index),
        ) {
            let copy = copy(v6, &data, stamps, vlan);
            let (a, b) = (cut.0.index(data.len()), cut.1.index(data.len()));
            let (from, to) = (a.min(b), a.max(b) + 1);
            let range = SEQ.wrapping_add(from as u32)..SEQ.wrapping_add(to as u32);
            let frame = retransmission(&copy, &range, &FLOW);
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            let tag = packet.vlan().map(|tag| tag.to_header());
            prop_assert_eq!(tag.is_some(), vlan.is_some());
            let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
                panic!("no TCP");
            };
            let header = tcp.to_header();
            prop_assert_eq!(tcp.payload(), &data[from..to]);
            prop_assert_eq!(header.sequence_number, range.start);
            prop_assert_eq!((header.acknowledgment_number, header.window_size), (1234, 555));
            prop_assert!(header.ack && header.psh && !header.syn && !header.fin && !header.rst);
            if stamps {
                prop_assert_eq!(header.options.as_slice()[4..8].to_vec(), vec![1, 2, 3, 4]);
            }
            let sum = match packet.net.as_ref().unwrap() {
                etherparse::NetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    prop_assert_eq!(ip.ecn.value(), 0);
                    header.calc_checksum_ipv4(&ip, &data[from..to]).unwrap()
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    prop_assert_eq!(ip.header().traffic_class() & 3, 0);
                    header.calc_checksum_ipv6(&ip.header().to_header(), &data[from..to]).unwrap()
                }
                _ => panic!("no IP"),
            };
            prop_assert_eq!(header.checksum, sum);
        }
    }
}
