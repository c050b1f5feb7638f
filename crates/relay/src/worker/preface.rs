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
use super::sessions::place;
use crate::access::SourceVerdict;
use crate::event::token::{Generation, Place, Token};
use crate::net::addr::ClientAddr;
use crate::outcome::proxy::Unproxied;
use crate::route::table::Route;

/// Connections of a node that may wait for the end of their header.
pub(crate) const MAX_WAITING: u32 = 1024;

/// A proxy says its header at once; the rest is the round trip and a loss or two.
const PATIENCE: Duration = Duration::from_secs(5);

/// A worker's connections whose header is not whole.
#[derive(Default)]
pub(super) struct Prefaces {
    waiting: Slab<Waiting>,
    generation: Generation,
    /// In the order in which their time is up, among others that have gone since.
    deadlines: VecDeque<(Instant, Place, Generation)>,
}

struct Waiting {
    stream: Stream,
    from: SocketAddr,
    route: Arc<Route>,
    reader: Reader,
    generation: Generation,
}

// === impl Prefaces ===

impl Prefaces {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the next one's time is up.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// The next one whose time is up.
    fn due(&mut self, now: Instant) -> Option<Place> {
        while let Some(&(at, place, generation)) = self.deadlines.front() {
            let there = self.is_here(place, generation);
            if there && at > now {
                return None;
            }
            self.deadlines.pop_front();
            if there {
                return Some(place);
            }
        }
        None
    }

    fn is_here(&self, place: Place, generation: Generation) -> bool {
        self.waiting
            .get(place.0 as usize)
            .is_some_and(|w| w.generation == generation)
    }
}

/// What came of reading.
enum Heard {
    /// The header is whole.
    All(Header),
    /// More is to come.
    Part,
    /// Nothing more will.
    Nothing(Unproxied),
}

impl Waiting {
    fn listen(&mut self) -> Heard {
        loop {
            match self.stream.recv(self.reader.space()) {
                Ok(0) => return Heard::Nothing(Unproxied::Gone),
                Ok(n) => match self.reader.advance(n) {
                    Ok(Some(header)) => return Heard::All(header),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::info!(from = %self.from, %error, "refused a connection");
                        return Heard::Nothing(Unproxied::Malformed);
                    }
                },
                Err(Errno::AGAIN) => return Heard::Part,
                Err(Errno::INTR) => {}
                Err(_) => return Heard::Nothing(Unproxied::Gone),
            }
        }
    }
}

impl Worker {
    /// A connection that is to begin with a header has been accepted.
    pub(super) fn await_header(&mut self, stream: Stream, from: SocketAddr, route: &Arc<Route>) {
        let believed = route.identity.accept_proxy.as_ref();
        if !believed.is_some_and(|s| s.check(from.ip()) == SourceVerdict::Allowed) {
            tracing::info!(%from, "refused a connection: not a sender in proxy_from");
            return self.turn_away(stream, Unproxied::Sender);
        }
        if self.prefaces.waiting.len() >= self.shared.share(MAX_WAITING) as usize {
            return self.turn_away(stream, Unproxied::Full);
        }
        let prefaces = &mut self.prefaces;
        prefaces.generation = prefaces.generation.next();
        let generation = prefaces.generation;
        let vacant = prefaces.waiting.vacant_entry();
        let place = place(vacant.key());
        let token = Token::Preface(place, generation).encode();
        // What has arrived already is reported too.
        if self
            .poller
            .add(&stream, token, Interest::StreamEdges)
            .is_err()
        {
            return self.turn_away(stream, Unproxied::Full);
        }
        vacant.insert(Waiting {
            stream,
            from,
            route: route.clone(),
            reader: Reader::new(MAX_HEADER),
            generation,
        });
        let until = self.shop.now + PATIENCE;
        prefaces.deadlines.push_back((until, place, generation));
        self.shop.metrics.proxy_waiting.add(1);
    }

    /// A connection without a whole header is reported.
    pub(super) fn read_header(&mut self, place: Place, generation: Generation, ready: Readiness) {
        if !self.prefaces.is_here(place, generation) || !(ready.readable() || ready.failed()) {
            return;
        }
        let Some(waiting) = self.prefaces.waiting.get_mut(place.0 as usize) else {
            return;
        };
        let header = match waiting.listen() {
            Heard::Part => return,
            Heard::Nothing(why) => return self.give_up(place, why),
            Heard::All(header) => header,
        };
        if let Some(waiting) = self.leave(place) {
            let client = header.addresses.map_or(waiting.from, |(client, _)| client);
            let to = header.addresses.map(|(_, to)| to);
            self.shop.metrics.proxy_headers.add(1);
            let route = waiting.route;
            if let Some(stream) = self.let_in(waiting.stream, client, &route.sources) {
                self.admit(stream, ClientAddr(client), to, &route);
            }
        }
    }

    /// Closes what has taken too long.
    pub(super) fn tend_prefaces(&mut self) {
        while let Some(place) = self.prefaces.due(self.shop.now) {
            self.give_up(place, Unproxied::TimedOut);
        }
    }

    fn give_up(&mut self, place: Place, why: Unproxied) {
        if let Some(waiting) = self.leave(place) {
            self.turn_away(waiting.stream, why);
        }
    }

    fn leave(&mut self, place: Place) -> Option<Waiting> {
        let waiting = self.prefaces.waiting.try_remove(place.0 as usize)?;
        self.shop.metrics.proxy_waiting.sub(1);
        Some(waiting)
    }

    fn turn_away(&mut self, stream: Stream, why: Unproxied) {
        self.shop.metrics.proxy_refused[why.index()].add(1);
        stream.abort();
    }
}
