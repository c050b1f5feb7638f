//! The steps from a listener to a session: accept, check, plan, register, dial.
//!
//! A connection that starts with a PROXY protocol header waits in [`super::proxy_header`] and
//! continues at [`Worker::check_client`]. A connection whose destination depends on its TLS server
//! name waits in [`super::client_hello`] and continues at [`Worker::start`]. A client for which no
//! session place is free waits in [`super::queue`] and continues at [`Worker::begin_session`]. A
//! connection from another relay waits in [`super::mesh`] for its hello and continues at
//! [`Worker::open_session`]. A client whose upstream leg was begun at its SYN gets that leg.
//!
//! This module also closes listeners, after accepting the connections in their queues, and adopts
//! those of a new configuration.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use taut_mesh::places::SessionPlace;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;
use taut_sys::socket::Stream;

use super::client::Client;
use super::dial_plan::{DialPlan, NoPlan};
use super::listeners::{ACCEPTS, BACKLOG, Streak};
use super::mailbox::Message;
use super::pending_record::Origin;
use super::session_table::Admission;
use super::slots::slot;
use super::{MAX_HELLOS, MAX_WAITING, Worker};
use crate::access;
use crate::access::session_quota::Permit;
use crate::counters::forward::ForwardStats;
use crate::early_syn::{FourTuple, PendingTable};
use crate::event::token::{Generation, Slot};
use crate::forwarding::leg::TcpLeg;
use crate::net::addr::ClientAddr;
use crate::outcome::refusal::ClientRefusal;
use crate::route::listener::{ListenerId, NewListener, Purpose};
use crate::route::table::{Route, Setup};

impl Worker {
    // === accept ===

    /// Accepts connections from a listener that the poller has reported.
    pub(super) fn on_listener_readable(&mut self, id: ListenerId) {
        let round = self.round;
        let Some(listener) = self.listeners.get_mut(id) else {
            return;
        };
        let max = listener.streak.begin(round);
        let is_empty = !self.accept_some(id, max);
        if is_empty && let Some(listener) = self.listeners.get_mut(id) {
            listener.streak = Streak::default();
        }
    }

    /// Accepts at most `max` of the connections that wait at a listener. Returns `true` if there may be
    /// more.
    fn accept_some(&mut self, id: ListenerId, max: usize) -> bool {
        for _ in 0..max {
            let Some(listener) = self.listeners.get_mut(id) else {
                return false;
            };
            match listener.socket.accept() {
                Ok((stream, peer)) => match listener.purpose.clone() {
                    Purpose::Forward(route) if route.identity.accept_proxy.is_some() => {
                        let places = self.shared.share(MAX_WAITING) as usize;
                        self.proxy_headers
                            .insert(stream, peer, route, places, &self.io);
                    }
                    Purpose::Forward(route) => {
                        if let Some(admitted) = self.check_client(stream, peer, &route) {
                            self.on_client_checked(Client::direct(
                                admitted,
                                ClientAddr(peer),
                                route,
                            ));
                        }
                    }
                    Purpose::Mesh => self.accept_relay(stream, peer),
                },
                Err(Errno::AGAIN) => return false,
                // The client has reset its queued connection, or a signal has interrupted
                // accept(2).
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    self.io.metrics.accept_failed.add(1);
                    tracing::debug!(%error, "cannot accept a connection; trying again shortly");
                    self.listeners.rest(id, &self.io);
                    return false;
                }
            }
        }
        true
    }

    // === listeners ===

    /// Accepts what is in each listener's queue, then closes it, so that clients with a complete
    /// handshake are not reset (unless accept fails). Also drains the mesh connections.
    pub(super) fn close_listeners(&mut self) {
        for id in self.listeners.ids() {
            self.close_listener(id);
        }
        self.drain_mesh();
    }

    /// Accepts what is in the listener's queue, then closes it, so that clients with a complete
    /// handshake are not reset (unless accept fails).
    fn close_listener(&mut self, id: ListenerId) {
        // A full queue takes at most this many rounds; the bound keeps new connections from holding
        // the listener open.
        let rounds = BACKLOG as usize / ACCEPTS + 1;
        (0..rounds).find(|_| !self.accept_some(id, ACCEPTS));
        self.listeners.close(id, &self.io.poller);
    }

    /// Adopts another configuration. Listeners that it lacks are closed once their queues are
    /// empty; the others get their new purpose and keep their queues.
    pub(super) fn reload(&mut self, setup: Arc<Setup>, listeners: Vec<NewListener>) {
        let wanted: BTreeSet<_> = listeners.iter().map(|l| l.id).collect();
        for id in self.listeners.ids() {
            if !wanted.contains(&id) {
                self.close_listener(id);
            }
        }
        for listener in listeners {
            self.listeners.adopt(listener, &self.io);
        }
        // Serve finished dials under the former list of members: `reload_mesh` may remove their
        // peers.
        self.serve_waiters();
        self.shared.queue.reload(&setup);
        self.setup = setup;
        self.reload_mesh();
    }

    // === first bytes ===

    /// Handles an event of a connection that must start with a PROXY protocol header.
    pub(super) fn on_header_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        let headers = &mut self.proxy_headers;
        if let Some(introduced) = headers.handle(slot, generation, ready, &self.io)
            && let Some(admitted) =
                self.check_client(introduced.stream, introduced.client, &introduced.route)
        {
            let addr = ClientAddr(introduced.client);
            self.on_client_checked(Client {
                proxied_to: introduced.proxied_to,
                tlvs: introduced.tlvs,
                read: introduced.read,
                ..Client::direct(admitted, addr, introduced.route)
            });
        }
    }

    /// Handles an event of a client whose destination depends on its ClientHello.
    pub(super) fn on_hello_readable(
        &mut self,
        slot: Slot,
        generation: Generation,
        ready: Readiness,
    ) {
        let hellos = &mut self.client_hellos;
        if let Some(client) = hellos.handle(slot, generation, ready, &mut self.io) {
            self.start(client);
        }
    }

    // === check ===

    /// Returns the connection if its source may connect; resets it otherwise.
    pub(super) fn check_source(
        &self,
        stream: Stream,
        from: SocketAddr,
        sources: &access::Sources,
        stats: &ForwardStats,
    ) -> Option<Stream> {
        match ClientRefusal::of(sources.check(from.ip())) {
            None => Some(stream),
            Some(cause) => {
                self.refuse(stream, from.ip(), cause, stats);
                None
            }
        }
    }

    /// Returns the connection of a forward's client and its permit. Resets the connection if its
    /// source may not connect, connects too often or has too many sessions.
    fn check_client(
        &self,
        stream: Stream,
        from: SocketAddr,
        route: &Route,
    ) -> Option<(Stream, Permit)> {
        let stream = self.check_source(stream, from, &route.sources, &route.stats)?;
        let (shared, ip) = (&self.shared, from.ip());
        let cause = match shared.arrivals.admit(ip, self.io.now) {
            false => ClientRefusal::SourceRate,
            true => match shared.sources.admit(ip) {
                Some(permit) => return Some((stream, permit)),
                None => ClientRefusal::SourceLimit,
            },
        };
        self.refuse(stream, ip, cause, &route.stats);
        None
    }

    /// Resets the connection of a client, and counts the refusal by its `cause`.
    pub(super) fn refuse(
        &self,
        leg: impl Into<TcpLeg>,
        from: IpAddr,
        cause: ClientRefusal,
        stats: &ForwardStats,
    ) {
        self.io.metrics.refused[cause.index()].add(1);
        let counters = stats.worker(self.io.worker);
        counters.refused[cause.index()].add(1);
        counters.last_refused.set(from);
        tracing::debug!(client = %from, forward = %stats.name, cause = cause.label(), "refused a client");
        leg.into().abort();
    }

    /// Continues with a client that may connect. A client of a forward with server names waits for its
    /// ClientHello first.
    fn on_client_checked(&mut self, client: Client) {
        if client.route.by_name.is_none() {
            return self.join_or_start(client);
        }
        let max = self.shared.share(MAX_HELLOS) as usize;
        if let Some(client) = self.client_hellos.insert(client, max, &mut self.io) {
            self.start(client);
        }
    }

    /// Gives the client the upstream leg that was begun at its SYN, which another worker may have.
    /// Without such a leg, its session dials.
    fn join_or_start(&mut self, client: Client) {
        let table = self.shared.early.as_ref();
        let table = table.filter(|_| client.route.early_syn);
        match table.and_then(|table| self.early_leg_of(&client, table)) {
            None => self.start(client),
            Some((owner, connection)) if owner == self.io.worker => {
                self.join_early(client, connection);
            }
            Some((owner, connection)) => match self.shared.mailboxes().get(owner) {
                Some(mailbox) => {
                    let client = Box::new(client);
                    let message = Message::Client { client, connection };
                    // If that worker has ended, so have its early legs.
                    if let Err(Message::Client { client, .. }) = mailbox.post(message) {
                        self.start(*client);
                    }
                }
                None => self.start(client),
            },
        }
    }

    /// Returns the worker that has a client's upstream leg, and the leg's key there.
    fn early_leg_of(&self, client: &Client, table: &PendingTable) -> Option<(usize, FourTuple)> {
        let local = client.stream.local_addr().ok()?;
        let connection = FourTuple::new(client.addr.0, local);
        let owner = table.accepted(connection, self.io.now)?;
        Some((owner, connection))
    }

    // === plan ===

    /// Starts the session of a client. Resets the client if its destination is not allowed or no
    /// relay of its routes can be used.
    pub(super) fn begin_session(&mut self, mut client: Client, place: SessionPlace) {
        let passed = client.passed_on();
        let to = || client.connected_to();
        let pick = self.pick();
        let (route, setup) = (&client.route, &self.setup);
        let plan = match DialPlan::for_client(route, client.addr, passed, to, setup, pick) {
            Ok(plan) => plan,
            Err(no_plan) => {
                // Dropping `place` frees a session place.
                self.queue_watch.has_ended = true;
                let counters = client.route.stats.worker(self.io.worker);
                counters.last_refused.set(client.addr.0.ip());
                let cause = match no_plan {
                    NoPlan::Destination(verdict) => {
                        self.io.metrics.intercept_refused.add(1);
                        counters.destination_refused.add(1);
                        verdict.label()
                    }
                    NoPlan::NoRoute => {
                        counters.without_route.add(1);
                        "no_route"
                    }
                };
                let to = client.connected_to().map(|to| to.to_string());
                let to = to.unwrap_or_default();
                tracing::debug!(client = %client.addr.0, to, cause, "refused a session");
                client.stream.abort();
                return;
            }
        };
        let introduction = client.introduction();
        let Client {
            stream,
            permit,
            addr,
            route,
            read,
            ..
        } = client;
        let origin = Origin::Forward(&route);
        let client = (stream.into(), Admission::of_client(permit, place));
        self.open_session(client, addr, plan, &origin, introduction, read);
    }

    // === register, dial ===

    /// Registers a session and dials its upstream leg. The destination receives `introduction`
    /// first, and then what has been `read` from the client.
    pub(super) fn open_session(
        &mut self,
        client: (TcpLeg, Admission),
        addr: ClientAddr,
        plan: DialPlan,
        origin: &Origin<'_>,
        introduction: Vec<u8>,
        read: Vec<u8>,
    ) {
        if let Some(key) = self.register(client, addr, plan, origin) {
            if let Some(entry) = self.sessions.entries.get_mut(key) {
                entry.session.begin_with(read);
                entry.session.introduce(introduction);
            }
            self.dial(slot(key), true, Errno::HOSTUNREACH);
        }
    }
}
