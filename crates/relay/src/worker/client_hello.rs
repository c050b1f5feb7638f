//! Clients of forwards that choose a destination by the TLS server name. This module reads up to the
//! end of the ClientHello; the bytes go to the destination unchanged.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | connections without a whole hello | [`MAX_HELLOS`] of the node | the oldest is reset | `taut_relay_client_hellos_refused_total{cause="full"}` |
//! | time to the end of the hello | [`PATIENCE`] | reset | `{cause="timed_out"}` |
//! | a hello | [`MAX_HELLO`](taut_mesh::client_hello::MAX_HELLO) bytes | the forward's default destination; without one, reset | `{cause="too_long"}` |

use std::time::{Duration, Instant};

use taut_mesh::client_hello::{ClientHello, Reader};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};

use super::client::Client;
use super::io::IoContext;
use super::wait_list::WaitList;
use crate::event::token::{Generation, Slot, Token};
use crate::outcome::client_hello::HelloRefusal;
use crate::route::by_name::Choice;

/// The maximum number of connections of a node that wait for the end of their hello. Clients send
/// it at once, so the oldest is the least likely to be one.
pub(crate) const MAX_HELLOS: u32 = 1024;

/// The time limit of a hello, which allows for some losses.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker's clients whose ClientHello is incomplete.
#[derive(Default)]
pub(super) struct ClientHellos {
    waiting: WaitList<Waiting>,
}

struct Waiting {
    client: Client,
    reader: Reader,
}

// === impl ClientHellos ===

impl ClientHellos {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.next()
    }

    /// Adds a client whose destination depends on its hello. If `max` wait, the oldest is reset. Returns the client if
    /// its whole hello came with a PROXY protocol header.
    pub(super) fn insert(
        &mut self,
        client: Client,
        max: usize,
        io: &mut IoContext,
    ) -> Option<Client> {
        if self.waiting.len() >= max
            && let Some(oldest) = self.waiting.remove_oldest()
        {
            oldest.refuse(HelloRefusal::Full, io);
        }
        let waiting = Waiting {
            client,
            reader: Reader::default(),
        };
        let (slot, generation) = self.waiting.insert(waiting, io.now + PATIENCE);
        io.metrics.hellos_waiting.add(1);
        let token = Token::ClientHello(slot, generation).encode();
        let waiting = self.waiting.get_mut(slot, generation)?;
        let (poller, stream) = (&io.poller, &waiting.client.stream);
        // A connection that started with a PROXY protocol header is already in the poller. In both
        // cases the poller also reports bytes that have arrived already.
        let watched = match poller.add(stream, token, Interest::StreamEdges) {
            Err(Errno::EXIST) => poller.modify(stream, token, Interest::StreamEdges),
            other => other,
        };
        if watched.is_err() {
            self.waiting
                .remove(slot, generation)?
                .refuse(HelloRefusal::Full, io);
            return None;
        }
        if waiting.client.read.is_empty() {
            return None;
        }
        self.handle(slot, generation, Readiness::DATA, io)
    }

    /// Reads the hello of a client. Returns the client, with the route that its server name chooses, once the hello is
    /// complete.
    pub(super) fn handle(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
        io: &mut IoContext,
    ) -> Option<Client> {
        if !(ready.readable() || ready.failed()) {
            return None;
        }
        let waiting = self.waiting.get_mut(slot, generation)?;
        let hello = waiting.read(&mut io.plain).transpose()?;
        let waiting = self.waiting.remove(slot, generation)?;
        let hello = match hello {
            // What has been read is passed on, and the rest follows.
            Err(HelloRefusal::TooLong) if waiting.has_default() => {
                ClientHello { server_name: None }
            }
            Err(why) => {
                waiting.refuse(why, io);
                return None;
            }
            Ok(hello) => hello,
        };
        waiting.choose(hello.server_name.as_deref(), io)
    }

    /// Resets clients whose hello was not complete in time.
    pub(super) fn expire(&mut self, io: &IoContext) {
        while let Some(waiting) = self.waiting.remove_due(io.now) {
            waiting.refuse(HelloRefusal::TimedOut, io);
        }
    }
}

// === impl Waiting ===

impl Waiting {
    /// Reads what has arrived. Returns the hello once it is complete.
    fn read(&mut self, scratch: &mut [u8]) -> Result<Option<ClientHello>, HelloRefusal> {
        // A reader of a PROXY protocol header may have read the start.
        let start = std::mem::take(&mut self.client.read);
        if !start.is_empty()
            && let Some(hello) = self.push(&start)?
        {
            return Ok(Some(hello));
        }
        loop {
            let room = self.reader.room().min(scratch.len());
            match self.client.stream.recv(&mut scratch[..room]) {
                Ok(0) => return Err(HelloRefusal::Gone),
                Ok(n) => {
                    if let Some(hello) = self.push(&scratch[..n])? {
                        return Ok(Some(hello));
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(_) => return Err(HelloRefusal::Gone),
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<Option<ClientHello>, HelloRefusal> {
        self.reader.push(bytes).map_err(|error| {
            tracing::debug!(client = %self.client.addr.0, %error, "refused a connection");
            error.into()
        })
    }

    /// Whether the forward has a destination for clients that send no name, or an unknown one.
    fn has_default(&self) -> bool {
        let by_name = self.client.route.by_name.as_ref();
        by_name.is_some_and(|to| matches!(to.choose(None), Choice::Default))
    }

    /// Returns the client with the route for its server name, or resets it if it has none.
    fn choose(mut self, name: Option<&str>, io: &IoContext) -> Option<Client> {
        let by_name = self.client.route.by_name.as_ref()?;
        let (counter, route) = match by_name.choose(name) {
            Choice::Named(route) => (0, Some(route.clone())),
            Choice::Below(route) => (1, Some(route.clone())),
            Choice::Default => (2, None),
            Choice::Refused => {
                tracing::debug!(client = %self.client.addr.0, ?name, "refused a connection: no destination for its server name");
                self.refuse(
                    match name {
                        Some(_) => HelloRefusal::UnknownName,
                        None => HelloRefusal::NoName,
                    },
                    io,
                );
                return None;
            }
        };
        if let Some(route) = route {
            self.client.route = route;
        }
        self.client.read = self.reader.into_stream();
        io.metrics.hellos[counter].add(1);
        io.metrics.hellos_waiting.sub(1);
        Some(self.client)
    }

    /// Resets a client that has waited.
    fn refuse(self, why: HelloRefusal, io: &IoContext) {
        let Client {
            stream,
            permit,
            addr,
            route,
            ..
        } = self.client;
        io.metrics.hellos_refused[why.index()].add(1);
        let counters = route.stats.worker(io.worker);
        counters.hello_refused.add(1);
        counters.last_refused.set(addr.0.ip());
        // Whoever sees the reset, or one less that waits, finds its place free.
        drop(permit);
        io.metrics.hellos_waiting.sub(1);
        stream.abort();
    }
}
