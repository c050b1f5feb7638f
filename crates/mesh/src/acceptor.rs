//! The end that accepts: lets nobody in who cannot prove, live, that it holds a key of the mesh.
//!
//! ```text
//! Opening --opening, key known--> Proof --proof--> Proven --hello--> done
//!    a stranger gets no byte        Greet            may wait for minutes
//! ```

use std::time::{Duration, Instant};

use crate::hello::Hello;
use crate::key::{Key, Keys};
use crate::proxy::Framer;
pub use crate::rejection::Rejection;
use crate::wire::{self, Kind, MAX_HANDSHAKE, MAX_HELLO, Nonce, Sealed, Session};

/// How long a dialler may take. Each is the time until all of it is there: bytes that trickle in
/// do not prolong it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From accept until the proof is in.
    pub handshake: Duration,
    /// From the proof until the hello's first byte. It is to be longer than diallers hold a
    /// connection ready.
    pub idle: Duration,
    /// From the hello's first byte to its last.
    pub hello: Duration,
}

/// What became of the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More is to be read.
    More,
    /// The dialler holds a key, or has a recording of one that does: these bytes are to be sent,
    /// and more is to be read.
    Greet(Vec<u8>),
    /// The dialler is live and holds a key. More is to be read: a hello, now or in minutes.
    Proven,
    /// Whose session it is and where it goes. What follows in the stream is the client's.
    Hello(Box<Hello>),
}

/// One accepted connection, up to its hello. Bytes are read into [`space`](Acceptor::space),
/// [`advance`](Acceptor::advance) is told how many.
#[derive(Debug)]
pub struct Acceptor {
    framer: Framer,
    stage: Stage,
    deadline: Instant,
    idle: Duration,
    hello: Duration,
}

#[derive(Debug)]
enum Stage {
    Opening(Nonce),
    Proof(Session),
    Proven(Session),
    Done,
    Refused(Rejection),
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            hello: Duration::from_secs(5),
        }
    }
}

// === impl Acceptor ===

impl Acceptor {
    /// For a connection accepted at `now`. `nonce` is random, and no other connection's.
    pub fn new(nonce: [u8; 32], now: Instant, limits: &Limits) -> Self {
        Self {
            framer: Framer::new(MAX_HANDSHAKE),
            stage: Stage::Opening(nonce),
            deadline: after(now, limits.handshake),
            idle: limits.idle,
            hello: limits.hello,
        }
    }

    /// Room for the bytes that come next: never for one past the current message. Empty only after
    /// the hello or a rejection.
    pub fn space(&mut self) -> &mut [u8] {
        match self.stage {
            Stage::Done | Stage::Refused(_) => &mut [],
            _ => self.framer.space(),
        }
    }

    /// `n` bytes were read into [`space`](Acceptor::space), at `now`. `keys` are those held now; a
    /// connection stays with the key it was opened with (see [`is_current`](Acceptor::is_current)).
    ///
    /// # Errors
    /// Why the dialler is turned away; the connection is to be closed without another byte. The
    /// same again if it is asked again.
    ///
    /// # Panics
    /// When `n` is more than there was room for.
    pub fn advance(&mut self, n: usize, now: Instant, keys: &Keys) -> Result<Event, Rejection> {
        let outcome = self.step(n, now, keys);
        if let Err(rejection) = outcome {
            self.stage = Stage::Refused(rejection);
        }
        outcome
    }

    fn step(&mut self, n: usize, now: Instant, keys: &Keys) -> Result<Event, Rejection> {
        match self.stage {
            Stage::Done => {
                assert_eq!(n, 0, "more bytes than there was room for");
                return Ok(Event::More);
            }
            Stage::Refused(rejection) => return Err(rejection),
            _ => {}
        }
        if let Some(rejection) = self.expired(now) {
            return Err(rejection);
        }
        let had_begun = self.hello_begun();
        let message = self.framer.advance(n).map_err(wire::refused)?;
        if !had_begun && self.hello_begun() {
            self.deadline = after(now, self.hello);
        }
        match message {
            Some(message) => self.take(&message, now, keys),
            None => Ok(Event::More),
        }
    }

    fn take(&mut self, message: &[u8], now: Instant, keys: &Keys) -> Result<Event, Rejection> {
        match &self.stage {
            Stage::Opening(nonce) => {
                let opening = Sealed::parse_handshake(message)?;
                opening.check_version()?;
                let key = opening
                    .key(keys, Kind::Opening, &[])
                    .ok_or(Rejection::WrongKey)?;
                let session = Session {
                    key: key.clone(),
                    acceptor: *nonce,
                    dialler: opening.field(wire::kind::NONCE)?,
                };
                let greeting = wire::seal(
                    key,
                    Kind::Greeting,
                    &[&session.dialler],
                    wire::introduction(nonce),
                );
                self.stage = Stage::Proof(session);
                Ok(Event::Greet(greeting))
            }
            Stage::Proof(session) => {
                let proof = Sealed::parse_handshake(message)?;
                if !session.is_sealed(Kind::Proof, &proof) {
                    return Err(Rejection::Replayed);
                }
                self.stage = Stage::Proven(session.clone());
                self.framer.set_max(MAX_HELLO);
                self.deadline = after(now, self.idle);
                Ok(Event::Proven)
            }
            Stage::Proven(session) => {
                let sealed = Sealed::parse(message)?;
                sealed.check_version()?;
                if !session.is_sealed(Kind::Hello, &sealed) {
                    return Err(Rejection::Forged);
                }
                let hello = Hello::from_sealed(&sealed)?;
                self.stage = Stage::Done;
                Ok(Event::Hello(Box::new(hello)))
            }
            Stage::Done => Ok(Event::More),
            Stage::Refused(rejection) => Err(*rejection),
        }
    }

    /// When the dialler will have taken too long, as it stands now. Each [`advance`] may move it.
    ///
    /// [`advance`]: Acceptor::advance
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What the dialler has taken too long for at `now`.
    pub fn expired(&self, now: Instant) -> Option<Rejection> {
        if now < self.deadline {
            return None;
        }
        match self.stage {
            Stage::Opening(_) | Stage::Proof(_) => Some(Rejection::TimedOutHandshake),
            Stage::Proven(_) if self.framer.has_begun() => Some(Rejection::TimedOutHello),
            Stage::Proven(_) => Some(Rejection::TimedOutIdle),
            Stage::Done | Stage::Refused(_) => None,
        }
    }

    /// What it means that the dialler has closed its side: `None` when it gave back a connection that
    /// was held ready, which is in order.
    pub fn closed(&self) -> Option<Rejection> {
        match self.stage {
            Stage::Opening(_) | Stage::Proof(_) => Some(Rejection::ClosedEarly),
            Stage::Proven(_) => self.framer.has_begun().then_some(Rejection::ClosedEarly),
            Stage::Done => None,
            Stage::Refused(rejection) => Some(rejection),
        }
    }

    /// The dialler has proved that it is live and holds a key.
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::Proven(_) | Stage::Done)
    }

    /// A byte of the hello is there: the connection no longer waits to be used.
    pub fn hello_begun(&self) -> bool {
        match self.stage {
            Stage::Proven(_) => self.framer.has_begun(),
            Stage::Done => true,
            _ => false,
        }
    }

    /// Whether the key the connection was opened with is still one of `keys`. `true` before it was
    /// opened. After keys were read again, those that are not current are to be closed: a key that
    /// was taken out is worth nothing then.
    pub fn is_current(&self, keys: &Keys) -> bool {
        self.key().is_none_or(|key| keys.contains(key))
    }

    fn key(&self) -> Option<&Key> {
        match &self.stage {
            Stage::Proof(session) | Stage::Proven(session) => Some(&session.key),
            _ => None,
        }
    }
}

/// As good as for ever, and no overflow when it is added to an instant.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// `wait` after `now`, or [`FOREVER`].
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(FOREVER)
}

#[cfg(test)]
mod tests;
