//! How a forward learns its clients' addresses, and how it passes them on.

use std::net::SocketAddr;

use taut_mesh::proxy::{Command, Header};

use crate::access::Sources;

/// How a forward learns its clients' addresses, and how it passes them on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Upstream connections use the client's address as their source, with another port. Replies
    /// must be routed through this machine.
    pub borrow: bool,
    /// Upstream connections start with a PROXY protocol header, version 2, that names the client.
    pub send_proxy: bool,
    /// Clients' connections start with such a header. Only these sources may send one; connections
    /// from all others are reset. `None`: clients send no header.
    pub accept_proxy: Option<Sources>,
}

/// The addresses of a client's connection, for a PROXY protocol header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) client: SocketAddr,
    pub(crate) to: SocketAddr,
}

impl Introduction {
    /// Returns the header that precedes the stream.
    pub(crate) fn header(self) -> Vec<u8> {
        let header = Header {
            command: Command::Proxy,
            addresses: Some((self.client, self.to)),
            tlvs: Vec::new(),
        };
        // Without TLVs a header is at most 52 bytes; encoding fails only above the maximum length.
        header.encode().unwrap_or_default()
    }
}
