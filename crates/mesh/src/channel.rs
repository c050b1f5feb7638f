//! One end of a TLS connection between relays, without its socket: it turns plaintext into records and
//! back.

use std::fmt;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{DnsName, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus,
};
use rustls::{AlertDescription, CommonState, ConnectionTrafficSecrets, Error};

use zeroize::Zeroizing;

use crate::identity::PublicKey;
use crate::rejection::Rejection;
use crate::tls::{AcceptTls, DialTls};

/// The longest record on the wire, in bytes: its header, 16 KiB of plaintext and what encryption may add
/// (RFC 8446 section 5.2).
pub const MAX_RECORD: usize = 5 + (1 << 14) + 256;

/// The longest handshake that an end accepts from its peer, in bytes. The longest of these relays is about
/// 2 kB.
const MAX_HANDSHAKE: usize = 16 << 10;

/// Plaintext bytes of a full record (RFC 8446 section 5.1).
const FRAGMENT: usize = 1 << 14;

/// What a record adds to its plaintext: header, content type and tag.
const OVERHEAD: usize = 5 + 1 + 16;

/// The length of a record with a close_notify alert.
const CLOSE_NOTIFY: usize = OVERHEAD + 2;

/// The room for a KeyUpdate record, which sealing may put first.
const KEY_UPDATE: usize = 64;

/// The length of a record with a KeyUpdate (RFC 8446 section 4.6.3).
pub(crate) const KEY_UPDATE_RECORD: usize = OVERHEAD + 5;

/// Returns the largest number of bytes that `len` bytes of plaintext can become when they are sealed.
pub const fn sealed_len(len: usize) -> usize {
    KEY_UPDATE + len + (len / FRAGMENT + 1) * OVERHEAD
}

/// One end of a TLS connection between relays.
pub struct Channel {
    end: End,
    /// The start of a record that has not arrived completely.
    partial: Vec<u8>,
    /// Bytes received until the handshake was complete.
    handshake: usize,
    /// The peer has ended its stream.
    closed: bool,
    /// This end has ended its stream.
    ended: bool,
    /// A key has been changed since the handshake. rustls asks the peer to change its own as well and answers
    /// such a request with the next bytes that are sent, so that neither key is final.
    key_changed: bool,
    /// Why the connection cannot continue.
    failed: Option<Box<ChannelError>>,
    /// The keys may leave this process.
    exportable: bool,
    /// Bytes of the peer's stream have arrived.
    has_received: bool,
}

/// The keys of a connection after its handshake, for another implementation of its records: the
/// kernel's.
pub struct Keys {
    /// For what this end sends.
    pub sending: Key,
    /// For what it receives.
    pub receiving: Key,
}

/// The key of one direction, for ChaCha20-Poly1305 (RFC 8446 section 7.3).
pub struct Key {
    /// The secret key.
    pub key: Zeroizing<[u8; 32]>,
    /// What the nonce of each record is made of.
    pub iv: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

enum End {
    Dialler(Box<UnbufferedClientConnection>),
    Acceptor(Box<UnbufferedServerConnection>),
}

/// A connection that cannot continue.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// The peer broke the protocol, cannot prove its identity, or its records were altered in transit.
    #[error("{0}")]
    Tls(#[from] Error),
    /// The peer's handshake, or a handshake message after it, is longer than any between relays.
    #[error("the peer's handshake is longer than {MAX_HANDSHAKE} bytes")]
    LongHandshake,
}

/// What [`Channel::open`] did with the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The number of plaintext bytes.
    pub len: usize,
    /// The peer has ended its stream in order (close_notify); nothing follows.
    pub closed: bool,
    /// The number of bytes that were consumed. Records without content, such as a KeyUpdate, have no
    /// plaintext.
    pub consumed: usize,
}

// === impl ChannelError ===

impl From<ChannelError> for Rejection {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::LongHandshake => Self::TooLong,
            ChannelError::Tls(Error::InvalidCertificate(_)) => Self::UnknownKey,
            ChannelError::Tls(Error::AlertReceived(
                AlertDescription::AccessDenied
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA,
            )) => Self::KeyRefused,
            ChannelError::Tls(_) => Self::Tls,
        }
    }
}

// === impl Channel ===

impl Channel {
    /// Starts a connection, and appends its first bytes to `out`.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] if there is no randomness.
    pub fn dial(tls: &DialTls, out: &mut Vec<u8>) -> Result<Self, ChannelError> {
        // Not sent (`DialTls::new`); the verifier knows the peer by its key.
        let name = DnsName::try_from("relay").expect("a valid name");
        let end = UnbufferedClientConnection::new(tls.0.clone(), ServerName::DnsName(name))?;
        let mut channel = Self::new(End::Dialler(Box::new(end)));
        channel.exportable = tls.0.enable_secret_extraction;
        channel.open(&mut [], &mut [], out)?;
        Ok(channel)
    }

    /// Starts the accepting end of a connection.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] if there is no randomness.
    pub fn accept(tls: &AcceptTls) -> Result<Self, ChannelError> {
        let end = UnbufferedServerConnection::new(tls.0.clone())?;
        let mut channel = Self::new(End::Acceptor(Box::new(end)));
        channel.exportable = tls.0.enable_secret_extraction;
        Ok(channel)
    }

    fn new(end: End) -> Self {
        Self {
            end,
            partial: Vec::new(),
            handshake: 0,
            closed: false,
            ended: false,
            key_changed: false,
            failed: None,
            exportable: false,
            has_received: false,
        }
    }

    /// Returns whether the handshake is complete, so that both ends are who they should be.
    pub fn is_established(&self) -> bool {
        // A dialler may write before its Finished is on its way.
        !self.common().is_handshaking()
    }

    /// Returns the key by which the peer has proven its identity, once the handshake is complete.
    pub fn peer(&self) -> Option<PublicKey> {
        if !self.is_established() {
            return None;
        }
        let chain = self.common().peer_certificates()?;
        PublicKey::from_spki(chain.first()?)
    }

    /// Returns whether the peer has ended its stream in order.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the start of an incomplete record or handshake message, shorter than [`MAX_RECORD`]. It must
    /// precede the bytes given to the next [`open`](Self::open).
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// Opens the records in `cipher`: the bytes of [`partial`](Self::partial) and those that have arrived
    /// after them. Writes their plaintext to `plain`, which must be at least as long, and appends what must
    /// be sent to the peer to `out`, also on an error (an alert).
    ///
    /// # Errors
    /// [`ChannelError`]: the connection cannot continue, and later calls return the same error. Plaintext
    /// that was opened before the error is genuine, but is not returned: a stream that ends here is cut in
    /// any case.
    pub fn open(
        &mut self,
        cipher: &mut [u8],
        plain: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Opened, ChannelError> {
        if let Some(error) = &self.failed {
            return Err((**error).clone());
        }
        let opened = self.open_records(cipher, plain, out);
        if let Err(error) = &opened {
            // rustls would continue with the next record.
            self.failed = Some(Box::new(error.clone()));
            self.partial = Vec::new();
        }
        opened
    }

    fn open_records(
        &mut self,
        cipher: &mut [u8],
        plain: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Opened, ChannelError> {
        let arrived = cipher.len().saturating_sub(self.partial.len());
        let was_established = self.is_established();
        self.partial.clear();
        let records = match &mut self.end {
            End::Dialler(end) => open(&mut **end, cipher, plain, out),
            End::Acceptor(end) => open(&mut **end, cipher, plain, out),
        }?;
        let rest = &cipher[records.consumed..];
        if !self.is_established() {
            self.handshake = self.handshake.saturating_add(arrived);
        }
        // rustls collects a message from any number of records, in the caller's buffer.
        if self.handshake > MAX_HANDSHAKE || rest.len() >= MAX_RECORD {
            return Err(ChannelError::LongHandshake);
        }
        // Any other record is a message of TLS itself, such as a KeyUpdate.
        if was_established && !self.closed {
            let end = if records.closed { CLOSE_NOTIFY } else { 0 };
            let with_data = records.len + records.with_data * OVERHEAD;
            self.key_changed |= records.consumed != with_data + end;
        }
        self.closed |= records.closed;
        self.has_received |= records.len > 0;
        if !self.closed {
            self.partial.extend_from_slice(rest);
        }
        Ok(Opened {
            len: records.len,
            closed: self.closed,
            consumed: records.consumed,
        })
    }

    /// Seals `plain` into records at the start of `cipher`, which must have room for [`sealed_len`] bytes.
    /// Returns their length. Changes the key before it has protected too much (RFC 8446 section 5.5).
    ///
    /// # Errors
    /// [`ChannelError::Tls`] before the handshake is complete and after [`close`](Self::close); the error of
    /// [`open`](Self::open) after it.
    pub fn seal(&mut self, plain: &[u8], cipher: &mut [u8]) -> Result<usize, ChannelError> {
        if self.ended {
            return Err(Error::HandshakeNotComplete.into());
        }
        self.send(Outgoing::Data(plain), cipher)
    }

    /// Ends the stream to the peer in order: appends a close_notify (RFC 8446 section 6.1) to `out`, the
    /// first time. The stream from the peer goes on.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] before the handshake is complete; the error of [`open`](Self::open) after it: a
    /// connection that has failed has no orderly end.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), ChannelError> {
        if self.ended {
            return Ok(());
        }
        let mut cipher = [0; sealed_len(2)];
        let len = self.send(Outgoing::End, &mut cipher)?;
        self.ended = true;
        out.extend_from_slice(&cipher[..len]);
        Ok(())
    }

    /// Changes the key of this end's stream: appends a KeyUpdate (RFC 8446 section 4.6.3) to `out`. Neither
    /// stream is otherwise affected.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] before the handshake is complete and after [`close`](Self::close); the error of
    /// [`open`](Self::open) after it.
    pub fn update_key(&mut self, out: &mut Vec<u8>) -> Result<(), ChannelError> {
        if self.ended {
            return Err(Error::HandshakeNotComplete.into());
        }
        let mut cipher = [0; KEY_UPDATE];
        self.key_changed = true;
        let len = self.send(Outgoing::KeyUpdate, &mut cipher)?;
        out.extend_from_slice(&cipher[..len]);
        Ok(())
    }

    fn send(&mut self, what: Outgoing<'_>, cipher: &mut [u8]) -> Result<usize, ChannelError> {
        if let Some(error) = &self.failed {
            return Err((**error).clone());
        }
        // rustls expects the bytes of an unfinished message in every call.
        let received = &mut self.partial;
        match &mut self.end {
            End::Dialler(end) => seal(&mut **end, received, what, cipher),
            End::Acceptor(end) => seal(&mut **end, received, what, cipher),
        }
    }

    /// Returns whether the keys may leave this process: the configuration allows it, this end may still send,
    /// and no key has been changed or is going to be. An accepting relay may do that (it drains) until it has
    /// the hello, so a dialler waits for the first byte after it.
    pub fn is_exportable(&self) -> bool {
        let key_is_final = match self.end {
            End::Dialler(_) => self.has_received || self.closed,
            End::Acceptor(_) => true,
        };
        let is_usable = self.is_established() && !self.ended && self.failed.is_none();
        self.exportable && key_is_final && !self.key_changed && is_usable
    }

    /// Returns the number of bytes that are missing from the record that has not arrived completely, or from
    /// its header if that has not: after them, [`partial`](Self::partial) is empty or longer. `None` if there
    /// is no such record, or if more than one record is incomplete.
    pub fn missing(&self) -> Option<usize> {
        const HEADER: usize = 5;
        let held = self.partial.len();
        if held == 0 {
            return None;
        }
        let whole = match self.partial.get(..HEADER) {
            Some(header) => HEADER + usize::from(u16::from_be_bytes([header[3], header[4]])),
            None => HEADER,
        };
        whole.checked_sub(held).filter(|&missing| missing > 0)
    }

    /// Returns the keys with which the connection goes on elsewhere. [`partial`](Self::partial) must be
    /// empty, and all sealed bytes must be on their way.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] if the channel is not [exportable](Self::is_exportable), or has something of its
    /// own to send. The connection is lost.
    pub fn into_keys(self) -> Result<Keys, ChannelError> {
        if !self.is_exportable() || !self.partial.is_empty() {
            return Err(Error::HandshakeNotComplete.into());
        }
        // The rest of the connection could only replace keys, and one of this cipher never has to be.
        let secrets = match self.end {
            End::Dialler(end) => end.dangerous_into_kernel_connection()?.0,
            End::Acceptor(end) => end.dangerous_into_kernel_connection()?.0,
        };
        Ok(Keys {
            sending: Key::of(secrets.tx)?,
            receiving: Key::of(secrets.rx)?,
        })
    }

    /// Returns the keys, for tests of a peer that does not keep to the protocol.
    #[cfg(test)]
    pub(crate) fn into_secrets(self) -> rustls::ExtractedSecrets {
        match self.end {
            End::Dialler(end) => end.dangerous_into_kernel_connection().unwrap().0,
            End::Acceptor(end) => end.dangerous_into_kernel_connection().unwrap().0,
        }
    }

    fn common(&self) -> &CommonState {
        match &self.end {
            End::Dialler(end) => end,
            End::Acceptor(end) => end,
        }
    }
}

// === impl Key ===

impl Key {
    fn of((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, ChannelError> {
        match secrets {
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok(Self {
                key: Zeroizing::new(key.as_ref().try_into().map_err(|_| Error::EncryptError)?),
                iv: iv.as_ref().try_into().map_err(|_| Error::EncryptError)?,
                sequence,
            }),
            _ => Err(Error::General("a cipher that the kernel does not get".into()).into()),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer())
            .finish_non_exhaustive()
    }
}

/// What [`seal`] sends.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Data(&'a [u8]),
    KeyUpdate,
    End,
}

/// The records that [`open`] has handled.
#[derive(Default)]
struct Records {
    consumed: usize,
    /// The number of them that had data.
    with_data: usize,
    len: usize,
    closed: bool,
}

/// Either end of a TLS connection of rustls.
trait Tls {
    type Data;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// Returns whether rustls has records to send.
    fn has_output(&self) -> bool;
}

impl Tls for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(tls)
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }
}

impl Tls for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, tls: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(tls)
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }
}

fn open<T: Tls>(
    end: &mut T,
    cipher: &mut [u8],
    plain: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<Records, Error> {
    let mut records = Records::default();
    loop {
        let UnbufferedStatus { discard, state } = end.process(&mut cipher[records.consumed..]);
        records.consumed += discard;
        match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    let payload = record.payload;
                    records.with_data += 1;
                    plain[records.len..][..payload.len()].copy_from_slice(payload);
                    records.len += payload.len();
                    records.consumed += record.discard;
                }
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => append(&mut data, out)?,
            // The caller sends `out`, or closes the connection.
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::PeerClosed) => records.closed = true,
            Ok(ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake) => {
                return Ok(records);
            }
            Ok(ConnectionState::Closed) => {
                records.closed = true;
                return Ok(records);
            }
            // Early data is not accepted, and there are no other states.
            Ok(_) => return Err(Error::General("a state that is not in use".into())),
            Err(error) => {
                alert(end, out);
                return Err(error);
            }
        }
    }
}

/// Appends the alert that follows an error.
fn alert<T: Tls>(end: &mut T, out: &mut Vec<u8>) {
    // Without something to send, rustls would look for the rest of an unfinished message in `&mut []`.
    while end.has_output() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = end.process(&mut []).state else {
            return;
        };
        if append(&mut data, out).is_err() {
            return;
        }
    }
}

fn append<Data>(data: &mut EncodeTlsData<'_, Data>, out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    loop {
        match data.encode(&mut out[start..]) {
            Ok(_) => return Ok(()),
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                out.resize(start + required_size, 0);
            }
            Err(error) => return Err(Error::General(error.to_string())),
        }
    }
}

fn seal<T: Tls>(
    end: &mut T,
    received: &mut [u8],
    what: Outgoing<'_>,
    cipher: &mut [u8],
) -> Result<usize, ChannelError> {
    let mut len = 0;
    let mut key_is_due = matches!(what, Outgoing::KeyUpdate);
    loop {
        match end.process(received).state? {
            // A KeyUpdate precedes the data.
            ConnectionState::EncodeTlsData(mut data) => {
                let encoded = data.encode(&mut cipher[len..]);
                len += encoded.map_err(|e| Error::General(e.to_string()))?;
            }
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => {}
            ConnectionState::WriteTraffic(traffic) if key_is_due => {
                traffic.refresh_traffic_keys()?;
                key_is_due = false;
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                let sealed = match what {
                    Outgoing::KeyUpdate => return Ok(len),
                    Outgoing::Data(plain) => traffic.encrypt(plain, &mut cipher[len..]),
                    Outgoing::End => traffic.queue_close_notify(&mut cipher[len..]),
                };
                return match sealed {
                    Ok(n) => Ok(len + n),
                    Err(EncryptError::EncryptExhausted) => Err(Error::EncryptError.into()),
                    Err(e) => Err(Error::General(e.to_string()).into()),
                };
            }
            _ => return Err(Error::HandshakeNotComplete.into()),
        }
    }
}

#[cfg(test)]
mod tests;
