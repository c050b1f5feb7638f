use proptest::prelude::*;

use super::*;

/// The parts of a super-frame, chosen by the tests.
#[derive(Debug, Clone)]
struct Parts {
    ipv4: bool,
    /// Of IPv4 (RFC 791) and TCP, in 4-byte words.
    ip_options: usize,
    tcp_options: usize,
    id: u16,
    seq: u32,
    flags: u8,
    segment: usize,
    payload: Vec<u8>,
}

// === impl Parts ===

impl Parts {
    fn plain(ipv4: bool, payload: usize) -> Self {
        Self {
            ipv4,
            ip_options: 0,
            tcp_options: 3,
            id: 0xfffe,
            seq: 0xffff_ff00,
            flags: 0x10 | PSH,
            segment: 1448,
            payload: (0..payload).map(|i| (i * 31 + i / 256) as u8).collect(),
        }
    }

    fn tcp_len(&self) -> usize {
        20 + 4 * self.tcp_options + self.payload.len()
    }

    fn tcp_at(&self) -> usize {
        ETHERNET
            + if self.ipv4 {
                20 + 4 * self.ip_options
            } else {
                40
            }
    }

    /// Returns the frame as read from a TAP, with a partial checksum.
    fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        if self.ipv4 {
            frame.extend(IPV4.to_be_bytes());
            let mut ip = vec![0; 20 + 4 * self.ip_options];
            ip[0] = 0x40 | (5 + self.ip_options as u8);
            let total = ip.len() + self.tcp_len();
            put16(&mut ip, 2, total as u16);
            put16(&mut ip, 4, self.id);
            ip[6] = 0x40;
            ip[8] = 64;
            ip[9] = TCP;
            ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
            ip[20..].fill(1);
            let sum = checksum::complete(checksum::sum(&ip));
            put16(&mut ip, 10, sum);
            frame.extend(ip);
        } else {
            frame.extend(IPV6.to_be_bytes());
            let mut ip = vec![0; 40];
            ip[0] = 0x60;
            put16(&mut ip, 4, self.tcp_len() as u16);
            ip[6] = TCP;
            ip[7] = 64;
            ip[8] = 0xfd;
            ip[23] = 1;
            ip[24] = 0xfd;
            ip[39] = 2;
            frame.extend(ip);
        }
        let mut tcp = vec![0; 20 + 4 * self.tcp_options];
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[12] = ((5 + self.tcp_options) << 4) as u8;
        tcp[13] = self.flags;
        tcp[20..].fill(1);
        frame.extend(tcp);
        frame.extend(&self.payload);
        let at = self.tcp_at();
        let pseudo = pseudo_header(&frame, at);
        put16(&mut frame, at + TCP_CHECKSUM, pseudo);
        [&self.header().to_bytes()[..], &frame].concat()
    }

    fn header(&self) -> VnetHeader {
        let ecn = if self.flags & CWR == 0 {
            0
        } else {
            VnetHeader::GSO_ECN
        };
        VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: ecn
                | if self.ipv4 {
                    VnetHeader::GSO_TCPV4
                } else {
                    VnetHeader::GSO_TCPV6
                },
            hdr_len: (self.tcp_at() + 20 + 4 * self.tcp_options) as u16,
            gso_size: self.segment as u16,
            csum_start: self.tcp_at() as u16,
            csum_offset: TCP_CHECKSUM as u16,
        }
    }
}

/// Returns the pseudo-header's sum, computed from the frame (RFC 9293 3.1, RFC 8200 8.1).
fn pseudo_header(frame: &[u8], tcp_at: usize) -> u16 {
    let addresses = if frame[12] == 0x08 {
        &frame[26..34]
    } else {
        &frame[22..54]
    };
    let mut bytes = addresses.to_vec();
    bytes.extend(((frame.len() - tcp_at) as u32).to_be_bytes());
    bytes.extend([0, 0, 0, TCP]);
    checksum::sum(&bytes)
}

/// Returns the segments of a frame as a network card would send them, with complete checksums. A simple
/// model: one segment at a time, everything computed from scratch.
fn on_the_wire(read: &[u8]) -> Vec<Vec<u8>> {
    let header = VnetHeader::read(read).unwrap();
    let frame = &read[VnetHeader::LEN..];
    let tcp_at = usize::from(header.csum_start);
    let payload_at = tcp_at + usize::from(frame[tcp_at + 12] >> 4) * 4;
    let payload = &frame[payload_at..];
    let size = match header.gso_type {
        VnetHeader::GSO_NONE => payload.len().max(1),
        _ => usize::from(header.gso_size),
    };
    let chunks: Vec<&[u8]> = payload.chunks(size).collect();
    let count = chunks.len();
    let mut wire = Vec::new();
    for (index, chunk) in chunks.into_iter().enumerate() {
        let mut segment = frame[..payload_at].to_vec();
        segment.extend(chunk);
        let ip_len = segment.len() - ETHERNET;
        if segment[12] == 0x08 {
            put16(&mut segment, 16, ip_len as u16);
            let id = get16(&segment, 18).wrapping_add(index as u16);
            put16(&mut segment, 18, id);
            put16(&mut segment, 24, 0);
            let sum = !checksum::sum(&segment[ETHERNET..tcp_at]);
            put16(&mut segment, 24, sum);
        } else {
            put16(&mut segment, 18, (ip_len - 40) as u16);
        }
        let mut seq = [0; 4];
        seq.copy_from_slice(&segment[tcp_at + 4..tcp_at + 8]);
        let seq = u32::from_be_bytes(seq).wrapping_add((index * size) as u32);
        segment[tcp_at + 4..tcp_at + 8].copy_from_slice(&seq.to_be_bytes());
        if index + 1 < count {
            segment[tcp_at + 13] &= !(FIN | PSH);
        }
        if index > 0 {
            segment[tcp_at + 13] &= !CWR;
        }
        let partial = pseudo_header(&segment, tcp_at);
        put16(&mut segment, tcp_at + TCP_CHECKSUM, partial);
        let sum = !checksum::sum(&segment[tcp_at..]);
        put16(&mut segment, tcp_at + TCP_CHECKSUM, sum);
        wire.push(segment);
    }
    wire
}

/// Completes the partial checksum of a cut frame as a device would, and verifies it as a receiver would.
fn verifies(cut: &[u8]) -> bool {
    let header = VnetHeader::read(cut).unwrap();
    let mut frame = cut[VnetHeader::LEN..].to_vec();
    let tcp_at = usize::from(header.csum_start);
    let at = tcp_at + usize::from(header.csum_offset);
    let sum = !checksum::sum(&frame[tcp_at..]);
    put16(&mut frame, at, sum);
    let mut whole = frame[tcp_at..].to_vec();
    // An odd payload is padded before the pseudo-header.
    if whole.len() % 2 == 1 {
        whole.push(0);
    }
    whole.extend(pseudo_header(&frame, tcp_at).to_be_bytes());
    let ip_holds = frame[12] != 0x08 || checksum::sum(&frame[ETHERNET..tcp_at]) == 0xffff;
    checksum::sum(&whole) == 0xffff && ip_holds
}

fn flags(cut: &[u8]) -> u8 {
    let header = VnetHeader::read(cut).unwrap();
    cut[VnetHeader::LEN + usize::from(header.csum_start) + 13]
}

#[test]
fn a_frame_of_one_packet_is_unchanged() {
    let mut read = vec![0; VnetHeader::LEN + 60];
    read[VnetHeader::LEN..].fill(7);
    let frame = Frame::parse(&read).unwrap();
    assert_eq!(
        frame.segments(),
        Segments {
            count: 1,
            each: 60,
            last: 60,
            flow: 0,
            is_ect: false,
        }
    );
    assert_eq!(frame.cut(0..1), read);
}

#[test]
fn segments_are_counted_with_their_headers() {
    // Ethernet 14, IP 20 or 40, TCP 32.
    for (ipv4, headers) in [(true, 66), (false, 86)] {
        let read = Parts::plain(ipv4, 1448 * 3 + 10).bytes();
        let segments = Frame::parse(&read).unwrap().segments();
        let expected = Segments {
            count: 4,
            each: 1448 + headers,
            last: 10 + headers,
            ..segments
        };
        assert_eq!(segments, expected);
    }
}

#[test]
fn the_whole_run_is_the_frame_itself() {
    for ipv4 in [true, false] {
        let read = Parts::plain(ipv4, 5000).bytes();
        let frame = Frame::parse(&read).unwrap();
        assert_eq!(frame.cut(0..4), read);
    }
}

#[test]
fn fin_and_push_go_with_the_last_segment_and_cwr_with_the_first() {
    for ipv4 in [true, false] {
        let parts = Parts {
            flags: 0x10 | FIN | PSH | CWR,
            ..Parts::plain(ipv4, 1448 * 4)
        };
        let read = parts.bytes();
        let frame = Frame::parse(&read).unwrap();
        let ack = 0x10;
        let cases = [
            (0..2, ack | CWR, true),
            (1..3, ack, false),
            (2..4, ack | FIN | PSH, false),
            (0..4, ack | FIN | PSH | CWR, true),
            (0..1, ack | CWR, false),
            (3..4, ack | FIN | PSH, false),
        ];
        for (run, expected, ecn) in cases {
            let cut = frame.cut(run.clone());
            assert_eq!(flags(&cut), expected, "{run:?}");
            let gso = VnetHeader::read(&cut).unwrap().gso_type;
            assert_eq!(gso & VnetHeader::GSO_ECN != 0, ecn, "{run:?}");
        }
    }
}

#[test]
fn a_cut_of_one_segment_is_not_a_super_frame() {
    let read = Parts::plain(true, 5000).bytes();
    let cut = Frame::parse(&read).unwrap().cut(3..4);
    let header = VnetHeader::read(&cut).unwrap();
    assert_eq!(
        (header.gso_type, header.gso_size),
        (VnetHeader::GSO_NONE, 0)
    );
    assert_eq!(header.flags, VnetHeader::NEEDS_CSUM);
    assert_eq!(cut.len(), VnetHeader::LEN + 66 + 5000 - 3 * 1448);
}

#[test]
fn frames_whose_headers_contradict_each_other_are_malformed() {
    type Spoil = fn(&mut Vec<u8>);
    // Offsets include the virtio-net header.
    let cases: [(&str, bool, Spoil); 17] = [
        ("nothing", true, |f| f.clear()),
        ("half a header", true, |f| f.truncate(5)),
        ("no Ethernet", true, |f| f.truncate(VnetHeader::LEN + 13)),
        ("ends inside IPv4", true, |f| {
            f.truncate(VnetHeader::LEN + 30)
        }),
        ("ends inside IPv6", false, |f| {
            f.truncate(VnetHeader::LEN + 50)
        }),
        ("ends inside TCP", true, |f| {
            f.truncate(VnetHeader::LEN + 50)
        }),
        ("ends inside the payload", true, |f| f.truncate(500)),
        ("an unknown kind", true, |f| f[1] = 3),
        ("a segment size of nothing", true, |f| f[4..6].fill(0)),
        ("no partial checksum", true, |f| f[0] = 0),
        ("a checksum far out", true, |f| f[6..8].fill(0xff)),
        ("a checksum elsewhere", true, |f| f[8] = 6),
        ("IPv4 said, IPv6 there", false, |f| {
            f[1] = VnetHeader::GSO_TCPV4
        }),
        ("IPv6 said, IPv4 there", true, |f| {
            f[1] = VnetHeader::GSO_TCPV6
        }),
        ("a VLAN tag", true, |f| f[VnetHeader::LEN + 12] = 0x81),
        ("a fragment", true, |f| f[VnetHeader::LEN + 20] = 0x20),
        ("a TCP header longer than all", true, |f| {
            f.truncate(VnetHeader::LEN + 70);
            f[VnetHeader::LEN + 17] = 56;
            f[VnetHeader::LEN + 34 + 12] = 0xf0;
        }),
    ];
    for (what, ipv4, spoil) in cases {
        let mut read = Parts::plain(ipv4, 5000).bytes();
        spoil(&mut read);
        assert!(Frame::parse(&read).is_err(), "{what}");
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        (
            any::<bool>(),
            0..=10_usize,
            0..=10_usize,
            any::<u16>(),
            any::<u32>(),
        ),
        (
            any::<u8>(),
            1..1500_usize,
            prop::collection::vec(any::<u8>(), 1..20_000),
        ),
    )
        .prop_map(
            |((ipv4, ip_options, tcp_options, id, seq), (flags, segment, payload))| Parts {
                ipv4,
                ip_options,
                tcp_options,
                id,
                seq,
                flags,
                segment,
                payload,
            },
        )
}

proptest! {
    #[test]
    fn any_sequence_of_cuts_puts_the_same_segments_on_the_wire(
        parts in parts(),
        lengths in prop::collection::vec(1..20_usize, 1..2000),
    ) {
        let read = parts.bytes();
        let frame = Frame::parse(&read).unwrap();
        let count = frame.segments().count;
        let mut wire = Vec::new();
        let mut start = 0;
        // The last length repeats until all segments are cut.
        for length in lengths.iter().chain(std::iter::repeat(&20)) {
            let run = start..count.min(start + length);
            let cut = frame.cut(run.clone());
            prop_assert!(verifies(&cut), "checksums of {:?}", run);
            let again = Frame::parse(&cut);
            prop_assert!(again.is_ok(), "{:?} of {:?}", again, run);
            prop_assert_eq!(again.unwrap().segments().count, run.len());
            wire.extend(on_the_wire(&cut));
            start = run.end;
            if start == count {
                break;
            }
        }
        let expected = on_the_wire(&read);
        prop_assert_eq!(expected.len(), count);
        for (segment, wire) in expected.iter().enumerate() {
            let each = frame.segments();
            let len = if segment + 1 == count { each.last } else { each.each };
            prop_assert_eq!(len as usize, wire.len());
        }
        prop_assert!(wire == expected);
    }

    #[test]
    fn no_input_panics(
        parts in parts(),
        spoils in prop::collection::vec((0..120_usize, any::<u8>()), 0..6),
        len in 0..2000_usize,
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut read = parts.bytes();
        for (at, byte) in spoils {
            if let Some(slot) = read.get_mut(at) {
                *slot = byte;
            }
        }
        read.truncate(len);
        for read in [read, noise] {
            if let Ok(frame) = Frame::parse(&read) {
                let count = frame.segments().count;
                frame.cut(0..count);
                frame.cut(count - 1..count);
                frame.cut(count / 2..count);
            }
        }
    }
}

#[test]
fn a_mark_changes_the_ecn_field_and_the_checksum_of_ipv4() {
    for ipv4 in [true, false] {
        let mut bytes = Parts::plain(ipv4, 1448).bytes();
        // ECT(0), RFC 3168.
        let (at, ect) = if ipv4 { (15, 0x02) } else { (15, 0x20) };
        bytes[VnetHeader::LEN + at] |= ect;
        if ipv4 {
            let ip = &mut bytes[VnetHeader::LEN + ETHERNET..][..20];
            put16(ip, 10, 0);
            let sum = checksum::complete(checksum::sum(ip));
            put16(ip, 10, sum);
        }
        let frame = Frame::parse(&bytes).unwrap();
        assert!(frame.segments().is_ect);
        let mut cut = frame.cut(0..1);
        let before = cut.clone();
        mark(&mut cut);
        let ip = &cut[VnetHeader::LEN + ETHERNET..];
        assert_eq!(ecn(&cut[VnetHeader::LEN..]), Some(3));
        if ipv4 {
            assert_eq!(checksum::sum(&ip[..20]), 0xffff);
        }
        let changed = before.iter().zip(&cut).filter(|(a, b)| a != b).count();
        assert!(changed <= 3, "{changed}");
    }
}

#[test]
fn a_frame_without_ect_is_not_ect() {
    let bytes = Parts::plain(true, 100).bytes();
    assert!(!Frame::parse(&bytes).unwrap().segments().is_ect);
}

#[test]
fn a_flow_is_known_by_its_addresses_and_ports() {
    let flow = |ipv4, changed: usize| {
        let mut parts = Parts::plain(ipv4, 100);
        parts.seq = changed as u32;
        let mut bytes = parts.bytes();
        if changed > 0 {
            bytes[VnetHeader::LEN + parts.tcp_at() + 1] ^= changed as u8;
        }
        Frame::parse(&bytes).unwrap().segments().flow
    };
    for ipv4 in [true, false] {
        assert_eq!(flow(ipv4, 0), flow(ipv4, 0));
        assert_ne!(flow(ipv4, 0), flow(ipv4, 1));
    }
}

proptest! {
    #[test]
    fn any_frame_has_a_flow_and_can_be_marked(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        mark(&mut bytes);
        flow(&bytes);
        ecn(&bytes);
    }
}
