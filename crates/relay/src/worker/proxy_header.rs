//! Clients behind a proxy, whose connections start with a PROXY protocol header. Of the bytes after it, this
//! module reads at most a few, which the session begins with.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | connections without a whole header | [`MAX_WAITING`] of the node | the newest is reset | `taut_relay_proxy_refused_total{cause="full"}` |
//! | time to the end of the header | [`PATIENCE`] from accept | reset | `{cause="timed_out"}` |
//! | a header | [`MAX_HEADER`] bytes | reset | `{cause="too_long"}` |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taut_mesh::proxy::{Header, MAX_HEADER, Reader};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::Stream;

use super::Worker;
use super::client::Client;
use super::wait_list::WaitList;
use crate::access::SourceVerdict;
use crate::event::token::{Generation, Slot, Token};
use crate::net::addr::ClientAddr;
use crate::outcome::proxy::ProxyRefusal;
use crate::route::table::Route;

/// The maximum number of connections of a node that wait for the end of their header.
pub(crate) const MAX_WAITING: u32 = 1024;

/// The time limit of a header. A proxy sends it at once; the rest allows for the round trip and a
/// loss or two.
const PATIENCE: Duration = Duration::from_secs(5);

/// A worker's connections whose header is incomplete.
pub(super) type ProxyHeaders = WaitList<Waiting>;

pub(super) struct Waiting {
    stream: Stream,
    from: SocketAddr,
    route: Arc<Route>,
    reader: Reader,
}

/// The result of reading a header.
enum HeaderProgress {
    Whole(Header),
    /// The header is incomplete.
    Part,
    /// The connection is refused.
    Refused(ProxyRefusal),
}

impl Waiting {
    fn read(&mut self) -> HeaderProgress {
        loop {
            match self.stream.recv(self.reader.space()) {
                Ok(0) => return HeaderProgress::Refused(ProxyRefusal::Gone),
                Ok(n) => match self.reader.advance(n) {
                    Ok(Some(header)) => return HeaderProgress::Whole(header),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(from = %self.from, %error, "refused a connection");
                        return HeaderProgress::Refused(error.into());
                    }
                },
                Err(Errno::AGAIN) => return HeaderProgress::Part,
                Err(Errno::INTR) => {}
                Err(_) => return HeaderProgress::Refused(ProxyRefusal::Gone),
            }
        }
    }
}

impl Worker {
    /// Adds an accepted connection that must start with a header.
    pub(super) fn await_header(&mut self, stream: Stream, from: SocketAddr, route: Arc<Route>) {
        let believed = route.identity.accept_proxy.as_ref();
        if !believed.is_some_and(|s| s.check(from.ip()) == SourceVerdict::Allowed) {
            tracing::debug!(%from, "refused a connection: not a sender in proxy_from");
            return self.refuse_proxy(stream, from, &route, ProxyRefusal::Sender);
        }
        if self.proxy_headers.len() >= self.shared.share(MAX_WAITING) as usize {
            return self.refuse_proxy(stream, from, &route, ProxyRefusal::Full);
        }
        let waiting = Waiting {
            stream,
            from,
            route,
            reader: Reader::new(MAX_HEADER),
        };
        let until = self.io.now + PATIENCE;
        let (slot, generation) = self.proxy_headers.insert(waiting, until);
        self.io.metrics.proxy_waiting.add(1);
        let token = Token::ProxyHeader(slot, generation).encode();
        let watched = match self.proxy_headers.get_mut(slot, generation) {
            // The poller also reports bytes that have arrived already.
            Some(waiting) => self
                .io
                .poller
                .add(&waiting.stream, token, Interest::StreamEdges),
            None => return,
        };
        if watched.is_err() {
            self.remove_and_refuse(slot, generation, ProxyRefusal::Full);
        }
    }

    /// Reads the header of a connection, and starts the session once the header is complete.
    pub(super) fn on_header_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        if !(ready.readable() || ready.failed()) {
            return;
        }
        let Some(waiting) = self.proxy_headers.get_mut(slot, generation) else {
            return;
        };
        let header = match waiting.read() {
            HeaderProgress::Part => return,
            HeaderProgress::Refused(why) => return self.remove_and_refuse(slot, generation, why),
            HeaderProgress::Whole(header) => header,
        };
        if let Some(waiting) = self.remove(slot, generation) {
            let client = header.addresses.map_or(waiting.from, |(client, _)| client);
            let to = header.addresses.map(|(_, to)| to);
            self.io.metrics.proxy_headers.add(1);
            let route = waiting.route;
            if let Some(admitted) = self.admit_client(waiting.stream, client, &route) {
                self.enter(Client {
                    proxied_to: to,
                    // Those of a proxy's own connection say nothing of a client.
                    tlvs: if to.is_some() {
                        header.tlvs
                    } else {
                        Vec::new()
                    },
                    read: waiting.reader.into_rest(),
                    ..Client::direct(admitted, ClientAddr(client), route)
                });
            }
        }
    }

    /// Resets connections whose header was not complete in time.
    pub(super) fn poll_proxy_headers(&mut self) {
        while let Some(waiting) = self.proxy_headers.remove_due(self.io.now) {
            self.io.metrics.proxy_waiting.sub(1);
            self.refuse_proxy(
                waiting.stream,
                waiting.from,
                &waiting.route,
                ProxyRefusal::TimedOut,
            );
        }
    }

    fn remove_and_refuse(&mut self, slot: Slot, generation: Generation, why: ProxyRefusal) {
        if let Some(waiting) = self.remove(slot, generation) {
            self.refuse_proxy(waiting.stream, waiting.from, &waiting.route, why);
        }
    }

    fn remove(&mut self, slot: Slot, generation: Generation) -> Option<Waiting> {
        let waiting = self.proxy_headers.remove(slot, generation)?;
        self.io.metrics.proxy_waiting.sub(1);
        Some(waiting)
    }

    fn refuse_proxy(&mut self, stream: Stream, from: SocketAddr, route: &Route, why: ProxyRefusal) {
        self.io.metrics.proxy_refused[why.index()].add(1);
        let counters = route.stats.worker(self.io.worker);
        counters.header_refused.add(1);
        counters.last_refused.set(from.ip());
        stream.abort();
    }
}
