//! Clients behind a proxy, whose connections start with a PROXY protocol header. This module reads
//! the header and no byte after it.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | connections without a whole header | [`MAX_WAITING`] of the node | the newest is reset | `taut_relay_proxy_refused_total{cause="full"}` |
//! | time to the end of the header | [`PATIENCE`] from accept | reset | `{cause="timed_out"}` |
//! | a header | [`MAX_HEADER`] bytes | reset | `{cause="malformed"}` |

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;
use taut_mesh::proxy::{Header, MAX_HEADER, Reader};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::Stream;

use super::Worker;
use super::client::Client;
use super::sessions::slot;
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
#[derive(Default)]
pub(super) struct ProxyHeaders {
    waiting: Slab<Waiting>,
    generation: Generation,
    /// Connections ordered by deadline. Entries of connections that have left remain until they are
    /// reached.
    deadlines: VecDeque<(Instant, Slot, Generation)>,
}

struct Waiting {
    stream: Stream,
    from: SocketAddr,
    route: Arc<Route>,
    reader: Reader,
    generation: Generation,
}

// === impl ProxyHeaders ===

impl ProxyHeaders {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Returns the next connection whose deadline has passed.
    fn due(&mut self, now: Instant) -> Option<Slot> {
        while let Some(&(at, slot, generation)) = self.deadlines.front() {
            let there = self.contains(slot, generation);
            if there && at > now {
                return None;
            }
            self.deadlines.pop_front();
            if there {
                return Some(slot);
            }
        }
        None
    }

    fn contains(&self, slot: Slot, generation: Generation) -> bool {
        self.waiting
            .get(slot.0 as usize)
            .is_some_and(|w| w.generation == generation)
    }
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
                        return HeaderProgress::Refused(ProxyRefusal::Malformed);
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
        if self.proxy_headers.waiting.len() >= self.shared.share(MAX_WAITING) as usize {
            return self.refuse_proxy(stream, from, &route, ProxyRefusal::Full);
        }
        let proxy_headers = &mut self.proxy_headers;
        proxy_headers.generation = proxy_headers.generation.next();
        let generation = proxy_headers.generation;
        let vacant = proxy_headers.waiting.vacant_entry();
        let slot = slot(vacant.key());
        let token = Token::ProxyHeader(slot, generation).encode();
        // The poller also reports bytes that have arrived already.
        if self
            .io
            .poller
            .add(&stream, token, Interest::StreamEdges)
            .is_err()
        {
            return self.refuse_proxy(stream, from, &route, ProxyRefusal::Full);
        }
        vacant.insert(Waiting {
            stream,
            from,
            route,
            reader: Reader::new(MAX_HEADER),
            generation,
        });
        let until = self.io.now + PATIENCE;
        proxy_headers.deadlines.push_back((until, slot, generation));
        self.io.metrics.proxy_waiting.add(1);
    }

    /// Reads the header of a connection, and starts the session once the header is complete.
    pub(super) fn on_header_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        if !self.proxy_headers.contains(slot, generation) || !(ready.readable() || ready.failed()) {
            return;
        }
        let Some(waiting) = self.proxy_headers.waiting.get_mut(slot.0 as usize) else {
            return;
        };
        let header = match waiting.read() {
            HeaderProgress::Part => return,
            HeaderProgress::Refused(why) => return self.remove_and_refuse(slot, why),
            HeaderProgress::Whole(header) => header,
        };
        if let Some(waiting) = self.remove(slot) {
            let client = header.addresses.map_or(waiting.from, |(client, _)| client);
            let to = header.addresses.map(|(_, to)| to);
            self.io.metrics.proxy_headers.add(1);
            let route = waiting.route;
            if let Some(stream) = self.admit(waiting.stream, client, &route.sources, &route.stats) {
                self.start(Client {
                    stream,
                    addr: ClientAddr(client),
                    proxied_to: to,
                    route,
                });
            }
        }
    }

    /// Resets connections whose header was not complete in time.
    pub(super) fn poll_proxy_headers(&mut self) {
        while let Some(slot) = self.proxy_headers.due(self.io.now) {
            self.remove_and_refuse(slot, ProxyRefusal::TimedOut);
        }
    }

    fn remove_and_refuse(&mut self, slot: Slot, why: ProxyRefusal) {
        if let Some(waiting) = self.remove(slot) {
            self.refuse_proxy(waiting.stream, waiting.from, &waiting.route, why);
        }
    }

    fn remove(&mut self, slot: Slot) -> Option<Waiting> {
        let waiting = self.proxy_headers.waiting.try_remove(slot.0 as usize)?;
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
