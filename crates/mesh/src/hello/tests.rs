use proptest::prelude::*;

use super::*;
use crate::members::MAX_NAME;
use crate::proxy::kind::{AUTHORITY, UNIQUE_ID};
use crate::proxy::{MAX_HEADER, Tlv};
use crate::sim::{any_hello, hello, name};
use crate::wire::MAX_HELLO;

/// Returns the hello that its receiver decodes.
fn sent(hello: &Hello) -> Result<Hello, Rejection> {
    Hello::decode(&hello.encode(), &hello.receiver)
}

/// Decodes a message with its length set, at relay `a`.
fn arrived(mut message: Vec<u8>) -> Result<Hello, Rejection> {
    let len = message.len();
    proxy::set_length(&mut message, len);
    Hello::decode(&message, &name("a"))
}

proptest! {
    #[test]
    fn any_hello_arrives_as_it_was_sent(hello in any_hello()) {
        prop_assert_eq!(hello.check(), Ok(()));
        prop_assert!(hello.encode().len() <= MAX_HELLO);
        prop_assert_eq!(sent(&hello), Ok(hello));
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host(host: String) -> Target {
    Target::Name { host, port: 443 }
}

#[test]
fn addresses_of_different_families_arrive_unchanged() {
    for source in ["192.0.2.1:1", "[2001:db8::1]:2", "0.0.0.0:0", "[::]:0"] {
        for destination in ["198.51.100.2:3", "[2001:db8::2]:4", "example.org:5"] {
            let hello = Hello {
                source: addr(source),
                destination: destination.parse().unwrap(),
                ..hello()
            };
            assert_eq!(sent(&hello), Ok(hello));
        }
    }
}

#[test]
fn an_ipv4_mapped_address_arrives_as_ipv4() {
    let arrived = sent(&Hello {
        source: addr("[::ffff:192.0.2.1]:1"),
        destination: Target::Addr(addr("[::ffff:198.51.100.2]:3")),
        ..hello()
    })
    .unwrap();
    assert_eq!(arrived.source, addr("192.0.2.1:1"));
    assert_eq!(arrived.destination, Target::Addr(addr("198.51.100.2:3")));
}

#[test]
fn the_largest_hello_is_within_the_accepted_length() {
    let longest = [
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(61),
    ]
    .join(".");
    assert_eq!(longest.len(), 253);
    let largest = Hello {
        source: addr("[2001:db8::1]:1"),
        destination: host(longest),
        receiver: name(&"r".repeat(MAX_NAME)),
        route: vec![name(&"n".repeat(MAX_NAME)); MAX_ROUTE],
        ..hello()
    };
    let fields = |len: usize| Tlvs::from(&[Tlv::from((0xe0, &vec![7; len - 3][..]))][..]);
    let with_fields = Hello {
        passed: fields(MAX_HEADER),
        ..largest.clone()
    };
    assert!(with_fields.encode().len() <= MAX_HELLO);
    assert_eq!(sent(&with_fields), Ok(with_fields));
    // Fields that no header has room for, as none arrives with.
    let with_more = Hello {
        passed: fields(MAX_HEADER + 1),
        ..largest.clone()
    };
    let without = Hello {
        passed: Tlvs::default(),
        ..largest
    };
    assert_eq!(sent(&with_more), Ok(without));
}

#[test]
fn fields_that_are_passed_on_are_not_those_of_the_hello() {
    let mut own = Vec::new();
    proxy::push_tlv(&mut own, kind::HOPS, &[200]);
    proxy::push_tlv(&mut own, UNIQUE_ID, b"another");
    let arrived_with = |fields: &[u8]| arrived(plus_passed(fields));
    let passed = vec![
        Tlv::from((kind::HOPS, &[200][..])),
        Tlv::from((UNIQUE_ID, &b"another"[..])),
    ];
    let hello = arrived_with(&own).unwrap();
    assert_eq!((hello.hops_left, hello.session), (8, SessionId([7; 16])));
    assert_eq!(hello.passed.decode(), passed);
    let next = hello.next_hop().unwrap().unwrap();
    assert_eq!(next.passed.decode(), passed);
    // One that extends past the end.
    assert_eq!(
        arrived_with(&own[..own.len() - 1]),
        Err(Rejection::BadFrame)
    );
    let mut long = Vec::new();
    proxy::push_tlv(&mut long, 0xe0, &[7; MAX_HEADER - 2]);
    assert_eq!(arrived_with(&long), Err(Rejection::TooLong));
}

/// Encodes a hello that passes these bytes on.
fn plus_passed(fields: &[u8]) -> Vec<u8> {
    let mut message = Hello {
        passed: Tlvs::default(),
        ..hello()
    }
    .encode();
    proxy::push_tlv(&mut message, kind::PASSED, fields);
    message
}

#[test]
fn a_hello_that_breaks_a_rule_is_refused_by_the_receiver_and_not_changed() {
    let with_destination = |destination| Hello {
        destination,
        ..hello()
    };
    let with_route = |route| Hello { route, ..hello() };
    let relay = name("relay");
    let too_long = format!("{}.example", "a.".repeat(200));
    for (hello, cause) in [
        (
            with_destination(host(too_long.clone())),
            Rejection::BadDestination,
        ),
        (
            with_destination(host("a".repeat(100_000))),
            Rejection::BadDestination,
        ),
        (
            with_destination(host("127.1".into())),
            Rejection::BadDestination,
        ),
        (
            with_destination(host(String::new())),
            Rejection::BadDestination,
        ),
        (
            with_destination(Target::Addr(addr("0.0.0.0:80"))),
            Rejection::BadDestination,
        ),
        (
            with_destination(Target::Addr(addr("10.0.0.1:0"))),
            Rejection::BadDestination,
        ),
        (
            with_route(vec![relay.clone(); MAX_ROUTE + 1]),
            Rejection::BadRoute,
        ),
        (with_route(vec![relay; 10_000]), Rejection::BadRoute),
        (
            Hello {
                hops_left: 0,
                ..self::hello()
            },
            Rejection::NoHops,
        ),
    ] {
        assert!(hello.check().is_err());
        assert_eq!(sent(&hello), Err(cause));
    }
}

/// Encodes a hello with one more field.
fn plus(kind: u8, value: &[u8]) -> Vec<u8> {
    let plain = Hello {
        destination: Target::Addr(addr("198.51.100.2:3")),
        route: Vec::new(),
        ..hello()
    };
    let mut message = plain.encode();
    proxy::push_tlv(&mut message, kind, value);
    message
}

#[test]
fn a_known_field_must_occur_only_once() {
    assert!(arrived(plus(0xe9, b"")).is_ok());
    for kind in [kind::VERSION, kind::RECEIVER, kind::HOPS, UNIQUE_ID] {
        assert_eq!(
            arrived(plus(kind, &[1])),
            Err(Rejection::BadFrame),
            "{kind:#x}"
        );
    }
    for (kind, value) in [(AUTHORITY, &b"a.example"[..]), (kind::ROUTE, b"\x01b")] {
        let mut twice = hello().encode();
        proxy::push_tlv(&mut twice, kind, value);
        assert_eq!(arrived(twice), Err(Rejection::BadFrame), "{kind:#x}");
    }
}

#[test]
fn a_required_field_must_be_present() {
    let fields: [(u8, &[u8]); 4] = [
        (kind::VERSION, &[VERSION]),
        (kind::RECEIVER, b"a"),
        (kind::HOPS, &[8]),
        (UNIQUE_ID, &[7; 16]),
    ];
    let without = |missing: Option<u8>| {
        let mut message = proxy::start(addr("192.0.2.1:1"), addr("192.0.2.2:2"));
        for (kind, value) in fields.iter().filter(|(kind, _)| Some(*kind) != missing) {
            proxy::push_tlv(&mut message, *kind, value);
        }
        arrived(message)
    };
    assert!(without(None).is_ok());
    for (kind, _) in fields {
        let cause = match kind {
            kind::RECEIVER => Rejection::Misdirected,
            _ => Rejection::BadFrame,
        };
        assert_eq!(without(Some(kind)), Err(cause), "{kind:#x}");
    }
}

#[test]
fn a_name_beside_an_address_is_refused() {
    assert_eq!(
        arrived(plus(AUTHORITY, b"example.org")),
        Err(Rejection::BadDestination)
    );
}

#[test]
fn a_hello_must_be_of_tcp_and_on_behalf_of_a_client() {
    for (at, byte) in [(12, 0x20), (13, 0x00), (13, 0x12)] {
        let mut message = plus(0xe9, b"");
        message[at] = byte;
        assert_eq!(arrived(message), Err(Rejection::BadFrame));
    }
    let mut message = hello().encode();
    // The bytes of the port.
    message[26..28].fill(0);
    assert_eq!(arrived(message), Err(Rejection::BadDestination));
}

#[test]
fn a_malformed_route_is_refused() {
    let route = |bytes: &[u8]| arrived(plus(kind::ROUTE, bytes)).map(|hello| hello.route);
    assert_eq!(route(&[]), Ok(Vec::new()));
    assert_eq!(route(b"\x01b\x02c1"), Ok(vec![name("b"), name("c1")]));
    let (longest, too_long) = ([b'n'; 64], [b'n'; 65]);
    assert!(route(&[&[63], &longest[1..]].concat()).is_ok());
    for bytes in [
        &[1][..],
        &[0],
        b"\x02b",
        b"\x01b\x01",
        b"\x01b\x00",
        b"\x01 ",
        b"\x01\xff",
        b"\xffb",
        &[&[64], &longest[..]].concat(),
        &[&[65], &too_long[..]].concat(),
        &b"\x01b".repeat(MAX_ROUTE + 1),
        &b"\x01b".repeat(20_000),
    ] {
        assert_eq!(route(bytes), Err(Rejection::BadRoute), "{bytes:?}");
    }
}

#[test]
fn each_relay_removes_the_next_one_from_the_route_until_the_last_connects() {
    let mut at = hello();
    let mut passed = Vec::new();
    while let Some(hello) = at.next_hop().unwrap() {
        assert_eq!(hello.hops_left, at.hops_left - 1);
        assert_eq!(
            (&hello.source, &hello.destination),
            (&at.source, &at.destination)
        );
        assert_eq!(hello.session, at.session);
        passed.push(hello.receiver.clone());
        at = hello;
    }
    assert_eq!(passed, hello().route);
    assert!(at.route.is_empty());
}

#[test]
fn a_session_ends_at_its_limit_of_relays() {
    let last = Hello {
        hops_left: 1,
        ..hello()
    };
    assert_eq!(last.next_hop(), Err(Rejection::NoHops));
    let arrived = Hello {
        route: Vec::new(),
        ..last
    };
    assert_eq!(arrived.next_hop(), Ok(None));
}

#[test]
fn a_session_id_is_printed_in_hex() {
    let mut id = [0; 16];
    id[0] = 0xab;
    id[15] = 1;
    assert_eq!(
        SessionId(id).to_string(),
        "ab000000000000000000000000000001"
    );
}
