use super::*;
use crate::acceptor::{Acceptor, Event, Limits};
use crate::proxy::{self, Command};
use crate::sim::*;

/// Returns a greeting for [`dialled`].
fn greeting(now: Instant) -> Vec<u8> {
    let opening = dialled(now).1;
    match give(&mut accepted(now), &opening, now, &keys()) {
        Ok(Some(Event::Greet(greeting))) => greeting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_greeting_is_answered_with_a_proof_once() {
    let now = Instant::now();
    let (mut dialler, _) = dialled(now);
    assert!(
        give(&mut dialler, &greeting(now), now, &keys())
            .unwrap()
            .is_some()
    );
    assert!(dialler.space().is_empty());
    assert_eq!(dialler.advance(0, now), Ok(None));
    assert_eq!(dialler.closed(), None);
    assert_eq!(dialler.expired(now + 3600 * SECOND), None);
    assert!(dialler.ready().is_some());
}

#[test]
fn a_connection_is_not_ready_before_the_greeting() {
    let now = Instant::now();
    let (dialler, _) = dialled(now);
    assert_eq!(dialler.closed(), Some(Rejection::ClosedEarly));
    assert!(dialler.ready().is_none());
}

#[test]
fn one_wrong_bit_anywhere_in_a_greeting_is_refused() {
    let now = Instant::now();
    let good = greeting(now);
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (mut dialler, _) = dialled(now);
        match feed(&mut dialler, &mut &bytes[..], usize::MAX, now, &keys()) {
            Err(_) => {}
            Ok(None) => assert!((14 * 8..16 * 8).contains(&bit), "bit {bit}"),
            Ok(Some(_)) => panic!("bit {bit} was accepted"),
        }
        assert!(dialler.ready().is_none());
    }
}

#[test]
fn a_truncated_greeting_times_out_at_the_deadline() {
    let now = Instant::now();
    let good = greeting(now);
    for len in 0..good.len() {
        let (mut dialler, _) = dialled(now);
        assert_eq!(give(&mut dialler, &good[..len], now, &keys()), Ok(None));
        assert!(!dialler.space().is_empty());
        assert_eq!(dialler.deadline(), now + 5 * SECOND);
        let late = dialler.deadline();
        assert_eq!(dialler.expired(late), Some(Rejection::TimedOutHandshake));
        assert_eq!(
            feed(&mut dialler, &mut &good[len..], usize::MAX, late, &keys()),
            Err(Rejection::TimedOutHandshake)
        );
    }
}

#[test]
fn a_greeting_for_another_opening_or_with_another_key_is_refused() {
    let now = Instant::now();
    let (_, other) = Dialler::new([0xd2; 32], now, SECOND, &keys());
    let Ok(Some(Event::Greet(recorded))) = give(&mut accepted(now), &other, now, &keys()) else {
        panic!("no greeting");
    };
    let foreign = wire::seal(
        &key(9),
        Kind::Greeting,
        &[&THEIRS],
        wire::introduction(&OURS),
    );
    for greeting in [recorded, foreign] {
        let (mut dialler, _) = dialled(now);
        assert_eq!(
            give(&mut dialler, &greeting, now, &keys()),
            Err(Rejection::WrongKey)
        );
        assert_eq!(dialler.advance(0, now), Err(Rejection::WrongKey));
        assert_eq!(dialler.closed(), Some(Rejection::WrongKey));
        assert!(dialler.ready().is_none());
    }
}

#[test]
fn a_greeting_of_another_version_is_reported_as_such() {
    let now = Instant::now();
    let mut message = proxy::bare_start(Command::Local);
    proxy::push_tlv(&mut message, wire::kind::VERSION, &[2]);
    proxy::push_tlv(&mut message, wire::kind::NONCE, &OURS);
    let message = wire::seal(&key(1), Kind::Greeting, &[&THEIRS], message);
    assert_eq!(
        give(&mut dialled(now).0, &message, now, &keys()),
        Err(Rejection::Version)
    );
}

#[test]
fn an_opening_with_the_second_key_is_greeted_with_that_key() {
    let now = Instant::now();
    let both = Keys::new(key(2), Some(key(1)));
    let mut acceptor = Acceptor::new(OURS, now, &Limits::default());
    assert!(shake(&mut acceptor, &both, &keys(), THEIRS, now).is_ok());
}
