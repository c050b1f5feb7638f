use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

use super::*;
use crate::proxy::Command;
use crate::rows::{Frame, MemberId};
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

/// Generates hellos with mutations, sometimes with the length set again.
fn hellos() -> impl Strategy<Value = Vec<u8>> {
    (any_hello(), any_changes(), any::<bool>()).prop_map(|(hello, changes, mend)| {
        let hello = Hello {
            receiver: MESH.local.name.clone(),
            ..hello
        };
        let mut bytes = changed(hello.encode(), &changes);
        if mend && (proxy::START_LEN..1 << 16).contains(&bytes.len()) {
            let len = bytes.len();
            proxy::set_length(&mut bytes, len);
        }
        bytes
    })
}

/// Puts a byte before others.
fn with_mode(
    mode: impl Strategy<Value = u8>,
    bytes: impl Strategy<Value = Vec<u8>>,
) -> impl Strategy<Value = Vec<u8>> {
    (mode, bytes).prop_map(|(mode, bytes)| [vec![mode], bytes].concat())
}

/// Generates records of TLS with any content, whose lengths fit.
fn noise_in_records() -> impl Strategy<Value = Vec<u8>> {
    let typ = prop_oneof![20_u8..=23, Just(22)];
    let content = prop_oneof![
        vec(any::<u8>(), 0..40),
        // Messages of a handshake: their type, a length that fits or not, any content.
        (0_u8..26, 0_u8..20, vec(any::<u8>(), 0..20)).prop_map(|(typ, len, content)| [
            &[typ, 0, 0, len],
            &content[..]
        ]
        .concat()),
        Just(vec![1, 0]),
        Just(vec![2, 40]),
    ];
    vec((typ, content), 0..5).prop_map(|records| {
        let record = |(typ, content): (u8, Vec<u8>)| {
            [&[typ, 3, 3, 0, content.len() as u8], &content[..]].concat()
        };
        records.into_iter().flat_map(record).collect()
    })
}

/// Generates the first flight of a dialler, or the answer of an acceptor to another one, with mutations.
fn handshakes() -> impl Strategy<Value = Vec<u8>> {
    let (mut first, mut flight) = (Vec::new(), Vec::new());
    Channel::dial(&MESH.dial, &mut first).unwrap();
    let mut channel = Channel::accept(&MESH.local.tls).unwrap();
    let mut cipher = first.clone();
    let mut plain = vec![0; first.len()];
    channel.open(&mut cipher, &mut plain, &mut flight).unwrap();
    (any::<bool>(), any_changes()).prop_map(move |(one, changes)| {
        changed(if one { first.clone() } else { flight.clone() }, &changes)
    })
}

/// Calls `target`. Only in a debug build, rustls asserts that it never sends a second alert, which damaged
/// handshakes make it do.
fn forgive(target: fn(&[u8]), data: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| target(data)) {
        match panic.downcast_ref::<&str>() {
            Some(text) if text.contains("sent_fatal_alert") => {}
            _ => std::panic::resume_unwind(panic),
        }
    }
}

#[test]
fn every_fuzz_target_accepts_its_seeds() {
    let targets: [replay::Target<'_>; 13] = [
        ("acceptor", acceptor),
        ("client_hello", client_hello_stream),
        ("dialler", dialler),
        ("etcd_reply", etcd_reply),
        ("hello", hello),
        ("key_file", key_file),
        ("members_file", members_file),
        ("proxy", proxy),
        ("rows", rows),
        ("rtt_file", rtt_file),
        ("session", session),
        ("signed_members", signed_members),
        ("target", target),
    ];
    replay::replay("taut_mesh", &targets);
}

#[test]
fn headers_of_foreign_proxies() {
    drive(10_000, raw(), proxy);
    drive(20_000, headers(), proxy);
}

#[test]
fn streams_to_an_acceptor() {
    drive(10_000, raw(), acceptor);
    drive(10_000, with_mode(any::<u8>(), noise_in_records()), acceptor);
    drive(1_500, with_mode(any::<u8>(), handshakes()), |data| {
        forgive(acceptor, data)
    });
    drive(
        15_000,
        with_mode(any::<u8>().prop_map(|mode| mode | 1), hellos()),
        acceptor,
    );
}

#[test]
fn streams_to_an_acceptor_after_its_handshake() {
    drive(300, raw(), session);
    drive(500, with_mode(any::<u8>(), noise_in_records()), session);
    drive(500, with_mode(any::<u8>(), hellos()), session);
}

#[test]
fn streams_to_a_dialler() {
    drive(1_000, raw(), dialler);
    drive(2_000, with_mode(any::<u8>(), noise_in_records()), dialler);
    drive(1_000, with_mode(any::<u8>(), handshakes()), |data| {
        forgive(dialler, data)
    });
}

#[test]
fn bytes_of_hellos() {
    drive(5_000, raw(), hello);
    drive(20_000, hellos(), hello);
}

#[test]
fn texts_of_private_keys() {
    drive(3_000, raw(), key_file);
    let line = prop_oneof![
        Just("-----BEGIN PRIVATE KEY-----".to_owned()),
        Just("-----END PRIVATE KEY-----".to_owned()),
        Just("MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g".to_owned()),
        "[A-Za-z0-9+/=]{0,70}",
    ];
    let text = (vec(line, 0..5), any_changes())
        .prop_map(|(lines, changes)| changed(lines.join("\n").into_bytes(), &changes));
    drive(10_000, text, key_file);
}

#[test]
fn texts_of_lists_of_members() {
    drive(3_000, raw(), members_file);
    let line = prop_oneof![
        Just("[[member]]".to_owned()),
        "name = \"[a-c.> ]{0,3}\"",
        (0_u8..4, 0_u8..4).prop_map(|(one, other)| {
            let key = |byte| PrivateKey::from_seed(&[byte; 32]).public();
            format!("keys = [\"{}\", \"{}\"]", key(one), key(other))
        }),
        "addresses = \\[\"[a-c0-9.:]{0,8}\"\\]",
        "site = \"[a-z]{0,3}\"",
    ];
    let text = (vec(line, 0..9), any_changes())
        .prop_map(|(lines, changes)| changed(lines.join("\n").into_bytes(), &changes));
    drive(10_000, text, members_file);
}

#[test]
fn rows_and_what_travels_with_them() {
    drive(3_000, raw(), rows);
    let row = crate::rows::sim::any_row().prop_map(|row| {
        let signed = row.sign(&MESH.b.name, &PrivateKey::from_seed(&[9; 32]));
        RowMessage::whole(MemberId::of(&MESH.b.name), &signed, Duration::ZERO).encode()
    });
    let row = row.boxed();
    let mutated = (row.clone(), any_changes()).prop_map(|(row, changes)| changed(row, &changes));
    drive(2_000, mutated, rows);
    let framed = row.prop_map(|row| Frame::Row(row).encode());
    let ping = any::<[u8; 8]>().prop_map(|nonce| Frame::Ping(nonce).encode());
    let summary = vec(any::<u8>(), 0..40).prop_map(|bytes| Frame::Summary(bytes).encode());
    let stream = vec(prop_oneof![framed, ping, summary], 0..4);
    let stream =
        (stream, any_changes()).prop_map(|(frames, changes)| changed(frames.concat(), &changes));
    drive(2_000, stream, rows);
}

#[test]
fn texts_of_signed_lists() {
    drive(1_000, raw(), signed_members);
    let line = prop_oneof![
        Just("[[member]]".to_owned()),
        "name = \"[a-c]{1,2}\"",
        (0_u8..4).prop_map(|byte| {
            format!(
                "keys = [\"{}\"]",
                PrivateKey::from_seed(&[byte; 32]).public()
            )
        }),
        "#taut-members-1 [A-Za-z0-9+/]{86}==",
        "(serial|smaller_since) = [0-9]{1,3}",
    ];
    let text = (vec(line, 0..9), any_changes())
        .prop_map(|(lines, changes)| changed(lines.join("\n").into_bytes(), &changes));
    drive(3_000, text, signed_members);
}

#[test]
fn replies_of_etcd() {
    drive(3_000, raw(), etcd_reply);
    let part = prop_oneof![
        Just("{\"result\":{\"created\":true}}\n".to_owned()),
        Just("{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"L3RhdXQvdXAvYQ==\",\"value\":\"YQ==\"}]}".to_owned()),
        Just("{\"result\":{\"canceled\":true,\"compact_revision\":\"9\"}}\n".to_owned()),
        Just("{\"error\":\"x\",\"code\":16,\"message\":\"m\"}".to_owned()),
        Just("{\"ID\":\"7\",\"TTL\":\"30\",\"token\":\"t\"}".to_owned()),
        Just("{\"result\":{\"events\":[{\"type\":\"PUT\",\"kv\":{\"value\":\"YQ==\"}}]}}\n".to_owned()),
    ];
    let text = (vec(part, 0..4), any_changes())
        .prop_map(|(parts, changes)| changed(parts.concat().into_bytes(), &changes));
    drive(10_000, text, etcd_reply);
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
    // If the modes were wrong, the tests above would only test early rejections.
    let now = Instant::now();
    let hello = crate::sim::hello();
    let message = hello.encode();
    assert_eq!(
        Hello::decode(&message, &MESH.local.name).as_ref(),
        Ok(&hello)
    );
    let trusted = Some(MESH.b.clone());
    let mut acceptor = Acceptor::new(now, &Limits::default(), trusted);
    assert_eq!(send(&mut acceptor, &message, 7, now).as_ref(), Some(&hello));
    let (mut acceptor, mut channel) = proven(now);
    let sealed = crate::sim::seal(&mut channel, &message).unwrap();
    assert_eq!(send(&mut acceptor, &sealed, 7, now), Some(hello));
    session(&[&[1], &message[..]].concat());
    let text = format!(
        "[[member]]\nname = \"a\"\nkeys = [\"{}\"]\naddresses = [\"a:1\"]\n",
        MESH.b.keys[0]
    );
    assert_eq!(Members::parse(&text).unwrap().iter().len(), 1);
}
