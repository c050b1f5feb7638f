//! The accepting end: admits only diallers that prove to be a member of the mesh, and reads their hello.
//!
//! ```text
//! First --a TLS record---> Handshake --the key of a member--> Proven --hello--> Done
//!   |                                                           ^
//!   +--a hello, in a trusted network----------------------------+
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::deadline::after;
use crate::hello::Hello;
use crate::identity::PublicKey;
use crate::members::{Member, MemberName, Members};
use crate::proxy::Framer;
pub use crate::rejection::Rejection;
use crate::tls::AcceptTls;
use crate::wire::{self, MAX_HELLO};

/// The first byte of a TLS record that begins a handshake (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Time limits for a dialler. Each applies to the whole message: bytes that trickle in do not extend
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time from accept to the end of the handshake.
    pub handshake: Duration,
    /// Time from the handshake to the first byte of the hello. Must be longer than diallers hold a
    /// connection ready.
    pub idle: Duration,
    /// Time from the first byte of the hello to its last.
    pub hello: Duration,
}

/// What an accepting relay knows of itself and of others.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its own name.
    pub name: MemberName,
    /// Its TLS.
    pub tls: AcceptTls,
    /// All members.
    pub members: Arc<Members>,
}

/// The result of processing the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing is complete: read more.
    More,
    /// The dialler has proven to be a member. Read more: the hello comes now or in minutes.
    Proven,
    /// The hello of a session. The client's bytes follow, the first of them in `early`.
    Hello {
        /// The hello.
        hello: Box<Hello>,
        /// The start of the client's stream.
        early: Vec<u8>,
    },
    /// The connection carries rows between the two relays ([`crate::rows`]).
    Rows {
        /// The start of the stream.
        early: Vec<u8>,
    },
}

/// The state of one accepted connection up to its hello.
#[derive(Debug)]
pub struct Acceptor {
    framer: Framer,
    stage: Stage,
    channel: Option<Channel>,
    member: Option<Arc<Member>>,
    /// The member that may connect without TLS, by its address in a trusted network.
    trusted: Option<Arc<Member>>,
    /// The dialler has been told that this relay is draining.
    withdrawn: bool,
    deadline: Instant,
    handshake: Duration,
    idle: Duration,
    hello: Duration,
}

/// Why a relay gives up a connection that has no hello yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// It is draining.
    Draining,
    /// Too many connections wait for a hello. Releases that do not know this cause take it for the other.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    First,
    Handshake,
    Proven,
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
    /// Creates the state for a connection accepted at `now`. `trusted` is the member that has the
    /// connection's source address in a trusted network, where TLS is not needed.
    pub fn new(now: Instant, limits: &Limits, trusted: Option<Arc<Member>>) -> Self {
        // Without TLS the first byte is that of a hello, which may come in minutes.
        let first = match trusted {
            Some(_) => limits.idle,
            None => limits.handshake,
        };
        Self {
            framer: Framer::new(MAX_HELLO),
            stage: Stage::First,
            channel: None,
            member: None,
            trusted,
            withdrawn: false,
            deadline: after(now, first),
            handshake: limits.handshake,
            idle: limits.idle,
            hello: limits.hello,
        }
    }

    /// Returns the start of an incomplete record. It must precede the bytes given to the next
    /// [`receive`](Self::receive).
    pub fn partial(&self) -> &[u8] {
        self.channel.as_ref().map_or(&[], Channel::partial)
    }

    /// Processes `bytes`: those of [`partial`](Self::partial) and those that have arrived at `now`. `plain`
    /// is a buffer at least as long. Appends what must be sent to `out`, also on an error.
    ///
    /// # Errors
    /// The reason for turning the dialler away. Send `out` and close the connection. Later calls return the
    /// same error.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        now: Instant,
        local: &Local,
        out: &mut Vec<u8>,
    ) -> Result<Event, Rejection> {
        let outcome = self.step(bytes, plain, now, local, out);
        if let Err(rejection) = outcome {
            self.stage = Stage::Refused(rejection);
        }
        outcome
    }

    fn step(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        now: Instant,
        local: &Local,
        out: &mut Vec<u8>,
    ) -> Result<Event, Rejection> {
        if let Stage::Refused(rejection) = self.stage {
            return Err(rejection);
        }
        if let Some(rejection) = self.expired(now) {
            return Err(rejection);
        }
        let Some(&first) = bytes.first() else {
            return Ok(Event::More);
        };
        // The stream belongs to the session, which reads it through `into_channel`.
        if self.stage == Stage::Done {
            return Ok(Event::More);
        }
        if self.stage == Stage::First {
            self.begin(first, now, local)?;
        }
        let Some(channel) = &mut self.channel else {
            return self.read_hello(bytes, now, local);
        };
        let opened = channel.open(bytes, plain, out)?;
        let established = channel.is_established();
        let proven = self.stage == Stage::Handshake && established;
        if proven {
            let key = channel.peer().ok_or(Rejection::UnknownKey)?;
            // The list may have changed since the handshake began.
            let member = local.members.by_key(&key).ok_or(Rejection::UnknownKey)?;
            self.member = Some(member.clone());
            self.stage = Stage::Proven;
            self.deadline = after(now, self.idle);
        }
        if self.stage == Stage::Proven && !channel.partial().is_empty() {
            // The rest of the record, probably of the hello, has the time of a hello.
            self.deadline = self.deadline.min(after(now, self.hello));
        }
        match self.read_hello(&plain[..opened.len], now, local)? {
            Event::More if opened.closed && self.framer.has_begun() => Err(Rejection::ClosedEarly),
            Event::More if proven => Ok(Event::Proven),
            event => Ok(event),
        }
    }

    /// Decides how the connection is protected, by its first byte.
    fn begin(&mut self, first: u8, now: Instant, local: &Local) -> Result<(), Rejection> {
        if first == TLS_HANDSHAKE {
            self.channel = Some(Channel::accept(&local.tls)?);
            self.stage = Stage::Handshake;
            self.trusted = None;
            self.deadline = self.deadline.min(after(now, self.handshake));
            return Ok(());
        }
        let member = self.trusted.take().ok_or(Rejection::Unprotected)?;
        self.member = Some(member);
        // The list may have changed while the connection waited.
        if !self.is_current(&local.members) {
            return Err(Rejection::UnknownKey);
        }
        self.stage = Stage::Proven;
        self.deadline = after(now, self.idle);
        Ok(())
    }

    fn read_hello(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        local: &Local,
    ) -> Result<Event, Rejection> {
        while !bytes.is_empty() && self.stage == Stage::Proven {
            if !self.framer.has_begun() {
                self.deadline = after(now, self.hello);
            }
            let space = self.framer.space();
            let n = space.len().min(bytes.len());
            space[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if let Some(message) = self.framer.advance(n).map_err(wire::rejection)? {
                if Hello::is_for_rows(&message, &local.name)? {
                    self.stage = Stage::Done;
                    return Ok(Event::Rows {
                        early: bytes.to_vec(),
                    });
                }
                let hello = Hello::decode(&message, &local.name)?;
                self.stage = Stage::Done;
                return Ok(Event::Hello {
                    hello: Box::new(hello),
                    early: bytes.to_vec(),
                });
            }
        }
        Ok(Event::More)
    }

    /// Tells a dialler that has sent no hello why this relay gives its connection up: appends one KeyUpdate
    /// (RFC 8446 section 4.6.3) to `out`, or two for [`Withdrawal::Full`], once. A dialler whose connection is
    /// ready closes it. A session whose hello crosses the records is not affected by them, and must be
    /// served. Does nothing before the end of the handshake, and without TLS, where any byte would be taken
    /// for the start of a reply.
    pub fn withdraw(&mut self, why: Withdrawal, out: &mut Vec<u8>) {
        if self.withdrawn || self.stage != Stage::Proven || self.framer.has_begun() {
            return;
        }
        let updates = match why {
            Withdrawal::Draining => 1,
            Withdrawal::Full => 2,
        };
        if let Some(channel) = &mut self.channel {
            self.withdrawn = (0..updates).all(|_| channel.update_key(out).is_ok());
        }
    }

    /// Returns the current deadline for the dialler. Each [`receive`](Self::receive) may move it.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns which time limit the dialler has exceeded at `now`, if any.
    pub fn expired(&self, now: Instant) -> Option<Rejection> {
        if now < self.deadline {
            return None;
        }
        match self.stage {
            Stage::First if self.trusted.is_some() => Some(Rejection::TimedOutIdle),
            Stage::First | Stage::Handshake => Some(Rejection::TimedOutHandshake),
            Stage::Proven if self.hello_begun() || !self.partial().is_empty() => {
                Some(Rejection::TimedOutHello)
            }
            Stage::Proven => Some(Rejection::TimedOutIdle),
            Stage::Done | Stage::Refused(_) => None,
        }
    }

    /// Returns the error for a dialler that has closed its side, or `None` if it has sent nothing or given back
    /// a ready connection, which are not errors.
    pub fn closed(&self) -> Option<Rejection> {
        match self.stage {
            // It has sent nothing: other relays measure the path by such connections (`crate::rows`).
            Stage::First => None,
            Stage::Handshake => Some(Rejection::ClosedEarly),
            Stage::Proven => self.framer.has_begun().then_some(Rejection::ClosedEarly),
            Stage::Done => None,
            Stage::Refused(rejection) => Some(rejection),
        }
    }

    /// Returns the member that the dialler has proven to be, or that it is taken for in a trusted network.
    pub fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref().or(self.trusted.as_ref())
    }

    /// Returns whether the dialler has proven to be a member, or needs no proof.
    pub fn is_proven(&self) -> bool {
        match self.stage {
            Stage::First => self.trusted.is_some(),
            Stage::Proven | Stage::Done => true,
            Stage::Handshake | Stage::Refused(_) => false,
        }
    }

    /// Returns whether a byte of the hello has arrived, so the connection is in use.
    pub fn hello_begun(&self) -> bool {
        match self.stage {
            Stage::Proven => self.framer.has_begun(),
            Stage::Done => true,
            _ => false,
        }
    }

    /// Returns whether the key that the dialler has proven still is one of the same member, or, without TLS,
    /// whether the member is unchanged; `true` before the end of the handshake, which checks the list again.
    /// After a change of the list, close the connections that are not current: a removed key must lose its
    /// power.
    pub fn is_current(&self, members: &Members) -> bool {
        let Some(member) = self.member() else {
            return true;
        };
        match self.key() {
            Some(key) => members.by_key(&key).is_some_and(|m| m.name == member.name),
            None => members.by_name(member.name.as_str()) == Some(member),
        }
    }

    /// Returns whether the dialler is taken for a member because of its address in a trusted network.
    pub fn is_trusted(&self) -> bool {
        self.channel.is_none() && self.member().is_some()
    }

    fn key(&self) -> Option<PublicKey> {
        self.channel.as_ref().and_then(Channel::peer)
    }

    /// Returns the channel of the connection after its hello; `None` if it is not protected.
    pub fn into_channel(self) -> Option<Channel> {
        self.channel
    }
}

#[cfg(test)]
mod tests;
