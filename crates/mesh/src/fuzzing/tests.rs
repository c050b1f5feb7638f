use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

use super::*;
use crate::sim::{any_addr, any_hello, any_target};

/// A mutation of bytes, as in transit or by a fuzzer.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
    Repeat(Index, Index),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        (any::<Index>(), 0_u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        any::<Index>().prop_map(Change::Remove),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        match change {
            Change::Set(at, to) => bytes[at.index(len)] = *to,
            Change::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Change::Insert(at, byte) => bytes.insert(at.index(len), *byte),
            Change::Remove(at) => drop(bytes.remove(at.index(len))),
            Change::Cut(at) => bytes.truncate(at.index(len)),
            Change::Repeat(from, to) => {
                let part = bytes[from.index(len)..].to_vec();
                let at = to.index(len);
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

fn any_changes() -> impl Strategy<Value = Vec<Change>> {
    vec(any_change(), 0..3)
}

/// Calls `target` with bytes from `strategy`, `cases` times. Failures are not stored in a file: turn a
/// failing input into a test.
fn drive<S: Strategy<Value = Vec<u8>>>(cases: u32, strategy: S, target: fn(&[u8])) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        // The same inputs in every run; `make fuzz` searches for new ones.
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    };
    let called = Cell::new(0);
    proptest!(config, |(bytes in strategy)| {
        called.set(called.get() + 1);
        target(&bytes);
    });
    assert_eq!(called.get(), cases);
}

fn raw() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

/// Generates headers of other proxies with mutations.
fn headers() -> impl Strategy<Value = Vec<u8>> {
    let addresses = proptest::option::of((any_addr(), any_addr()));
    let tlv = (0_u8..8, vec(any::<u8>(), 0..20));
    (
        addresses,
        vec(tlv, 0..4),
        any_changes(),
        vec(any::<u8>(), 0..20),
    )
        .prop_map(|(addresses, tlvs, changes, stream)| {
            let header = Header {
                command: Command::Proxy,
                addresses,
                tlvs: tlvs
                    .into_iter()
                    .map(|(kind, value)| proxy::Tlv { kind, value })
                    .collect(),
            };
            let bytes = header.encode().unwrap_or_default();
            changed([bytes, stream].concat(), &changes)
        })
}

/// Generates the fields of an opening or greeting with mutations, after a mode byte.
fn introductions(mode: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<u8>> {
    (mode, any_changes()).prop_map(|(mode, changes)| {
        let fields = wire::introduction(&DIALLER)[proxy::START_LEN..].to_vec();
        [vec![mode], changed(fields, &changes)].concat()
    })
}

/// Generates the family and fields of a hello with mutations, to be sealed.
fn hellos() -> impl Strategy<Value = Vec<u8>> {
    (any_hello(), any_changes()).prop_map(|(hello, changes)| {
        let message = hello.unsealed();
        let fields = changed(message[proxy::START_LEN..].to_vec(), &changes);
        // 0x80 means sealed, and 128 % 3 == 2 selects the third stage.
        [&[0x80, message[13]], &fields[..]].concat()
    })
}

/// Generates sealed hellos with mutations.
fn damaged_hellos() -> impl Strategy<Value = Vec<u8>> {
    (any_hello(), any_changes()).prop_map(|(hello, changes)| {
        let message = session().seal(Kind::Hello, hello.unsealed());
        let mut bytes = changed(message.clone(), &changes);
        if bytes.starts_with(&message) {
            bytes[40] ^= 1;
        }
        [&[2], &bytes[..]].concat()
    })
}

#[test]
fn headers_of_foreign_proxies() {
    drive(10_000, raw(), proxy);
    drive(20_000, headers(), proxy);
}

#[test]
fn streams_to_an_acceptor() {
    drive(10_000, raw(), acceptor);
    drive(
        10_000,
        introductions(prop_oneof![Just(0x81), Just(0x82), Just(0)]),
        acceptor,
    );
    drive(15_000, hellos(), acceptor);
    drive(10_000, damaged_hellos(), acceptor);
}

#[test]
fn greetings_to_a_dialler() {
    drive(5_000, raw(), dialler);
    drive(10_000, introductions(any::<u8>()), dialler);
}

#[test]
fn texts_of_key_files() {
    drive(3_000, raw(), keys_file);
    let line = prop_oneof![
        "[0-9a-fA-F]{64}",
        "#.{0,20}",
        "[0-9a-f]{60,70}",
        "[ \t]{0,3}"
    ];
    let text = (vec(line, 0..4), any_changes())
        .prop_map(|(lines, changes)| changed(lines.join("\n").into_bytes(), &changes));
    drive(5_000, text, keys_file);
}

#[test]
fn texts_of_targets() {
    drive(3_000, raw(), target);
    let text = (any_target(), any_changes())
        .prop_map(|(target, changes)| changed(target.to_string().into_bytes(), &changes));
    drive(20_000, text, target);
}

#[test]
fn unchanged_messages_reach_the_last_stage() {
    // If sealing or the modes were wrong, the tests above would only test early rejections.
    let now = Instant::now();
    let session = session();
    let mut acceptor = Acceptor::new(ACCEPTOR, now, &Limits::default());
    let messages = [
        wire::seal(
            &session.key,
            Kind::Opening,
            &[],
            wire::introduction(&DIALLER),
        ),
        session.seal(Kind::Proof, proxy::bare_start(Command::Local)),
        session.seal(Kind::Hello, crate::sim::hello().unsealed()),
    ];
    let events: Vec<_> = messages
        .iter()
        .map(|message| crate::sim::give(&mut acceptor, message, now, &keys()).unwrap())
        .collect();
    assert!(matches!(
        events[..],
        [
            Some(Event::Greet(_)),
            Some(Event::Proven),
            Some(Event::Hello(_))
        ]
    ));
}
