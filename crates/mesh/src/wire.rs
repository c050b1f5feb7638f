//! Messages between relays: fields, and the MAC that ends each.
//!
//! The MAC is HMAC-SHA-256 (RFC 2104) over a domain, the nonces that both ends know by then, and
//! every byte of the message before the MAC's value. Domain and nonces have fixed lengths, and a
//! message begins with its own, so that no two inputs run together to the same bytes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::{Key, Keys};
use crate::proxy::{self, Command, Frame, ProxyError};
use crate::rejection::Rejection;

/// The one version of these messages.
pub(crate) const VERSION: u8 = 1;

/// The longest opening, greeting or proof, in bytes. Those of today have 90, 90 and 51.
pub(crate) const MAX_HANDSHAKE: usize = 256;

/// The longest hello, in bytes.
pub(crate) const MAX_HELLO: usize = 4096;

/// Random bytes that make a connection unlike any other.
pub(crate) type Nonce = [u8; 32];

/// Bytes of a MAC.
const MAC_LEN: usize = 32;

/// Types of TLVs, out of those that the PROXY protocol leaves to applications.
pub(crate) mod kind {
    pub(crate) const VERSION: u8 = 0xe0;
    pub(crate) const NONCE: u8 = 0xe1;
    pub(crate) const HOPS: u8 = 0xe2;
    pub(crate) const ROUTE: u8 = 0xe3;
    pub(crate) const MAC: u8 = 0xef;
}

/// What a message is: a MAC made for one kind is wrong for every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Opening,
    Greeting,
    Proof,
    Hello,
}

impl Kind {
    fn domain(self) -> &'static [u8; 24] {
        match self {
            Self::Opening => b"taut-mesh/1 opening\0\0\0\0\0",
            Self::Greeting => b"taut-mesh/1 greeting\0\0\0\0",
            Self::Proof => b"taut-mesh/1 proof\0\0\0\0\0\0\0",
            Self::Hello => b"taut-mesh/1 hello\0\0\0\0\0\0\0",
        }
    }
}

/// What two relays know of a connection once both have proved themselves.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) key: Key,
    pub(crate) acceptor: Nonce,
    pub(crate) dialler: Nonce,
}

impl Session {
    /// Ends a message of this connection with its MAC.
    pub(crate) fn seal(&self, kind: Kind, message: Vec<u8>) -> Vec<u8> {
        seal(&self.key, kind, &[&self.acceptor, &self.dialler], message)
    }

    pub(crate) fn is_sealed(&self, kind: Kind, message: &Sealed<'_>) -> bool {
        message.is_by(&self.key, kind, &[&self.acceptor, &self.dialler])
    }
}

/// Ends `message` with its MAC, and sets its length.
pub(crate) fn seal(key: &Key, kind: Kind, nonces: &[&Nonce], mut message: Vec<u8>) -> Vec<u8> {
    let len = message.len() + 3 + MAC_LEN;
    proxy::set_length(&mut message, len);
    message.push(self::kind::MAC);
    message.extend((MAC_LEN as u16).to_be_bytes());
    let mac = mac(key, kind, nonces, &message).finalize().into_bytes();
    message.extend(mac);
    message
}

fn mac(key: &Key, kind: Kind, nonces: &[&Nonce], message: &[u8]) -> Hmac<Sha256> {
    // A key of one block, which HMAC would make of it anyway: there is no length to refuse.
    let mut block = zeroize::Zeroizing::new([0; 64]);
    block[..key.bytes().len()].copy_from_slice(key.bytes());
    let mut mac = Hmac::<Sha256>::new((&*block).into());
    mac.update(kind.domain());
    for nonce in nonces {
        mac.update(*nonce);
    }
    mac.update(message);
    mac
}

/// A message whose form has been checked, and its MAC not yet.
#[derive(Debug)]
pub(crate) struct Sealed<'a> {
    pub(crate) frame: Frame<'a>,
    /// The fields before the MAC.
    fields: &'a [u8],
    /// What the MAC is over.
    signed: &'a [u8],
    mac: &'a [u8],
}

impl<'a> Sealed<'a> {
    /// `bytes` are one header whose last field, and no other, is a MAC.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Rejection> {
        let frame = Frame::parse(bytes).map_err(refused)?;
        let (_, all) = frame.split().map_err(refused)?;
        let fields_len = all
            .len()
            .checked_sub(3 + MAC_LEN)
            .ok_or(Rejection::BadFrame)?;
        let (mut macs, mut last) = (0, 0);
        for tlv in proxy::tlvs(all) {
            let (kind, value) = tlv.map_err(refused)?;
            macs += usize::from(kind == self::kind::MAC);
            last = if kind == self::kind::MAC {
                value.len()
            } else {
                0
            };
        }
        if macs != 1 || last != MAC_LEN {
            return Err(Rejection::BadFrame);
        }
        let (signed, mac) = bytes.split_at(bytes.len() - MAC_LEN);
        Ok(Self {
            frame,
            fields: &all[..fields_len],
            signed,
            mac,
        })
    }

    /// A message of the handshake: of the command LOCAL, and without addresses.
    pub(crate) fn parse_handshake(bytes: &'a [u8]) -> Result<Self, Rejection> {
        let sealed = Self::parse(bytes)?;
        if sealed.frame.command != Command::Local || !sealed.frame.is_bare() {
            return Err(Rejection::BadFrame);
        }
        Ok(sealed)
    }

    /// The value of the field `kind` of `LEN` bytes, which is to be there once.
    pub(crate) fn field<const LEN: usize>(&self, kind: u8) -> Result<[u8; LEN], Rejection> {
        let value = self.optional_field(kind)?.ok_or(Rejection::BadFrame)?;
        value.try_into().map_err(|_| Rejection::BadFrame)
    }

    /// The value of the field `kind`, which may be there once.
    pub(crate) fn optional_field(&self, kind: u8) -> Result<Option<&'a [u8]>, Rejection> {
        let mut found = proxy::tlvs(self.fields)
            .flatten()
            .filter(|(k, _)| *k == kind)
            .map(|(_, value)| value);
        match (found.next(), found.next()) {
            (value, None) => Ok(value),
            _ => Err(Rejection::BadFrame),
        }
    }

    /// Checked ahead of the MAC, which another version may make in another way: so a relay of
    /// another release is called that, and not a stranger.
    pub(crate) fn check_version(&self) -> Result<(), Rejection> {
        match self.field(kind::VERSION)? {
            [VERSION] => Ok(()),
            _ => Err(Rejection::Version),
        }
    }

    /// Whether the MAC is that of `key`. Takes as long whatever the MAC is.
    pub(crate) fn is_by(&self, key: &Key, kind: Kind, nonces: &[&Nonce]) -> bool {
        mac(key, kind, nonces, self.signed)
            .verify_slice(self.mac)
            .is_ok()
    }

    /// Which of `keys` made the MAC.
    pub(crate) fn key<'k>(&self, keys: &'k Keys, kind: Kind, nonces: &[&Nonce]) -> Option<&'k Key> {
        keys.iter().find(|key| self.is_by(key, kind, nonces))
    }
}

/// What a fault of the format is called between relays.
pub(crate) fn refused(error: ProxyError) -> Rejection {
    match error {
        ProxyError::TooLong { .. } => Rejection::TooLong,
        _ => Rejection::BadFrame,
    }
}

/// An opening or a greeting.
pub(crate) fn introduction(nonce: &Nonce) -> Vec<u8> {
    let mut message = proxy::bare_start(Command::Local);
    proxy::push_tlv(&mut message, kind::VERSION, &[VERSION]);
    proxy::push_tlv(&mut message, kind::NONCE, nonce);
    message
}

#[cfg(test)]
mod tests;
