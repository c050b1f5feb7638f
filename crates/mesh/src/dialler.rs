//! The dialling end: checks that its peer is the expected member, and proves that it is one itself.

use std::time::{Duration, Instant};

use crate::channel::{Channel, ChannelError, KEY_UPDATE_RECORD, sealed_len};
use crate::deadline::after;
use crate::hello::Hello;
use crate::identity::PublicKey;
use crate::members::MemberName;
pub use crate::rejection::Rejection;
use crate::tls::DialTls;

/// The state of a connection from connected to ready.
#[derive(Debug)]
pub struct Dialler {
    channel: Channel,
    refused: Option<Rejection>,
    deadline: Instant,
}

/// A connection on which the peer has proven its identity. It makes the hello of the session that will
/// use the connection.
///
/// The peer may still refuse this relay's key. It says so in an alert, which [`Ready::receive`] reports.
#[derive(Debug)]
pub struct Ready {
    /// `None` in a trusted network.
    channel: Option<Channel>,
}

// === impl Dialler ===

impl Dialler {
    /// Creates the state for a connection established at `now`, and appends its first bytes to `out`. The
    /// handshake must be complete within `timeout`.
    ///
    /// # Errors
    /// [`Rejection::Tls`] if there is no randomness.
    pub fn new(
        tls: &DialTls,
        now: Instant,
        timeout: Duration,
        out: &mut Vec<u8>,
    ) -> Result<Self, Rejection> {
        Ok(Self {
            channel: Channel::dial(tls, out)?,
            refused: None,
            deadline: after(now, timeout),
        })
    }

    /// Returns the start of an incomplete record. It must precede the bytes given to the next
    /// [`receive`](Self::receive).
    pub fn partial(&self) -> &[u8] {
        self.channel.partial()
    }

    /// Processes `bytes`: those of [`partial`](Self::partial) and those that have arrived at `now`. `plain`
    /// is a buffer at least as long. Appends what must be sent to `out`, also on an error. Returns whether
    /// the handshake is complete: the connection is [`ready`](Self::ready) then.
    ///
    /// # Errors
    /// The reason for not trusting the acceptor. Send `out` and close the connection. Later calls return the
    /// same error.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<bool, Rejection> {
        let outcome = self.step(bytes, plain, now, out);
        self.refused = outcome.err();
        outcome
    }

    fn step(
        &mut self,
        bytes: &mut [u8],
        plain: &mut [u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<bool, Rejection> {
        if let Some(rejection) = self.refused.or_else(|| self.expired(now)) {
            return Err(rejection);
        }
        // An acceptor has nothing to say before the hello.
        match self.channel.open(bytes, plain, out)? {
            opened if opened.len > 0 => Err(Rejection::BadFrame),
            opened if opened.closed => Err(Rejection::ClosedEarly),
            _ => Ok(self.channel.is_established()),
        }
    }

    /// Returns whether the handshake is complete.
    pub fn is_ready(&self) -> bool {
        self.refused.is_none() && self.channel.is_established()
    }

    /// Returns the ready connection, or `None` before the handshake is complete.
    pub fn ready(self) -> Option<Ready> {
        self.is_ready().then_some(Ready {
            channel: Some(self.channel),
        })
    }

    /// Returns the deadline of the handshake.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns which time limit the acceptor has exceeded at `now`, if any.
    pub fn expired(&self, now: Instant) -> Option<Rejection> {
        let waits = !self.channel.is_established();
        (waits && now >= self.deadline).then_some(Rejection::TimedOutHandshake)
    }
}

// === impl Ready ===

impl Ready {
    /// Returns a connection in a trusted network, which needs no handshake.
    pub fn trusted() -> Self {
        Self { channel: None }
    }

    /// Returns the key that the peer has proven; `None` in a trusted network.
    pub fn peer(&self) -> Option<PublicKey> {
        self.channel.as_ref().and_then(Channel::peer)
    }

    /// Processes what an unused connection receives. Anything but a part of a record is its end.
    ///
    /// # Errors
    /// Why the connection must not be used: [`Rejection::Withdrawn`] if the peer is draining,
    /// [`Rejection::Full`] if it has no room, [`Rejection::KeyRefused`] and others.
    pub fn receive(&mut self, bytes: &mut [u8], plain: &mut [u8]) -> Result<(), Rejection> {
        let channel = self.channel.as_mut().ok_or(Rejection::BadFrame)?;
        let mut out = Vec::new();
        match channel.open(bytes, plain, &mut out)? {
            opened if opened.closed => Err(Rejection::ClosedEarly),
            opened if opened.len > 0 => Err(Rejection::BadFrame),
            opened if opened.consumed >= 2 * KEY_UPDATE_RECORD => Err(Rejection::Full),
            opened if opened.consumed > 0 => Err(Rejection::Withdrawn),
            _ => Ok(()),
        }
    }

    /// Returns the start of an incomplete record. It must precede the bytes given to the next
    /// [`receive`](Self::receive).
    pub fn partial(&self) -> &[u8] {
        self.channel.as_ref().map_or(&[], Channel::partial)
    }

    /// Returns the bytes that give the connection to a session; the client's bytes follow them, through
    /// the returned channel if the connection is protected.
    ///
    /// # Errors
    /// [`ChannelError`] if the channel cannot seal.
    pub fn hello(self, hello: &Hello) -> Result<(Vec<u8>, Option<Channel>), ChannelError> {
        self.give(hello.encode())
    }

    /// Returns the bytes that make the connection one for rows ([`crate::rows`]) with the relay `receiver`;
    /// frames follow them, through the returned channel if the connection is protected.
    ///
    /// # Errors
    /// [`ChannelError`] if the channel cannot seal.
    pub fn rows(self, receiver: &MemberName) -> Result<(Vec<u8>, Option<Channel>), ChannelError> {
        self.give(Hello::for_rows(receiver))
    }

    fn give(mut self, message: Vec<u8>) -> Result<(Vec<u8>, Option<Channel>), ChannelError> {
        let Some(channel) = &mut self.channel else {
            return Ok((message, None));
        };
        let mut sealed = vec![0; sealed_len(message.len())];
        let len = channel.seal(&message, &mut sealed)?;
        sealed.truncate(len);
        Ok((sealed, self.channel))
    }
}

#[cfg(test)]
mod tests;
