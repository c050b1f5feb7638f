//! Early SYN: legs that a relay begins at a client's SYN, as `Worker::on_syn` does it, and SYNs that were forged.
//!
//! The real [`Limiter`](taut_mesh::early_syn::Limiter) decides which SYNs may begin a leg, and the real pools which
//! of these legs gets a connection.

use std::net::SocketAddr;
use std::time::Duration;

use taut_mesh::early_syn::{Admission, FourTuple, Limits, Rate, SynEvent};
use taut_mesh::pool::Pool;
use taut_mesh::ways::{Alternative, Ways};

use crate::connection::End;
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::session::{Leg, Phase, Plan};
use crate::world::{BOUNDS, Event, World};

/// The time from a client's SYN to the end of its handshake.
const HANDSHAKE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(150));

/// The number of networks that forged SYNs seem to come from.
const FORGED_NETWORKS: usize = 64;

/// The limits of each relay: low, so that a short run reaches them.
pub(crate) fn limits() -> Limits {
    Limits {
        source: Rate::new(5, 10),
        listener: Rate::new(100, 50),
        pending: 48,
        ..Limits::default()
    }
}

impl World {
    /// A client's SYN has arrived. Its handshake ends a round trip later.
    pub(crate) fn begins_handshake(&mut self, session: usize) {
        self.on_syn(session, client_of(session));
        let handshake = self.random.between(HANDSHAKE.0, HANDSHAKE.1);
        self.queue.after(handshake, Event::Accepts(session));
    }

    /// A SYN arrives that no client will follow.
    pub(crate) fn forges_syn(&mut self, forward: usize) {
        let session = self.new_session(forward);
        let network = self.random.below(FORGED_NETWORKS) as u8;
        let host = self.random.bits() as u8;
        let port = self.random.bits() as u16;
        self.on_syn(session, SocketAddr::from(([10, 200, network, host], port)));
        if !self.has_early_leg(session) {
            self.sessions[session].phase = Phase::Over;
        }
    }

    fn on_syn(&mut self, session: usize, client: SocketAddr) {
        let (node, now) = (self.sessions[session].first, self.queue.now());
        let local_now = self.local_now(node);
        let syn = syn(client, self.sessions[session].forward);
        let relay = self.relay_mut(node);
        if relay.limiter.admit(&syn, local_now) != Admission::Admit {
            return;
        }
        let process = relay.process;
        let until = self.when(node, local_now + limits().ttl);
        self.queue.at(until, Event::EarlyExpires(node, process));
        match self.begin_early(session) {
            Some(leg) => {
                self.trace.tell(now, || {
                    format!("session {session}: relay{node} begins a leg at a SYN")
                });
                self.sessions[session].leg = Some(leg);
                let relay = self.relay_mut(node);
                relay.early.insert(syn.connection(), leg);
            }
            None => {
                self.relay_mut(node).limiter.settled(syn.connection());
            }
        }
    }

    /// Begins the upstream leg of a client whose handshake is under way. Returns `None` if it gets none.
    fn begin_early(&mut self, session: usize) -> Option<Key> {
        let (node, forward) = (self.sessions[session].first, self.sessions[session].forward);
        let known = &self.forwards[forward];
        let (routes, direct) = (known.routes.clone(), known.direct.then_some(()));
        let mut ways = Ways::new(routes, direct);
        let mut way = ways.take_next()?;
        // Relays that cannot be reached are passed over, but for the last way.
        while let Alternative::Route(route) = &way
            && self.is_broken(node, route[0])
            && let Some(next) = ways.take_next()
        {
            self.sessions[session].tried.push(route.clone());
            way = next;
        }
        let leg = self.legs.insert(Leg::new(session, node, None));
        let route = match way {
            Alternative::Route(route) => route,
            Alternative::Direct(()) => {
                self.sessions[session].tried.push([].into());
                let destination = self.hello(session, &[]).destination;
                self.connect(leg, &destination);
                return Some(leg);
            }
        };
        let hello = self.hello(session, &route);
        self.sessions[session].tried.push(route.clone());
        let begun = self.plan_to_ask(leg, node, route[0], hello, ways);
        if begun && (self.tell_early(leg) || self.dial_ahead(node, route[0])) {
            return Some(leg);
        }
        self.legs.remove(leg);
        self.sessions[session].tried.clear();
        None
    }

    /// Sends the hello of an early leg on a connection that sessions can spare. Returns whether there is one.
    fn tell_early(&mut self, leg: Key) -> bool {
        let Some((node, peer)) = self.legs.get(leg).and_then(Leg::asks) else {
            return false;
        };
        let now = self.local_now(node);
        let breaks_rule = self.broken == Some(Rule::EarlySyn);
        let dials = &mut self.relay_mut(node).dials;
        let taken = match breaks_rule {
            true => dials.take_where(peer, |_| true, now),
            false => dials.take_early(peer, now),
        };
        let left = dials.pool(peer).map_or(0, Pool::ready);
        let Some(connection) = taken else {
            return false;
        };
        if left < BOUNDS.floor / 2 {
            let what = format!("a SYN leaves relay{node} {left} connections to a peer");
            self.violate(Rule::EarlySyn, what);
        }
        if let Some(Leg {
            plan: Plan::Ask { attempt, .. },
            ..
        }) = self.legs.get_mut(leg)
        {
            attempt.taken_early();
        }
        self.send_hello(leg, connection, true);
        self.act(node);
        true
    }

    fn dial_ahead(&mut self, node: Node, next: Node) -> bool {
        let now = self.local_now(node);
        let Some(peer) = self.peer_number(node, next) else {
            return false;
        };
        let dials = &mut self.relay_mut(node).dials;
        let known = |pool: &Pool<u32, Key>| (pool.retry_at(), pool.ready() + pool.dialling() + 1);
        let (retry_at, will_have) = dials.pool(peer).map_or((None, 0), known);
        let pauses = retry_at.is_some_and(|at| now < at);
        if !dials.dial_ahead(peer, now) {
            return false;
        }
        if pauses || will_have > BOUNDS.ceiling {
            let what = format!(
                "a SYN makes relay{node} dial relay{next}, to which it has {will_have} connections"
            );
            self.violate(Rule::EarlySyn, what);
        }
        self.act(node);
        true
    }

    /// Gives connections that have become ready to early legs that wait for one.
    pub(crate) fn serve_early(&mut self, node: Node) {
        let awaits = |leg: &Key| self.legs.get(*leg).is_some_and(Leg::awaits_connection);
        let early = self.relay(node).early.values();
        for leg in early.copied().filter(awaits).collect::<Vec<_>>() {
            self.tell_early(leg);
        }
    }

    /// The handshake of a client is complete, as `Worker::join_or_start` sees it.
    pub(crate) fn accepts(&mut self, session: usize) {
        let node = self.sessions[session].first;
        if !self.is_up(node) || self.sessions[session].phase != Phase::Awaited {
            return;
        }
        let now = self.local_now(node);
        let connection = syn(client_of(session), self.sessions[session].forward).connection();
        let relay = self.relay_mut(node);
        let leg = relay.early.remove(&connection);
        match leg {
            Some(_) => {
                relay.limiter.settled(connection);
            }
            None => relay.limiter.accepted_without(connection, now),
        }
        if leg.is_none_or(|leg| !self.join_early(session, leg)) {
            self.starts(session);
        }
    }

    /// Joins a client with the leg that waits for it. Returns whether the leg is of use.
    fn join_early(&mut self, session: usize, leg: Key) -> bool {
        let Some(known) = self.legs.get(leg) else {
            return false;
        };
        let (node, asks, upstream) = (known.relay, known.asks(), known.upstream);
        if let Some((_, peer)) = asks {
            let now = self.local_now(node);
            let is_dialled = self.relay(node).dials.is_dialled(peer);
            if is_dialled {
                self.relay_mut(node).dials.on_early_client(peer, now);
                self.act(node);
            }
            if !is_dialled || upstream.is_none() {
                self.drop_early(leg);
                return false;
            }
        }
        self.begins(session);
        let Some(known) = self.legs.get(leg) else {
            return true;
        };
        let (answered, lost) = (known.answered, known.lost);
        match upstream {
            _ if answered => self.pass_reply(leg),
            Some(connection) => match lost {
                Some(error) => self.upstream_failed(leg, connection, error),
                None => self.expect_answer(leg, connection),
            },
            None => {}
        }
        true
    }

    /// Drops the legs of clients that have not come.
    pub(crate) fn early_expires(&mut self, node: Node, process: u32) {
        if self.relay(node).process != process {
            return;
        }
        let now = self.local_now(node);
        for connection in self.relay_mut(node).limiter.expire(now) {
            if let Some(leg) = self.relay_mut(node).early.remove(&connection)
                && let Some(session) = self.legs.get(leg).map(|leg| leg.session)
            {
                self.sessions[session].phase = Phase::Over;
                self.oracle.expired += 1;
                self.drop_early(leg);
            }
        }
    }

    /// Removes an early leg, and resets its connection.
    fn drop_early(&mut self, leg: Key) {
        if self.broken == Some(Rule::Leftovers) && self.random.happens(0.2) {
            return;
        }
        let Some(leg) = self.legs.remove(leg) else {
            return;
        };
        self.sessions[leg.session].tried.clear();
        if let Some(upstream) = leg.upstream {
            self.close(upstream, End::Dialler);
        }
    }

    fn has_early_leg(&self, session: usize) -> bool {
        let leg = self.sessions[session].leg;
        leg.is_some_and(|leg| self.legs.get(leg).is_some())
    }

    fn is_broken(&self, node: Node, next: Node) -> bool {
        let peer = self.peer_number(node, next);
        let now = self.local_now(node);
        peer.is_some_and(|peer| self.relay(node).dials.is_broken(peer, now))
    }
}

/// Returns the address of the client of a session.
fn client_of(session: usize) -> SocketAddr {
    let [.., high, low] = session.to_be_bytes();
    SocketAddr::from(([10, 1, low, high], 40_000))
}

fn syn(client: SocketAddr, forward: usize) -> SynEvent {
    let listener = forward as u32;
    let [.., high, low] = listener.to_be_bytes();
    SynEvent {
        client,
        listener_addr: SocketAddr::from(([192, 0, high, low], 443)),
        listener,
    }
}

/// Legs that were begun at a SYN, by connection.
pub(crate) type EarlyLegs = std::collections::BTreeMap<FourTuple, Key>;
