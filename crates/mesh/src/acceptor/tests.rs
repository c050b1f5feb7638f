use proptest::prelude::*;

use super::*;
use crate::dialler::Dialler;
use crate::proxy::{self, Command};
use crate::sim::*;
use crate::wire::kind;

// === accepted sessions ===

proptest! {
    #[test]
    fn a_session_gets_through_in_whatever_pieces_it_comes(
        hello in any_hello(),
        sizes in proptest::collection::vec(1_usize..400, 1..40),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let now = Instant::now();
        let mut sizes = sizes.into_iter().cycle();
        let mut most = || sizes.next().unwrap_or(1);
        let mut acceptor = accepted(now);
        let (mut dialler, opening) = dialled(now);

        let mut rest = &opening[..];
        let greeting = loop {
            if let Some(event) = feed(&mut acceptor, &mut rest, most(), now, &keys()).unwrap() {
                break event;
            }
        };
        let Event::Greet(greeting) = greeting else { panic!("{greeting:?}") };
        let mut rest = &greeting[..];
        let proof = loop {
            if let Some(proof) = feed(&mut dialler, &mut rest, most(), now, &keys()).unwrap() {
                break proof;
            }
        };

        // A fresh connection: proof, hello and the client's bytes in one write.
        let mut stream = proof;
        stream.extend(dialler.ready().unwrap().hello(&hello));
        stream.extend(&payload);
        let mut rest = &stream[..];
        let mut events = Vec::new();
        while events.len() < 2 {
            events.extend(feed(&mut acceptor, &mut rest, most(), now, &keys()).unwrap());
        }
        prop_assert_eq!(events, [Event::Proven, Event::Hello(Box::new(hello))]);
        prop_assert_eq!(rest, &payload[..]);
        prop_assert!(acceptor.space().is_empty());
    }
}

#[test]
fn a_waiting_connection_needs_little_memory() {
    let (acceptor, ready) = proven(Instant::now());
    assert!(size_of_val(&acceptor) <= 200, "{}", size_of_val(&acceptor));
    assert!(size_of_val(&ready) <= 200, "{}", size_of_val(&ready));
    assert_eq!(acceptor.framer.heap(), 0);
}

#[test]
fn unknown_fields_are_ignored() {
    let now = Instant::now();
    let (mut acceptor, _) = proven(now);
    let mut message = hello().unsealed();
    proxy::push_tlv(&mut message, 0xe9, b"from the future");
    proxy::push_tlv(&mut message, proxy::kind::NOOP, &[0; 9]);
    assert_eq!(
        give(&mut acceptor, &sealed_hello(message), now, &keys()),
        Ok(Some(Event::Hello(Box::new(hello()))))
    );
}

// === keys ===

#[test]
fn a_dialler_without_a_key_receives_no_byte() {
    let now = Instant::now();
    for stranger in [
        Dialler::new(THEIRS, now, SECOND, &Keys::new(key(9), None)).1,
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(),
        proxy::Header {
            command: Command::Local,
            addresses: None,
            tlvs: Vec::new(),
        }
        .encode()
        .unwrap(),
    ] {
        let mut acceptor = accepted(now);
        let outcome = give(&mut acceptor, &stranger, now, &keys());
        assert!(outcome.is_err(), "{outcome:?}");
        assert_eq!(give(&mut acceptor, &[], now, &keys()), Ok(None));
        assert!(acceptor.space().is_empty() && !acceptor.is_proven());
    }
}

#[test]
fn an_unknown_key_is_the_reported_cause() {
    let now = Instant::now();
    let theirs = Keys::new(key(9), None);
    let outcome = shake(&mut accepted(now), &keys(), &theirs, THEIRS, now);
    assert_eq!(outcome.err(), Some(Rejection::WrongKey));
}

#[test]
fn a_key_is_replaced_without_refusals() {
    let now = Instant::now();
    let (old, new) = (key(1), key(2));
    let stages = [
        Keys::new(old.clone(), None),
        Keys::new(old.clone(), Some(new.clone())),
        Keys::new(new.clone(), Some(old)),
        Keys::new(new, None),
    ];
    for (i, ours) in stages.iter().enumerate() {
        for (j, theirs) in stages.iter().enumerate() {
            let outcome = shake(&mut accepted(now), ours, theirs, THEIRS, now);
            // Relays are at most one step apart.
            assert_eq!(
                outcome.is_ok(),
                i.abs_diff(j) <= 1 || ours.contains(theirs.first())
            );
        }
    }
}

#[test]
fn a_connection_keeps_its_key_while_keys_are_reloaded() {
    let now = Instant::now();
    let (old, new) = (keys(), Keys::new(key(2), None));
    let mut acceptor = accepted(now);
    let (mut dialler, opening) = dialled(now);
    assert!(acceptor.is_current(&new), "it is not opened yet");
    let Ok(Some(Event::Greet(greeting))) = give(&mut acceptor, &opening, now, &old) else {
        panic!("no greeting");
    };
    let proof = give(&mut dialler, &greeting, now, &old).unwrap().unwrap();
    assert_eq!(
        give(&mut acceptor, &proof, now, &new),
        Ok(Some(Event::Proven))
    );
    let ready = dialler.ready().unwrap();
    for (keys, current) in [(&old, true), (&new, false)] {
        assert_eq!(acceptor.is_current(keys), current);
        assert_eq!(ready.is_current(keys), current);
    }
    let message = ready.hello(&hello());
    assert!(matches!(
        give(&mut acceptor, &message, now, &new),
        Ok(Some(Event::Hello(_)))
    ));
}

// === replays ===

#[test]
fn a_replayed_session_gets_a_greeting_and_is_refused() {
    let now = Instant::now();
    let mut first = accepted(now);
    let (ready, recording) = shake(&mut first, &keys(), &keys(), THEIRS, now).unwrap();
    let recorded_hello = ready.hello(&hello());

    let mut second = Acceptor::new([0xa2; 32], now, &Limits::default());
    let outcome = give(&mut second, &recording.opening, now, &keys());
    assert!(matches!(outcome, Ok(Some(Event::Greet(_)))));
    let rest = [recording.proof, recorded_hello].concat();
    assert_eq!(
        feed(&mut second, &mut &rest[..], usize::MAX, now, &keys()),
        Err(Rejection::Replayed)
    );
    assert!(!second.is_proven());
}

#[test]
fn a_hello_replayed_on_another_connection_is_refused() {
    let now = Instant::now();
    let (_, ready) = proven(now);
    let recorded = ready.hello(&hello());
    for (ours, theirs) in [(0xa2, 0xd1), (0xa1, 0xd2)] {
        let mut acceptor = Acceptor::new([ours; 32], now, &Limits::default());
        shake(&mut acceptor, &keys(), &keys(), [theirs; 32], now).unwrap();
        assert_eq!(
            give(&mut acceptor, &recorded, now, &keys()),
            Err(Rejection::Forged)
        );
    }
}

#[test]
fn a_message_in_the_place_of_another_is_refused() {
    let now = Instant::now();
    let mut acceptor = accepted(now);
    let (ready, r) = shake(&mut acceptor, &keys(), &keys(), THEIRS, now).unwrap();
    let hello = ready.hello(&hello());
    for opening in [&r.greeting, &r.proof, &hello] {
        assert!(give(&mut accepted(now), opening, now, &keys()).is_err());
    }
    for proof in [&r.opening, &r.greeting, &hello] {
        let mut acceptor = accepted(now);
        give(&mut acceptor, &r.opening, now, &keys()).unwrap();
        assert!(give(&mut acceptor, proof, now, &keys()).is_err());
    }
    for hello in [&r.opening, &r.greeting, &r.proof] {
        let (mut acceptor, _) = proven(now);
        assert!(give(&mut acceptor, hello, now, &keys()).is_err());
    }
    for greeting in [&r.opening, &r.proof, &hello] {
        assert!(give(&mut dialled(now).0, greeting, now, &keys()).is_err());
    }
}

#[test]
fn a_connection_has_one_hello() {
    let now = Instant::now();
    let (mut acceptor, ready) = proven(now);
    let message = ready.hello(&hello());
    give(&mut acceptor, &message, now, &keys()).unwrap();
    assert!(acceptor.space().is_empty());
    assert_eq!(acceptor.advance(0, now, &keys()), Ok(Event::More));
    assert_eq!(acceptor.expired(now + 3600 * SECOND), None);
}

// === damage ===

/// Returns an acceptor at each stage and the message that it waits for.
fn stages(now: Instant) -> [(Acceptor, Vec<u8>); 3] {
    let mut proof = accepted(now);
    let opening = dialled(now).1;
    give(&mut proof, &opening, now, &keys()).unwrap();
    let mut probe = accepted(now);
    let (ready, recording) = shake(&mut probe, &keys(), &keys(), THEIRS, now).unwrap();
    [
        (accepted(now), recording.opening),
        (proof, recording.proof),
        (probe, ready.hello(&hello())),
    ]
}

#[test]
fn one_wrong_bit_anywhere_is_refused() {
    let now = Instant::now();
    for stage in 0..3 {
        let bits = stages(now)[stage].1.len() * 8;
        for bit in 0..bits {
            let (mut acceptor, mut message) = stages(now).into_iter().nth(stage).unwrap();
            message[bit / 8] ^= 1 << (bit % 8);
            let mut rest = &message[..];
            match feed(&mut acceptor, &mut rest, usize::MAX, now, &keys()) {
                Err(_) => {}
                // The length grew: the acceptor waits for more bytes.
                Ok(None) => {
                    assert!(
                        (14 * 8..16 * 8).contains(&bit),
                        "bit {bit} of stage {stage}"
                    );
                    assert!(acceptor.expired(acceptor.deadline()).is_some());
                }
                Ok(event) => panic!("bit {bit} of stage {stage} gave {event:?}"),
            }
        }
    }
}

#[test]
fn a_truncated_message_times_out() {
    let now = Instant::now();
    for stage in 0..3 {
        for len in 0..stages(now)[stage].1.len() {
            let (mut acceptor, message) = stages(now).into_iter().nth(stage).unwrap();
            assert_eq!(give(&mut acceptor, &message[..len], now, &keys()), Ok(None));
            assert!(!acceptor.space().is_empty());
            let idle = stage == 2 && len == 0;
            assert_eq!(acceptor.closed(), (!idle).then_some(Rejection::ClosedEarly));
            assert_eq!(acceptor.hello_begun(), stage == 2 && len > 0);
            let cause = match (stage, len) {
                (2, 0) => Rejection::TimedOutIdle,
                (2, _) => Rejection::TimedOutHello,
                _ => Rejection::TimedOutHandshake,
            };
            assert_eq!(acceptor.expired(acceptor.deadline()), Some(cause));
        }
    }
}

#[test]
fn a_rejection_is_final() {
    let now = Instant::now();
    let mut acceptor = accepted(now);
    assert_eq!(
        give(&mut acceptor, b"GET", now, &keys()),
        Err(Rejection::BadFrame)
    );
    assert!(acceptor.space().is_empty());
    assert_eq!(acceptor.advance(0, now, &keys()), Err(Rejection::BadFrame));
    assert_eq!(acceptor.closed(), Some(Rejection::BadFrame));
}

#[test]
fn a_message_with_an_excessive_length_is_refused_before_it_is_read() {
    let now = Instant::now();
    for (stage, max) in [MAX_HANDSHAKE, MAX_HANDSHAKE, MAX_HELLO]
        .into_iter()
        .enumerate()
    {
        for (len, expected) in [(max, Ok(None)), (max + 1, Err(Rejection::TooLong))] {
            let (mut acceptor, _) = stages(now).into_iter().nth(stage).unwrap();
            let mut start = proxy::bare_start(Command::Local);
            proxy::set_length(&mut start, len);
            assert_eq!(give(&mut acceptor, &start, now, &keys()), expected);
        }
    }
}

// === form ===

/// Returns a message of the handshake with these fields and the right MAC.
fn opening_of(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = proxy::bare_start(Command::Local);
    for (kind, value) in fields {
        proxy::push_tlv(&mut message, *kind, value);
    }
    wire::seal(&key(1), Kind::Opening, &[], message)
}

fn open(message: &[u8]) -> Result<Option<Event>, Rejection> {
    let now = Instant::now();
    give(&mut accepted(now), message, now, &keys())
}

#[test]
fn an_opening_must_have_each_field_once_and_with_its_length() {
    const V: (u8, &[u8]) = (kind::VERSION, &[1]);
    const N: (u8, &[u8]) = (kind::NONCE, &THEIRS);
    assert!(open(&opening_of(&[V, N])).is_ok());
    assert!(open(&opening_of(&[N, V, (0xe9, b"new")])).is_ok());
    for fields in [
        &[V] as &[(u8, &[u8])],
        &[N],
        &[V, V, N],
        &[V, N, N],
        &[V, (kind::NONCE, &THEIRS[1..])],
        &[(kind::VERSION, &[1, 1]), N],
        &[(kind::VERSION, &[]), N],
        &[V, (kind::MAC, &[0; 32]), N],
        &[V, N, (kind::MAC, &[0; 32])],
    ] {
        assert_eq!(
            open(&opening_of(fields)),
            Err(Rejection::BadFrame),
            "{fields:?}"
        );
    }
}

#[test]
fn a_mac_must_be_present_last_and_complete() {
    let good = opening_of(&[(kind::VERSION, &[1]), (kind::NONCE, &THEIRS)]);
    let with_end = |cut: usize, end: &[u8]| {
        let mut message = good[..good.len() - cut].to_vec();
        message.extend(end);
        let len = message.len();
        proxy::set_length(&mut message, len);
        open(&message)
    };
    assert!(with_end(0, &[]).is_ok());
    // Missing; followed by a field; followed by a byte; too short; past the end; without a value.
    for (cut, end) in [
        (35, &[] as &[u8]),
        (0, &[0xe9, 0, 0]),
        (0, &[0]),
        (35, &[kind::MAC, 0, 31]),
        (35, &[kind::MAC, 0, 33]),
        (35, &[kind::MAC, 0xff, 0xff]),
        (35, &[kind::MAC]),
        (32, &[]),
    ] {
        let mut end = end.to_vec();
        if end.starts_with(&[kind::MAC, 0]) {
            end.extend([0; 31]);
        }
        assert_eq!(
            with_end(cut, &end),
            Err(Rejection::BadFrame),
            "{cut} {end:?}"
        );
    }
}

#[test]
fn a_handshake_must_be_local_and_without_addresses() {
    let fields = &opening_of(&[(kind::VERSION, &[1]), (kind::NONCE, &THEIRS)])[16..];
    for start in [
        proxy::bare_start(Command::Proxy),
        proxy::start(
            "192.0.2.1:1".parse().unwrap(),
            "192.0.2.2:2".parse().unwrap(),
        ),
    ] {
        let message = [&start, &fields[..fields.len() - 35]].concat();
        let message = wire::seal(&key(1), Kind::Opening, &[], message);
        assert_eq!(open(&message), Err(Rejection::BadFrame));
    }
}

#[test]
fn another_version_is_reported_as_such() {
    let now = Instant::now();
    let opening = opening_of(&[(kind::VERSION, &[2]), (kind::NONCE, &THEIRS)]);
    assert_eq!(open(&opening), Err(Rejection::Version));

    let (mut acceptor, _) = proven(now);
    let mut message = hello().unsealed();
    // The offset of the first field after two IPv4 addresses.
    assert_eq!(message[28..32], [kind::VERSION, 0, 1, 1]);
    message[31] = 2;
    assert_eq!(
        give(&mut acceptor, &sealed_hello(message), now, &keys()),
        Err(Rejection::Version)
    );
}

// === time ===

#[test]
fn bytes_that_trickle_in_do_not_extend_the_deadline() {
    let start = Instant::now();
    let limits = Limits::default();
    for (stage, limit, cause) in [
        (0, limits.handshake, Rejection::TimedOutHandshake),
        (1, limits.handshake, Rejection::TimedOutHandshake),
        (2, limits.hello, Rejection::TimedOutHello),
    ] {
        let (mut acceptor, message) = stages(start).into_iter().nth(stage).unwrap();
        let mut now = start;
        let mut sent = 0;
        let refused = loop {
            acceptor.space()[0] = message[sent];
            match acceptor.advance(1, now, &keys()) {
                Ok(Event::More) => {}
                Ok(event) => panic!("{event:?}"),
                Err(cause) => break cause,
            }
            assert_eq!(acceptor.deadline(), start + limit);
            sent += 1;
            now += SECOND;
        };
        assert_eq!(refused, cause);
        assert_eq!(now, start + limit);
    }
}

#[test]
fn a_proven_connection_may_wait_and_the_hello_limit_starts_at_its_first_byte() {
    let start = Instant::now();
    let limits = Limits::default();
    let (mut acceptor, ready) = proven(start);
    assert_eq!(acceptor.deadline(), start + limits.idle);
    let late = start + limits.idle - SECOND;
    assert_eq!(acceptor.expired(late), None);
    let message = ready.hello(&hello());
    assert_eq!(give(&mut acceptor, &message[..1], late, &keys()), Ok(None));
    assert_eq!(acceptor.deadline(), late + limits.hello);
    let event = give(&mut acceptor, &message[1..], late + 4 * SECOND, &keys());
    assert!(matches!(event, Ok(Some(Event::Hello(_)))));
}

#[test]
fn an_unused_connection_times_out() {
    let start = Instant::now();
    let (mut acceptor, ready) = proven(start);
    let end = start + Limits::default().idle;
    assert_eq!(acceptor.expired(end), Some(Rejection::TimedOutIdle));
    assert_eq!(acceptor.closed(), None, "the dialler gave it back");
    let message = ready.hello(&hello());
    assert_eq!(
        feed(&mut acceptor, &mut &message[..], usize::MAX, end, &keys()),
        Err(Rejection::TimedOutIdle)
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
    assert_eq!(Acceptor::new(OURS, now, &limits).expired(now), None);
}
