use rustls::ContentType;

use super::*;
use crate::acceptor::{Event, Withdrawal};
use crate::sim::*;

/// Returns a dialler, and what `a` sends to it.
fn answered(now: Instant) -> (Dialler, Vec<u8>) {
    let (dialler, first) = dialled(now, &dial_tls());
    let (outcome, flight) = give(&mut accepted(now), &first, now, &local());
    assert_eq!(outcome, Ok(Event::More));
    (dialler, flight)
}

#[test]
fn a_connection_is_ready_at_the_end_of_its_handshake() {
    let now = Instant::now();
    let (mut dialler, flight) = answered(now);
    assert!(!dialler.is_ready());
    let (outcome, last) = answer(&mut dialler, &flight, now);
    assert_eq!(outcome, Ok(true));
    assert!(!last.is_empty() && dialler.is_ready());
    assert_eq!(dialler.expired(now + 3600 * SECOND), None);
    let ready = dialler.ready().unwrap();
    assert_eq!(ready.peer(), Some(key(1).public()));
}

#[test]
fn a_connection_is_not_ready_before() {
    let now = Instant::now();
    let (mut dialler, flight) = answered(now);
    let (outcome, out) = answer(&mut dialler, &flight[..flight.len() - 1], now);
    assert_eq!((outcome, out.is_empty()), (Ok(false), false));
    assert!(dialler.ready().is_none());
}

#[test]
fn one_wrong_bit_anywhere_in_the_answer_makes_no_ready_connection() {
    let now = Instant::now();
    let sample = answered(now).1;
    let mut ready = Vec::new();
    for at in 0..sample.len() {
        let (mut dialler, mut flight) = answered(now);
        // Every byte, one of its bits.
        flight[at] ^= 1 << (at % 8);
        let (outcome, _) = answer(&mut dialler, &flight, now);
        assert_eq!(outcome == Ok(true), dialler.is_ready());
        ready.extend(dialler.is_ready().then_some(at));
    }
    // Type and version in the header of a record have no meaning (RFC 8446 sections 5.1 and 5.2).
    let mut headers = Vec::new();
    let mut start = 0;
    for record in records(&sample) {
        headers.extend(start..start + 3);
        start += record.len();
    }
    assert!(ready.iter().all(|at| headers.contains(at)), "{ready:?}");
}

#[test]
fn a_truncated_answer_times_out_at_the_deadline() {
    let now = Instant::now();
    let len = answered(now).1.len();
    for cut in (0..len).step_by(97) {
        let (mut dialler, flight) = answered(now);
        assert_eq!(answer(&mut dialler, &flight[..cut], now).0, Ok(false));
        assert_eq!(dialler.deadline(), now + 5 * SECOND);
        let late = dialler.deadline();
        assert_eq!(dialler.expired(late), Some(Rejection::TimedOutHandshake));
        for _ in 0..2 {
            let (outcome, _) = answer(&mut dialler, &flight[cut..], late);
            assert_eq!(outcome, Err(Rejection::TimedOutHandshake));
        }
        assert!(dialler.ready().is_none());
    }
}

#[test]
fn an_acceptor_that_is_no_relay_is_refused_for_good() {
    let now = Instant::now();
    // Another protocol, a plain hello, a reflection of the dialler's own bytes, an alert.
    let (mut reflected, first) = dialled(now, &dial_tls());
    let (outcome, _) = answer(&mut reflected, &first, now);
    assert_eq!(outcome, Err(Rejection::Tls));
    for bytes in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &hello().encode(),
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let (mut dialler, _) = dialled(now, &dial_tls());
        let (outcome, _) = answer(&mut dialler, bytes, now);
        assert_eq!(outcome, Err(Rejection::Tls));
        let (_, flight) = answered(now);
        assert_eq!(answer(&mut dialler, &flight, now).0, Err(Rejection::Tls));
        assert!(dialler.ready().is_none());
    }
}

#[test]
fn an_alert_that_refuses_the_key_is_reported_as_such() {
    let now = Instant::now();
    // access_denied, bad_certificate, certificate_unknown, unknown_ca (RFC 8446 section 6).
    for alert in [49, 42, 46, 48] {
        let (mut dialler, _) = dialled(now, &dial_tls());
        let (outcome, _) = answer(&mut dialler, &[21, 3, 3, 0, 2, 2, alert], now);
        assert_eq!(outcome, Err(Rejection::KeyRefused));
    }
}

#[test]
fn an_acceptor_has_nothing_to_say_before_the_hello() {
    let now = Instant::now();
    let local = local();
    for end in [false, true] {
        let mut to_acceptor = Vec::new();
        let tls = dial_tls();
        let mut dialler = Dialler::new(&tls, now, SECOND, &mut to_acceptor).unwrap();
        let mut acceptor = Channel::accept(&local.tls).unwrap();
        let mut flight = Vec::new();
        open(&mut acceptor, &to_acceptor, &mut flight).unwrap();
        let (_, last) = answer(&mut dialler, &flight, now);
        open(&mut acceptor, &last, &mut Vec::new()).unwrap();
        let (bytes, cause) = match end {
            true => (close(&mut acceptor), Rejection::ClosedEarly),
            false => (seal(&mut acceptor, b"x").unwrap(), Rejection::BadFrame),
        };
        // While the relay still asks the dialler, and on a connection in the pool.
        let (mut pooled, rest) = (dialler.ready().unwrap(), bytes.len() - 1);
        assert_eq!(idle(&mut pooled, &bytes[..rest]), Ok(()));
        assert_eq!(pooled.partial().len(), rest);
        assert_eq!(idle(&mut pooled, &bytes[rest..]), Err(cause));
    }
}

#[test]
fn a_draining_acceptor_withdraws_a_connection_that_waits() {
    let (mut acceptor, mut ready) = proven(Instant::now());
    let mut told = Vec::new();
    acceptor.withdraw(Withdrawal::Draining, &mut told);
    let rest = told.len() - 1;
    assert_eq!(idle(&mut ready, &told[..rest]), Ok(()));
    assert_eq!(idle(&mut ready, &told[rest..]), Err(Rejection::Withdrawn));
}

#[test]
fn an_acceptor_without_room_says_so_in_a_way_that_older_diallers_take_for_a_drain() {
    let (mut acceptor, mut ready) = proven(Instant::now());
    let mut told = Vec::new();
    acceptor.withdraw(Withdrawal::Full, &mut told);
    assert_eq!(told.len(), 2 * KEY_UPDATE_RECORD);
    assert_eq!(idle(&mut ready, &told), Err(Rejection::Full));
    // What an older one sees, and one that the two records reach apart.
    let (mut acceptor, mut ready) = proven(Instant::now());
    let mut told = Vec::new();
    acceptor.withdraw(Withdrawal::Full, &mut told);
    let first = &told[..KEY_UPDATE_RECORD];
    assert_eq!(idle(&mut ready, first), Err(Rejection::Withdrawn));
}

#[test]
fn data_behind_the_answer_is_refused() {
    let now = Instant::now();
    let local = local();
    let mut first = Vec::new();
    let mut dialler = Dialler::new(&dial_tls(), now, SECOND, &mut first).unwrap();
    let mut acceptor = Channel::accept(&local.tls).unwrap();
    let mut flight = Vec::new();
    open(&mut acceptor, &first, &mut flight).unwrap();
    let (outcome, last) = answer(&mut dialler, &flight, now);
    assert_eq!(outcome, Ok(true));
    open(&mut acceptor, &last, &mut Vec::new()).unwrap();
    let data = seal(&mut acceptor, b"data").unwrap();
    assert_eq!(answer(&mut dialler, &data, now).0, Err(Rejection::BadFrame));
    assert!(!dialler.is_ready() && dialler.ready().is_none());
}

#[test]
fn a_ready_connection_in_a_trusted_network_expects_no_byte() {
    let mut ready = Ready::trusted();
    assert_eq!(ready.peer(), None);
    assert_eq!(idle(&mut ready, b"x"), Err(Rejection::BadFrame));
    let (message, channel) = ready.hello(&hello()).unwrap();
    assert!(message == hello().encode() && channel.is_none());
}

#[test]
fn a_hello_shows_nothing_of_itself_on_the_way() {
    let (_, ready) = proven(Instant::now());
    let (message, channel) = ready.hello(&hello()).unwrap();
    for plain in [&b"example"[..], b"QUIT", b"fra-1"] {
        assert!(!message.windows(plain.len()).any(|w| w == plain));
    }
    assert!(channel.is_some());
    assert_eq!(message[0], u8::from(ContentType::ApplicationData));
}
