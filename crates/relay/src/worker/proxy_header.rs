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
use std::time::{Duration, Instant};

use taut_mesh::proxy::{Header, MAX_HEADER, Reader, Tlv};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};
use taut_sys::socket::Stream;

use super::io::IoContext;
use super::wait_list::WaitList;
use crate::access::SourceVerdict;
use crate::event::token::{Generation, Slot, Token};
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
    waiting: WaitList<Waiting>,
}

/// A connection whose header has been read.
pub(super) struct Introduced {
    pub(super) stream: Stream,
    pub(super) route: Arc<Route>,
    pub(super) client: SocketAddr,
    /// The address that the client connected to, if the header names a client.
    pub(super) proxied_to: Option<SocketAddr>,
    /// The fields of the header; none if it names no client.
    pub(super) tlvs: Vec<Tlv>,
    /// What has been read of the client's stream.
    pub(super) read: Vec<u8>,
}

struct Waiting {
    stream: Stream,
    from: SocketAddr,
    route: Arc<Route>,
    reader: Reader,
}

// === impl ProxyHeaders ===

impl ProxyHeaders {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.next()
    }

    /// Adds an accepted connection that must start with a header. At most `max` wait.
    pub(super) fn insert(
        &mut self,
        stream: Stream,
        from: SocketAddr,
        route: Arc<Route>,
        max: usize,
        io: &IoContext,
    ) {
        let believed = route.identity.accept_proxy.as_ref();
        let is_believed = believed.is_some_and(|s| s.check(from.ip()) == SourceVerdict::Allowed);
        let waiting = Waiting {
            stream,
            from,
            route,
            reader: Reader::new(MAX_HEADER),
        };
        if !is_believed {
            tracing::debug!(%from, "refused a connection: not a sender in proxy_from");
            return waiting.refuse(ProxyRefusal::Sender, io);
        }
        if self.waiting.len() >= max {
            return waiting.refuse(ProxyRefusal::Full, io);
        }
        let (slot, generation) = self.waiting.insert(waiting, io.now + PATIENCE);
        io.metrics.proxy_waiting.add(1);
        let token = Token::ProxyHeader(slot, generation).encode();
        let Some(waiting) = self.waiting.get_mut(slot, generation) else {
            return;
        };
        // The poller also reports bytes that have arrived already.
        let watched = io.poller.add(&waiting.stream, token, Interest::StreamEdges);
        if watched.is_err()
            && let Some(waiting) = self.remove(slot, generation, io)
        {
            waiting.refuse(ProxyRefusal::Full, io);
        }
    }

    /// Reads the header of a connection. Returns the connection once the header is complete.
    pub(super) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
        io: &IoContext,
    ) -> Option<Introduced> {
        if !(ready.readable() || ready.failed()) {
            return None;
        }
        let header = self.waiting.get_mut(slot, generation)?.read().transpose()?;
        let waiting = self.remove(slot, generation, io)?;
        let header = match header {
            Ok(header) => header,
            Err(why) => {
                waiting.refuse(why, io);
                return None;
            }
        };
        io.metrics.proxy_headers.add(1);
        // The fields of a proxy's own connection say nothing of a client.
        let (client, proxied_to, tlvs) = match header.addresses {
            Some((client, to)) => (client, Some(to), header.tlvs),
            None => (waiting.from, None, Vec::new()),
        };
        Some(Introduced {
            stream: waiting.stream,
            route: waiting.route,
            client,
            proxied_to,
            tlvs,
            read: waiting.reader.into_rest(),
        })
    }

    /// Resets connections whose header was not complete in time.
    pub(super) fn expire(&mut self, io: &IoContext) {
        while let Some(waiting) = self.waiting.remove_due(io.now) {
            io.metrics.proxy_waiting.sub(1);
            waiting.refuse(ProxyRefusal::TimedOut, io);
        }
    }

    fn remove(&mut self, slot: Slot, generation: Generation, io: &IoContext) -> Option<Waiting> {
        let waiting = self.waiting.remove(slot, generation)?;
        io.metrics.proxy_waiting.sub(1);
        Some(waiting)
    }
}

// === impl Waiting ===

impl Waiting {
    /// Reads what has arrived. Returns the header once it is complete.
    fn read(&mut self) -> Result<Option<Header>, ProxyRefusal> {
        loop {
            match self.stream.recv(self.reader.space()) {
                Ok(0) => return Err(ProxyRefusal::Gone),
                Ok(n) => match self.reader.advance(n) {
                    Ok(Some(header)) => return Ok(Some(header)),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(from = %self.from, %error, "refused a connection");
                        return Err(error.into());
                    }
                },
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Err(ProxyRefusal::Gone),
            }
        }
    }

    fn refuse(self, why: ProxyRefusal, io: &IoContext) {
        io.metrics.proxy_refused[why.index()].add(1);
        let counters = self.route.stats.worker(io.worker);
        counters.header_refused.add(1);
        counters.last_refused.set(self.from.ip());
        self.stream.abort();
    }
}
