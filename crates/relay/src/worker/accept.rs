//! The steps from a listener to a session: accept, check, plan, register, dial.
//!
//! A connection that starts with a PROXY protocol header waits in [`super::proxy_header`] and
//! continues at [`Worker::enter`]. A connection whose destination depends on its TLS server name
//! waits in [`super::client_hello`] and continues at [`Worker::start`]. A client for whom there is no place waits in
//! [`super::queue`] and continues at [`Worker::begin_session`]. A connection from another
//! relay waits in [`super::mesh`] for its hello and continues at [`Worker::open`].

use std::net::{IpAddr, SocketAddr};

use taut_mesh::places::SessionPlace;
use taut_sys::Errno;
use taut_sys::socket::Stream;

use super::Worker;
use super::client::Client;
use super::dial_plan::{DialPlan, NoPlan};
use super::listeners::{OpenListener, Streak};
use super::pending_record::Origin;
use super::sessions::Admission;
use super::slots::slot;
use crate::access;
use crate::access::session_quota::Permit;
use crate::counters::forward::ForwardStats;
use crate::forwarding::leg::TcpLeg;
use crate::net::addr::ClientAddr;
use crate::outcome::refusal::ClientRefusal;
use crate::route::listener::{ListenerId, Purpose};
use crate::route::table::Route;

impl Worker {
    // === accept ===

    /// Accepts connections from a listener that the poller has reported.
    pub(super) fn on_listener_readable(&mut self, id: ListenerId) {
        let round = self.round;
        let Some(listener) = self.listeners.get_mut(&id) else {
            return;
        };
        let max = listener.streak.begin(round);
        let is_empty = !self.accept_some(id, max);
        if is_empty && let Some(listener) = self.listeners.get_mut(&id) {
            listener.streak = Streak::default();
        }
    }

    /// Accepts at most `max` of the connections that wait at a listener. Returns `true` if there may be
    /// more.
    pub(super) fn accept_some(&mut self, id: ListenerId, max: usize) -> bool {
        for _ in 0..max {
            let Some(OpenListener {
                socket, purpose, ..
            }) = self.listeners.get(&id)
            else {
                return false;
            };
            match socket.accept() {
                Ok((stream, peer)) => match purpose.clone() {
                    Purpose::Forward(route) if route.identity.accept_proxy.is_some() => {
                        self.await_header(stream, peer, route);
                    }
                    Purpose::Forward(route) => {
                        if let Some(admitted) = self.admit_client(stream, peer, &route) {
                            self.enter(Client::direct(admitted, ClientAddr(peer), route));
                        }
                    }
                    Purpose::Mesh => self.accept_relay(stream, peer),
                },
                Err(Errno::AGAIN) => return false,
                // The client went away while its connection was queued.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => {
                    self.io.metrics.accept_failed.add(1);
                    tracing::debug!(%error, "cannot accept a connection; trying again shortly");
                    self.rest(id);
                    return false;
                }
            }
        }
        true
    }

    // === check ===

    /// Returns the connection if its source may connect; resets it otherwise.
    pub(super) fn admit(
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

    /// Returns a connection of a forward's client with its place in the quota of its source. Resets it if
    /// its source may not connect, connects too often or has too many sessions.
    pub(super) fn admit_client(
        &self,
        stream: Stream,
        from: SocketAddr,
        route: &Route,
    ) -> Option<(Stream, Permit)> {
        let stream = self.admit(stream, from, &route.sources, &route.stats)?;
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

    /// Lets a client in that may connect. A client of a forward with server names waits for its
    /// ClientHello first.
    pub(super) fn enter(&mut self, client: Client) {
        match client.route.by_name.is_some() {
            true => self.await_client_hello(client),
            false => self.accept(client),
        }
    }

    // === plan ===

    /// Begins the session of a client, or resets the client if its destination is not allowed.
    pub(super) fn begin_session(&mut self, mut client: Client, place: SessionPlace) {
        let passed = client.passed_on();
        let to = || client.connected_to();
        let pick = self.pick();
        let (route, setup) = (&client.route, &self.setup);
        let plan = match DialPlan::for_client(route, client.addr, passed, to, setup, pick) {
            Ok(plan) => plan,
            Err(no_plan) => {
                // Its place is free again.
                self.has_ended = true;
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
        self.open(client, addr, plan, &origin, introduction, read);
    }

    // === register, dial ===

    /// Registers a session and dials its upstream leg. The destination receives `introduction`
    /// first, and then what has been `read` from the client.
    pub(super) fn open(
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
