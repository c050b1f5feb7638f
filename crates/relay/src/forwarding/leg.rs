//! The legs of a session: TCP connections, with or without TLS.

use std::time::Duration;

use taut_mesh::channel::{Channel, sealed_len};
use taut_mesh::dialler::Rejection;
use taut_sys::Errno;
use taut_sys::pipe::Pipe;
use taut_sys::socket::Stream;
use taut_sys::tcp_info::TcpInfo;

use crate::forwarding::direction::{Leg, Received, Scratch};

/// A leg of a session.
#[derive(Debug)]
pub(crate) enum TcpLeg {
    /// A leg to a client or destination, or within a trusted network.
    Plain(Stream),
    /// A leg between relays, protected by TLS in this process.
    Protected(Box<ProtectedLeg>),
}

/// A connection whose TLS is in this process.
#[derive(Debug)]
pub(crate) struct ProtectedLeg {
    stream: Stream,
    channel: Channel,
    /// Sealed bytes that the socket has not taken yet, from `sent` on. At most what one call of
    /// [`Leg::send`] seals, and a few short records of the protocol.
    pending: Vec<u8>,
    sent: usize,
    /// FIN has been sent; nothing may follow it.
    ended: bool,
}

// === impl TcpLeg ===

impl TcpLeg {
    /// Returns the leg of a connection, which is protected if there is a channel.
    pub(crate) fn new(stream: Stream, channel: Option<Channel>) -> Self {
        match channel {
            None => Self::Plain(stream),
            Some(channel) => Self::Protected(Box::new(ProtectedLeg {
                stream,
                channel,
                pending: Vec::new(),
                sent: 0,
                ended: false,
            })),
        }
    }

    /// Returns the connection.
    pub(crate) fn stream(&self) -> &Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Protected(leg) => &leg.stream,
        }
    }

    /// Resets the connection.
    pub(crate) fn abort(self) {
        match self {
            Self::Plain(stream) => stream.abort(),
            Self::Protected(leg) => leg.stream.abort(),
        }
    }
}

impl From<Stream> for TcpLeg {
    fn from(stream: Stream) -> Self {
        Self::Plain(stream)
    }
}

// === impl Leg for TcpLeg ===

impl Leg for TcpLeg {
    type Pipe = Pipe;

    fn recv(&mut self, scratch: &mut Scratch<'_>) -> Result<Received, Errno> {
        match self {
            Self::Plain(stream) => {
                let len = stream.recv(scratch.plain)?;
                let more = len == scratch.plain.len();
                Ok(Received { len, more })
            }
            Self::Protected(leg) => leg.recv(scratch),
        }
    }

    fn peek(&self) -> Result<Option<bool>, Errno> {
        self.stream().peek()
    }

    fn send(&mut self, bytes: &[u8], cipher: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(stream) => stream.send(bytes),
            Self::Protected(leg) => leg.send(bytes, cipher),
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Protected(leg) => leg.flush(),
        }
    }

    fn can_splice(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    fn fill(&self, pipe: &Pipe, max: usize) -> Result<usize, Errno> {
        match self {
            Self::Plain(stream) => pipe.fill(stream, max),
            Self::Protected(_) => Err(Errno::PROTO),
        }
    }

    fn drain(&self, pipe: &Pipe, len: usize) -> Result<usize, Errno> {
        match self {
            Self::Plain(stream) => pipe.drain(stream, len),
            // The pipe holds plaintext.
            Self::Protected(_) => Err(Errno::PROTO),
        }
    }

    fn shutdown_write(&mut self) -> Result<(), Errno> {
        match self {
            Self::Plain(stream) => stream.shutdown_write(),
            Self::Protected(leg) => leg.shutdown_write(),
        }
    }

    fn ends_with_fin(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    fn take_error(&self) -> Result<(), Errno> {
        self.stream().take_error()
    }

    fn unacknowledged(&self) -> usize {
        self.stream().unacknowledged() + self.held()
    }

    fn unsent(&self) -> usize {
        self.stream().unsent() + self.held()
    }

    fn is_unanswered(&self, since: Duration) -> bool {
        let info = TcpInfo::of(self.stream());
        info.is_ok_and(|info| info.unacked > 0 && info.last_ack_recv >= since)
    }

    fn is_its_own_peer(&self) -> bool {
        self.stream().is_its_own_peer()
    }

    fn end_gracefully(&self) {
        self.stream().end_gracefully();
    }
}

impl TcpLeg {
    /// Returns the number of sealed bytes that the socket has not taken yet.
    fn held(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Protected(leg) => leg.pending.len() - leg.sent,
        }
    }
}

// === impl ProtectedLeg ===

impl ProtectedLeg {
    fn recv(&mut self, scratch: &mut Scratch<'_>) -> Result<Received, Errno> {
        for _ in 0..READS_MAX {
            if self.channel.is_closed() {
                return Ok(Received {
                    len: 0,
                    more: false,
                });
            }
            let len = read_records(&self.stream, self.channel.partial(), scratch)?;
            let mut replies = Vec::new();
            let arrived = &mut scratch.cipher[..len];
            let opened = self.channel.open(arrived, scratch.plain, &mut replies);
            if !replies.is_empty() && !self.ended {
                self.pending.extend_from_slice(&replies);
                // What is left goes out when the leg is writable.
                let _ = self.flush();
            }
            match opened {
                Ok(opened) if opened.len > 0 => {
                    return Ok(Received {
                        len: opened.len,
                        // The end must be seen too, and no event reports it.
                        more: opened.closed || len == scratch.room(),
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a leg between relays breaks");
                    return Err(match Rejection::from(error) {
                        Rejection::KeyRefused => Errno::ACCESS,
                        _ => Errno::PROTO,
                    });
                }
            }
        }
        tracing::debug!("a leg between relays breaks: its peer sends records without content");
        Err(Errno::PROTO)
    }

    fn send(&mut self, bytes: &[u8], cipher: &mut [u8]) -> Result<usize, Errno> {
        self.flush()?;
        let len = bytes.len().min(SEAL_MAX);
        let sealed = self.channel.seal(&bytes[..len], cipher);
        let sealed = &cipher[..sealed.map_err(|_| Errno::PROTO)?];
        let sent = loop {
            match self.stream.send(sealed) {
                Ok(n) => break n,
                Err(Errno::AGAIN) => break 0,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        };
        self.pending.extend_from_slice(&sealed[sent..]);
        Ok(len)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.pending.len() {
            match self.stream.send(&self.pending[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        // Most legs hold nothing most of the time.
        if self.sent > 0 {
            self.pending = Vec::new();
            self.sent = 0;
        }
        Ok(())
    }

    fn shutdown_write(&mut self) -> Result<(), Errno> {
        self.channel
            .close(&mut self.pending)
            .map_err(|_| Errno::PROTO)?;
        self.flush()?;
        self.stream.shutdown_write()?;
        self.ended = true;
        Ok(())
    }
}

/// Reads records behind `partial`, the start of one of them, into `scratch.cipher`. Returns the length of
/// both.
///
/// # Errors
/// `EAGAIN` and others of recv(2). At the end of the stream `ECONNRESET`: only close_notify ends it in order
/// (RFC 8446 section 6.1).
pub(crate) fn read_records(
    stream: &Stream,
    partial: &[u8],
    scratch: &mut Scratch<'_>,
) -> Result<usize, Errno> {
    let (held, room) = (partial.len(), scratch.room());
    if held >= room {
        return Err(Errno::PROTO);
    }
    scratch.cipher[..held].copy_from_slice(partial);
    match stream.recv(&mut scratch.cipher[held..room])? {
        0 => Err(Errno::CONNRESET),
        n => Ok(held + n),
    }
}

/// The number of reads in a row that may bring no byte of the stream. A record arrives in a few; a peer
/// that sends records without content must not keep the worker.
pub(crate) const READS_MAX: usize = 32;

/// The number of bytes that one call seals.
const SEAL_MAX: usize = 64 << 10;

/// The room for sealed bytes that [`Scratch::cipher`] must have.
pub(crate) const CIPHER: usize = sealed_len(SEAL_MAX);

#[cfg(test)]
mod tests;
