use proptest::prelude::*;

use super::*;
use crate::sim::any_addr;

/// A header of TCP over IPv4, from 192.0.2.1:40000 to 198.51.100.2:443, without fields.
const TCP4: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\
    \xc0\0\x02\x01\xc6\x33\x64\x02\x9c\x40\x01\xbb";

fn header(command: Command, addresses: Option<(&str, &str)>, tlvs: &[(u8, &[u8])]) -> Header {
    Header {
        command,
        addresses: addresses.map(|(s, d)| (s.parse().unwrap(), d.parse().unwrap())),
        tlvs: tlvs
            .iter()
            .map(|(kind, value)| Tlv {
                kind: *kind,
                value: value.to_vec(),
            })
            .collect(),
    }
}

/// Encodes a header from version and command, family, and the bytes after the fixed part.
fn raw(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn any_header() -> impl Strategy<Value = Header> {
    let addresses = proptest::option::of((any_addr(), any_addr()));
    let tlv = (
        any::<u8>().prop_filter("of its own", |k| *k != kind::CRC32C),
        proptest::collection::vec(any::<u8>(), 0..40),
    );
    let tlvs = proptest::collection::vec(tlv.prop_map(|(kind, value)| Tlv { kind, value }), 0..6);
    (addresses, tlvs, any::<bool>()).prop_map(|(addresses, tlvs, local)| Header {
        command: if local && addresses.is_none() {
            Command::Local
        } else {
            Command::Proxy
        },
        addresses,
        tlvs,
    })
}

#[test]
fn the_encoding_is_that_of_the_specification() {
    let v4 = header(
        Command::Proxy,
        Some(("192.0.2.1:40000", "198.51.100.2:443")),
        &[],
    );
    assert_eq!(v4.encode().unwrap(), TCP4);
    assert_eq!(Header::decode(TCP4), Ok(v4));

    let mixed = header(
        Command::Proxy,
        Some(("192.0.2.1:1", "[2001:db8::2]:258")),
        &[(kind::NOOP, &[9])],
    );
    let mut body = [0; 36];
    body[10..12].fill(0xff);
    body[12..16].copy_from_slice(&[192, 0, 2, 1]);
    body[16..20].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    body[31] = 2;
    body[32..].copy_from_slice(&[0, 1, 1, 2]);
    let bytes = raw(0x21, 0x21, &[&body[..], &[4, 0, 1, 9]].concat());
    assert_eq!(mixed.encode().unwrap(), bytes);
    assert_eq!(Header::decode(&bytes), Ok(mixed));
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(header in any_header()) {
        let bytes = header.encode().unwrap();
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn exactly_one_header_is_read_from_a_stream(
        header in any_header(),
        stream in proptest::collection::vec(any::<u8>(), 0..50),
        sizes in proptest::collection::vec(1_usize..60, 1..20),
    ) {
        let mut bytes = header.encode().unwrap();
        let len = bytes.len();
        bytes.extend(&stream);
        let mut rest = &bytes[..];
        let mut reader = Reader::new(MAX_HEADER);
        let mut sizes = sizes.into_iter().cycle();
        let read = loop {
            let space = reader.space();
            prop_assert!(!space.is_empty());
            let n = space.len().min(rest.len()).min(sizes.next().unwrap());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            if let Some(read) = reader.advance(n).unwrap() {
                break read;
            }
        };
        prop_assert_eq!(read, header);
        prop_assert_eq!(rest, &stream[..]);
        prop_assert_eq!(needed(&bytes, MAX_HEADER), Ok(Progress::Whole(len)));
    }

    #[test]
    fn what_is_needed_is_never_more_than_belongs_to_it(header in any_header(), cut in any::<prop::sample::Index>()) {
        let bytes = header.encode().unwrap();
        let cut = cut.index(bytes.len());
        match needed(&bytes[..cut], MAX_HEADER) {
            Ok(Progress::More(more)) => prop_assert!(more > 0 && cut + more <= bytes.len()),
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(Header::decode(&bytes[..cut]), Err(ProxyError::Length));
    }

    #[test]
    fn a_checksum_shows_any_wrong_bit(header in any_header(), at in 0_usize..7, bit in any::<prop::sample::Index>()) {
        let mut header = header;
        header.command = Command::Proxy;
        header.addresses.get_or_insert(("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap()));
        let at = at.min(header.tlvs.len());
        header.tlvs.insert(at, Tlv { kind: kind::CRC32C, value: Vec::new() });
        let mut bytes = header.encode().unwrap();
        prop_assert!(Header::decode(&bytes).is_ok());
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Except bits that turn it into a header without fields or without the checksum field.
        if let Ok(other) = Header::decode(&bytes) {
            prop_assert!(
                other.command == Command::Local
                    || other.tlvs.iter().all(|t| t.kind != kind::CRC32C)
            );
        }
    }
}

#[test]
fn a_checksum_matches_an_independent_implementation() {
    // Computed bit by bit by an independent program (RFC 9260 appendix A).
    let sent = header(
        Command::Proxy,
        Some(("192.0.2.1:40000", "198.51.100.2:443")),
        &[(kind::CRC32C, b"")],
    );
    let bytes = sent.encode().unwrap();
    assert_eq!(bytes[31..], 0x4d20_d609_u32.to_be_bytes());
    let mut other = bytes.clone();
    other[34] ^= 1;
    assert_eq!(Header::decode(&other), Err(ProxyError::Checksum));
    // A checksum of the wrong length, and two checksums.
    let body = &TCP4[16..];
    for fields in [&[3, 0, 3, 0, 0, 0][..], &[3, 0, 0, 3, 0, 0]] {
        assert_eq!(
            Header::decode(&raw(0x21, 0x11, &[body, fields].concat())),
            Err(ProxyError::Checksum)
        );
    }
}

#[test]
fn a_header_of_another_transport_is_accepted_without_addresses() {
    let tlv = [kind::NOOP, 0, 1, 7];
    let expected = header(Command::Proxy, None, &[(kind::NOOP, &[7])]);
    for (family, addresses) in [
        (0x00, 0),
        (0x12, 12),
        (0x22, 36),
        (0x31, 216),
        (0x32, 216),
        (0x10, 12),
    ] {
        let body = [&vec![1; addresses][..], &tlv].concat();
        assert_eq!(
            Header::decode(&raw(0x21, family, &body)),
            Ok(expected.clone()),
            "{family:#x}"
        );
    }
}

#[test]
fn a_local_header_may_contain_any_bytes() {
    for (family, body) in [
        (0x00, &b""[..]),
        (0x00, b"junk"),
        (0x11, b""),
        (0x11, b"some addresses"),
        (0xff, b"?"),
    ] {
        assert_eq!(
            Header::decode(&raw(0x20, family, body)),
            Ok(header(Command::Local, None, &[])),
            "{family:#x}"
        );
    }
}

#[test]
fn a_header_that_the_specification_forbids_is_refused() {
    let v4 = &TCP4[16..];
    let with = |fields: &[u8]| Header::decode(&raw(0x21, 0x11, &[v4, fields].concat()));
    assert_eq!(with(&[4]), Err(ProxyError::Tlv));
    assert_eq!(with(&[4, 0]), Err(ProxyError::Tlv));
    assert_eq!(with(&[4, 0, 2, 1]), Err(ProxyError::Tlv));
    assert_eq!(with(&[4, 0, 0, 9]), Err(ProxyError::Tlv));
    let of = |command, family| Header::decode(&raw(command, family, v4));
    assert_eq!(of(0x31, 0x11), Err(ProxyError::Version(3)));
    assert_eq!(of(0x22, 0x11), Err(ProxyError::Command(2)));
    assert_eq!(of(0x21, 0x41), Err(ProxyError::Family(0x41)));
    assert_eq!(of(0x21, 0x13), Err(ProxyError::Family(0x13)));
    assert_eq!(of(0x21, 0x21), Err(ProxyError::Addresses));
    assert_eq!(
        Header::decode(&[TCP4, &[0]].concat()),
        Err(ProxyError::Length)
    );
    assert_eq!(needed(b"PROXY TCP4", MAX_HEADER), Err(ProxyError::Text));
    assert_eq!(needed(b"\r\n\r\nx", MAX_HEADER), Err(ProxyError::Signature));
    assert_eq!(needed(b"", MAX_HEADER), Ok(Progress::More(16)));
}

#[test]
fn a_header_that_is_too_long_is_refused_as_soon_as_its_length_is_known() {
    let long = raw(0x21, 0x00, &[0; MAX_HEADER - 15]);
    let refused = ProxyError::TooLong {
        len: MAX_HEADER + 1,
        max: MAX_HEADER,
    };
    assert_eq!(needed(&long[..16], MAX_HEADER), Err(refused));
    let mut reader = Reader::new(MAX_HEADER);
    reader.space().copy_from_slice(&long[..16]);
    assert_eq!(reader.advance(16), Err(refused));

    let room = MAX_HEADER - START_LEN - 3;
    let fits = header(Command::Local, None, &[(kind::NOOP, &vec![0; room])]);
    assert_eq!(fits.encode().map(|bytes| bytes.len()), Ok(MAX_HEADER));
    let over = header(Command::Local, None, &[(kind::NOOP, &vec![0; room + 1])]);
    assert_eq!(over.encode(), Err(refused));
    let far_over = header(Command::Local, None, &[(kind::NOOP, &vec![0; 70_000])]);
    assert!(far_over.encode().is_err());
}
