//! The PROXY protocol, version 2 (haproxy.org, `proxy-protocol.txt`, section 2.2): a header ahead of
//! a stream that says whose stream it is. The binary form only.
//!
//! [`Header`] is what proxies of other makes send and expect; messages between relays use the same
//! format with stricter rules.

mod frame;
mod reader;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crc::{CRC_32_ISCSI, Crc};

pub(crate) use self::frame::{Frame, tlvs};
pub(crate) use self::reader::Framer;
pub use self::reader::{Progress, Reader, needed};

/// The twelve bytes every header starts with.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of the part that every header has: signature, version and command, family, length.
pub const START_LEN: usize = 16;

/// The longest header that is read, in bytes: far above what proxies send (the specification wants
/// it below a segment), far below what the length field could ask for.
pub const MAX_HEADER: usize = 4096;

/// Types of TLVs (section 2.2.1 and on).
pub mod kind {
    /// The host name that the client asked for.
    pub const AUTHORITY: u8 = 0x02;
    /// A checksum of the header.
    pub const CRC32C: u8 = 0x03;
    /// Padding.
    pub const NOOP: u8 = 0x04;
    /// Up to 128 bytes that name the connection.
    pub const UNIQUE_ID: u8 = 0x05;
}

/// Who the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The proxy's own: a health check, say. Its own addresses hold.
    Local,
    /// Somebody else's, whose addresses are in the header.
    Proxy,
}

/// One type-length-value field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tlv {
    /// Its type: see [`kind`].
    pub kind: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who the connection is for.
    pub command: Command,
    /// Where the client came from, and what it had connected to. `None`: not said, or not in a form
    /// that TCP has (UNIX sockets, UDP); those of the connection itself hold then.
    ///
    /// IPv4 addresses in IPv6 form (RFC 4291 2.5.5.2) are given as IPv4.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The other fields, in their order.
    pub tlvs: Vec<Tlv>,
}

/// Why bytes are not a header. The connection is to be closed (section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Not this protocol at all.
    #[error(
        "the stream does not begin with a PROXY protocol header: is the sender set to send one?"
    )]
    Signature,
    /// The text form.
    #[error(
        "the sender uses version 1 of the PROXY protocol: set it to version 2 (HAProxy: `send-proxy-v2`)"
    )]
    Text,
    /// A version that does not exist yet.
    #[error("version {0} of the PROXY protocol is not known: set the sender to version 2")]
    Version(u8),
    /// A command that does not exist yet.
    #[error("the PROXY protocol header has the unknown command {0:#x}")]
    Command(u8),
    /// An address family or transport that does not exist yet.
    #[error("the PROXY protocol header has the unknown address family and transport {0:#04x}")]
    Family(u8),
    /// Longer than is read.
    #[error("the PROXY protocol header is {len} bytes long, which is more than {max}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The most that is read.
        max: usize,
    },
    /// The bytes are not one whole header.
    #[error("the PROXY protocol header is not whole")]
    Length,
    /// No room for the addresses that the family has.
    #[error("the PROXY protocol header is too short for its addresses")]
    Addresses,
    /// A TLV that reaches past the end.
    #[error("the PROXY protocol header has a field that reaches past its end")]
    Tlv,
    /// The checksum does not fit.
    #[error("the checksum of the PROXY protocol header does not fit: it was changed on its way")]
    Checksum,
}

// === impl Header ===

impl Header {
    /// Reads one whole header: as many bytes as [`needed`] or [`Reader`] found.
    ///
    /// A LOCAL header, or one of the family UNSPEC, may hold anything after its start, and is right
    /// all the same: fields that cannot be read as TLVs are passed over then.
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
            tlvs: fields
                .into_iter()
                .map(|(kind, value)| Tlv {
                    kind,
                    value: value.to_vec(),
                })
                .collect(),
        })
    }

    /// The bytes of the header, TCP being the transport. A TLV of the type [`kind::CRC32C`] gets the
    /// checksum for its value, whatever value it has here.
    ///
    /// # Errors
    /// [`ProxyError::TooLong`] when it would be longer than [`MAX_HEADER`].
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
        // There is one checksum. Another would be computed over the first.
        if let [place] = checksums[..] {
            let sum = CRC.checksum(&bytes);
            bytes[place..place + 4].copy_from_slice(&sum.to_be_bytes());
        }
        Ok(bytes)
    }
}

/// CRC-32C, as in SCTP (RFC 9260 appendix A).
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Whether the checksum among `fields` is that of the header `bytes`, or there is none.
fn checksum_fits(bytes: &[u8], fields: &[(u8, &[u8])]) -> bool {
    let mut sums = fields.iter().filter(|(kind, _)| *kind == kind::CRC32C);
    let Some((_, said)) = sums.next() else {
        return true;
    };
    let (None, Ok(said)) = (sums.next(), <[u8; 4]>::try_from(*said)) else {
        return false;
    };
    // Fields follow each other to the end, so that its place is what comes before and after.
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
    digest.finalize() == u32::from_be_bytes(said)
}

/// A header of TCP up to its TLVs. Families that differ are both written as IPv6.
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

/// A header without addresses, up to its TLVs.
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

/// Appends a field. `value` is shorter than 64 KiB, which whoever calls has made sure of.
pub(crate) fn push_tlv(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    debug_assert!(value.len() <= usize::from(u16::MAX));
    bytes.push(kind);
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
}

/// Writes the length field of a header that is, or will be, `len` bytes long.
pub(crate) fn set_length(bytes: &mut [u8], len: usize) {
    let rest = (len - START_LEN) as u16;
    bytes[START_LEN - 2..START_LEN].copy_from_slice(&rest.to_be_bytes());
}

/// The unspecified address of the family of `like`.
pub(crate) fn unspecified(like: SocketAddr, port: u16) -> SocketAddr {
    if like.ip().to_canonical().is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, port).into()
    }
}

#[cfg(test)]
mod tests;
