//! Clients of forwards that choose a destination by the TLS server name. This module reads up to the
//! end of the ClientHello; the bytes go to the destination unchanged.
//!
//! | bound | value | when it is reached | counter |
//! |---|---|---|---|
//! | connections without a whole hello | [`MAX_HELLOS`] of the node | the oldest is reset | `taut_relay_client_hellos_refused_total{cause="full"}` |
//! | time to the end of the hello | [`PATIENCE`] | reset | `{cause="timed_out"}` |
//! | a hello | [`MAX_HELLO`](taut_mesh::client_hello::MAX_HELLO) bytes | the forward's default destination; without one, reset | `{cause="too_long"}` |

use std::time::Duration;

use taut_mesh::client_hello::{ClientHello, Reader};
use taut_sys::Errno;
use taut_sys::epoll::{Interest, Readiness};

use super::Worker;
use super::client::Client;
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
pub(super) type ClientHellos = WaitList<Waiting>;

pub(super) struct Waiting {
    client: Client,
    reader: Reader,
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
}

impl Worker {
    /// Adds a client whose destination depends on its hello.
    pub(super) fn await_client_hello(&mut self, client: Client) {
        if self.client_hellos.len() >= self.shared.share(MAX_HELLOS) as usize
            && let Some(oldest) = self.client_hellos.remove_oldest()
        {
            self.refuse_hello(oldest.client, HelloRefusal::Full);
        }
        let waiting = Waiting {
            client,
            reader: Reader::default(),
        };
        let until = self.io.now + PATIENCE;
        let (slot, generation) = self.client_hellos.insert(waiting, until);
        self.io.metrics.hellos_waiting.add(1);
        let token = Token::ClientHello(slot, generation).encode();
        let Some(waiting) = self.client_hellos.get_mut(slot, generation) else {
            return;
        };
        let (poller, stream) = (&self.io.poller, &waiting.client.stream);
        // A connection that started with a PROXY protocol header is already in the poller. In both
        // cases the poller also reports bytes that have arrived already.
        let watched = match poller.add(stream, token, Interest::StreamEdges) {
            Err(Errno::EXIST) => poller.modify(stream, token, Interest::StreamEdges),
            other => other,
        };
        let has_start = !waiting.client.read.is_empty();
        if watched.is_err() {
            self.end_hello(slot, generation, HelloRefusal::Full);
        } else if has_start {
            self.on_hello_readable(slot, generation, Readiness::DATA);
        }
    }

    /// Reads the hello of a client, and starts the session once the hello is complete.
    pub(super) fn on_hello_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        if !(ready.readable() || ready.failed()) {
            return;
        }
        let Some(waiting) = self.client_hellos.get_mut(slot, generation) else {
            return;
        };
        let by_name = waiting.client.route.by_name.as_ref();
        let has_default = by_name.is_some_and(|to| matches!(to.choose(None), Choice::Default));
        let hello = match waiting.read(&mut self.io.plain) {
            Ok(None) => return,
            Ok(Some(hello)) => hello,
            // What has been read is passed on, and the rest follows.
            Err(HelloRefusal::TooLong) if has_default => ClientHello { server_name: None },
            Err(why) => return self.end_hello(slot, generation, why),
        };
        let Some(Waiting { mut client, reader }) = self.client_hellos.remove(slot, generation)
        else {
            return;
        };
        client.read = reader.into_stream();
        let name = hello.server_name.as_deref();
        let Some(by_name) = &client.route.by_name else {
            return;
        };
        let choice = by_name.choose(name);
        let counter = match choice {
            Choice::Named(_) => 0,
            Choice::Below(_) => 1,
            Choice::Default => 2,
            Choice::Refused => {
                tracing::debug!(client = %client.addr.0, ?name, "refused a connection: no destination for its server name");
                let why = match name {
                    Some(_) => HelloRefusal::UnknownName,
                    None => HelloRefusal::NoName,
                };
                return self.refuse_hello(client, why);
            }
        };
        if let Choice::Named(route) | Choice::Below(route) = choice {
            client.route = route.clone();
        }
        self.io.metrics.hellos[counter].add(1);
        self.io.metrics.hellos_waiting.sub(1);
        self.start(client);
    }

    /// Resets clients whose hello was not complete in time.
    pub(super) fn poll_client_hellos(&mut self) {
        while let Some(waiting) = self.client_hellos.remove_due(self.io.now) {
            self.refuse_hello(waiting.client, HelloRefusal::TimedOut);
        }
    }

    fn end_hello(&mut self, slot: Slot, generation: Generation, why: HelloRefusal) {
        if let Some(waiting) = self.client_hellos.remove(slot, generation) {
            self.refuse_hello(waiting.client, why);
        }
    }

    /// Resets a client that has waited.
    fn refuse_hello(&mut self, client: Client, why: HelloRefusal) {
        let Client {
            stream,
            permit,
            addr,
            route,
            ..
        } = client;
        self.io.metrics.hellos_refused[why.index()].add(1);
        let counters = route.stats.worker(self.io.worker);
        counters.hello_refused.add(1);
        counters.last_refused.set(addr.0.ip());
        // Whoever sees the reset, or one less that waits, finds its place free.
        drop(permit);
        self.io.metrics.hellos_waiting.sub(1);
        stream.abort();
    }
}
