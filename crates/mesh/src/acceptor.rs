//! The accepting end: admits only diallers that prove, live, that they hold a key of the mesh.
//!
//! ```text
//! Opening --opening, key known--> Proof --proof--> Proven --hello--> Done
//!    unknown key: no reply          Greet            may wait for minutes
//! ```

use std::time::{Duration, Instant};

use crate::deadline::after;
use crate::hello::Hello;
use crate::key::{Key, Keys};
use crate::proxy::Framer;
pub use crate::rejection::Rejection;
use crate::wire::{self, Kind, MAX_HANDSHAKE, MAX_HELLO, Nonce, Sealed, Session};

/// Time limits for a dialler. Each applies to the whole message: bytes that trickle in do not extend
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time from accept to the complete proof.
    pub handshake: Duration,
    /// Time from the proof to the first byte of the hello. Must be longer than diallers hold a
    /// connection ready.
    pub idle: Duration,
    /// Time from the first byte of the hello to its last.
    pub hello: Duration,
}

/// The result of processing the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The message is incomplete: read more.
    More,
    /// The dialler holds a key or replays the opening of a dialler that does. Send these bytes, then
    /// read more.
    Greet(Vec<u8>),
    /// The dialler is live and holds a key. Read more: the hello comes now or in minutes.
    Proven,
    /// The hello of a session. The client's bytes follow in the stream.
    Hello(Box<Hello>),
}

/// The state of one accepted connection up to its hello. Read bytes into [`space`](Acceptor::space),
/// then call [`advance`](Acceptor::advance) with their number.
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
    /// Creates the state for a connection accepted at `now`. `nonce` must be random and unique to the
    /// connection.
    pub fn new(nonce: [u8; 32], now: Instant, limits: &Limits) -> Self {
        Self {
            framer: Framer::new(MAX_HANDSHAKE),
            stage: Stage::Opening(nonce),
            deadline: after(now, limits.handshake),
            idle: limits.idle,
            hello: limits.hello,
        }
    }

    /// Returns the buffer for the next bytes, which never extends beyond the current message. Empty only
    /// after the hello or a rejection.
    pub fn space(&mut self) -> &mut [u8] {
        match self.stage {
            Stage::Done | Stage::Refused(_) => &mut [],
            _ => self.framer.space(),
        }
    }

    /// Processes `n` bytes that were read into [`space`](Acceptor::space) at `now`. `keys` are the
    /// relay's current keys; a connection keeps the key of its opening (see
    /// [`is_current`](Acceptor::is_current)).
    ///
    /// # Errors
    /// The reason for turning the dialler away. Close the connection without sending another byte.
    /// Later calls return the same error.
    ///
    /// # Panics
    /// If `n` exceeds the buffer.
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
        let message = self.framer.advance(n).map_err(wire::rejection)?;
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

    /// Returns the current deadline for the dialler. Each [`advance`] may move it.
    ///
    /// [`advance`]: Acceptor::advance
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns which time limit the dialler has exceeded at `now`, if any.
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

    /// Returns the error for a dialler that has closed its side, or `None` if it has given back a ready
    /// connection, which is not an error.
    pub fn closed(&self) -> Option<Rejection> {
        match self.stage {
            Stage::Opening(_) | Stage::Proof(_) => Some(Rejection::ClosedEarly),
            Stage::Proven(_) => self.framer.has_begun().then_some(Rejection::ClosedEarly),
            Stage::Done => None,
            Stage::Refused(rejection) => Some(rejection),
        }
    }

    /// Returns whether the dialler has proved that it is live and holds a key.
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::Proven(_) | Stage::Done)
    }

    /// Returns whether a byte of the hello has arrived, so the connection is in use.
    pub fn hello_begun(&self) -> bool {
        match self.stage {
            Stage::Proven(_) => self.framer.has_begun(),
            Stage::Done => true,
            _ => false,
        }
    }

    /// Returns whether the key of the opening is still one of `keys`; `true` before the opening. After
    /// reloading keys, close the connections that are not current: a removed key must lose its power.
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

#[cfg(test)]
mod tests;
