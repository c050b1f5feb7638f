//! Frames that are not plain TCP pass unchanged, teach the programs nothing, and do not disturb
//! flows.

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv4Options};
use taut_snoop::wire::Mode;
use taut_sys::tap::VnetHeader;

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{Rig, Segment};

/// Offsets of the Ethernet type in a frame with the device's header, and of IP.
const TYPE_AT: usize = VnetHeader::LEN + 12;
const IP_AT: usize = TYPE_AT + 2;

const IPV6_LEN: usize = 40;

/// A change of a frame.
type Change = (&'static str, fn(&[u8]) -> Vec<u8>);

/// With another IPv4 header, whose length and checksum are right.
fn with_ipv4(frame: &[u8], change: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
    let (mut ip, rest) = Ipv4Header::from_slice(&frame[IP_AT..]).unwrap();
    change(&mut ip);
    ip.total_len = (ip.header_len() + rest.len()) as u16;
    ip.header_checksum = ip.calc_header_checksum();
    [&frame[..IP_AT], &ip.to_bytes(), rest].concat()
}

/// With an extension header of this number between IPv6 and TCP: eight bytes, the first of which
/// names TCP.
fn with_ipv6_header(frame: &[u8], number: IpNumber, rest: [u8; 7]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let len = u16::from_be_bytes([frame[IP_AT + 4], frame[IP_AT + 5]]) + 8;
    frame[IP_AT + 4..IP_AT + 6].copy_from_slice(&len.to_be_bytes());
    frame[IP_AT + 6] = number.0;
    let at = IP_AT + IPV6_LEN;
    frame.splice(at..at, [IpNumber::TCP.0].into_iter().chain(rest));
    frame
}

/// With these bytes before the Ethernet type.
fn with_tags(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    [&frame[..TYPE_AT], tags, &frame[TYPE_AT..]].concat()
}

const IPV4: &[Change] = &[
    ("an option of IP's", |frame| {
        // Router alert (RFC 2113).
        let options = Ipv4Options::try_from(&[0x94, 4, 0, 0][..]).unwrap();
        with_ipv4(frame, |ip| ip.options = options.clone())
    }),
    ("as many options as there may be", |frame| {
        let options = Ipv4Options::try_from(&[1; 40][..]).unwrap();
        with_ipv4(frame, |ip| ip.options = options.clone())
    }),
    ("a first fragment", |frame| {
        with_ipv4(frame, |ip| ip.more_fragments = true)
    }),
    (
        "a fragment in the middle that looks like the segment",
        |frame| {
            with_ipv4(frame, |ip| {
                ip.more_fragments = true;
                ip.fragment_offset = IpFragOffset::try_new(1).unwrap();
            })
        },
    ),
    ("a last fragment that looks like the segment", |frame| {
        with_ipv4(frame, |ip| {
            ip.fragment_offset = IpFragOffset::try_new(0x1fff).unwrap();
        })
    }),
    ("UDP", |frame| {
        with_ipv4(frame, |ip| ip.protocol = IpNumber::UDP)
    }),
    ("IP in IP", |frame| {
        let inner = frame[IP_AT..].to_vec();
        let mut outer = with_ipv4(frame, |ip| ip.protocol = IpNumber::IPV4);
        outer.truncate(IP_AT + 20);
        let whole = [outer, inner].concat();
        with_ipv4(&whole, |_| ())
    }),
    ("an IP of version 6 by its header", |frame| {
        let mut frame = frame.to_vec();
        frame[IP_AT] = 0x65;
        frame
    }),
];

const IPV6: &[Change] = &[
    ("hop-by-hop options", |frame| {
        with_ipv6_header(frame, IpNumber(0), [0, 1, 4, 0, 0, 0, 0])
    }),
    ("a first fragment", |frame| {
        with_ipv6_header(frame, IpNumber(44), [0, 0, 1, 0, 0, 0, 7])
    }),
    ("a last fragment that looks like the segment", |frame| {
        with_ipv6_header(frame, IpNumber(44), [0, 0x05, 0, 0, 0, 0, 7])
    }),
    ("a fragment that is all of it", |frame| {
        with_ipv6_header(frame, IpNumber(44), [0, 0, 0, 0, 0, 0, 7])
    }),
    ("destination options", |frame| {
        with_ipv6_header(frame, IpNumber(60), [0, 1, 4, 0, 0, 0, 0])
    }),
    ("a routing header", |frame| {
        with_ipv6_header(frame, IpNumber(43), [0, 4, 0, 0, 0, 0, 0])
    }),
    ("UDP", |frame| {
        let mut frame = frame.to_vec();
        frame[IP_AT + 6] = IpNumber::UDP.0;
        frame
    }),
    ("an IP of version 4 by its header", |frame| {
        let mut frame = frame.to_vec();
        frame[IP_AT] = 0x45;
        frame
    }),
];

/// The kernel takes one tag out of the frame, and no more.
const ETHERNET: &[Change] = &[
    ("a tag within a tag (IEEE 802.1ad)", |frame| {
        with_tags(frame, &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5])
    }),
    ("a tag within a tag of the same kind", |frame| {
        with_tags(frame, &[0x81, 0, 0, 7, 0x81, 0, 0, 5])
    }),
    ("a label of MPLS", |frame| {
        with_tags(frame, &[0x88, 0x47, 0, 0, 1, 64])
    }),
];

fn changes(v6: bool) -> impl Iterator<Item = &'static Change> {
    ETHERNET.iter().chain(if v6 { IPV6 } else { IPV4 })
}

/// The peer sends a segment that is acknowledged at once, and the guest gets it.
fn assert_early_acked(rig: &mut Rig, conn: &Conn, data: &Segment, what: &str) {
    rig.peer_sends(data);
    let acks = rig.at_peer();
    assert_eq!(acks.len(), 1, "{what}");
    assert_eq!(acks[0].ack, conn.peer_seq, "{what}");
    assert_eq!(rig.flow().mode, Mode::Active, "{what}");
    rig.at_guest();
    rig.checker.settle();
}

#[test]
fn towards_the_guest_such_a_frame_passes_unchanged_without_an_early_ack() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        for (what, change) in changes(v6) {
            let (flow, exits) = (rig.flow(), rig.exits("not_tcp"));
            let data = conn.data(1000);
            let odd = change(&rig.frame(false, &data));
            rig.peer.write(&odd).unwrap();
            assert_eq!(rig.frames_at(false), <[Vec<u8>; 0]>::default(), "{what}");
            assert_eq!(rig.exits("not_tcp") - exits, 1, "{what}");
            assert_eq!(rig.frames_at(true), [&odd[VnetHeader::LEN..]], "{what}");
            assert_eq!(rig.flow(), flow, "{what}");
            // Unchanged it is acknowledged, and only now.
            assert_early_acked(&mut rig, &conn, &data, what);
            let ack = conn.guest_acks(conn.peer_seq);
            rig.guest_sends(&ack);
            assert_eq!(rig.at_peer(), [ack], "{what}");
        }
    }
}

#[test]
fn from_the_guest_such_a_frame_passes_unchanged_and_teaches_nothing() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        for (what, change) in changes(v6) {
            let data = conn.data(1000);
            assert_early_acked(&mut rig, &conn, &data, what);
            // It has a number that would be raised, and a timestamp that would be learnt.
            let mut word = conn.guest_data(100);
            let flow = rig.flow();
            let odd = change(&rig.frame(true, &word));
            rig.guest.write(&odd).unwrap();
            assert_eq!(rig.frames_at(false), [&odd[VnetHeader::LEN..]], "{what}");
            assert_eq!(rig.flow(), flow, "{what}");
            rig.guest_sends(&word);
            word.ack = conn.peer_seq;
            let seen = rig.at_peer();
            assert_eq!((seen[0].seq, seen[0].ack), (word.seq, word.ack), "{what}");
            assert_eq!(rig.flow().lifted - flow.lifted, 1, "{what}");
            let ack = conn.guest_acks(conn.peer_seq);
            rig.guest_sends(&ack);
            assert_eq!(rig.at_peer(), [ack], "{what}");
        }
    }
}

/// A guest drops these because of their IP header: the TCP in them is right.
#[test]
fn a_segment_whose_ip_header_is_wrong_is_not_acknowledged() {
    let wrong: &[(bool, Change)] = &[
        // RFC 1122 3.2.1.2.
        (
            false,
            ("the header's sum", |frame| {
                let mut frame = frame.to_vec();
                frame[IP_AT + 10] ^= 1;
                frame
            }),
        ),
        (
            false,
            ("no length", |frame| {
                let (mut ip, rest) = Ipv4Header::from_slice(&frame[IP_AT..]).unwrap();
                ip.total_len = 0;
                ip.header_checksum = ip.calc_header_checksum();
                [&frame[..IP_AT], &ip.to_bytes(), rest].concat()
            }),
        ),
        (
            true,
            ("no length", |frame| {
                let mut frame = frame.to_vec();
                frame[IP_AT + 4..IP_AT + 6].fill(0);
                frame
            }),
        ),
    ];
    for (v6, (what, change)) in wrong {
        let mut rig = Rig::new(500, ON);
        rig.v6 = *v6;
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let data = conn.data(1000);
        let odd = change(&rig.frame(false, &data));
        rig.peer.write(&odd).unwrap();
        assert_eq!(
            rig.frames_at(false),
            <[Vec<u8>; 0]>::default(),
            "{v6} {what}"
        );
        assert_eq!(
            rig.frames_at(true),
            [&odd[VnetHeader::LEN..]],
            "{v6} {what}"
        );
        assert_early_acked(&mut rig, &conn, &data, what);
    }
}

/// RFC 5961 5.2: a segment whose ACK is older by more than the widest window that the peer
/// advertised is dropped.
#[test]
fn a_segment_whose_acknowledgement_is_too_old_for_the_guest_is_not_acknowledged() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut data = conn.data(1000);
    data.ack = data.ack.wrapping_sub(1 << 20);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
}
