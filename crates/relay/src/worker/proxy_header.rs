//! Clients that a proxy introduces: their connections begin with a PROXY protocol header, which is
//! read here, and no byte after it.
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

/// Connections of a node that may wait for the end of their header.
pub(crate) const MAX_WAITING: u32 = 1024;

/// A proxy says its header at once; the rest is the round trip and a loss or two.
const PATIENCE: Duration = Duration::from_secs(5);

/// A worker's connections whose header is not whole.
#[derive(Default)]
pub(super) struct ProxyHeaders {
    waiting: Slab<Waiting>,
    generation: Generation,
    /// In the order in which their time is up, among others that have gone since.
    deadlines: VecDeque<(Instant, Slot, Generation)>,
}

struct Waiting {
    stream: Stream,
    from: SocketAddr,
    route: Arc<Route>,
    reader: Reader,
    generation: Generation,
}

// === impl Prefaces ===

impl ProxyHeaders {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next one's time is up.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// The next one whose time is up.
    fn due(&mut self, now: Instant) -> Option<Slot> {
        while let Some(&(at, slot, generation)) = self.deadlines.front() {
            let there = self.is_here(slot, generation);
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

    fn is_here(&self, slot: Slot, generation: Generation) -> bool {
        self.waiting
            .get(slot.0 as usize)
            .is_some_and(|w| w.generation == generation)
    }
}

/// What came of reading.
enum HeaderProgress {
    /// The header is whole.
    All(Header),
    /// More is to come.
    Part,
    /// Nothing more will.
    Nothing(ProxyRefusal),
}

impl Waiting {
    fn listen(&mut self) -> HeaderProgress {
        loop {
            match self.stream.recv(self.reader.space()) {
                Ok(0) => return HeaderProgress::Nothing(ProxyRefusal::Gone),
                Ok(n) => match self.reader.advance(n) {
                    Ok(Some(header)) => return HeaderProgress::All(header),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::info!(from = %self.from, %error, "refused a connection");
                        return HeaderProgress::Nothing(ProxyRefusal::Malformed);
                    }
                },
                Err(Errno::AGAIN) => return HeaderProgress::Part,
                Err(Errno::INTR) => {}
                Err(_) => return HeaderProgress::Nothing(ProxyRefusal::Gone),
            }
        }
    }
}

impl Worker {
    /// A connection that is to begin with a header has been accepted.
    pub(super) fn await_header(&mut self, stream: Stream, from: SocketAddr, route: Arc<Route>) {
        let believed = route.identity.accept_proxy.as_ref();
        if !believed.is_some_and(|s| s.check(from.ip()) == SourceVerdict::Allowed) {
            tracing::info!(%from, "refused a connection: not a sender in proxy_from");
            return self.turn_away(stream, ProxyRefusal::Sender);
        }
        if self.proxy_headers.waiting.len() >= self.shared.share(MAX_WAITING) as usize {
            return self.turn_away(stream, ProxyRefusal::Full);
        }
        let proxy_headers = &mut self.proxy_headers;
        proxy_headers.generation = proxy_headers.generation.next();
        let generation = proxy_headers.generation;
        let vacant = proxy_headers.waiting.vacant_entry();
        let slot = slot(vacant.key());
        let token = Token::ProxyHeader(slot, generation).encode();
        // What has arrived already is reported too.
        if self
            .io
            .poller
            .add(&stream, token, Interest::StreamEdges)
            .is_err()
        {
            return self.turn_away(stream, ProxyRefusal::Full);
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

    /// A connection without a whole header is reported.
    pub(super) fn on_header_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        if !self.proxy_headers.is_here(slot, generation) || !(ready.readable() || ready.failed()) {
            return;
        }
        let Some(waiting) = self.proxy_headers.waiting.get_mut(slot.0 as usize) else {
            return;
        };
        let header = match waiting.listen() {
            HeaderProgress::Part => return,
            HeaderProgress::Nothing(why) => return self.give_up(slot, why),
            HeaderProgress::All(header) => header,
        };
        if let Some(waiting) = self.leave(slot) {
            let client = header.addresses.map_or(waiting.from, |(client, _)| client);
            let to = header.addresses.map(|(_, to)| to);
            self.io.metrics.proxy_headers.add(1);
            let route = waiting.route;
            if let Some(stream) = self.admit(waiting.stream, client, &route.sources) {
                self.start(Client {
                    stream,
                    addr: ClientAddr(client),
                    proxied_to: to,
                    route,
                });
            }
        }
    }

    /// Closes what has taken too long.
    pub(super) fn poll_proxy_headers(&mut self) {
        while let Some(slot) = self.proxy_headers.due(self.io.now) {
            self.give_up(slot, ProxyRefusal::TimedOut);
        }
    }

    fn give_up(&mut self, slot: Slot, why: ProxyRefusal) {
        if let Some(waiting) = self.leave(slot) {
            self.turn_away(waiting.stream, why);
        }
    }

    fn leave(&mut self, slot: Slot) -> Option<Waiting> {
        let waiting = self.proxy_headers.waiting.try_remove(slot.0 as usize)?;
        self.io.metrics.proxy_waiting.sub(1);
        Some(waiting)
    }

    fn turn_away(&mut self, stream: Stream, why: ProxyRefusal) {
        self.io.metrics.proxy_refused[why.index()].add(1);
        stream.abort();
    }
}
