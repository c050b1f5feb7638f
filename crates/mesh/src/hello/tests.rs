use std::time::Instant;

use super::*;
use crate::acceptor::Event;
use crate::proxy::kind::{AUTHORITY, UNIQUE_ID};
use crate::sim::{give, hello, keys, proven, sealed_hello};

/// Sends a hello from one end to the other and returns the result.
fn sent(hello: &Hello) -> Result<Hello, Rejection> {
    arrived(hello.unsealed())
}

/// Sends a message with the right MAC and returns the result.
fn arrived(message: Vec<u8>) -> Result<Hello, Rejection> {
    let now = Instant::now();
    let (mut acceptor, _) = proven(now);
    match give(&mut acceptor, &sealed_hello(message), now, &keys())? {
        Some(Event::Hello(hello)) => Ok(*hello),
        other => panic!("{other:?}"),
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn name(host: String) -> Target {
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
    let mapped = Target::Addr(addr("[::ffff:198.51.100.2]:3"));
    let arrived = sent(&Hello {
        source: addr("[::ffff:192.0.2.1]:1"),
        destination: mapped.clone(),
        route: vec![mapped],
        ..hello()
    })
    .unwrap();
    assert_eq!(arrived.source, addr("192.0.2.1:1"));
    let plain = Target::Addr(addr("198.51.100.2:3"));
    assert_eq!(arrived.destination, plain);
    assert_eq!(arrived.route, [plain]);
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
        destination: name(longest.clone()),
        route: vec![name(longest); MAX_ROUTE],
        ..hello()
    };
    assert!(sealed_hello(largest.unsealed()).len() < crate::wire::MAX_HELLO);
    assert_eq!(sent(&largest), Ok(largest));
}

#[test]
fn a_hello_that_breaks_a_rule_is_refused_by_the_receiver_and_not_changed() {
    let with_destination = |destination| Hello {
        destination,
        ..hello()
    };
    let with_route = |route| Hello { route, ..hello() };
    let relay: Target = "relay.example:7000".parse().unwrap();
    let too_long = format!("{}.example", "a.".repeat(200));
    for (hello, cause) in [
        (
            with_destination(name(too_long.clone())),
            Rejection::BadDestination,
        ),
        (
            with_destination(name("a".repeat(100_000))),
            Rejection::BadDestination,
        ),
        (
            with_destination(name("127.1".into())),
            Rejection::BadDestination,
        ),
        (
            with_destination(name(String::new())),
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
        (with_route(vec![name(too_long)]), Rejection::BadRoute),
        (
            with_route(vec![Target::Addr(addr("[::]:80"))]),
            Rejection::BadRoute,
        ),
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

#[test]
fn an_error_names_the_relay_and_its_position() {
    let hello = Hello {
        route: vec![hello().destination, name("a b".into())],
        ..hello()
    };
    let message = hello.check().unwrap_err().to_string();
    assert!(
        message.starts_with("relay 2 of the route `a b:443` has no valid host"),
        "{message}"
    );
}

/// Encodes a hello with one more field.
fn plus(kind: u8, value: &[u8]) -> Vec<u8> {
    let plain = Hello {
        destination: Target::Addr(addr("198.51.100.2:3")),
        route: Vec::new(),
        ..hello()
    };
    let mut message = plain.unsealed();
    proxy::push_tlv(&mut message, kind, value);
    message
}

#[test]
fn a_known_field_must_occur_only_once() {
    assert!(arrived(plus(0xe9, b"")).is_ok());
    for kind in [kind::VERSION, kind::HOPS, UNIQUE_ID, kind::MAC] {
        assert_eq!(
            arrived(plus(kind, &[1])),
            Err(Rejection::BadFrame),
            "{kind:#x}"
        );
    }
    for (kind, value) in [
        (AUTHORITY, &b"a.example"[..]),
        (kind::ROUTE, &[1, 4, 10, 0, 0, 1, 0, 80]),
    ] {
        let mut twice = hello().unsealed();
        proxy::push_tlv(&mut twice, kind, value);
        assert_eq!(arrived(twice), Err(Rejection::BadFrame), "{kind:#x}");
    }
}

#[test]
fn a_required_field_must_be_present() {
    let fields: [(u8, &[u8]); 3] = [
        (kind::VERSION, &[VERSION]),
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
        assert_eq!(without(Some(kind)), Err(Rejection::BadFrame), "{kind:#x}");
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
    let mut message = hello().unsealed();
    // The bytes of the port.
    message[26..28].fill(0);
    assert_eq!(arrived(message), Err(Rejection::BadDestination));
}

#[test]
fn a_malformed_route_is_refused() {
    let route = |bytes: &[u8]| arrived(plus(kind::ROUTE, bytes)).map(|hello| hello.route);
    assert_eq!(route(&[]), Ok(Vec::new()));
    assert_eq!(
        route(&[1, 4, 10, 0, 0, 1, 0, 80]),
        Ok(vec![Target::Addr(addr("10.0.0.1:80"))])
    );
    for bytes in [
        &[1][..],
        &[1, 4],
        &[1, 4, 10, 0, 0, 1],
        &[1, 4, 10, 0, 0, 1, 0],
        &[1, 4, 10, 0, 0, 1, 0, 80, 3],
        &[1, 3, 10, 0, 1, 0, 80],
        &[2, 4, 10, 0, 0, 1, 0, 80],
        &[0, 4, 10, 0, 0, 1, 0, 80],
        &[4, 4, 10, 0, 0, 1, 0, 80],
        &[1, 4, 10, 0, 0, 1, 0, 0],
        &[3, 0, 0, 80],
        &[3, 255, b'a', 0, 80],
        &[3, 1, 0xff, 0, 80],
    ] {
        assert_eq!(route(bytes), Err(Rejection::BadRoute), "{bytes:?}");
    }
}

#[test]
fn each_relay_removes_the_next_one_from_the_route_until_the_last_connects() {
    let mut at = hello();
    let mut passed = Vec::new();
    while let Some((next, hello)) = at.next_hop().unwrap() {
        assert_eq!(hello.hops_left, at.hops_left - 1);
        assert_eq!(
            (&hello.source, &hello.destination),
            (&at.source, &at.destination)
        );
        assert_eq!(hello.session, at.session);
        passed.push(next);
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
