//! The end that dials: makes sure that it talks to a relay of the mesh, and proves that it is one.

use std::time::{Duration, Instant};

use crate::acceptor::after;
use crate::hello::Hello;
use crate::key::{Key, Keys};
use crate::proxy::Framer;
pub use crate::rejection::Rejection;
use crate::wire::{self, Kind, MAX_HANDSHAKE, Nonce, Sealed, Session};

/// A connection being set up, from connected to ready. Bytes are read into
/// [`space`](Dialler::space), [`advance`](Dialler::advance) is told how many.
#[derive(Debug)]
pub struct Dialler {
    framer: Framer,
    stage: Stage,
    deadline: Instant,
}

#[derive(Debug)]
enum Stage {
    Greeting { key: Key, nonce: Nonce },
    Ready(Session),
    Refused(Rejection),
}

/// A connection that both ends have proved themselves on, waiting to be used: what it takes to make
/// its hello.
#[derive(Debug)]
pub struct Ready(Session);

// === impl Dialler ===

impl Dialler {
    /// For a connection that was established at `now`, and the opening that is to be sent on it.
    /// `nonce` is random, and no other connection's. The acceptor's greeting is to be there within
    /// `timeout`.
    pub fn new(nonce: [u8; 32], now: Instant, timeout: Duration, keys: &Keys) -> (Self, Vec<u8>) {
        let key = keys.first().clone();
        let opening = wire::seal(&key, Kind::Opening, &[], wire::introduction(&nonce));
        let dialler = Self {
            framer: Framer::new(MAX_HANDSHAKE),
            stage: Stage::Greeting { key, nonce },
            deadline: after(now, timeout),
        };
        (dialler, opening)
    }

    /// Room for the bytes that come next: never for one past the greeting. Empty only after the
    /// greeting or a rejection.
    pub fn space(&mut self) -> &mut [u8] {
        match self.stage {
            Stage::Greeting { .. } => self.framer.space(),
            Stage::Ready(_) | Stage::Refused(_) => &mut [],
        }
    }

    /// `n` bytes were read into [`space`](Dialler::space), at `now`. Once the greeting is whole, the
    /// proof, which is to be sent at once; the connection is [`ready`](Dialler::ready) then, and a
    /// hello may follow in the same write.
    ///
    /// # Errors
    /// Why the acceptor is not trusted; the connection is to be closed. The same again if it is
    /// asked again.
    ///
    /// # Panics
    /// When `n` is more than there was room for.
    pub fn advance(&mut self, n: usize, now: Instant) -> Result<Option<Vec<u8>>, Rejection> {
        let outcome = self.step(n, now);
        if let Err(rejection) = outcome {
            self.stage = Stage::Refused(rejection);
        }
        outcome
    }

    fn step(&mut self, n: usize, now: Instant) -> Result<Option<Vec<u8>>, Rejection> {
        let (key, nonce) = match &self.stage {
            Stage::Greeting { key, nonce } => (key, nonce),
            Stage::Ready(_) => {
                assert_eq!(n, 0, "more bytes than there was room for");
                return Ok(None);
            }
            Stage::Refused(rejection) => return Err(*rejection),
        };
        if let Some(rejection) = self.expired(now) {
            return Err(rejection);
        }
        let Some(message) = self.framer.advance(n).map_err(wire::refused)? else {
            return Ok(None);
        };
        let greeting = Sealed::parse_handshake(&message)?;
        greeting.check_version()?;
        if !greeting.is_by(key, Kind::Greeting, &[nonce]) {
            return Err(Rejection::WrongKey);
        }
        let session = Session {
            key: key.clone(),
            acceptor: greeting.field(wire::kind::NONCE)?,
            dialler: *nonce,
        };
        let proof = session.seal(
            Kind::Proof,
            crate::proxy::bare_start(crate::proxy::Command::Local),
        );
        self.stage = Stage::Ready(session);
        Ok(Some(proof))
    }

    /// The connection, once the proof has been given out; `None` before.
    pub fn ready(self) -> Option<Ready> {
        match self.stage {
            Stage::Ready(session) => Some(Ready(session)),
            _ => None,
        }
    }

    /// When the acceptor will have taken too long.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What the acceptor has taken too long for at `now`.
    pub fn expired(&self, now: Instant) -> Option<Rejection> {
        let waits = matches!(self.stage, Stage::Greeting { .. });
        (waits && now >= self.deadline).then_some(Rejection::TimedOutHandshake)
    }

    /// What it means that the acceptor has closed: `None` once the connection is ready.
    ///
    /// An acceptor says nothing to a dialler whose key it does not hold, so that before the greeting
    /// this is most likely what it means.
    pub fn closed(&self) -> Option<Rejection> {
        match self.stage {
            Stage::Greeting { .. } => Some(Rejection::ClosedEarly),
            Stage::Ready(_) => None,
            Stage::Refused(rejection) => Some(rejection),
        }
    }
}

// === impl Ready ===

impl Ready {
    /// The bytes that turn the connection over to a session. What is sent after them is the
    /// client's. To be sent once: a connection has one hello.
    ///
    /// A hello that breaks a rule of [`Hello::check`] is one that the acceptor refuses.
    pub fn hello(&self, hello: &Hello) -> Vec<u8> {
        self.0.seal(Kind::Hello, hello.unsealed())
    }

    /// Whether the key the connection was set up with is still one of `keys`. After keys were read
    /// again, those that are not current are to be closed: the other end does so too.
    pub fn is_current(&self, keys: &Keys) -> bool {
        keys.contains(&self.0.key)
    }
}

#[cfg(test)]
mod tests;
