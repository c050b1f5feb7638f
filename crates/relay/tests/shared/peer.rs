//! A relay that a test plays: one connection to another relay, with its TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use taut_mesh::channel::{Channel, sealed_len};
use taut_mesh::hello::Hello;
use taut_mesh::identity::PrivateKey;
use taut_mesh::members::Members;
use taut_mesh::tls::{AcceptTls, DialTls};

/// The most that one read takes.
const READ: usize = 64 << 10;

/// A connection to another relay that has completed its handshake.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    channel: Channel,
    /// Plaintext that has been read and not returned.
    plain: Vec<u8>,
}

/// Plays the dialling end of a handshake with a relay that has `key`.
///
/// # Errors
/// Also if the relay refuses.
#[allow(dead_code, reason = "no test binary needs all of it")]
pub(crate) fn dial(stream: TcpStream, own: &PrivateKey, key: &PrivateKey) -> io::Result<Peer> {
    let tls = DialTls::new(own, &[key.public()]);
    let mut opening = Vec::new();
    let channel = Channel::dial(&tls, &mut opening).map_err(io::Error::other)?;
    Peer::begin(stream, channel, &opening)
}

/// Plays the accepting end of a handshake with a relay that is one of `members`.
///
/// # Errors
/// Also if the relay refuses.
#[allow(dead_code, reason = "no test binary needs all of it")]
pub(crate) fn accept(
    stream: TcpStream,
    own: &PrivateKey,
    members: Arc<Members>,
) -> io::Result<Peer> {
    let channel = Channel::accept(&AcceptTls::new(own, members)).map_err(io::Error::other)?;
    Peer::begin(stream, channel, &[])
}

// === impl Peer ===

#[allow(dead_code, reason = "no test binary needs all of it")]
impl Peer {
    /// Returns a connection whose channel is established.
    pub(crate) fn new(stream: TcpStream, channel: Channel) -> Self {
        Self {
            stream,
            channel,
            plain: Vec::new(),
        }
    }

    /// Returns the channel; the connection must be used elsewhere.
    pub(crate) fn into_channel(self) -> Channel {
        self.channel
    }

    fn begin(stream: TcpStream, channel: Channel, opening: &[u8]) -> io::Result<Self> {
        let mut peer = Self::new(stream, channel);
        peer.stream.write_all(opening)?;
        while !peer.channel.is_established() {
            if peer.receive()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(peer)
    }

    /// Returns the bytes that `plain` becomes on the wire.
    pub(crate) fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut cipher = vec![0; sealed_len(plain.len())];
        let len = self.channel.seal(plain, &mut cipher).unwrap();
        cipher.truncate(len);
        cipher
    }

    pub(crate) fn send(&mut self, plain: &[u8]) {
        let cipher = self.seal(plain);
        self.stream.write_all(&cipher).unwrap();
    }

    /// Asks for a session.
    pub(crate) fn ask(&mut self, hello: &Hello) {
        self.send(&hello.encode());
    }

    /// Ends the stream in order.
    pub(crate) fn end(&mut self) {
        let out = self.close();
        self.stream.write_all(&out).unwrap();
        self.cut();
    }

    /// Returns the record that ends the stream in order.
    pub(crate) fn close(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.channel.close(&mut out).unwrap();
        out
    }

    /// Returns the record that changes the key of this end's stream.
    pub(crate) fn update_key(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.channel.update_key(&mut out).unwrap();
        out
    }

    /// Ends the stream with a FIN alone, as anybody on the path can.
    pub(crate) fn cut(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Receives once; returns the number of bytes of the wire, 0 at the FIN.
    fn receive(&mut self) -> io::Result<usize> {
        let mut cipher = self.channel.partial().to_vec();
        let held = cipher.len();
        cipher.resize(held + READ, 0);
        let n = self.stream.read(&mut cipher[held..])?;
        cipher.truncate(held + n);
        let (mut plain, mut out) = (vec![0; held + n], Vec::new());
        let opened = self.channel.open(&mut cipher, &mut plain, &mut out);
        self.stream.write_all(&out)?;
        let opened = opened.map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        self.plain.extend_from_slice(&plain[..opened.len]);
        Ok(n)
    }

    /// Reads what has arrived, at least a byte of the wire.
    pub(crate) fn read_some(&mut self) -> io::Result<Vec<u8>> {
        if self.plain.is_empty() {
            self.receive()?;
        }
        Ok(std::mem::take(&mut self.plain))
    }

    /// Reads exactly `len` bytes.
    pub(crate) fn read_exact(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.plain.len() < len {
            if self.channel.is_closed() || self.receive()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.plain.drain(..len).collect())
    }

    /// Reads the stream up to its end in order.
    ///
    /// # Errors
    /// The end is not one in order.
    pub(crate) fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while !self.channel.is_closed() {
            if self.receive()? == 0 && !self.channel.is_closed() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(std::mem::take(&mut self.plain))
    }
}
