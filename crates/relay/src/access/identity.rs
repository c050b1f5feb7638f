//! How a forward learns its clients' addresses, and how it passes them on.

use std::net::SocketAddr;

use taut_mesh::proxy::{Command, Header, Tlv};

use crate::access::Sources;

/// How a forward learns its clients' addresses, and how it passes them on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Upstream connections use the client's address as their source, with another port. Replies
    /// must be routed through this machine.
    pub borrow: bool,
    /// Upstream connections start with a PROXY protocol header of this version that names the client; `None`:
    /// without one.
    pub send_proxy: Option<ProxyVersion>,
    /// Clients' connections start with such a header. Only these sources may send one; connections
    /// from all others are reset. `None`: clients send no header.
    pub accept_proxy: Option<Sources>,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// The binary header, with fields.
    V2,
}

/// What a PROXY protocol header says of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) client: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The fields of the header that the client's connection began with. Version 1 has none.
    pub(crate) tlvs: Vec<Tlv>,
}

impl Introduction {
    /// Returns the header that precedes the stream.
    pub(crate) fn header(self, version: ProxyVersion) -> Vec<u8> {
        let mut header = Header {
            command: Command::Proxy,
            addresses: Some((self.client, self.to)),
            tlvs: self.tlvs,
        };
        match version {
            ProxyVersion::V1 => header.encode_text(),
            // Addresses of IPv6 take more room than those of IPv4, so that the fields of the longest header that is
            // accepted may not fit. Without fields every header is short enough.
            ProxyVersion::V2 => header.encode().unwrap_or_else(|_| {
                header.tlvs.clear();
                header.encode().unwrap_or_default()
            }),
        }
    }
}
