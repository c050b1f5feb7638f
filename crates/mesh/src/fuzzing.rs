//! What a fuzzer calls, and ordinary tests with bytes of their own: one function for each thing that
//! strangers can send. Each panics when a promise is broken.

use std::time::{Duration, Instant};

use crate::acceptor::{Acceptor, Event, Limits};
use crate::dialler::Dialler;
use crate::hello::{Hello, Target};
use crate::key::{Key, Keys};
use crate::proxy::{self, Command, Header, MAX_HEADER, Progress, Reader};
use crate::wire::{self, Kind, Nonce, Session};

const ACCEPTOR: Nonce = [0xa1; 32];
const DIALLER: Nonce = [0xd1; 32];

fn keys() -> Keys {
    Keys::new(Key::new([1; 32]), Some(Key::new([2; 32])))
}

/// The bytes of a header of a foreign proxy, and what comes after it.
pub fn proxy(data: &[u8]) {
    let whole = proxy::needed(data, MAX_HEADER);
    let mut reader = Reader::new(MAX_HEADER);
    let (mut taken, mut read) = (0, None);
    while taken < data.len() && read.is_none() {
        let space = reader.space();
        assert!(!space.is_empty());
        let n = space.len().min(data.len() - taken).min(7);
        space[..n].copy_from_slice(&data[taken..taken + n]);
        taken += n;
        read = reader.advance(n).transpose();
    }
    match whole {
        Ok(Progress::Whole(len)) => {
            assert_eq!(taken, len);
            assert_eq!(read, Some(Header::decode(&data[..len])));
        }
        Ok(Progress::More(_)) => assert_eq!(read, None),
        Err(error) => assert_eq!(read, Some(Err(error))),
    }
    if let Some(Ok(header)) = read {
        // A form that is written is read as the same. It may be longer than the one that was read:
        // never by more than two addresses, and so perhaps too long.
        if let Ok(again) = header.encode() {
            let checksums = |h: &Header| {
                h.tlvs
                    .iter()
                    .filter(|t| t.kind == proxy::kind::CRC32C)
                    .count()
            };
            assert!(checksums(&header) <= 1);
            // A checksum is computed anew, as the bytes may be others.
            let bare = |mut header: Header| {
                header.tlvs.retain(|t| t.kind != proxy::kind::CRC32C);
                header
            };
            assert_eq!(Header::decode(&again).map(bare), Ok(bare(header)));
        }
    }
}

/// A stream to an acceptor. The first byte says how far the handshake has come before it; then what
/// follows is raw, or the fields of a message that gets the right MAC.
pub fn acceptor(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else {
        return;
    };
    let session = session();
    let now = Instant::now();
    let mut acceptor = Acceptor::new(ACCEPTOR, now, &Limits::default());
    let mut stream = Vec::new();
    let stage = mode % 3;
    let sealed = mode & 0x80 != 0;
    if stage > 0 {
        let opening = wire::introduction(&DIALLER);
        stream.extend(wire::seal(&session.key, Kind::Opening, &[], opening));
    }
    if stage > 1 {
        stream.extend(session.seal(Kind::Proof, proxy::bare_start(Command::Local)));
    }
    match (sealed, stage) {
        (false, _) => stream.extend(data),
        (true, 0) => {
            let message = [&proxy::bare_start(Command::Local), data].concat();
            stream.extend(seal_within(data, || {
                wire::seal(&session.key, Kind::Opening, &[], message)
            }));
        }
        (true, 1) => {
            let message = [&proxy::bare_start(Command::Local), data].concat();
            stream.extend(seal_within(data, || session.seal(Kind::Proof, message)));
        }
        (true, _) => {
            // The family is the fuzzer's, too.
            let mut message = proxy::bare_start(Command::Proxy);
            let (family, fields) = data.split_first().map_or((0x11, data), |(f, d)| (*f, d));
            message[13] = family;
            message.extend(fields);
            stream.extend(seal_within(data, || session.seal(Kind::Hello, message)));
        }
    }
    let (mut greeted, mut proven, mut rest) = (false, false, &stream[..]);
    loop {
        let space = acceptor.space();
        let n = space.len().min(rest.len()).min(1 + usize::from(mode));
        if n == 0 {
            break;
        }
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match acceptor.advance(n, now, &keys()) {
            Ok(Event::More) => assert!(!acceptor.space().is_empty()),
            Ok(Event::Greet(greeting)) => {
                assert!(stage > 0 || sealed, "a stranger was greeted");
                assert!(greeting.len() <= wire::MAX_HANDSHAKE && !greeted);
                greeted = true;
            }
            Ok(Event::Proven) => {
                assert!(greeted && (stage > 1 || sealed));
                proven = true;
            }
            Ok(Event::Hello(hello)) => {
                assert!(proven && sealed && stage == 2);
                assert_eq!(hello.check(), Ok(()));
                again(&hello, &session);
            }
            Err(_) => assert!(acceptor.space().is_empty()),
        }
        assert!(proven || !acceptor.is_proven());
    }
}

/// A hello that was taken is taken again, the same, when it is passed on.
fn again(hello: &Hello, session: &Session) {
    let bytes = session.seal(Kind::Hello, hello.unsealed());
    assert!(bytes.len() <= wire::MAX_HELLO);
    let sealed = wire::Sealed::parse(&bytes);
    let passed = sealed.and_then(|sealed| Hello::from_sealed(&sealed));
    assert_eq!(passed.as_ref(), Ok(hello));
}

fn session() -> Session {
    Session {
        key: keys().first().clone(),
        acceptor: ACCEPTOR,
        dialler: DIALLER,
    }
}

/// Nothing, when `data` is longer than a message could say.
fn seal_within(data: &[u8], seal: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    if data.len() < 60_000 {
        seal()
    } else {
        Vec::new()
    }
}

/// What an acceptor says to a dialler: raw, or with the right MAC if the first byte is odd.
pub fn dialler(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else {
        return;
    };
    let now = Instant::now();
    let (mut dialler, _) = Dialler::new(DIALLER, now, Duration::from_secs(5), &keys());
    let sealed = mode & 1 == 1;
    let stream = if sealed {
        let message = [&proxy::bare_start(Command::Local), data].concat();
        seal_within(data, || {
            wire::seal(keys().first(), Kind::Greeting, &[&DIALLER], message)
        })
    } else {
        data.to_vec()
    };
    let mut rest = &stream[..];
    loop {
        let space = dialler.space();
        let n = space.len().min(rest.len()).min(1 + usize::from(mode));
        if n == 0 {
            break;
        }
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match dialler.advance(n, now) {
            Ok(None) => assert!(!dialler.space().is_empty()),
            Ok(Some(_)) => assert!(sealed, "a stranger was trusted"),
            Err(_) => assert!(dialler.space().is_empty()),
        }
    }
    assert!(sealed || dialler.ready().is_none());
}

/// The text of a key file.
pub fn keys_file(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match Keys::parse(text) {
        Ok(keys) => assert!((1..=2).contains(&keys.iter().count())),
        // No part of a key comes out again. (Lines of other letters may well: a fuzzer finds the
        // words of the message.)
        Err(error) => {
            let message = error.to_string();
            let is_digits = |s: &str| s.len() >= 8 && s.bytes().all(|b| b.is_ascii_hexdigit());
            for word in text.split_whitespace().filter(|word| is_digits(word)) {
                assert!(!message.contains(word));
            }
        }
    }
}

/// The text of a target.
pub fn target(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(target) = text.parse::<Target>() {
        assert_eq!(target.check(), Ok(()));
        assert_eq!(target.to_string().parse(), Ok(target));
    }
}

#[cfg(test)]
mod tests;
