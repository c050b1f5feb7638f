//! A client whose connection may become a session.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_sys::socket::Stream;

use crate::net::addr::ClientAddr;
use crate::route::table::Route;

/// A connection of a forward's client, from a source that the forward allows.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: Stream,
    pub(crate) addr: ClientAddr,
    /// The address that a proxy says the client connected to.
    pub(crate) proxied_to: Option<SocketAddr>,
    pub(crate) route: Arc<Route>,
}

impl Client {
    /// Returns the address that the client connected to; `None` if the connection is gone.
    pub(super) fn connected_to(&self) -> Option<SocketAddr> {
        self.proxied_to.or_else(|| self.stream.local_addr().ok())
    }
}
