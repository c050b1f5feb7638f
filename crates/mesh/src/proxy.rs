//! The PROXY protocol (haproxy.org, `proxy-protocol.txt`): a header before a stream that gives the client's
//! address. Version 2 (section 2.2) is read and written, version 1 (section 2.1) read.
//!
//! [`Header`] is the form that other proxies send and expect; messages between relays use the same
//! format with stricter rules.

mod frame;
mod reader;
mod text;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use crc::{CRC_32_ISCSI, Crc};

pub(crate) use self::frame::{Frame, tlvs};
pub(crate) use self::reader::Framer;
pub use self::reader::{Progress, Reader, needed};

/// The twelve bytes at the start of every header.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part of a header: signature, version and command, family, length.
pub const START_LEN: usize = 16;

/// The longest accepted header, in bytes. Proxies that pass a client's certificates on in TLVs send 5 to 14
/// kB, although the specification asks for less than a segment.
pub const MAX_HEADER: usize = 16 << 10;

/// Types of TLVs (section 2.2.1 and on).
pub mod kind {
    /// The host name that the client requested.
    pub const AUTHORITY: u8 = 0x02;
    /// The checksum of the header.
    pub const CRC32C: u8 = 0x03;
    /// Padding, which readers ignore.
    pub const NOOP: u8 = 0x04;
    /// An ID of the connection, up to 128 bytes.
    pub const UNIQUE_ID: u8 = 0x05;
}

/// On whose behalf the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The proxy's own, for example a health check. The connection's own addresses apply.
    Local,
    /// A client's, whose addresses are in the header.
    Proxy,
}

/// One type-length-value field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    /// The type, one of [`kind`] or another.
    pub kind: u8,
    /// The value, up to 65,535 bytes.
    pub value: Vec<u8>,
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// On whose behalf the connection was made.
    pub command: Command,
    /// The client's source and destination address. `None` if they are unspecified or not of TCP (UNIX
    /// sockets, UDP); the connection's own addresses apply then.
    ///
    /// IPv4-mapped IPv6 addresses (RFC 4291 2.5.5.2) are returned as IPv4.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The other fields, in their order.
    pub tlvs: Vec<Tlv>,
}

/// A malformed header. The receiver must close the connection (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The stream does not start with the signature.
    #[error(
        "the stream does not begin with a PROXY protocol header: configure the sender to send one"
    )]
    Signature,
    /// The header of version 1, a line of text, is malformed or too long; or it is one where only version 2
    /// is accepted.
    #[error("the PROXY protocol header of version 1 is malformed")]
    Text,
    /// The version is unknown.
    #[error("version {0} of the PROXY protocol is unknown: set the sender to version 1 or 2")]
    Version(u8),
    /// The command is unknown.
    #[error("the PROXY protocol header has the unknown command {0:#x}")]
    Command(u8),
    /// The address family or transport is unknown.
    #[error("the PROXY protocol header has the unknown address family and transport {0:#04x}")]
    Family(u8),
    /// The header exceeds the accepted length.
    #[error("the PROXY protocol header is {len} bytes long; at most {max} are accepted")]
    TooLong {
        /// Length of the header in bytes.
        len: usize,
        /// The accepted length in bytes.
        max: usize,
    },
    /// The bytes are not exactly one header.
    #[error("the PROXY protocol header is incomplete")]
    Length,
    /// The header is too short for the addresses of its family.
    #[error("the PROXY protocol header is too short for its addresses")]
    Addresses,
    /// A TLV extends past the end.
    #[error("the PROXY protocol header has a field that extends past its end")]
    Tlv,
    /// The checksum is wrong.
    #[error(
        "the checksum of the PROXY protocol header is wrong: the header was altered in transit"
    )]
    Checksum,
}

/// The fields of a header in their encoded form, which copies share. At most [`MAX_HEADER`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs(Option<Arc<[u8]>>);

// === impl Tlvs ===

impl Tlvs {
    /// Returns fields that have this encoded form.
    ///
    /// # Errors
    /// [`ProxyError::TooLong`]; [`ProxyError::Tlv`] if one extends past the end.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ProxyError> {
        let (len, max) = (bytes.len(), MAX_HEADER);
        if len > max {
            return Err(ProxyError::TooLong { len, max });
        }
        for field in tlvs(bytes) {
            field?;
        }
        Ok(Self((len > 0).then(|| bytes.into())))
    }

    /// Returns whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the encoded form.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Decodes the fields.
    pub fn decode(&self) -> Vec<Tlv> {
        tlvs(self.as_bytes()).flatten().map(Tlv::from).collect()
    }
}

/// Fields of an accepted header, which are no longer than that. None of more than fit.
impl From<&[Tlv]> for Tlvs {
    fn from(fields: &[Tlv]) -> Self {
        let len: usize = fields.iter().map(|field| 3 + field.value.len()).sum();
        if len == 0 || len > MAX_HEADER {
            return Self::default();
        }
        let mut bytes = Vec::with_capacity(len);
        for Tlv { kind, value } in fields {
            push_tlv(&mut bytes, *kind, value);
        }
        Self(Some(bytes.into()))
    }
}

// === impl Tlv ===

impl From<(u8, &[u8])> for Tlv {
    fn from((kind, value): (u8, &[u8])) -> Self {
        Self {
            kind,
            value: value.to_vec(),
        }
    }
}

// === impl Header ===

impl Header {
    /// Decodes exactly one header, whose length comes from [`needed`] or [`Reader`].
    ///
    /// A LOCAL header, or one of the family UNSPEC, may contain any bytes after its fixed part; bytes that
    /// are not TLVs are ignored then.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProxyError> {
        let frame = Frame::parse(bytes)?;
        let lenient = frame.command == Command::Local || frame.is_unspecified();
        if frame.command == Command::Proxy && !frame.has_known_family() {
            return Err(ProxyError::Family(frame.family));
        }
        let fields = match frame.split() {
            Ok((_, fields)) => tlvs(fields).collect::<Result<Vec<_>, _>>(),
            Err(error) => Err(error),
        };
        let fields = match fields {
            Err(_) if lenient => Vec::new(),
            other => other?,
        };
        if !checksum_fits(bytes, &fields) {
            return Err(ProxyError::Checksum);
        }
        Ok(Self {
            command: frame.command,
            addresses: match frame.command {
                Command::Local => None,
                Command::Proxy => frame.addresses(),
            },
            tlvs: fields.into_iter().map(Tlv::from).collect(),
        })
    }

    /// Encodes the addresses as a header of version 1, which has no fields.
    pub fn encode_text(&self) -> Vec<u8> {
        text::encode(self.addresses).into_bytes()
    }

    /// Encodes the header, with TCP as transport. The value of a [`kind::CRC32C`] field is replaced by the
    /// checksum.
    ///
    /// # Errors
    /// [`ProxyError::TooLong`] if it would be longer than [`MAX_HEADER`].
    pub fn encode(&self) -> Result<Vec<u8>, ProxyError> {
        let mut bytes = match (self.command, self.addresses) {
            (Command::Proxy, Some((source, destination))) => start(source, destination),
            (command, _) => bare_start(command),
        };
        let values = self.tlvs.iter().map(|t| match t.kind {
            kind::CRC32C => 4,
            _ => t.value.len(),
        });
        let len = values.fold(bytes.len(), |sum, len| sum.saturating_add(3 + len));
        if len > MAX_HEADER {
            return Err(ProxyError::TooLong {
                len,
                max: MAX_HEADER,
            });
        }
        let mut checksums = Vec::new();
        for tlv in &self.tlvs {
            if tlv.kind == kind::CRC32C {
                checksums.push(bytes.len() + 3);
                push_tlv(&mut bytes, tlv.kind, &[0; 4]);
            } else {
                push_tlv(&mut bytes, tlv.kind, &tlv.value);
            }
        }
        set_length(&mut bytes, len);
        // With two checksums each would cover the other, so neither is computed.
        if let [place] = checksums[..] {
            let sum = CRC.checksum(&bytes);
            bytes[place..place + 4].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(bytes)
    }
}

/// CRC-32C, as in SCTP (RFC 9260 appendix A).
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Returns whether `fields` contains no checksum or the right one for the header `bytes`.
fn checksum_fits(bytes: &[u8], fields: &[(u8, &[u8])]) -> bool {
    let mut sums = fields.iter().filter(|(kind, _)| *kind == kind::CRC32C);
    let Some((_, sum)) = sums.next() else {
        return true;
    };
    let (None, Ok(sum)) = (sums.next(), <[u8; 4]>::try_from(*sum)) else {
        return false;
    };
    // The fields fill the header to its end, so the checksum's offset follows from those after it.
    let after: usize = fields
        .iter()
        .rev()
        .take_while(|(kind, _)| *kind != kind::CRC32C)
        .map(|(_, value)| 3 + value.len())
        .sum();
    let place = bytes.len() - after - 4;
    let mut digest = CRC.digest();
    digest.update(&bytes[..place]);
    digest.update(&[0; 4]);
    digest.update(&bytes[place + 4..]);
    digest.finalize() == u32::from_be_bytes(sum)
}

/// Encodes a header of TCP up to its TLVs. If the families differ, both addresses are encoded as IPv6.
pub(crate) fn start(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
    let family = if from.is_ipv4() && to.is_ipv4() {
        frame::TCP4
    } else {
        frame::TCP6
    };
    let mut bytes = opened(Command::Proxy, family);
    for ip in [from, to] {
        match ip {
            std::net::IpAddr::V4(ip) if family == frame::TCP4 => bytes.extend(ip.octets()),
            std::net::IpAddr::V4(ip) => bytes.extend(ip.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    for port in [source.port(), destination.port()] {
        bytes.extend(port.to_be_bytes());
    }
    bytes
}

/// Encodes a header without addresses, up to its TLVs.
pub(crate) fn bare_start(command: Command) -> Vec<u8> {
    opened(command, frame::UNSPEC)
}

fn opened(command: Command, family: u8) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    let command = match command {
        Command::Local => 0,
        Command::Proxy => 1,
    };
    bytes.extend([0x20 | command, family, 0, 0]);
    bytes
}

/// Appends a field. The caller guarantees that `value` is shorter than 64 KiB.
pub(crate) fn push_tlv(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    debug_assert!(value.len() <= usize::from(u16::MAX));
    bytes.push(kind);
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
}

/// Sets the length field of a header whose final length is `len` bytes.
pub(crate) fn set_length(bytes: &mut [u8], len: usize) {
    let rest = (len - START_LEN) as u16;
    bytes[START_LEN - 2..START_LEN].copy_from_slice(&rest.to_be_bytes());
}

/// Returns the unspecified address of the same family as `like`.
pub(crate) fn unspecified(like: SocketAddr, port: u16) -> SocketAddr {
    if like.ip().to_canonical().is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, port).into()
    }
}

#[cfg(test)]
mod tests;
