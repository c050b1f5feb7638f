use proptest::prelude::*;
use rustls::ContentType;

use super::*;
use crate::dialler::{Dialler, Ready};
use crate::proxy::{self, Command};
use crate::sim::*;
use crate::tls::DialTls;
use crate::wire::kind;

/// Returns the bytes of a hello on a ready connection, and the channel after it.
fn used(ready: Ready, hello: &Hello) -> (Vec<u8>, Option<Channel>) {
    ready.hello(hello).unwrap()
}

/// Gives bytes to the acceptor, which sends nothing. Returns the result.
fn quiet(
    acceptor: &mut Acceptor,
    bytes: &[u8],
    now: Instant,
    local: &Local,
) -> Result<Event, Rejection> {
    let (outcome, out) = give(acceptor, bytes, now, local);
    assert!(out.is_empty(), "{outcome:?}");
    outcome
}

fn arrived(hello: Hello, early: &[u8]) -> Event {
    Event::Hello {
        hello: Box::new(hello),
        early: early.to_vec(),
    }
}

/// Returns an acceptor for a connection of member `b` in a trusted network.
fn trusting(now: Instant, members: &Members) -> Acceptor {
    Acceptor::new(now, &Limits::default(), members.by_name("b").cloned())
}

// === connections for rows ===

#[test]
fn a_connection_for_rows_is_one_of_a_member_and_for_this_relay() {
    let (now, local) = (Instant::now(), relay("a", 1, &members()));
    let arrive = |message: &[u8]| {
        let mut acceptor = trusting(now, &local.members);
        let outcome = quiet(&mut acceptor, message, now, &local);
        (outcome, acceptor)
    };
    let own = Hello::for_rows(&"a".parse().unwrap());
    let (outcome, acceptor) = arrive(&[&own[..], b"frames"].concat());
    let early = b"frames".to_vec();
    assert_eq!(outcome, Ok(Event::Rows { early }));
    assert_eq!(acceptor.member().unwrap().name.as_str(), "b");
    let (outcome, _) = arrive(&Hello::for_rows(&"c".parse().unwrap()));
    assert_eq!(outcome, Err(Rejection::Misdirected));
    // Its last byte is the purpose.
    let mut other = own.clone();
    *other.last_mut().unwrap() = 2;
    assert_eq!(arrive(&other).0, Err(Rejection::BadFrame));
    let mut stranger = Acceptor::new(now, &Limits::default(), None);
    let outcome = quiet(&mut stranger, &own, now, &local);
    assert_eq!(outcome, Err(Rejection::Unprotected));
}

// === accepted sessions ===

proptest! {
    #[test]
    fn a_session_gets_through_in_whatever_pieces_it_comes(
        hello in any_hello(),
        sizes in proptest::collection::vec(1_usize..400, 1..40),
        payload in proptest::collection::vec(any::<u8>(), 0..1000),
        protected in any::<bool>(),
    ) {
        let (now, local) = (Instant::now(), relay(hello.receiver.as_str(), 1, &members()));
        let mut sizes = sizes.into_iter().cycle();
        let mut acceptor = trusting(now, &local.members);
        let (mut stream, channel) = if protected {
            let (mut dialler, mut to_acceptor) = dialled(now, &dial_tls());
            while !dialler.is_ready() {
                let mut to_dialler = Vec::new();
                for piece in to_acceptor.chunks(sizes.next().unwrap()) {
                    let (outcome, out) = give(&mut acceptor, piece, now, &local);
                    prop_assert_eq!(outcome, Ok(Event::More));
                    to_dialler.extend(out);
                }
                to_acceptor.clear();
                for piece in to_dialler.chunks(sizes.next().unwrap()) {
                    to_acceptor.extend(answer(&mut dialler, piece, now).1);
                }
            }
            // A fresh connection: the end of the handshake, hello and data in one write.
            let (message, channel) = used(dialler.ready().unwrap(), &hello);
            ([to_acceptor, message].concat(), channel)
        } else {
            used(Ready::trusted(), &hello)
        };
        match channel {
            Some(mut channel) => stream.extend(seal(&mut channel, &payload).unwrap()),
            None => stream.extend(&payload),
        }
        let (mut rest, mut proven) = (&stream[..], 0);
        let (got, mut early) = loop {
            let (piece, after) = rest.split_at(rest.len().min(sizes.next().unwrap()));
            rest = after;
            match quiet(&mut acceptor, piece, now, &local).unwrap() {
                Event::More => {}
                Event::Proven => proven += 1,
                Event::Hello { hello, early } => break (hello, early),
                Event::Rows { .. } => unreachable!("it is a session"),
            }
            prop_assert!(!rest.is_empty());
        };
        prop_assert_eq!(*got, hello);
        // It is told once, unless handshake and hello end in the same call.
        prop_assert!(proven <= usize::from(protected));
        prop_assert!(acceptor.is_proven() && acceptor.hello_begun());
        prop_assert_eq!(acceptor.member().unwrap().name.as_str(), "b");
        match acceptor.into_channel() {
            Some(mut channel) => early.extend(open(&mut channel, rest, &mut Vec::new()).unwrap().0),
            None => early.extend(rest),
        }
        prop_assert_eq!(early, payload);
    }
}

#[test]
fn proof_hello_and_much_data_arrive_in_one_call() {
    let (now, local) = (Instant::now(), local());
    let (mut dialler, first) = dialled(now, &dial_tls());
    let mut acceptor = accepted(now);
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    let (_, mut stream) = answer(&mut dialler, &flight, now);
    let (message, channel) = used(dialler.ready().unwrap(), &hello());
    let data = vec![5; 200_000];
    stream.extend(message);
    stream.extend(seal(&mut channel.unwrap(), &data).unwrap());
    assert_eq!(
        quiet(&mut acceptor, &stream, now, &local),
        Ok(arrived(hello(), &data))
    );
}

#[test]
fn a_hello_may_span_records_and_share_one_with_data() {
    let (now, local) = (Instant::now(), local());
    let (dialler, acceptor) = pair();
    drop((dialler, acceptor));
    let message = hello().encode();
    for cut in [1, 15, 16, 17, message.len() - 1] {
        let mut acceptor = accepted(now);
        let mut first = Vec::new();
        let mut channel = Channel::dial(&dial_tls(), &mut first).unwrap();
        let (_, flight) = give(&mut acceptor, &first, now, &local);
        let mut last = Vec::new();
        open(&mut channel, &flight, &mut last).unwrap();
        assert_eq!(quiet(&mut acceptor, &last, now, &local), Ok(Event::Proven));
        let start = seal(&mut channel, &message[..cut]).unwrap();
        assert_eq!(quiet(&mut acceptor, &start, now, &local), Ok(Event::More));
        assert!(acceptor.hello_begun());
        let rest = [&message[cut..], b"data"].concat();
        let rest = seal(&mut channel, &rest).unwrap();
        let outcome = quiet(&mut acceptor, &rest, now, &local);
        assert_eq!(outcome, Ok(arrived(hello(), b"data")));
    }
}

#[test]
fn the_end_of_the_handshake_is_told_with_a_part_of_the_hello_behind_it() {
    let (now, local) = (Instant::now(), local());
    let mut acceptor = accepted(now);
    let mut first = Vec::new();
    let mut channel = Channel::dial(&dial_tls(), &mut first).unwrap();
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    let mut stream = Vec::new();
    open(&mut channel, &flight, &mut stream).unwrap();
    let message = hello().encode();
    stream.extend(seal(&mut channel, &message[..20]).unwrap());
    assert_eq!(
        quiet(&mut acceptor, &stream, now, &local),
        Ok(Event::Proven)
    );
    assert!(acceptor.hello_begun());
    assert_eq!(acceptor.deadline(), now + Limits::default().hello);
}

#[test]
fn a_waiting_connection_needs_little_memory() {
    let (acceptor, ready) = proven(Instant::now());
    // rustls has some more on the heap, about which it promises nothing.
    assert!(size_of_val(&acceptor) <= 200, "{}", size_of_val(&acceptor));
    assert!(size_of_val(&ready) <= 64, "{}", size_of_val(&ready));
    assert_eq!(acceptor.framer.heap(), 0);
    assert!(acceptor.partial().is_empty() && ready.partial().is_empty());
}

#[test]
fn unknown_fields_are_ignored() {
    let now = Instant::now();
    let mut message = hello().encode();
    proxy::push_tlv(&mut message, 0xe9, b"from the future");
    proxy::push_tlv(&mut message, proxy::kind::NOOP, &[0; 9]);
    let len = message.len();
    proxy::set_length(&mut message, len);
    let mut acceptor = trusting(now, &members());
    assert_eq!(
        quiet(&mut acceptor, &message, now, &local()),
        Ok(arrived(hello(), b""))
    );
}

#[test]
fn a_connection_has_one_hello_and_keeps_the_stream_after_it() {
    let (now, local) = (Instant::now(), local());
    let (mut acceptor, ready) = proven(now);
    let (message, channel) = used(ready, &hello());
    quiet(&mut acceptor, &message, now, &local).unwrap();
    assert_eq!(acceptor.expired(now + 3600 * SECOND), None);
    assert_eq!(acceptor.closed(), None);
    // Bytes of the session are not opened here.
    let data = seal(&mut channel.unwrap(), b"data").unwrap();
    assert_eq!(quiet(&mut acceptor, &data, now, &local), Ok(Event::More));
    let mut channel = acceptor.into_channel().unwrap();
    let (plain, _) = open(&mut channel, &data, &mut Vec::new()).unwrap();
    assert_eq!(plain, b"data");
}

// === keys and members ===

#[test]
fn both_ends_learn_who_refused_whom() {
    let now = Instant::now();
    let all = members();
    let a = relay("a", 1, &all);
    let b_to_a = DialTls::new(&key(2), &[key(1).public()]);
    let (acceptor, seen, ready) = shake(&b_to_a, &a, now);
    assert_eq!(seen, Ok(Event::Proven));
    assert_eq!(acceptor.member().unwrap().name, name("b"));
    assert_eq!(ready.unwrap().peer(), Some(key(1).public()));

    // A stranger, the acceptor's own key (a connection to its own port), and a member that was removed.
    let without_b = relay("a", 1, &list(&[("a", &[1]), ("c", &[3])]));
    for (own, local) in [(9, &a), (1, &a), (2, &without_b)] {
        let dial = DialTls::new(&key(own), &[key(1).public()]);
        let (acceptor, seen, ready) = shake(&dial, local, now);
        assert_eq!(seen, Err(Rejection::UnknownKey));
        assert_eq!(ready.err(), Some(Rejection::KeyRefused));
        assert!(!acceptor.is_proven() && acceptor.member().is_none());
        assert_eq!(acceptor.closed(), Some(Rejection::UnknownKey));
    }
    // Another member than the one that was dialled.
    let b_to_c = DialTls::new(&key(2), &[key(3).public()]);
    let (acceptor, seen, ready) = shake(&b_to_c, &a, now);
    assert_eq!(ready.err(), Some(Rejection::UnknownKey));
    assert_eq!(seen, Err(Rejection::KeyRefused));
    assert!(!acceptor.is_proven());
}

#[test]
fn a_stranger_receives_nothing_but_the_handshake_of_its_own() {
    let (now, local) = (Instant::now(), local());
    for stranger in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"SSH-2.0-x\r\n",
        &hello().encode(),
        &[0],
        &[0xff; 100],
        // An alert and data in plaintext.
        &[21, 3, 3, 0, 2, 1, 0],
        &[23, 3, 3, 0, 1, 0],
    ] {
        let mut acceptor = accepted(now);
        assert_eq!(
            quiet(&mut acceptor, stranger, now, &local),
            Err(Rejection::Unprotected)
        );
        assert!(!acceptor.is_proven() && acceptor.into_channel().is_none());
    }
    // What begins as a record of a handshake gets an alert at most.
    for stranger in [&[22; 100][..], b"\x16\x03\x01\0\x04\x01\0\0\0"] {
        let mut acceptor = accepted(now);
        let (outcome, out) = give(&mut acceptor, stranger, now, &local);
        assert_eq!(outcome, Err(Rejection::Tls));
        assert!(out.is_empty() || (out[0] == 21 && out.len() == 7));
    }
}

#[test]
fn a_client_of_tls_1_2_is_refused() {
    let (now, local) = (Instant::now(), local());
    let (_, mut first) = dialled(now, &dial_tls());
    // The value of supported_versions (RFC 8446 section 4.2.1): TLS 1.2 only.
    let at = first
        .windows(7)
        .position(|w| w == [0, 43, 0, 3, 2, 3, 4])
        .unwrap();
    first[at + 6] = 3;
    let (outcome, out) = give(&mut accepted(now), &first, now, &local);
    assert_eq!(outcome, Err(Rejection::Tls));
    // protocol_version (70).
    assert_eq!(out[out.len() - 2..], [2, 70]);
}

#[test]
fn a_key_is_replaced_without_refusals() {
    let now = Instant::now();
    // The acceptor `a` gets key 4 for key 1. Lists and its own key change one after the other.
    let (old, both, new) = (&[1][..], &[1, 4][..], &[4][..]);
    let steps = [(old, 1), (both, 1), (both, 4), (new, 4)];
    for (i, (at_a, own)) in steps.iter().enumerate() {
        for (j, (at_b, _)) in steps.iter().enumerate() {
            let local = relay("a", *own, &list(&[("a", at_a), ("b", &[2])]));
            let keys: Vec<_> = at_b.iter().map(|number| key(*number).public()).collect();
            let (_, seen, ready) = shake(&DialTls::new(&key(2), &keys), &local, now);
            // Relays are at most one step apart.
            let expected = i.abs_diff(j) <= 1 || at_b.contains(own);
            assert_eq!(seen.is_ok() && ready.is_ok(), expected, "{i} {j}");
        }
    }
    // The same for the dialler's key.
    for own in [2, 5] {
        let local = relay("a", 1, &list(&[("a", &[1]), ("b", &[2, 5])]));
        let (acceptor, seen, _) = shake(&DialTls::new(&key(own), &[key(1).public()]), &local, now);
        assert_eq!(seen, Ok(Event::Proven));
        assert_eq!(acceptor.member().unwrap().name, name("b"));
    }
}

#[test]
fn a_member_that_is_removed_during_its_handshake_is_refused() {
    let (now, local) = (Instant::now(), local());
    let (mut dialler, first) = dialled(now, &dial_tls());
    let mut acceptor = accepted(now);
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    let (_, last) = answer(&mut dialler, &flight, now);
    let less = list(&[("a", &[1]), ("c", &[3])]);
    assert!(acceptor.is_current(&less), "its key is not known yet");
    // TLS was begun with the old list; the new one decides.
    let outcome = quiet(&mut acceptor, &last, now, &relay("a", 1, &less));
    assert_eq!(outcome, Err(Rejection::UnknownKey));
    assert!(!acceptor.is_proven());
}

#[test]
fn a_connection_is_current_as_long_as_its_key_belongs_to_the_same_member() {
    let (acceptor, _) = proven(Instant::now());
    for (list, current) in [
        (list(&[("a", &[1]), ("b", &[2])]), true),
        (list(&[("b", &[2, 5]), ("x", &[7])]), true),
        (list(&[("b", &[5, 2])]), true),
        // Removed; another key; the key is another member's; no list.
        (list(&[("a", &[1])]), false),
        (list(&[("b", &[5])]), false),
        (list(&[("b", &[5]), ("d", &[2])]), false),
        (list(&[("d", &[2])]), false),
        (list(&[]), false),
    ] {
        assert_eq!(acceptor.is_current(&list), current, "{list:?}");
    }
    let mut labelled = (**members().by_name("b").unwrap()).clone();
    labelled.site = Some("fra".into());
    assert!(acceptor.is_current(&Members::new(vec![labelled]).unwrap()));
}

// === trusted networks ===

#[test]
fn a_trusted_network_allows_plain_hellos_and_tls() {
    let (now, local) = (Instant::now(), local());
    let mut acceptor = trusting(now, &local.members);
    assert!(acceptor.is_proven() && !acceptor.hello_begun());
    assert_eq!(acceptor.closed(), None, "a ready connection was given back");
    assert_eq!(acceptor.deadline(), now + Limits::default().idle);
    assert_eq!(acceptor.member().unwrap().name, name("b"));
    let stream = [&hello().encode()[..], b"data"].concat();
    assert_eq!(
        quiet(&mut acceptor, &stream, now, &local),
        Ok(arrived(hello(), b"data"))
    );
    assert!(acceptor.into_channel().is_none());

    // With TLS the key decides, not the address.
    let mut acceptor = trusting(now, &local.members);
    let dial = DialTls::new(&key(3), &[key(1).public()]);
    let (mut dialler, first) = dialled(now, &dial);
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    assert!(!acceptor.is_proven() && acceptor.member().is_none());
    assert_eq!(acceptor.closed(), Some(Rejection::ClosedEarly));
    assert_eq!(acceptor.deadline(), now + Limits::default().handshake);
    let (_, last) = answer(&mut dialler, &flight, now);
    assert_eq!(quiet(&mut acceptor, &last, now, &local), Ok(Event::Proven));
    assert_eq!(acceptor.member().unwrap().name, name("c"));
    // A stranger is no better off there.
    let mut acceptor = trusting(now, &local.members);
    let (mut dialler, first) = dialled(now, &DialTls::new(&key(9), &[key(1).public()]));
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    let (_, last) = answer(&mut dialler, &flight, now);
    let (outcome, _) = give(&mut acceptor, &last, now, &local);
    assert_eq!(outcome, Err(Rejection::UnknownKey));
}

#[test]
fn garbage_in_a_trusted_network_is_refused_at_its_first_wrong_byte() {
    let (now, local) = (Instant::now(), local());
    for garbage in [&b"GET / HTTP/1.1"[..], b"\r\nX", &[0], &[21, 3, 3]] {
        let mut acceptor = trusting(now, &local.members);
        assert_eq!(
            quiet(&mut acceptor, garbage, now, &local),
            Err(Rejection::BadFrame)
        );
    }
}

#[test]
fn a_member_that_is_removed_loses_its_plain_connections_too() {
    let (now, all) = (Instant::now(), members());
    let less = list(&[("a", &[1]), ("c", &[3])]);
    let changed = list(&[("a", &[1]), ("b", &[5])]);
    for list in [&less, &changed] {
        let mut acceptor = trusting(now, &all);
        assert!(acceptor.is_current(&all));
        assert!(!acceptor.is_current(list), "before its first byte");
        let outcome = quiet(&mut acceptor, &hello().encode(), now, &relay("a", 1, list));
        assert_eq!(outcome, Err(Rejection::UnknownKey));
    }
    let mut acceptor = trusting(now, &all);
    quiet(&mut acceptor, &hello().encode()[..20], now, &local()).unwrap();
    assert!(acceptor.is_current(&all) && !acceptor.is_current(&less));
    assert!(!acceptor.is_current(&changed));
}

// === hellos for others, and damage ===

#[test]
fn a_hello_to_another_relay_is_refused() {
    let (now, local) = (Instant::now(), local());
    // Another member, the dialler itself, and names that only look alike.
    for receiver in ["c", "b", "A", "a.", "aa"] {
        let hello = Hello {
            receiver: name(receiver),
            ..hello()
        };
        let (mut acceptor, ready) = proven(now);
        let (message, _) = used(ready, &hello);
        assert_eq!(
            quiet(&mut acceptor, &message, now, &local),
            Err(Rejection::Misdirected)
        );
        let mut acceptor = trusting(now, &local.members);
        assert_eq!(
            quiet(&mut acceptor, &hello.encode(), now, &local),
            Err(Rejection::Misdirected)
        );
    }
}

#[test]
fn one_wrong_bit_in_a_sealed_hello_dials_nothing() {
    let (now, local) = (Instant::now(), local());
    let (_, ready) = proven(now);
    let len = used(ready, &hello()).0.len();
    for bit in (24..40).chain(40..len * 8).step_by(3) {
        let (mut acceptor, ready) = proven(now);
        let (mut message, _) = used(ready, &hello());
        message[bit / 8] ^= 1 << (bit % 8);
        let (outcome, _) = give(&mut acceptor, &message, now, &local);
        match outcome {
            Err(rejection) => assert_eq!(rejection, Rejection::Tls),
            // The record's length grew.
            Ok(Event::More) => assert!(bit / 8 < 5),
            Ok(event) => panic!("bit {bit}: {event:?}"),
        }
    }
}

#[test]
fn a_recorded_session_is_refused() {
    let (now, local) = (Instant::now(), local());
    let mut acceptor = accepted(now);
    let (mut dialler, first) = dialled(now, &dial_tls());
    let (_, flight) = give(&mut acceptor, &first, now, &local);
    let (_, last) = answer(&mut dialler, &flight, now);
    let (recorded, _) = used(dialler.ready().unwrap(), &hello());

    let mut replayed = accepted(now);
    assert_eq!(give(&mut replayed, &first, now, &local).0, Ok(Event::More));
    let (outcome, _) = give(&mut replayed, &[&last[..], &recorded].concat(), now, &local);
    assert_eq!(outcome, Err(Rejection::Tls));
    // A recorded hello on another connection.
    let (mut other, _) = proven(now);
    assert_eq!(
        give(&mut other, &recorded, now, &local).0,
        Err(Rejection::Tls)
    );
}

#[test]
fn a_rejection_is_final() {
    let (now, local) = (Instant::now(), local());
    let mut acceptor = accepted(now);
    let (_, first) = dialled(now, &dial_tls());
    for bytes in [&b"GET"[..], b"", &first] {
        assert_eq!(
            quiet(&mut acceptor, bytes, now, &local),
            Err(Rejection::Unprotected)
        );
    }
    assert_eq!(acceptor.closed(), Some(Rejection::Unprotected));
    assert_eq!(acceptor.expired(now + 3600 * SECOND), None);
}

#[test]
fn a_hello_with_an_excessive_length_is_refused_before_it_is_read() {
    let (now, local) = (Instant::now(), local());
    for (len, expected) in [
        (MAX_HELLO, Ok(Event::More)),
        (MAX_HELLO + 1, Err(Rejection::TooLong)),
        (0xffff, Err(Rejection::TooLong)),
    ] {
        let mut start = proxy::bare_start(Command::Proxy);
        proxy::set_length(&mut start, len);
        let mut acceptor = trusting(now, &local.members);
        assert_eq!(quiet(&mut acceptor, &start, now, &local), expected);
    }
}

#[test]
fn an_endless_handshake_is_too_long() {
    let (now, local) = (Instant::now(), local());
    let mut acceptor = accepted(now);
    // A ClientHello of 64 kB in records of 1 kB.
    let mut record = vec![22, 3, 1, 4, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + 1024, 3);
    let mut sent = 0;
    let refused = loop {
        match quiet(&mut acceptor, &record, now, &local) {
            Ok(event) => assert_eq!(event, Event::More),
            Err(rejection) => break rejection,
        }
        record[5..].fill(3);
        sent += record.len();
        assert!(acceptor.partial().len() <= sent);
    };
    assert_eq!(refused, Rejection::TooLong);
    assert!(sent <= 17_000 && acceptor.partial().is_empty());
}

#[test]
fn another_version_is_reported_as_such() {
    let (now, local) = (Instant::now(), local());
    let mut message = hello().encode();
    // The offset of the first field after two IPv4 addresses.
    assert_eq!(message[28..32], [kind::VERSION, 0, 1, 2]);
    message[31] = 3;
    // The version comes before what another version may have changed, such as the receiver.
    message[35] ^= 1;
    let mut acceptor = trusting(now, &local.members);
    assert_eq!(
        quiet(&mut acceptor, &message, now, &local),
        Err(Rejection::Version)
    );
}

#[test]
fn a_member_that_breaks_tls_after_its_handshake_is_refused() {
    for (typ, payload) in [
        (ContentType::Handshake, &[4, 0, 0, 1, 0][..]),
        (ContentType::Alert, &[2, 80]),
        (ContentType::ChangeCipherSpec, &[1]),
    ] {
        let (now, local) = (Instant::now(), local());
        let mut tls = dial_tls();
        Arc::get_mut(&mut tls.0).unwrap().enable_secret_extraction = true;
        let mut first = Vec::new();
        let mut channel = Channel::dial(&tls, &mut first).unwrap();
        let mut acceptor = accepted(now);
        let (_, flight) = give(&mut acceptor, &first, now, &local);
        let mut last = Vec::new();
        open(&mut channel, &flight, &mut last).unwrap();
        quiet(&mut acceptor, &last, now, &local).unwrap();
        let mut hostile = Hostile::new(channel.into_secrets());
        let (outcome, _) = give(&mut acceptor, &hostile.seal(typ, payload), now, &local);
        assert_eq!(outcome, Err(Rejection::Tls));
    }
}

// === ends ===

#[test]
fn a_close_is_an_error_unless_an_unused_connection_is_given_back() {
    let (now, local) = (Instant::now(), local());
    let early = Some(Rejection::ClosedEarly);
    assert_eq!(accepted(now).closed(), None, "it has sent nothing");
    let (mut dialler, first) = dialled(now, &dial_tls());
    let mut acceptor = accepted(now);
    quiet(&mut acceptor, &first[..1], now, &local).unwrap();
    assert_eq!(acceptor.closed(), early);
    let (_, flight) = give(&mut acceptor, &first[1..], now, &local);
    assert_eq!(acceptor.closed(), early);
    let (_, last) = answer(&mut dialler, &flight, now);
    quiet(&mut acceptor, &last[..last.len() - 1], now, &local).unwrap();
    assert_eq!(acceptor.closed(), early);
    let end = &last[last.len() - 1..];
    assert_eq!(quiet(&mut acceptor, end, now, &local), Ok(Event::Proven));
    assert_eq!(acceptor.closed(), None);
    let (message, _) = used(dialler.ready().unwrap(), &hello());
    // A part of a record says nothing yet; a hello that is cut there never was one.
    quiet(&mut acceptor, &message[..40], now, &local).unwrap();
    assert!(!acceptor.hello_begun());
    quiet(&mut acceptor, &message[40..], now, &local).unwrap();
    assert_eq!(
        acceptor.closed(),
        None,
        "the session's end is the session's"
    );
}

#[test]
fn a_close_notify_gives_an_unused_connection_back_and_cuts_a_hello() {
    let (now, local) = (Instant::now(), local());
    for sent in [0, 20] {
        let mut first = Vec::new();
        let mut channel = Channel::dial(&dial_tls(), &mut first).unwrap();
        let mut acceptor = accepted(now);
        let (_, flight) = give(&mut acceptor, &first, now, &local);
        let mut last = Vec::new();
        open(&mut channel, &flight, &mut last).unwrap();
        quiet(&mut acceptor, &last, now, &local).unwrap();
        let part = &hello().encode()[..sent];
        let stream = [seal(&mut channel, part).unwrap(), close(&mut channel)].concat();
        let outcome = quiet(&mut acceptor, &stream, now, &local);
        if sent == 0 {
            assert_eq!(outcome, Ok(Event::More));
            assert_eq!(acceptor.closed(), None);
        } else {
            assert_eq!(outcome, Err(Rejection::ClosedEarly));
        }
    }
}

// === draining ===

#[test]
fn a_hello_that_crosses_the_withdrawal_is_served_and_its_streams_are_whole() {
    let (now, local) = (Instant::now(), local());
    let (mut acceptor, ready) = proven(now);
    let (mut stream, channel) = used(ready, &hello());
    let mut dialler = channel.unwrap();
    stream.extend(seal(&mut dialler, b"first").unwrap());
    let mut told = Vec::new();
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    assert_eq!(records(&told).len(), 1, "it is said once");
    assert_eq!(
        quiet(&mut acceptor, &stream, now, &local),
        Ok(arrived(hello(), b"first"))
    );
    let mut acceptor = acceptor.into_channel().unwrap();
    let reply = [
        told,
        seal(&mut acceptor, b"reply").unwrap(),
        close(&mut acceptor),
    ]
    .concat();
    let mut answer = Vec::new();
    let (plain, outcome) = open(&mut dialler, &reply, &mut answer).unwrap();
    assert_eq!((&plain[..], outcome.closed), (&b"reply"[..], true));
    // The dialler's answer to the KeyUpdate does not disturb its stream either.
    answer.extend(seal(&mut dialler, b"more").unwrap());
    answer.extend(close(&mut dialler));
    let (plain, outcome) = open(&mut acceptor, &answer, &mut Vec::new()).unwrap();
    assert_eq!((&plain[..], outcome.closed), (&b"more"[..], true));
}

#[test]
fn nothing_is_withdrawn_before_the_proof_or_after_the_hello_or_in_plaintext() {
    let (now, local) = (Instant::now(), local());
    let mut told = Vec::new();
    let (_, first) = dialled(now, &dial_tls());
    let mut acceptor = accepted(now);
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    give(&mut acceptor, &first, now, &local).0.unwrap();
    acceptor.withdraw(Withdrawal::Draining, &mut told);

    let (mut acceptor, ready) = proven(now);
    let (stream, _) = used(ready, &hello());
    quiet(&mut acceptor, &stream, now, &local).unwrap();
    acceptor.withdraw(Withdrawal::Draining, &mut told);

    let mut acceptor = trusting(now, &local.members);
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    let stream = hello().encode();
    quiet(&mut acceptor, &stream[..1], now, &local).unwrap();
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    assert!(told.is_empty());
}

// === time ===

#[test]
fn bytes_that_trickle_in_do_not_extend_the_deadline() {
    let (start, local) = (Instant::now(), local());
    let limits = Limits::default();
    let trickle = |acceptor: &mut Acceptor, bytes: &[u8], limit, cause| {
        let (mut now, mut sent) = (start, 0);
        let refused = loop {
            match give(acceptor, &bytes[sent..=sent], now, &local).0 {
                Ok(event) => assert_eq!(event, Event::More),
                Err(cause) => break cause,
            }
            assert_eq!(acceptor.deadline(), start + limit);
            sent += 1;
            now += SECOND;
        };
        assert_eq!((refused, now), (cause, start + limit));
    };
    let (mut dialler, first) = dialled(start, &dial_tls());
    let late = Rejection::TimedOutHandshake;
    trickle(&mut accepted(start), &first, limits.handshake, late);
    // Also in a trusted network, once TLS has begun.
    let mut acceptor = trusting(start, &local.members);
    trickle(&mut acceptor, &first, limits.handshake, late);

    let mut acceptor = accepted(start);
    let (_, flight) = give(&mut acceptor, &first, start, &local);
    let (_, last) = answer(&mut dialler, &flight, start);
    trickle(&mut acceptor, &last, limits.handshake, late);

    let late = Rejection::TimedOutHello;
    let mut acceptor = trusting(start, &local.members);
    trickle(&mut acceptor, &hello().encode(), limits.hello, late);
}

#[test]
fn a_hello_in_records_of_one_byte_has_its_limit_from_the_first() {
    let (start, local) = (Instant::now(), local());
    let mut first = Vec::new();
    let mut channel = Channel::dial(&dial_tls(), &mut first).unwrap();
    let mut acceptor = accepted(start);
    let (_, flight) = give(&mut acceptor, &first, start, &local);
    let mut last = Vec::new();
    open(&mut channel, &flight, &mut last).unwrap();
    quiet(&mut acceptor, &last, start, &local).unwrap();
    let mut now = start + 60 * SECOND;
    let begun = now;
    for byte in hello().encode() {
        let record = seal(&mut channel, &[byte]).unwrap();
        let outcome = quiet(&mut acceptor, &record, now, &local);
        if now < begun + Limits::default().hello {
            assert_eq!(outcome, Ok(Event::More));
        } else {
            assert_eq!(outcome, Err(Rejection::TimedOutHello));
            return;
        }
        now += SECOND;
    }
    panic!("the limit was extended");
}

#[test]
fn a_part_of_a_record_has_the_limit_of_a_hello() {
    let (start, local) = (Instant::now(), local());
    let limits = Limits::default();
    let (mut acceptor, ready) = proven(start);
    let (stream, _) = used(ready, &hello());
    quiet(&mut acceptor, &stream[..1], start, &local).unwrap();
    let (last, limit) = (start + limits.hello - SECOND, start + limits.hello);
    quiet(&mut acceptor, &stream[1..9], last, &local).unwrap();
    assert_eq!(acceptor.deadline(), limit);
    assert_eq!(acceptor.expired(last), None);
    assert_eq!(acceptor.expired(limit), Some(Rejection::TimedOutHello));
}

#[test]
fn a_proven_connection_may_wait_and_the_hello_limit_starts_at_its_first_byte() {
    let (start, local) = (Instant::now(), local());
    let limits = Limits::default();
    let (mut acceptor, ready) = proven(start);
    assert_eq!(acceptor.deadline(), start + limits.idle);
    let late = start + limits.idle - SECOND;
    assert_eq!(acceptor.expired(late), None);
    let (message, _) = used(ready, &hello());
    assert_eq!(
        quiet(&mut acceptor, &message, late, &local),
        Ok(arrived(hello(), b""))
    );

    let mut acceptor = trusting(start, &local.members);
    let message = hello().encode();
    quiet(&mut acceptor, &message[..1], late, &local).unwrap();
    assert_eq!(acceptor.deadline(), late + limits.hello);
    let outcome = quiet(&mut acceptor, &message[1..], late + 4 * SECOND, &local);
    assert_eq!(outcome, Ok(arrived(hello(), b"")));
}

#[test]
fn an_unused_connection_times_out() {
    let (start, local) = (Instant::now(), local());
    let end = start + Limits::default().idle;
    let (mut acceptor, ready) = proven(start);
    assert_eq!(acceptor.expired(end), Some(Rejection::TimedOutIdle));
    let (message, _) = used(ready, &hello());
    assert_eq!(
        quiet(&mut acceptor, &message, end, &local),
        Err(Rejection::TimedOutIdle)
    );
    let acceptor = trusting(start, &local.members);
    assert_eq!(acceptor.expired(end), Some(Rejection::TimedOutIdle));
    let late = start + Limits::default().handshake;
    assert_eq!(
        accepted(start).expired(late),
        Some(Rejection::TimedOutHandshake)
    );
}

#[test]
fn huge_limits_do_not_overflow() {
    let limits = Limits {
        handshake: Duration::MAX,
        idle: Duration::MAX,
        hello: Duration::MAX,
    };
    let now = Instant::now();
    assert_eq!(Acceptor::new(now, &limits, None).expired(now), None);
    let mut out = Vec::new();
    let dialler = Dialler::new(&dial_tls(), now, Duration::MAX, &mut out).unwrap();
    assert_eq!(dialler.expired(now), None);
}
