use std::time::{Duration, Instant};

use super::*;
use crate::dialler::{Dialler, Ready};
use crate::hello::SessionId;

const SECOND: Duration = Duration::from_secs(1);

fn key(byte: u8) -> Key {
    Key::new([byte; 32])
}

fn keys() -> Keys {
    Keys::new(key(1), None)
}

fn hello() -> Hello {
    Hello {
        source: "192.0.2.1:40000".parse().unwrap(),
        destination: "example.org:443".parse().unwrap(),
        route: vec!["relay-b.example:7000".parse().unwrap()],
        hops_left: 8,
        session: SessionId([7; 16]),
    }
}

/// Reads `bytes` into the acceptor as a socket would give them, at most `chunk` at a time; what came
/// of it, and what was not read.
fn feed<'b>(
    acceptor: &mut Acceptor,
    mut bytes: &'b [u8],
    chunk: usize,
    now: Instant,
    keys: &Keys,
) -> (Result<Event, Rejection>, &'b [u8]) {
    loop {
        let space = acceptor.space();
        let n = space.len().min(bytes.len()).min(chunk);
        if n == 0 {
            return (Ok(Event::More), bytes);
        }
        space[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        match acceptor.advance(n, now, keys) {
            Ok(Event::More) => {}
            other => return (other, bytes),
        }
    }
}

fn answer(dialler: &mut Dialler, greeting: &[u8], now: Instant) -> Result<Vec<u8>, Rejection> {
    let space = dialler.space();
    // The start, then the rest: room is given for one part at a time.
    let (first, rest) = greeting.split_at(space.len());
    space.copy_from_slice(first);
    assert_eq!(dialler.advance(first.len(), now)?, None);
    let space = dialler.space();
    assert_eq!(space.len(), rest.len());
    space.copy_from_slice(rest);
    Ok(dialler.advance(rest.len(), now)?.unwrap())
}

/// A whole session, with the acceptor's and the dialler's own keys and nonces.
fn record(ours: &Keys, theirs: &Keys, nonce: u8, now: Instant) -> (Acceptor, Ready, Event) {
    let mut acceptor = Acceptor::new([nonce; 32], now, &Limits::default());
    let (mut dialler, opening) = Dialler::new([nonce + 1; 32], now, SECOND, theirs);
    let (event, _) = feed(&mut acceptor, &opening, usize::MAX, now, ours);
    let Ok(Event::Greet(greeting)) = event else {
        panic!("{event:?}");
    };
    let proof = answer(&mut dialler, &greeting, now).unwrap();
    let ready = dialler.ready().unwrap();
    let (event, _) = feed(&mut acceptor, &proof, usize::MAX, now, ours);
    assert_eq!(event, Ok(Event::Proven));
    let message = ready.hello(&hello());
    let (event, _) = feed(&mut acceptor, &message, usize::MAX, now, ours);
    (acceptor, ready, event.unwrap())
}

#[test]
fn a_hello_arrives_as_it_was_sent() {
    let (mut acceptor, _, event) = record(&keys(), &keys(), 1, Instant::now());
    assert_eq!(event, Event::Hello(Box::new(hello())));
    assert!(acceptor.space().is_empty() && acceptor.is_proven());
}
