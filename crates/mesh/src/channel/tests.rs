use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rustls::{
    AlertDescription, CipherSuiteCommon, ContentType, HandshakeType, SupportedCipherSuite,
    Tls13CipherSuite,
};

use super::{Channel, ChannelError, MAX_HANDSHAKE, MAX_RECORD, Opened, sealed_len};
use crate::crypto::provider;
use crate::sim::*;
use crate::tls::{AcceptTls, DialTls};

fn opened(channel: &mut Channel, bytes: &[u8]) -> (Vec<u8>, Opened) {
    let mut out = Vec::new();
    let opened = open(channel, bytes, &mut out).unwrap();
    assert!(out.is_empty());
    opened
}

/// Returns the error of a channel, and the alert that it sends.
fn fault(channel: &mut Channel, bytes: &[u8]) -> (ChannelError, Vec<u8>) {
    let mut out = Vec::new();
    let error = open(channel, bytes, &mut out).unwrap_err();
    (error, out)
}

fn alert_of(error: ChannelError) -> AlertDescription {
    match error {
        ChannelError::Tls(rustls::Error::AlertReceived(alert)) => alert,
        other => panic!("{other:?}"),
    }
}

// === keys for the kernel ===

/// Returns what makes channels whose keys may leave the process.
fn for_kernel() -> (DialTls, AcceptTls) {
    (
        DialTls::for_kernel(&key(2), &[key(1).public()]),
        AcceptTls::for_kernel(&key(1), members()),
    )
}

#[test]
fn the_keys_of_both_ends_are_the_same_and_continue_their_streams() {
    let (dial, accept) = for_kernel();
    let (mut dialler, mut acceptor) = pair_of(&dial, &accept);
    for _ in 0..3 {
        let sealed = seal(&mut dialler, b"up").unwrap();
        assert_eq!(opened(&mut acceptor, &sealed).0, b"up");
    }
    let sealed = seal(&mut acceptor, b"down").unwrap();
    assert_eq!(opened(&mut dialler, &sealed).0, b"down");
    let (near, far) = (dialler.into_keys().unwrap(), acceptor.into_keys().unwrap());
    for (sending, receiving, sequence) in [
        (&near.sending, &far.receiving, 3),
        (&far.sending, &near.receiving, 1),
    ] {
        assert_eq!(sending.key, receiving.key);
        assert_eq!(sending.iv, receiving.iv);
        assert_eq!((sending.sequence, receiving.sequence), (sequence, sequence));
    }
    assert_ne!(near.sending.key, near.receiving.key);
}

#[test]
fn a_dialler_keeps_its_keys_until_the_acceptor_has_its_hello() {
    let (dial, accept) = for_kernel();
    let (mut dialler, mut acceptor) = pair_of(&dial, &accept);
    let hello = seal(&mut dialler, b"hello").unwrap();
    assert!(!dialler.is_exportable());
    opened(&mut acceptor, &hello);
    let reply = seal(&mut acceptor, b"reply").unwrap();
    assert_eq!(opened(&mut dialler, &reply).0, b"reply");
    assert!(dialler.is_exportable() && acceptor.is_exportable());
    let (near, far) = (dialler.into_keys().unwrap(), acceptor.into_keys().unwrap());
    assert_eq!(near.sending.key, far.receiving.key);
    assert_eq!(far.sending.key, near.receiving.key);
    assert_eq!((far.sending.sequence, near.receiving.sequence), (1, 1));

    // A stream that ends without a byte is one after the hello, too.
    let (mut dialler, mut acceptor) = pair_of(&dial, &accept);
    let end = close(&mut acceptor);
    opened(&mut dialler, &end);
    assert!(dialler.is_exportable());
}

/// Its peer is asked to change its own key too, and says so with the next bytes that it sends.
#[test]
fn both_ends_keep_their_keys_once_one_has_been_changed() {
    for (alone, with_end) in [(true, false), (false, false), (false, true)] {
        let (dial, accept) = for_kernel();
        let (mut dialler, mut acceptor) = pair_of(&dial, &accept);
        let hello = seal(&mut dialler, b"hello").unwrap();
        let mut stream = Vec::new();
        acceptor.update_key(&mut stream).unwrap();
        assert!(!acceptor.is_exportable());
        if alone {
            opened(&mut dialler, &stream);
            stream.clear();
        }
        opened(&mut acceptor, &hello);
        match with_end {
            true => stream.extend(close(&mut acceptor)),
            false => stream.extend(seal(&mut acceptor, b"reply").unwrap()),
        }
        opened(&mut dialler, &stream);
        assert!(!dialler.is_exportable() && !acceptor.is_exportable());
        let more = seal(&mut dialler, b"more").unwrap();
        assert_eq!(opened(&mut acceptor, &more).0, b"more");
        assert!(!dialler.is_exportable() && !acceptor.is_exportable());
    }
}

#[test]
fn one_end_for_the_kernel_decides_the_cipher_of_both() {
    let (dial, accept) = for_kernel();
    for (dial, accept) in [(&dial, &local().tls), (&dial_tls(), &accept)] {
        let (dialler, acceptor) = pair_of(dial, accept);
        let (mut dialler, mut acceptor) = (dialler, acceptor);
        let first = seal(&mut acceptor, b"!").unwrap();
        opened(&mut dialler, &first);
        for end in [&dialler, &acceptor] {
            let suite = end.common().negotiated_cipher_suite().unwrap().suite();
            assert_eq!(suite, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        }
        assert_ne!(dialler.is_exportable(), acceptor.is_exportable());
    }
}

#[test]
fn keys_stay_where_they_may_not_leave_or_are_in_use() {
    let (dialler, _) = pair();
    assert!(!dialler.is_exportable());
    assert!(dialler.into_keys().is_err());

    let (dial, accept) = for_kernel();
    let handshaking = Channel::dial(&dial, &mut Vec::new()).unwrap();
    assert!(!handshaking.is_exportable());

    let (mut ended, mut acceptor) = pair_of(&dial, &accept);
    let end = close(&mut ended);
    assert!(!ended.is_exportable());
    // The other end may still send.
    assert!(opened(&mut acceptor, &end).1.closed);
    assert!(acceptor.is_exportable());

    let (mut dialler, mut acceptor) = pair_of(&dial, &accept);
    let record = seal(&mut dialler, b"a record").unwrap();
    opened(&mut acceptor, &record[..9]);
    assert!(acceptor.into_keys().is_err());

    let (mut failed, _) = pair_of(&dial, &accept);
    fault(
        &mut failed,
        &[
            23, 3, 3, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    );
    assert!(!failed.is_exportable());
}

#[test]
fn the_bytes_that_are_missing_lead_to_the_end_of_the_record() {
    let len = seal(&mut pair().0, &[7; 100]).unwrap().len();
    let (mut dialler, mut acceptor) = pair();
    assert_eq!(acceptor.missing(), None);
    for at in 1..len {
        let record = seal(&mut dialler, &[7; 100]).unwrap();
        opened(&mut acceptor, &record[..at]);
        let missing = acceptor.missing().unwrap();
        assert_eq!(missing, if at < 5 { 5 - at } else { len - at }, "at {at}");
        let (mut from, mut to) = (at, at + missing);
        while to < len {
            opened(&mut acceptor, &record[from..to]);
            (from, to) = (to, to + acceptor.missing().unwrap());
        }
        assert_eq!(to, len);
        assert_eq!(opened(&mut acceptor, &record[from..]).0, [7; 100]);
        assert_eq!(acceptor.missing(), None);
    }
}

// === streams ===

#[test]
fn both_ends_know_the_key_of_the_other() {
    let (dialler, acceptor) = pair();
    assert_eq!(dialler.peer(), Some(key(1).public()));
    assert_eq!(acceptor.peer(), Some(key(2).public()));
}

#[test]
fn a_handshake_uses_the_strongest_of_tls_1_3_and_no_name() {
    let mut out = Vec::new();
    let dialler = Channel::dial(&dial_tls(), &mut out).unwrap();
    // The only name that is in the code (server_name, RFC 6066 section 3).
    assert!(!out.windows(5).any(|w| w == b"relay"));
    assert_eq!(dialler.peer(), None);
    let (dialler, _) = pair();
    let common = dialler.common();
    assert_eq!(
        common.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
    assert_eq!(
        common.negotiated_key_exchange_group().map(|g| g.name()),
        Some(rustls::NamedGroup::X25519MLKEM768)
    );
    assert_eq!(
        common.negotiated_cipher_suite().map(|s| s.suite()),
        Some(rustls::CipherSuite::TLS13_AES_128_GCM_SHA256)
    );
}

proptest! {
    #[test]
    fn a_stream_arrives_in_whatever_pieces_it_comes(
        writes in vec(vec(any::<u8>(), 0..3000), 1..6),
        sizes in vec(1_usize..2000, 1..20),
        from_dialler in any::<bool>(),
    ) {
        let (dialler, acceptor) = pair();
        let (mut sender, mut receiver) = match from_dialler {
            true => (dialler, acceptor),
            false => (acceptor, dialler),
        };
        let mut stream = Vec::new();
        for write in &writes {
            stream.extend(seal(&mut sender, write).unwrap());
        }
        stream.extend(close(&mut sender));
        let (mut rest, mut got, mut sizes) = (&stream[..], Vec::new(), sizes.into_iter().cycle());
        while !rest.is_empty() {
            prop_assert!(!receiver.is_closed());
            let (piece, after) = rest.split_at(rest.len().min(sizes.next().unwrap()));
            rest = after;
            let (plain, outcome) = opened(&mut receiver, piece);
            got.extend(plain);
            prop_assert_eq!(outcome.closed, rest.is_empty());
        }
        prop_assert_eq!(got, writes.concat());
        prop_assert!(receiver.is_closed() && receiver.partial().is_empty());
    }
}

#[test]
fn a_handshake_completes_when_it_is_split_at_every_byte() {
    let local = local();
    let mut to_acceptor = Vec::new();
    let mut dialler = Channel::dial(&dial_tls(), &mut to_acceptor).unwrap();
    let mut acceptor = Channel::accept(&local.tls).unwrap();
    let mut sent = 0;
    while !(dialler.is_established() && acceptor.is_established()) {
        let mut to_dialler = Vec::new();
        for byte in std::mem::take(&mut to_acceptor) {
            assert!(seal(&mut acceptor, b"early").is_err());
            assert!(acceptor.peer().is_none());
            open(&mut acceptor, &[byte], &mut to_dialler).unwrap();
            assert!(acceptor.partial().len() < MAX_HANDSHAKE);
            sent += 1;
        }
        for byte in to_dialler {
            assert!(seal(&mut dialler, b"early").is_err());
            open(&mut dialler, &[byte], &mut to_acceptor).unwrap();
            sent += 1;
        }
        assert!(!to_acceptor.is_empty() || acceptor.is_established());
    }
    // The handshake must stay far below its limit.
    assert!(sent < MAX_HANDSHAKE / 4, "{sent} bytes");
}

#[test]
fn nothing_is_sealed_or_closed_before_the_handshake() {
    let mut out = Vec::new();
    let mut dialler = Channel::dial(&dial_tls(), &mut out).unwrap();
    let mut acceptor = Channel::accept(&local().tls).unwrap();
    let mut flight = Vec::new();
    for channel in [&mut dialler, &mut acceptor] {
        assert!(seal(channel, b"early").is_err());
        assert!(channel.close(&mut Vec::new()).is_err());
    }
    // The acceptor has all keys now, but does not know yet who dials.
    open(&mut acceptor, &out, &mut flight).unwrap();
    assert!(seal(&mut acceptor, b"early").is_err());
    assert!(acceptor.close(&mut Vec::new()).is_err());
    out.clear();
    open(&mut dialler, &flight, &mut out).unwrap();
    open(&mut acceptor, &out, &mut Vec::new()).unwrap();
    // The attempts did not count as an end.
    let data = seal(&mut dialler, b"data").unwrap();
    assert_eq!(opened(&mut acceptor, &data).0, b"data");
    let reply = seal(&mut acceptor, b"reply").unwrap();
    assert_eq!(opened(&mut dialler, &reply).0, b"reply");
}

#[test]
fn data_behind_the_handshake_in_one_call_does_not_count_as_handshake() {
    let local = local();
    let mut first = Vec::new();
    let mut dialler = Channel::dial(&dial_tls(), &mut first).unwrap();
    let mut acceptor = Channel::accept(&local.tls).unwrap();
    let mut flight = Vec::new();
    open(&mut acceptor, &first, &mut flight).unwrap();
    let mut stream = Vec::new();
    open(&mut dialler, &flight, &mut stream).unwrap();
    let data = vec![7; 4 * MAX_HANDSHAKE];
    stream.extend(seal(&mut dialler, &data).unwrap());
    assert_eq!(opened(&mut acceptor, &stream).0, data);
}

#[test]
fn any_length_is_sealed_within_its_bound() {
    let (mut dialler, mut acceptor) = pair();
    for len in [0, 1, 2, 16_383, 16_384, 16_385, 32_768, 100_000, 1 << 20] {
        let plain = vec![len as u8; len];
        let mut cipher = vec![0; sealed_len(len)];
        let n = dialler.seal(&plain, &mut cipher).unwrap();
        assert!(n <= sealed_len(len) && (len > 0) == (n > 0));
        assert!(n >= len + len.div_ceil(16_384) * 22);
        assert_eq!(opened(&mut acceptor, &cipher[..n]).0, plain);
        for record in records(&cipher[..n]) {
            assert!(record.len() <= MAX_RECORD);
        }
    }
}

// === ends ===

#[test]
fn each_direction_ends_on_its_own() {
    for dialler_first in [true, false] {
        let (mut one, mut other) = pair();
        if !dialler_first {
            (one, other) = (other, one);
        }
        let stream = [seal(&mut one, b"last words").unwrap(), close(&mut one)].concat();
        assert!(close(&mut one).is_empty(), "a stream ends once");
        assert!(seal(&mut one, b"more").is_err());
        let (plain, outcome) = opened(&mut other, &stream);
        assert_eq!((&plain[..], outcome.closed), (&b"last words"[..], true));
        // The other direction still works, also over many records.
        let reply = vec![3; 50_000];
        let stream = seal(&mut other, &reply).unwrap();
        let (plain, outcome) = opened(&mut one, &stream);
        assert_eq!((plain, outcome.closed), (reply, false));
        assert_eq!((outcome.len, outcome.consumed), (50_000, stream.len()));
        let end = close(&mut other);
        assert!(opened(&mut one, &end).1.closed);
        assert!(one.is_closed() && other.is_closed());
        // RFC 8446 section 6.1: data after a closure alert is ignored.
        for bytes in [&b"\x17\x03\x03\0\x01x"[..], b"GET /"] {
            for end in [&mut one, &mut other] {
                let (plain, outcome) = opened(end, bytes);
                assert_eq!((plain, outcome.len, outcome.closed), (Vec::new(), 0, true));
            }
        }
        assert!(other.partial().is_empty());
    }
}

#[test]
fn a_stream_is_closed_by_no_part_of_a_close_notify() {
    let (mut dialler, mut acceptor) = pair();
    let stream = [seal(&mut dialler, b"data").unwrap(), close(&mut dialler)].concat();
    for byte in &stream[..stream.len() - 1] {
        assert!(!opened(&mut acceptor, &[*byte]).1.closed);
    }
    assert!(!acceptor.is_closed());
    assert!(opened(&mut acceptor, &stream[stream.len() - 1..]).1.closed);
}

#[test]
fn only_a_close_notify_after_the_handshake_is_an_end() {
    // In plaintext, from anybody on the path, at every stage.
    let plain = [21, 3, 3, 0, 2, 1, 0];
    let dialler = Channel::dial(&dial_tls(), &mut Vec::new()).unwrap();
    let acceptor = Channel::accept(&local().tls).unwrap();
    for mut channel in [dialler, acceptor] {
        // rustls ignores it or reports an error.
        let outcome = open(&mut channel, &plain, &mut Vec::new());
        assert!(!outcome.is_ok_and(|(_, opened)| opened.closed) && !channel.is_closed());
    }
    let (dialler, acceptor) = pair();
    for mut channel in [dialler, acceptor] {
        fault(&mut channel, &plain);
        assert!(!channel.is_closed());
    }
    // Other alerts of the peer itself are no end either.
    for alert in [[2, 0x50], [2, 0x0a], [1, 0x50], [3, 0]] {
        let (mut hostile, mut acceptor) = hostile();
        let record = hostile.seal(ContentType::Alert, &alert);
        fault(&mut acceptor, &record);
        assert!(!acceptor.is_closed());
    }
}

// === records that were changed on the way ===

/// Returns two ends and four records between them: three with data and the end.
fn conversation() -> (Channel, Vec<Vec<u8>>) {
    let (mut dialler, acceptor) = pair();
    let mut stream = Vec::new();
    for data in [b"one", b"two", b"thr"] {
        stream.extend(seal(&mut dialler, data).unwrap());
    }
    stream.extend(close(&mut dialler));
    let records = records(&stream);
    assert_eq!(records.len(), 4);
    (acceptor, records)
}

#[test]
fn a_changed_order_of_records_is_an_error_at_the_first_that_is_out_of_place() {
    // The records in the order of their arrival, and what is delivered of them.
    for (order, delivered) in [
        (&[1, 0, 2, 3][..], 0),
        (&[0, 2, 1, 3], 1),
        (&[0, 0, 1, 2, 3], 1),
        (&[0, 1, 0, 2, 3], 2),
        (&[0, 2, 3], 1),
        (&[0, 1, 3], 2),
        (&[3], 0),
        (&[1, 2, 3], 0),
    ] {
        let (mut acceptor, records) = conversation();
        let mut failed = None;
        for (at, record) in order.iter().enumerate() {
            let mut out = Vec::new();
            match open(&mut acceptor, &records[*record], &mut out) {
                Ok((plain, outcome)) => {
                    assert!(failed.is_none() && at < delivered && !outcome.closed);
                    assert_eq!(plain, ["one", "two", "thr"][at].as_bytes());
                }
                Err(error) => {
                    assert!(at >= delivered, "{order:?}");
                    // The alert goes out once.
                    assert_eq!(out.is_empty(), failed.is_some());
                    assert_eq!(*failed.get_or_insert(error.clone()), error);
                }
            }
        }
        assert!(failed.is_some(), "{order:?}");
        assert!(!acceptor.is_closed());
    }
}

#[test]
fn one_wrong_bit_anywhere_is_an_error_and_yields_nothing_after_it() {
    let (_, sample) = conversation();
    for bit in 0..sample[1].len() * 8 {
        let (mut acceptor, mut records) = conversation();
        records[1][bit / 8] ^= 1 << (bit % 8);
        assert_eq!(opened(&mut acceptor, &records[0]).0, b"one");
        let mut failed = false;
        for record in &records[1..] {
            let mut out = Vec::new();
            match open(&mut acceptor, record, &mut out) {
                // Type and version of a protected record have no meaning (RFC 8446 section 5.2).
                Ok((plain, _)) if bit / 8 < 3 => {
                    assert!(!failed && plain.iter().all(|byte| b"twothr".contains(byte)));
                }
                Ok((plain, outcome)) => {
                    // Only a record that claims to be longer waits for more bytes.
                    assert!(!failed && (3..5).contains(&(bit / 8)), "bit {bit}");
                    assert!(plain.is_empty() && !outcome.closed);
                }
                Err(_) => failed = true,
            }
        }
        assert!(failed || bit / 8 < 5);
        assert_eq!(acceptor.is_closed(), !failed && bit / 8 < 3);
    }
}

#[test]
fn a_failed_connection_sends_neither_data_nor_an_orderly_end() {
    let (mut dialler, mut acceptor) = pair();
    let mut record = seal(&mut dialler, b"data").unwrap();
    record[9] ^= 1;
    let (error, alert) = fault(&mut acceptor, &record);
    assert_eq!(seal(&mut acceptor, b"reply").unwrap_err(), error);
    let mut out = Vec::new();
    assert_eq!(acceptor.close(&mut out).unwrap_err(), error);
    assert!(out.is_empty());
    let (error, _) = fault(&mut dialler, &alert);
    assert_eq!(alert_of(error), AlertDescription::BadRecordMac);
    assert!(!dialler.is_closed());
}

#[test]
fn records_of_another_connection_or_direction_are_errors() {
    let (mut dialler, mut acceptor) = pair();
    let (mut other, _) = pair();
    let (_, recorded) = conversation();
    fault(&mut acceptor, &recorded[0]);
    let record = seal(&mut other, b"data").unwrap();
    let (_, mut acceptor) = pair();
    fault(&mut acceptor, &record);
    // Reflected to its sender.
    let record = seal(&mut dialler, b"data").unwrap();
    fault(&mut dialler, &record);
}

#[test]
fn a_replayed_handshake_is_an_error() {
    let local = local();
    let mut first = Vec::new();
    let mut dialler = Channel::dial(&dial_tls(), &mut first).unwrap();
    let (mut flight, mut last) = (Vec::new(), Vec::new());
    let mut acceptor = Channel::accept(&local.tls).unwrap();
    open(&mut acceptor, &first, &mut flight).unwrap();
    open(&mut dialler, &flight, &mut last).unwrap();
    let data = seal(&mut dialler, b"data").unwrap();

    // To the acceptor, which answers the ClientHello with other random bytes and keys.
    let mut replayed = Channel::accept(&local.tls).unwrap();
    open(&mut replayed, &first, &mut Vec::new()).unwrap();
    fault(&mut replayed, &[last, data].concat());
    assert!(!replayed.is_established());
    // To another dialler of the same relay.
    let mut redialled = Channel::dial(&dial_tls(), &mut Vec::new()).unwrap();
    fault(&mut redialled, &flight);
    assert!(!redialled.is_established());
}

/// What somebody on the path does to the records of one direction.
#[derive(Clone, Debug)]
enum Attack {
    Flip(Index, Index),
    Remove(Index),
    Repeat(Index, Index),
    Swap(Index, Index),
    /// Bytes of another direction or of the attacker's own.
    Inject(Index, Vec<u8>),
    /// Everything after this byte.
    Cut(Index),
}

fn any_attack() -> impl Strategy<Value = Attack> {
    let injected = prop_oneof![
        // A close_notify, an alert and a record of data, all in plaintext, and noise.
        Just(vec![21, 3, 3, 0, 2, 1, 0]),
        Just(vec![21, 3, 3, 0, 2, 2, 40]),
        Just(b"\x17\x03\x03\0\x04data".to_vec()),
        Just(vec![20, 3, 3, 0, 1, 1]),
        vec(any::<u8>(), 1..40),
    ];
    prop_oneof![
        (any::<Index>(), any::<Index>()).prop_map(|(r, b)| Attack::Flip(r, b)),
        any::<Index>().prop_map(Attack::Remove),
        (any::<Index>(), any::<Index>()).prop_map(|(r, to)| Attack::Repeat(r, to)),
        (any::<Index>(), any::<Index>()).prop_map(|(r, to)| Attack::Swap(r, to)),
        (any::<Index>(), injected).prop_map(|(at, bytes)| Attack::Inject(at, bytes)),
        any::<Index>().prop_map(Attack::Cut),
    ]
}

fn attacked(records: &mut Vec<Vec<u8>>, attack: &Attack) {
    let len = records.len();
    if len == 0 {
        return;
    }
    match attack {
        Attack::Flip(record, bit) => {
            let record = &mut records[record.index(len)];
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
        }
        Attack::Remove(record) => drop(records.remove(record.index(len))),
        Attack::Repeat(record, to) => {
            let record = records[record.index(len)].clone();
            records.insert(to.index(len + 1), record);
        }
        Attack::Swap(one, other) => records.swap(one.index(len), other.index(len)),
        Attack::Inject(at, bytes) => records.insert(at.index(len + 1), bytes.clone()),
        Attack::Cut(at) => {
            let mut stream = records.concat();
            stream.truncate(at.index(stream.len()));
            *records = vec![stream];
            records.retain(|record| !record.is_empty());
        }
    }
}

/// Opens records as [`open`] does. Returns `None` for a connection that fails with a second alert: only in a
/// debug build, rustls asserts that there is none.
fn try_open(
    channel: &mut Channel,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Option<Result<(Vec<u8>, Opened), ChannelError>> {
    let attempt = std::panic::AssertUnwindSafe(|| open(channel, bytes, out));
    match std::panic::catch_unwind(attempt) {
        Ok(outcome) => Some(outcome),
        Err(panic) => match panic.downcast_ref::<&str>() {
            Some(text) if text.contains("sent_fatal_alert") => None,
            _ => std::panic::resume_unwind(panic),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    // The attacker sees every record and sends what it likes instead. There are four flights: two of the
    // handshake, its end with data of the dialler, and data of the acceptor.
    #[test]
    fn an_attacker_on_the_path_delivers_nothing_that_was_not_sent(
        attacks in vec((0_usize..4, any_attack()), 0..4),
        writes in vec(1_usize..40, 1..5),
        dialler_ends in any::<bool>(),
        size in 1_usize..400,
    ) {
        let local = local();
        let mut flight = Vec::new();
        let mut dialler = Channel::dial(&dial_tls(), &mut flight).unwrap();
        let mut acceptor = Channel::accept(&local.tls).unwrap();
        let mut changed = false;
        for step in 0..4 {
            let to_acceptor = step % 2 == 0;
            let (sender, receiver) = match to_acceptor {
                true => (&mut dialler, &mut acceptor),
                false => (&mut acceptor, &mut dialler),
            };
            let mut sent = Vec::new();
            let mut ends = false;
            if step >= 2 && sender.is_established() {
                for (number, len) in writes.iter().enumerate() {
                    let data = vec![number as u8; *len];
                    if let Ok(record) = seal(sender, &data) {
                        flight.extend(record);
                        sent.extend(data);
                    }
                }
                ends = step == 3 || dialler_ends;
                if ends {
                    let _ = sender.close(&mut flight);
                }
            }
            let honest = records(&flight);
            let mut arriving = honest.clone();
            for (_, attack) in attacks.iter().filter(|(at, _)| *at == step) {
                attacked(&mut arriving, attack);
            }
            changed |= arriving.concat() != honest.concat();
            flight = Vec::new();
            let (mut got, mut failed) = (Vec::new(), false);
            for piece in arriving.concat().chunks(size) {
                match try_open(receiver, piece, &mut flight) {
                    None => return Ok(()),
                    Some(Ok((plain, _))) => {
                        prop_assert!(!failed || plain.is_empty());
                        got.extend(plain);
                    }
                    Some(Err(_)) => failed = true,
                }
                prop_assert!(receiver.partial().len() < MAX_RECORD);
            }
            prop_assert!(sent.starts_with(&got), "delivered what was not sent");
            if receiver.is_closed() {
                prop_assert_eq!(&got, &sent, "a cut stream looks whole");
                prop_assert!(ends);
            }
            if !changed {
                prop_assert!(!failed);
                prop_assert_eq!(&got, &sent);
                prop_assert_eq!(receiver.is_closed(), ends);
            }
            if receiver.is_established() {
                let expected = if to_acceptor { key(2) } else { key(1) };
                prop_assert_eq!(receiver.peer(), Some(expected.public()));
            }
        }
    }
}

// === keys ===

/// Returns cryptography whose only cipher suite may protect `limit` records with a key.
fn short_lived(limit: u64) -> Arc<rustls::crypto::CryptoProvider> {
    let suite = provider().cipher_suites[0].tls13().unwrap();
    let suite = Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: limit,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    }));
    Arc::new(rustls::crypto::CryptoProvider {
        cipher_suites: vec![SupportedCipherSuite::Tls13(suite)],
        ..(**provider()).clone()
    })
}

#[test]
fn a_key_is_changed_before_it_has_protected_too_much() {
    const LIMIT: u64 = 8;
    let dial = DialTls::with(short_lived(LIMIT), &key(2), &[key(1).public()]);
    let (mut dialler, mut acceptor) = pair_of(&dial, &local().tls);
    let mut updates = 0;
    for round in 0..200_u8 {
        // From nothing to four records in one call.
        let plain = vec![round; usize::from(round % 5) * 16_000];
        let sealed = seal(&mut dialler, &plain).unwrap();
        let count = records(&sealed).len();
        let data = plain.len().div_ceil(16_384);
        assert!((data..=data + 1).contains(&count));
        updates += count - data;
        assert_eq!(opened(&mut acceptor, &sealed).0, plain);
        // The answer to an update precedes the next data.
        if round % 7 == 0 {
            let reply = seal(&mut acceptor, b"reply").unwrap();
            assert_eq!(opened(&mut dialler, &reply).0, b"reply");
        }
    }
    // 400 records of data; a key protects at most 8, and updates are among them.
    assert!((400 / 8..=400 / 3).contains(&updates), "{updates}");
    assert!(opened(&mut acceptor, &close(&mut dialler)).1.closed);
    assert!(opened(&mut dialler, &close(&mut acceptor)).1.closed);
}

#[test]
fn a_change_of_keys_in_one_direction_survives_the_end_of_the_other() {
    let dial = DialTls::with(short_lived(4), &key(2), &[key(1).public()]);
    let (mut dialler, mut acceptor) = pair_of(&dial, &local().tls);
    assert!(opened(&mut dialler, &close(&mut acceptor)).1.closed);
    for round in 0..100 {
        let sealed = seal(&mut dialler, &[round]).unwrap();
        assert_eq!(opened(&mut acceptor, &sealed).0, [round]);
    }
    assert!(opened(&mut acceptor, &close(&mut dialler)).1.closed);
}

#[test]
fn a_record_with_the_old_key_after_a_change_is_an_error() {
    let (mut hostile, mut acceptor) = hostile();
    // KeyUpdate with update_requested (RFC 8446 section 4.6.3); its sender must change its key after it.
    let update = [u8::from(HandshakeType::KeyUpdate), 0, 0, 1, 1];
    let record = hostile.seal(ContentType::Handshake, &update);
    open(&mut acceptor, &record, &mut Vec::new()).unwrap();
    let record = hostile.seal(ContentType::ApplicationData, b"with the old key");
    fault(&mut acceptor, &record);
}

// === peers that break the protocol ===

/// A handshake message of 100 kB of which only the start is sent.
const UNFINISHED: [u8; 5] = [24, 0, 0xff, 0xff, 0];

#[test]
fn an_endless_handshake_is_refused_at_its_limit() {
    // A ClientHello of 64 kB, in records of any size.
    for size in [1, 100, 16_000] {
        let mut acceptor = Channel::accept(&local().tls).unwrap();
        let mut message = vec![1, 0, 0xff, 0xff];
        message.resize(0xffff, 3);
        let (mut sent, mut most) = (0, 0);
        let error = loop {
            let part = &message[sent..][..size];
            let header = [22, 3, 1, (size >> 8) as u8, size as u8];
            let mut out = Vec::new();
            match open(&mut acceptor, &[&header, part].concat(), &mut out) {
                Ok((plain, _)) => assert!(plain.is_empty() && out.is_empty()),
                Err(error) => break error,
            }
            most = most.max(acceptor.partial().len());
            sent += size;
        };
        assert_eq!(error, ChannelError::LongHandshake);
        assert!(most <= MAX_HANDSHAKE, "{most}");
        assert_eq!(acceptor.partial(), b"");
    }
}

#[test]
fn a_dialler_does_not_listen_to_an_endless_handshake_either() {
    let mut dialler = Channel::dial(&dial_tls(), &mut Vec::new()).unwrap();
    // Change cipher spec is ignored in a handshake (RFC 8446 appendix D.4), but not for ever.
    let mut sent = 0;
    let error = loop {
        sent += 6;
        let mut out = Vec::new();
        match open(&mut dialler, &[20, 3, 3, 0, 1, 1], &mut out) {
            Ok(_) => assert!(sent <= MAX_HANDSHAKE),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ChannelError::Tls(_)), "{error:?}");
}

#[test]
fn an_endless_message_after_the_handshake_is_refused_at_its_limit() {
    for size in [1, 1000] {
        let (mut hostile, mut acceptor) = hostile();
        let mut part = UNFINISHED.to_vec();
        let mut sent = 0;
        let error = loop {
            let record = hostile.seal(ContentType::Handshake, &part);
            sent += record.len();
            if let Err(error) = open(&mut acceptor, &record, &mut Vec::new()) {
                break error;
            }
            assert!(acceptor.partial().len() < MAX_RECORD);
            part = vec![0; size];
        };
        assert_eq!(error, ChannelError::LongHandshake);
        assert!(sent <= MAX_RECORD + 2000);
    }
}

#[test]
fn an_unfinished_message_after_the_handshake_does_not_stop_the_other_direction() {
    let (mut hostile, mut acceptor) = hostile();
    // A KeyUpdate in three records.
    for part in [&[24, 0][..], &[0, 1], &[0]] {
        let record = hostile.seal(ContentType::Handshake, part);
        opened(&mut acceptor, &record);
        assert!(seal(&mut acceptor, b"reply").is_ok());
    }
    assert!(acceptor.partial().is_empty());
    acceptor.close(&mut Vec::new()).unwrap();
}

#[test]
fn data_within_an_unfinished_message_is_an_error() {
    let (mut hostile, mut acceptor) = hostile();
    opened(
        &mut acceptor,
        &hostile.seal(ContentType::Handshake, &UNFINISHED),
    );
    fault(
        &mut acceptor,
        &hostile.seal(ContentType::ApplicationData, b"x"),
    );
}

#[test]
fn errors_around_unfinished_messages_are_reported() {
    for bytes in [
        // A ClientHello that ends in the next record, and an alert in between.
        &[22, 3, 1, 0, 5, 1, 0, 0, 100, 3, 21, 3, 3, 0, 2, 1, 0][..],
        // Two messages in one record, of which the first is an error.
        &[22, 3, 1, 0, 8, 20, 0, 0, 0, 20, 0, 0, 0],
        // The same, and the second is not complete.
        &[22, 3, 1, 0, 8, 20, 0, 0, 0, 20, 0, 0, 9],
    ] {
        let mut acceptor = Channel::accept(&local().tls).unwrap();
        fault(&mut acceptor, bytes);
        let mut dialler = Channel::dial(&dial_tls(), &mut Vec::new()).unwrap();
        fault(&mut dialler, bytes);
    }
}

#[test]
fn an_unknown_message_after_the_handshake_is_an_error() {
    for typ in [HandshakeType::NewSessionTicket, HandshakeType::ClientHello] {
        let (mut hostile, mut acceptor) = hostile();
        let message = [u8::from(typ), 0, 0, 1, 0];
        fault(
            &mut acceptor,
            &hostile.seal(ContentType::Handshake, &message),
        );
    }
    let (mut hostile, mut acceptor) = hostile();
    fault(
        &mut acceptor,
        &hostile.seal(ContentType::ChangeCipherSpec, &[1]),
    );
}

#[test]
fn empty_records_are_accepted_only_a_few_times() {
    let (mut hostile, mut acceptor) = hostile();
    let mut count = 0;
    loop {
        let record = hostile.seal(ContentType::ApplicationData, b"");
        if open(&mut acceptor, &record, &mut Vec::new()).is_err() {
            break;
        }
        count += 1;
        assert!(count < 100);
    }
}

#[test]
fn a_record_with_an_excessive_length_is_refused_by_its_header() {
    let (_, mut acceptor) = pair();
    let header = [23, 3, 3, 0xff, 0xff];
    fault(&mut acceptor, &header);
    let (_, mut acceptor) = pair();
    let len = (MAX_RECORD - 5) as u16;
    let header = [23, 3, 3, (len >> 8) as u8, len as u8];
    opened(&mut acceptor, &header);
    assert_eq!(acceptor.partial(), header);
}

#[test]
fn a_waiting_channel_needs_little_memory() {
    let (dialler, acceptor) = pair();
    assert!(size_of_val(&dialler) <= 64, "{}", size_of_val(&dialler));
    assert_eq!(acceptor.partial.capacity() + dialler.partial.capacity(), 0);
}

#[test]
fn debug_prints_the_peer_and_no_secret() {
    let (dialler, _) = pair();
    assert_eq!(
        format!("{dialler:?}"),
        format!("Channel {{ peer: Some({:?}), .. }}", key(1).public())
    );
}

// === keys of the ends ===

/// Runs a handshake and returns how each end sees it fail.
fn refused(dial: &DialTls, accept: &AcceptTls) -> (Option<ChannelError>, Option<ChannelError>) {
    let mut to_acceptor = Vec::new();
    let mut dialler = Channel::dial(dial, &mut to_acceptor).unwrap();
    let mut acceptor = Channel::accept(accept).unwrap();
    let (mut at_dialler, mut at_acceptor) = (None, None);
    for _ in 0..3 {
        let (mut answer, mut next) = (Vec::new(), Vec::new());
        let outcome = open(&mut acceptor, &to_acceptor, &mut answer);
        at_acceptor = at_acceptor.or(outcome.err());
        let outcome = open(&mut dialler, &answer, &mut next);
        at_dialler = at_dialler.or(outcome.err());
        to_acceptor = next;
    }
    (at_dialler, at_acceptor)
}

#[test]
fn an_end_with_another_key_is_refused_and_learns_why() {
    let right = local().tls;
    assert_eq!(refused(&dial_tls(), &right), (None, None));
    let unknown = rustls::Error::from(rustls::CertificateError::ApplicationVerificationFailure);
    let denied = AlertDescription::AccessDenied;
    // A dialler that is no member, and one with the acceptor's own key.
    for own in [9, 1] {
        let dial = DialTls::new(&key(own), &[key(1).public()]);
        let (at_dialler, at_acceptor) = refused(&dial, &right);
        assert_eq!(at_acceptor, Some(unknown.clone().into()));
        assert_eq!(alert_of(at_dialler.unwrap()), denied);
    }
    // An acceptor with the key of another member, and with none of a member.
    for expected in [&[key(3).public()][..], &[]] {
        let dial = DialTls::new(&key(2), expected);
        let (at_dialler, at_acceptor) = refused(&dial, &right);
        assert_eq!(at_dialler, Some(unknown.clone().into()));
        assert_eq!(alert_of(at_acceptor.unwrap()), denied);
    }
}
