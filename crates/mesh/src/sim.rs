//! The two ends of a connection in a test, without a network between them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::acceptor::{Acceptor, Event, Limits, Rejection};
use crate::dialler::{Dialler, Ready};
use crate::hello::{Hello, SessionId, Target};
use crate::key::{Key, Keys};
use crate::wire::{Nonce, Session};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The nonces of [`accepted`] and [`dialled`].
pub(crate) const OURS: Nonce = [0xa1; 32];
pub(crate) const THEIRS: Nonce = [0xd1; 32];

pub(crate) fn key(byte: u8) -> Key {
    Key::new([byte; 32])
}

pub(crate) fn keys() -> Keys {
    Keys::new(key(1), None)
}

pub(crate) fn accepted(now: Instant) -> Acceptor {
    Acceptor::new(OURS, now, &Limits::default())
}

pub(crate) fn dialled(now: Instant) -> (Dialler, Vec<u8>) {
    Dialler::new(THEIRS, now, 5 * SECOND, &keys())
}

/// Returns the session of [`accepted`] and [`dialled`] after their handshake.
pub(crate) fn session() -> Session {
    Session {
        key: key(1),
        acceptor: OURS,
        dialler: THEIRS,
    }
}

/// Returns a hello with every field in use.
pub(crate) fn hello() -> Hello {
    Hello {
        source: "192.0.2.1:40000".parse().unwrap(),
        destination: "example.org:443".parse().unwrap(),
        route: vec![
            "relay-b.example:7000".parse().unwrap(),
            "198.51.100.7:7000".parse().unwrap(),
            "[2001:db8::7]:7000".parse().unwrap(),
        ],
        hops_left: 8,
        session: SessionId([7; 16]),
    }
}

/// An end that reads bytes as [`Acceptor`] does.
pub(crate) trait Sink {
    type Event;
    fn room(&mut self) -> &mut [u8];
    /// Processes `n` bytes. Returns `None` if more must be read.
    fn take(
        &mut self,
        n: usize,
        now: Instant,
        keys: &Keys,
    ) -> Result<Option<Self::Event>, Rejection>;
}

impl Sink for Acceptor {
    type Event = Event;
    fn room(&mut self) -> &mut [u8] {
        self.space()
    }
    fn take(&mut self, n: usize, now: Instant, keys: &Keys) -> Result<Option<Event>, Rejection> {
        self.advance(n, now, keys)
            .map(|event| Some(event).filter(|e| *e != Event::More))
    }
}

impl Sink for Dialler {
    type Event = Vec<u8>;
    fn room(&mut self) -> &mut [u8] {
        self.space()
    }
    fn take(&mut self, n: usize, now: Instant, _: &Keys) -> Result<Option<Vec<u8>>, Rejection> {
        self.advance(n, now)
    }
}

/// Feeds `bytes` to the sink as a socket would, at most `most` at a time, until there is an event, no
/// bytes are left, or the sink has no room. Removes the consumed bytes from `bytes`.
pub(crate) fn feed<S: Sink>(
    sink: &mut S,
    bytes: &mut &[u8],
    most: usize,
    now: Instant,
    keys: &Keys,
) -> Result<Option<S::Event>, Rejection> {
    loop {
        let room = sink.room();
        let n = room.len().min(bytes.len()).min(most);
        if n == 0 {
            return Ok(None);
        }
        let (first, rest) = bytes.split_at(n);
        room[..n].copy_from_slice(first);
        *bytes = rest;
        if let Some(event) = sink.take(n, now, keys)? {
            return Ok(Some(event));
        }
    }
}

/// Feeds all of `bytes` to the sink, which must consume them.
pub(crate) fn give<S: Sink>(
    sink: &mut S,
    mut bytes: &[u8],
    now: Instant,
    keys: &Keys,
) -> Result<Option<S::Event>, Rejection> {
    let outcome = feed(sink, &mut bytes, usize::MAX, now, keys);
    if outcome.is_ok() {
        assert!(bytes.is_empty(), "{} bytes were not read", bytes.len());
    }
    outcome
}

/// The messages of a handshake.
pub(crate) struct Recording {
    pub(crate) opening: Vec<u8>,
    pub(crate) greeting: Vec<u8>,
    pub(crate) proof: Vec<u8>,
}

/// Runs the handshake of `acceptor`, with keys `ours`, and a dialler with keys `theirs`.
pub(crate) fn shake(
    acceptor: &mut Acceptor,
    ours: &Keys,
    theirs: &Keys,
    nonce: Nonce,
    now: Instant,
) -> Result<(Ready, Recording), Rejection> {
    let (mut dialler, opening) = Dialler::new(nonce, now, 5 * SECOND, theirs);
    let Some(Event::Greet(greeting)) = give(acceptor, &opening, now, ours)? else {
        panic!("no greeting");
    };
    let proof = give(&mut dialler, &greeting, now, theirs)?.unwrap();
    assert_eq!(give(acceptor, &proof, now, ours)?, Some(Event::Proven));
    let recording = Recording {
        opening,
        greeting,
        proof,
    };
    Ok((dialler.ready().unwrap(), recording))
}

/// Returns an acceptor that waits for its hello, and the dialling end.
pub(crate) fn proven(now: Instant) -> (Acceptor, Ready) {
    let mut acceptor = accepted(now);
    let (ready, _) = shake(&mut acceptor, &keys(), &keys(), THEIRS, now).unwrap();
    (acceptor, ready)
}

/// Appends the right MAC to a message on a proven connection.
pub(crate) fn sealed_hello(message: Vec<u8>) -> Vec<u8> {
    session().seal(crate::wire::Kind::Hello, message)
}

/// Generates addresses that are valid in a session.
pub(crate) fn any_addr() -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<[u8; 4]>(), 1..=u16::MAX).prop_map(SocketAddr::from);
    let v6 = (any::<[u8; 16]>(), 1..=u16::MAX).prop_map(SocketAddr::from);
    prop_oneof![v4, v6]
        .prop_map(|addr| (addr.ip().to_canonical(), addr.port()).into())
        .prop_filter("specified", |addr: &SocketAddr| !addr.ip().is_unspecified())
}

pub(crate) fn any_target() -> impl Strategy<Value = Target> {
    // From an index, because strings from a pattern are slow to generate.
    const LETTERS: &[u8] = b"abcxyzABCXYZ0123456789_";
    let letter = |i: u8| char::from(LETTERS[usize::from(i) % LETTERS.len()]);
    let label = proptest::collection::vec(any::<u8>(), 1..12).prop_map(move |indices| {
        let mut label: String = indices.into_iter().map(letter).collect();
        if label.len() > 4 {
            label.replace_range(1..3, "--");
        }
        label
    });
    let last = prop_oneof![Just("org"), Just("x"), Just("example."), Just("a1")];
    let name = (proptest::collection::vec(label, 0..6), last, 1..=u16::MAX).prop_map(
        |(mut labels, last, port)| {
            labels.push(last.to_owned());
            Target::Name {
                host: labels.join("."),
                port,
            }
        },
    );
    prop_oneof![any_addr().prop_map(Target::Addr), name]
}

pub(crate) fn any_hello() -> impl Strategy<Value = Hello> {
    (
        any_addr(),
        any_target(),
        proptest::collection::vec(any_target(), 0..=crate::hello::MAX_ROUTE),
        1..=u8::MAX,
        any::<[u8; 16]>(),
    )
        .prop_map(|(source, destination, route, hops_left, session)| Hello {
            source,
            destination,
            route,
            hops_left,
            session: SessionId(session),
        })
}
