//! Who the client is: how a forward learns it, and how it tells the destination.

use std::net::SocketAddr;

use taut_mesh::proxy::{Command, Header};

use crate::access::Sources;

/// How a forward deals with its clients' addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Upstream connections come from the client's address, not from the relay's; the port is
    /// another. The replies have to be routed through this machine.
    pub borrow: bool,
    /// Upstream connections begin with a PROXY protocol header, version 2, that names the client.
    pub send_proxy: bool,
    /// Clients' connections begin with such a header, and these senders are believed; nobody else
    /// is let in. `None`: they do not.
    pub accept_proxy: Option<Sources>,
}

/// Where a client came from and what it had connected to, as the destination is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) client: SocketAddr,
    pub(crate) to: SocketAddr,
}

impl Introduction {
    /// As a header ahead of the stream.
    pub(crate) fn header(self) -> Vec<u8> {
        let header = Header {
            command: Command::Proxy,
            addresses: Some((self.client, self.to)),
            tlvs: Vec::new(),
        };
        // Without fields it is 52 bytes at most, and only what is too long is refused.
        header.encode().unwrap_or_default()
    }
}
