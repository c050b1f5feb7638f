//! A client whose connection may become a session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use taut_mesh::proxy::{Tlv, Tlvs};
use taut_sys::socket::Stream;

use crate::access::identity::Introduction;
use crate::access::session_quota::Permit;
use crate::net::addr::ClientAddr;
use crate::route::table::Route;

/// A connection of a forward's client, from a source that the forward allows.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) stream: Stream,
    /// Its place in the quota of its source.
    pub(super) permit: Permit,
    pub(super) addr: ClientAddr,
    /// The address that the client connected to, as reported by a proxy.
    pub(super) proxied_to: Option<SocketAddr>,
    /// The fields of the header that a proxy has sent.
    pub(super) tlvs: Vec<Tlv>,
    pub(super) route: Arc<Route>,
    /// Bytes of the client's stream that have been read.
    pub(super) read: Vec<u8>,
    /// When it began to wait for a place; `None` if it has not.
    pub(super) queued_at: Option<Instant>,
}

impl Client {
    /// Returns a client that is not behind a proxy.
    pub(super) fn direct(
        (stream, permit): (Stream, Permit),
        addr: ClientAddr,
        route: Arc<Route>,
    ) -> Self {
        Self {
            stream,
            permit,
            addr,
            proxied_to: None,
            tlvs: Vec::new(),
            route,
            read: Vec::new(),
            queued_at: None,
        }
    }

    /// Returns the address that the client connected to, or `None` if the connection is gone.
    pub(super) fn connected_to(&self) -> Option<SocketAddr> {
        self.proxied_to.or_else(|| self.stream.local_addr().ok())
    }

    /// Returns the fields that a hello passes on to the last relay. A forward that sends headers
    /// itself sends no hello.
    pub(super) fn passed_on(&mut self) -> Tlvs {
        match self.route.identity.send_proxy {
            Some(_) => Tlvs::default(),
            None => Tlvs::from(&std::mem::take(&mut self.tlvs)[..]),
        }
    }

    /// Returns the PROXY protocol header that the destination receives before the client's stream;
    /// empty if the forward sends none.
    pub(super) fn introduction(&mut self) -> Vec<u8> {
        let Some(version) = self.route.identity.send_proxy else {
            return Vec::new();
        };
        let Some(to) = self.connected_to() else {
            return Vec::new();
        };
        let introduction = Introduction {
            client: self.addr.0,
            to,
            tlvs: std::mem::take(&mut self.tlvs),
        };
        introduction.header(version)
    }
}
