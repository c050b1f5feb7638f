//! How a forward learns its clients' addresses, and how it passes them on.

use std::net::SocketAddr;

use taut_mesh::proxy::{Command, Header};

use crate::access::Sources;

/// How a forward learns its clients' addresses, and how it passes them on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Upstream connections come from the client's address, at another port. The replies must be
    /// routed through this machine.
    pub borrow: bool,
    /// Upstream connections begin with a PROXY protocol header, version 2, that names the client.
    pub send_proxy: bool,
    /// Clients' connections begin with such a header; only these senders are believed, and all
    /// others are reset. `None`: they begin without one.
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
        // Without TLVs it is at most 52 bytes, and encoding fails only above the maximum length.
        header.encode().unwrap_or_default()
    }
}
