//! Messages between relays: fields, and the MAC at the end of each message.
//!
//! The MAC is HMAC-SHA-256 (RFC 2104) over a domain, the nonces known to both ends at that point, and
//! every byte of the message before the MAC's value. Domain and nonces have fixed lengths, and a
//! message contains its own length, so different inputs never concatenate to the same bytes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::{Key, Keys};
use crate::proxy::{self, Command, Frame, ProxyError};
use crate::rejection::Rejection;

/// The version of these messages.
pub(crate) const VERSION: u8 = 1;

/// The longest accepted opening, greeting or proof, in bytes. Version 1 has 90, 90 and 51.
pub(crate) const MAX_HANDSHAKE: usize = 256;

/// The longest accepted hello, in bytes.
pub(crate) const MAX_HELLO: usize = 4096;

/// Random bytes that are unique to a connection.
pub(crate) type Nonce = [u8; 32];

/// Length of a MAC in bytes.
const MAC_LEN: usize = 32;

/// Types of TLVs, from the range that the PROXY protocol reserves for applications.
pub(crate) mod kind {
    pub(crate) const VERSION: u8 = 0xe0;
    pub(crate) const NONCE: u8 = 0xe1;
    pub(crate) const HOPS: u8 = 0xe2;
    pub(crate) const ROUTE: u8 = 0xe3;
    pub(crate) const MAC: u8 = 0xef;
}

/// The kind of a message. A MAC made for one kind is invalid for every other.
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

/// The secrets of a connection, known to both relays after the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) key: Key,
    pub(crate) acceptor: Nonce,
    pub(crate) dialler: Nonce,
}

impl Session {
    /// Appends the MAC to a message of this connection.
    pub(crate) fn seal(&self, kind: Kind, message: Vec<u8>) -> Vec<u8> {
        seal(&self.key, kind, &[&self.acceptor, &self.dialler], message)
    }

    pub(crate) fn is_sealed(&self, kind: Kind, message: &Sealed<'_>) -> bool {
        message.is_by(&self.key, kind, &[&self.acceptor, &self.dialler])
    }
}

/// Appends the MAC to `message` and sets its length field.
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
    // HMAC pads a short key to one block; a padded key cannot fail the length check.
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

/// A message whose form was checked, but not its MAC.
#[derive(Debug)]
pub(crate) struct Sealed<'a> {
    pub(crate) frame: Frame<'a>,
    /// The fields before the MAC.
    fields: &'a [u8],
    /// The bytes that the MAC covers.
    signed: &'a [u8],
    mac: &'a [u8],
}

impl<'a> Sealed<'a> {
    /// Parses `bytes`, which must be one header whose last field, and no other, is a MAC.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Rejection> {
        let frame = Frame::parse(bytes).map_err(rejection)?;
        let (_, all) = frame.split().map_err(rejection)?;
        let fields_len = all
            .len()
            .checked_sub(3 + MAC_LEN)
            .ok_or(Rejection::BadFrame)?;
        let (mut macs, mut last) = (0, 0);
        for tlv in proxy::tlvs(all) {
            let (kind, value) = tlv.map_err(rejection)?;
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

    /// Parses a message of the handshake, which has the command LOCAL and no addresses.
    pub(crate) fn parse_handshake(bytes: &'a [u8]) -> Result<Self, Rejection> {
        let sealed = Self::parse(bytes)?;
        if sealed.frame.command != Command::Local || !sealed.frame.is_bare() {
            return Err(Rejection::BadFrame);
        }
        Ok(sealed)
    }

    /// Returns the value of field `kind`, which must occur once and have `LEN` bytes.
    pub(crate) fn field<const LEN: usize>(&self, kind: u8) -> Result<[u8; LEN], Rejection> {
        let value = self.optional_field(kind)?.ok_or(Rejection::BadFrame)?;
        value.try_into().map_err(|_| Rejection::BadFrame)
    }

    /// Returns the value of field `kind`, which may occur at most once.
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

    /// Checks the version. Must run before the MAC is checked, which another version may compute
    /// differently: a relay of another release is then reported as such, not as one with a wrong key.
    pub(crate) fn check_version(&self) -> Result<(), Rejection> {
        match self.field(kind::VERSION)? {
            [VERSION] => Ok(()),
            _ => Err(Rejection::Version),
        }
    }

    /// Returns whether the MAC was made with `key`, in constant time.
    pub(crate) fn is_by(&self, key: &Key, kind: Kind, nonces: &[&Nonce]) -> bool {
        mac(key, kind, nonces, self.signed)
            .verify_slice(self.mac)
            .is_ok()
    }

    /// Returns the key of `keys` that made the MAC.
    pub(crate) fn key<'k>(&self, keys: &'k Keys, kind: Kind, nonces: &[&Nonce]) -> Option<&'k Key> {
        keys.iter().find(|key| self.is_by(key, kind, nonces))
    }
}

/// Converts an error of the format.
pub(crate) fn rejection(error: ProxyError) -> Rejection {
    match error {
        ProxyError::TooLong { .. } => Rejection::TooLong,
        _ => Rejection::BadFrame,
    }
}

/// Encodes an opening or a greeting without its MAC.
pub(crate) fn introduction(nonce: &Nonce) -> Vec<u8> {
    let mut message = proxy::bare_start(Command::Local);
    proxy::push_tlv(&mut message, kind::VERSION, &[VERSION]);
    proxy::push_tlv(&mut message, kind::NONCE, nonce);
    message
}

#[cfg(test)]
mod tests;
