//! The two ends of a connection in a test, without a network between them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::{ConnectionTrafficSecrets, ContentType, ExtractedSecrets, ProtocolVersion};

use crate::acceptor::{Acceptor, Event, Limits, Local, Rejection};
use crate::channel::{Channel, ChannelError, Opened, sealed_len};
use crate::dialler::{Dialler, Ready};
use crate::hello::{Hello, SessionId, Target};
use crate::identity::PrivateKey;
use crate::members::{MAX_NAME, Member, MemberName, Members};
use crate::proxy::{Tlv, Tlvs};
use crate::tls::{AcceptTls, DialTls};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns a private key; each number has its own.
pub(crate) fn key(number: u8) -> PrivateKey {
    PrivateKey::from_seed(&[number; 32])
}

pub(crate) fn name(text: &str) -> MemberName {
    text.parse().unwrap()
}

/// Returns a list of members with the numbers of their keys.
pub(crate) fn list(members: &[(&str, &[u8])]) -> Arc<Members> {
    let members = members.iter().map(|(text, keys)| Member {
        name: name(text),
        keys: keys.iter().map(|number| key(*number).public()).collect(),
        addresses: Vec::new(),
        site: None,
        cloud: None,
        price: None,
    });
    Arc::new(Members::new(members.collect()).unwrap())
}

/// Returns the members `a`, `b` and `c` with the keys 1, 2 and 3.
pub(crate) fn members() -> Arc<Members> {
    list(&[("a", &[1]), ("b", &[2]), ("c", &[3])])
}

/// Returns a relay with this name and key that accepts `members`.
pub(crate) fn relay(text: &str, number: u8, members: &Arc<Members>) -> Local {
    Local {
        name: name(text),
        tls: AcceptTls::new(&key(number), members.clone()),
        members: members.clone(),
    }
}

/// Returns the relay `a`, which accepts in these tests.
pub(crate) fn local() -> Local {
    relay("a", 1, &members())
}

/// Returns the TLS of relay `b`, which dials `a` in these tests.
pub(crate) fn dial_tls() -> DialTls {
    DialTls::new(&key(2), &[key(1).public()])
}

/// Returns a hello of `b` to `a` with every field in use.
pub(crate) fn hello() -> Hello {
    Hello {
        source: "192.0.2.1:40000".parse().unwrap(),
        destination: "example.org:443".parse().unwrap(),
        receiver: name("a"),
        route: vec![name("fra-1"), name("b"), name("Nyc_2.x")],
        hops_left: 8,
        session: SessionId([7; 16]),
        passed: Tlvs::from(&[Tlv::from((0x02, &b"example.org"[..]))][..]),
    }
}

// === channels ===

/// Splits a stream into its records.
pub(crate) fn records(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !stream.is_empty() {
        let len = 5 + usize::from(u16::from_be_bytes([stream[3], stream[4]]));
        let (record, rest) = stream.split_at(len);
        records.push(record.to_vec());
        stream = rest;
    }
    records
}

/// Gives bytes to a channel as a socket would. Returns their plaintext.
pub(crate) fn open(
    channel: &mut Channel,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(Vec<u8>, Opened), ChannelError> {
    let mut cipher = [channel.partial(), bytes].concat();
    let mut plain = vec![0; cipher.len()];
    let opened = channel.open(&mut cipher, &mut plain, out)?;
    plain.truncate(opened.len);
    Ok((plain, opened))
}

/// Seals `plain` and checks the bound on its length.
pub(crate) fn seal(channel: &mut Channel, plain: &[u8]) -> Result<Vec<u8>, ChannelError> {
    let mut cipher = vec![0; sealed_len(plain.len())];
    let len = channel.seal(plain, &mut cipher)?;
    cipher.truncate(len);
    Ok(cipher)
}

pub(crate) fn close(channel: &mut Channel) -> Vec<u8> {
    let mut out = Vec::new();
    channel.close(&mut out).unwrap();
    out
}

/// Runs the handshake of two new channels. Returns the dialler and the acceptor.
pub(crate) fn pair_of(dial: &DialTls, accept: &AcceptTls) -> (Channel, Channel) {
    let mut to_acceptor = Vec::new();
    let mut dialler = Channel::dial(dial, &mut to_acceptor).unwrap();
    let mut acceptor = Channel::accept(accept).unwrap();
    let mut to_dialler = Vec::new();
    open(&mut acceptor, &to_acceptor, &mut to_dialler).unwrap();
    to_acceptor.clear();
    open(&mut dialler, &to_dialler, &mut to_acceptor).unwrap();
    to_dialler.clear();
    open(&mut acceptor, &to_acceptor, &mut to_dialler).unwrap();
    assert!(to_dialler.is_empty());
    assert!(dialler.is_established() && acceptor.is_established());
    (dialler, acceptor)
}

pub(crate) fn pair() -> (Channel, Channel) {
    pair_of(&dial_tls(), &local().tls)
}

/// A member that does not keep to the protocol: it seals records of any type with the keys of a proper
/// handshake.
pub(crate) struct Hostile {
    encrypter: Box<dyn rustls::crypto::cipher::MessageEncrypter>,
    sequence: u64,
}

impl Hostile {
    /// Takes over the dialling end of a connection.
    pub(crate) fn new(secrets: ExtractedSecrets) -> Self {
        let (sequence, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("another cipher suite");
        };
        let suite = crate::crypto::provider().cipher_suites[0].tls13().unwrap();
        Self {
            encrypter: suite.aead_alg.encrypter(key, iv),
            sequence,
        }
    }

    pub(crate) fn seal(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(payload),
        };
        let sealed = self.encrypter.encrypt(message, self.sequence).unwrap();
        self.sequence += 1;
        sealed.encode()
    }
}

/// Returns a dialler that breaks the protocol after the handshake, and its acceptor.
pub(crate) fn hostile() -> (Hostile, Channel) {
    let mut tls = dial_tls();
    Arc::get_mut(&mut tls.0).unwrap().enable_secret_extraction = true;
    let (dialler, acceptor) = pair_of(&tls, &local().tls);
    (Hostile::new(dialler.into_secrets()), acceptor)
}

// === acceptors and diallers ===

pub(crate) fn accepted(now: Instant) -> Acceptor {
    Acceptor::new(now, &Limits::default(), None)
}

pub(crate) fn dialled(now: Instant, tls: &DialTls) -> (Dialler, Vec<u8>) {
    let mut out = Vec::new();
    let dialler = Dialler::new(tls, now, 5 * SECOND, &mut out).unwrap();
    (dialler, out)
}

/// Gives bytes to an acceptor as a socket would. Returns what it sends as well.
pub(crate) fn give(
    acceptor: &mut Acceptor,
    bytes: &[u8],
    now: Instant,
    local: &Local,
) -> (Result<Event, Rejection>, Vec<u8>) {
    let mut cipher = [acceptor.partial(), bytes].concat();
    let mut plain = vec![0; cipher.len()];
    let mut out = Vec::new();
    let outcome = acceptor.receive(&mut cipher, &mut plain, now, local, &mut out);
    (outcome, out)
}

/// Gives bytes to a dialler as a socket would. Returns what it sends as well.
pub(crate) fn answer(
    dialler: &mut Dialler,
    bytes: &[u8],
    now: Instant,
) -> (Result<bool, Rejection>, Vec<u8>) {
    let mut cipher = [dialler.partial(), bytes].concat();
    let mut plain = vec![0; cipher.len()];
    let mut out = Vec::new();
    let outcome = dialler.receive(&mut cipher, &mut plain, now, &mut out);
    (outcome, out)
}

/// Gives bytes to a ready connection as a socket would.
pub(crate) fn idle(ready: &mut Ready, bytes: &[u8]) -> Result<(), Rejection> {
    let mut cipher = [ready.partial(), bytes].concat();
    let mut plain = vec![0; cipher.len()];
    ready.receive(&mut cipher, &mut plain)
}

/// Runs a handshake. Returns the acceptor, and how each end sees its peer at the end.
pub(crate) fn shake(
    tls: &DialTls,
    local: &Local,
    now: Instant,
) -> (Acceptor, Result<Event, Rejection>, Result<Ready, Rejection>) {
    let mut acceptor = accepted(now);
    let (mut dialler, mut to_acceptor) = dialled(now, tls);
    let mut seen = Ok(Event::More);
    for _ in 0..2 {
        let (outcome, to_dialler) = give(&mut acceptor, &to_acceptor, now, local);
        seen = outcome;
        if seen == Ok(Event::Proven) || to_dialler.is_empty() {
            break;
        }
        if dialler.is_ready() {
            // The acceptor's answer to the dialler's key.
            let mut ready = dialler.ready().unwrap();
            let outcome = idle(&mut ready, &to_dialler);
            return (acceptor, seen, outcome.map(|()| ready));
        }
        let (outcome, bytes) = answer(&mut dialler, &to_dialler, now);
        to_acceptor = bytes;
        if let Err(rejection) = outcome {
            let (seen, _) = give(&mut acceptor, &to_acceptor, now, local);
            return (acceptor, seen, Err(rejection));
        }
    }
    let ready = dialler.ready().ok_or(Rejection::ClosedEarly);
    (acceptor, seen, ready)
}

/// Returns an acceptor that waits for its hello, and the dialling end.
pub(crate) fn proven(now: Instant) -> (Acceptor, Ready) {
    let (acceptor, seen, ready) = shake(&dial_tls(), &local(), now);
    assert_eq!(seen, Ok(Event::Proven));
    (acceptor, ready.unwrap())
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

pub(crate) fn any_name() -> impl Strategy<Value = MemberName> {
    const LETTERS: &[u8] = b"abcxyzABCXYZ0123456789_-.";
    let letter = |i: u8| char::from(LETTERS[usize::from(i) % LETTERS.len()]);
    proptest::collection::vec(any::<u8>(), 1..=MAX_NAME)
        .prop_map(move |indices| name(&indices.into_iter().map(letter).collect::<String>()))
}

fn any_tlv() -> impl Strategy<Value = Tlv> {
    let value = proptest::collection::vec(any::<u8>(), 0..300);
    (any::<u8>(), value).prop_map(|(kind, value)| Tlv { kind, value })
}

pub(crate) fn any_hello() -> impl Strategy<Value = Hello> {
    (
        any_addr(),
        any_target(),
        any_name(),
        proptest::collection::vec(any_name(), 0..=crate::hello::MAX_ROUTE),
        1..=u8::MAX,
        any::<[u8; 16]>(),
        proptest::collection::vec(any_tlv(), 0..4),
    )
        .prop_map(
            |(source, destination, receiver, route, hops_left, session, passed)| Hello {
                source,
                destination,
                receiver,
                route,
                hops_left,
                session: SessionId(session),
                passed: Tlvs::from(&passed[..]),
            },
        )
}
