//! The dialling end: checks that its peer is a relay of the mesh, and proves that it is one itself.

use std::time::{Duration, Instant};

use crate::deadline::after;
use crate::hello::Hello;
use crate::key::{Key, Keys};
use crate::proxy::Framer;
pub use crate::rejection::Rejection;
use crate::wire::{self, Kind, MAX_HANDSHAKE, Nonce, Sealed, Session};

/// The state of a connection from connected to ready. Read bytes into [`space`](Dialler::space), then
/// call [`advance`](Dialler::advance) with their number.
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

/// A connection on which both ends have proved themselves. It makes the hello of the session that will
/// use the connection.
#[derive(Debug)]
pub struct Ready(Session);

// === impl Dialler ===

impl Dialler {
    /// Creates the state for a connection established at `now`, and returns it with the opening to send.
    /// `nonce` must be random and unique to the connection. The acceptor's greeting must arrive within
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

    /// Returns the buffer for the next bytes, which never extends beyond the greeting. Empty only after
    /// the greeting or a rejection.
    pub fn space(&mut self) -> &mut [u8] {
        match self.stage {
            Stage::Greeting { .. } => self.framer.space(),
            Stage::Ready(_) | Stage::Refused(_) => &mut [],
        }
    }

    /// Processes `n` bytes that were read into [`space`](Dialler::space) at `now`. Returns the proof once
    /// the greeting is complete. Send the proof at once; the connection is [`ready`](Dialler::ready)
    /// then, and a hello may follow in the same write.
    ///
    /// # Errors
    /// The reason for not trusting the acceptor. Close the connection. Later calls return the same error.
    ///
    /// # Panics
    /// If `n` exceeds the buffer.
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
        let Some(message) = self.framer.advance(n).map_err(wire::rejection)? else {
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

    /// Returns the ready connection, or `None` before the proof was returned.
    pub fn ready(self) -> Option<Ready> {
        match self.stage {
            Stage::Ready(session) => Some(Ready(session)),
            _ => None,
        }
    }

    /// Returns the deadline for the acceptor's greeting.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns which time limit the acceptor has exceeded at `now`, if any.
    pub fn expired(&self, now: Instant) -> Option<Rejection> {
        let waits = matches!(self.stage, Stage::Greeting { .. });
        (waits && now >= self.deadline).then_some(Rejection::TimedOutHandshake)
    }

    /// Returns the error for an acceptor that has closed, or `None` once the connection is ready.
    ///
    /// Before the greeting the most likely cause is a different key: an acceptor does not reply to a
    /// dialler whose key it lacks.
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
    /// Returns the bytes that give the connection to a session; the client's bytes follow them. Send
    /// them once: a connection carries one hello.
    ///
    /// The acceptor refuses a hello that fails [`Hello::check`].
    pub fn hello(&self, hello: &Hello) -> Vec<u8> {
        self.0.seal(Kind::Hello, hello.unsealed())
    }

    /// Returns whether the connection's key is still one of `keys`. After reloading keys, close the
    /// connections that are not current; the other end does the same.
    pub fn is_current(&self, keys: &Keys) -> bool {
        keys.contains(&self.0.key)
    }
}

#[cfg(test)]
mod tests;
