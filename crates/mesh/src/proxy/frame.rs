//! The parts of an undecoded header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Command, Progress, ProxyError, START_LEN, needed};

/// Unspecified family and transport.
pub(super) const UNSPEC: u8 = 0x00;
/// TCP over IPv4.
pub(super) const TCP4: u8 = 0x11;
/// TCP over IPv6.
pub(super) const TCP6: u8 = 0x21;

/// A header whose fixed part was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) command: Command,
    /// Address family in the upper four bits, transport in the lower four.
    pub(crate) family: u8,
    /// The bytes after the fixed part.
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses `bytes`, which must be exactly one header.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ProxyError> {
        match needed(bytes, usize::MAX)? {
            Progress::Whole(len) if len == bytes.len() => {}
            _ => return Err(ProxyError::Length),
        }
        Ok(Self {
            command: match bytes[12] & 0x0f {
                0 => Command::Local,
                _ => Command::Proxy,
            },
            family: bytes[13],
            body: &bytes[START_LEN..],
        })
    }

    /// Returns whether family or transport is unspecified.
    pub(crate) fn is_unspecified(&self) -> bool {
        self.family & 0xf0 == 0 || self.family & 0x0f == 0
    }

    pub(crate) fn has_known_family(&self) -> bool {
        self.family >> 4 <= 3 && self.family & 0x0f <= 2
    }

    /// Splits the body into the addresses and the fields after them.
    pub(crate) fn split(&self) -> Result<(&'a [u8], &'a [u8]), ProxyError> {
        let len = match self.family >> 4 {
            1 => 12,
            2 => 36,
            3 => 216,
            _ => 0,
        };
        self.body.split_at_checked(len).ok_or(ProxyError::Addresses)
    }

    /// Returns source and destination if they are addresses of TCP.
    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (block, _) = self.split().ok()?;
        let port = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
        match self.family {
            TCP4 => {
                let ip = |at: usize| -> IpAddr {
                    Ipv4Addr::new(block[at], block[at + 1], block[at + 2], block[at + 3]).into()
                };
                Some(((ip(0), port(8)).into(), (ip(4), port(10)).into()))
            }
            TCP6 => {
                let ip = |at: usize| {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&block[at..at + 16]);
                    Ipv6Addr::from(octets).to_canonical()
                };
                Some(((ip(0), port(32)).into(), (ip(16), port(34)).into()))
            }
            _ => None,
        }
    }
}

/// Iterates over the fields in `bytes` as type and value. Ends with an error at the first field that
/// extends past the end.
pub(crate) fn tlvs(bytes: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), ProxyError>> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        // `take` ends the iteration after an error.
        let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
        let [kind, high, low, after @ ..] = bytes else {
            return Some(Err(ProxyError::Tlv));
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((value, after)) = after.split_at_checked(len) else {
            return Some(Err(ProxyError::Tlv));
        };
        rest = Some(after);
        Some(Ok((*kind, value)))
    })
}
