//! The dials of a relay: the real [`Dials`](taut_mesh::dials::Dials) decide, and this module has the connections.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use taut_mesh::dials::{Action, Closing, DialId, Keys, PeerTerms, Times};
use taut_mesh::identity::PublicKey;

use crate::connection::{AcceptEnd, Connection, DialEnd, End, Packet};
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::{Rule, Unanswered};
use crate::world::{BOUNDS, CONNECT, DIAL_PATIENCE, Event, MAX_AGE, State, World, name};

/// When keepalive ends a ready connection to a machine that is gone.
pub(crate) const PROBED_AFTER: Duration = Duration::from_secs(15);

const TIMES: Times = Times {
    connect: CONNECT,
    patience: DIAL_PATIENCE,
    max_age: MAX_AGE,
};

impl World {
    /// Carries out what the dials of a relay have decided.
    pub(crate) fn act(&mut self, node: Node) {
        while let Some(action) = self.relay_mut(node).dials.next_action() {
            match action {
                Action::Dial { id, peer, .. } => self.dial(node, id, peer),
                Action::Serve(leg, connection) => self.join_waiting(leg, connection),
                Action::Fail(leg, _) => self.ask(leg, false),
                Action::Close {
                    connection, why, ..
                } => {
                    if let (Closing::Failed(_), Some(known)) =
                        (why, self.connections.get(connection))
                    {
                        let (at, to) = (self.queue.now(), known.acceptor);
                        self.trace
                            .tell(at, || format!("relay{node}: a dial to relay{to} fails"));
                    }
                    self.close(connection, End::Dialler);
                }
                Action::Slow => {}
                Action::Fault { fault, works } => {
                    let at = self.queue.now();
                    let known = self.peer_mut(node, fault.peer);
                    let to = known.node;
                    if !works {
                        known.noticed = Some(at);
                    }
                    self.trace
                        .tell(at, || format!("relay{node} takes relay{to} for broken"));
                    let since = self.when(node, fault.since);
                    self.check_blame(node, to, fault.error, since);
                }
            }
        }
        if self.relay_mut(node).dials.has_gained() {
            self.serve_early(node);
        }
        self.plan_poll(node);
    }

    /// Has the dials and the mesh port of a relay polled when that is due.
    pub(crate) fn plan_poll(&mut self, node: Node) {
        let relay = self.relay(node);
        let next = [relay.dials.next(), relay.arrivals.next()];
        let Some(next) = next.into_iter().flatten().min() else {
            return;
        };
        let at = self.when(node, next).max(self.queue.now());
        let relay = self.relay_mut(node);
        if relay.polled_at.is_none_or(|planned| at < planned) {
            relay.polled_at = Some(at);
            let process = relay.process;
            self.queue.at(at, Event::Polls(node, process));
        }
    }

    pub(crate) fn polls(&mut self, node: Node, process: u32) {
        let now = self.queue.now();
        let relay = self.relay_mut(node);
        if relay.process != process || relay.state != State::Running {
            return;
        }
        // Another event has replaced this one.
        if relay.polled_at.is_none_or(|at| at > now) {
            return;
        }
        relay.polled_at = None;
        let now = self.local_now(node);
        let relay = self.relay_mut(node);
        relay.dials.poll(|_| BOUNDS, now);
        relay.arrivals.expire(now);
        self.act_at_port(node, None);
        self.act(node);
    }

    /// Has a relay adopt its present list of members and its own key, as when its configuration is reloaded.
    pub(crate) fn adopt_peers(&mut self, node: Node) {
        let now = self.local_now(node);
        let peers = 0..self.relay(node).peers.len();
        let peers: Vec<_> = peers.map(|peer| self.peer_terms(node, peer)).collect();
        let dials = &mut self.relay_mut(node).dials;
        dials.adopt(TIMES, peers, now);
        dials.drop_old_keys(|_| true, now);
        self.act(node);
    }

    /// Returns what a relay knows of a peer, or `None` if that is no member.
    fn peer_terms(&self, node: Node, peer: usize) -> Option<PeerTerms> {
        let relay = self.relay(node);
        let named = name(usize::from(relay.peers[peer].node));
        let member = relay.local.members.by_name(named.as_str())?;
        Some(PeerTerms {
            keys: Arc::new(Keys {
                peer: member.keys.clone(),
                own: relay.key,
            }),
            bounds: BOUNDS,
            keepalive: PROBED_AFTER,
        })
    }

    /// Begins a dial.
    fn dial(&mut self, node: Node, id: DialId, peer: usize) {
        let has_failed = {
            let pool = self.relay(node).dials.pool(peer);
            pool.is_some_and(|pool| pool.retry_at().is_some())
        };
        if self.broken == Some(Rule::Recovery) && has_failed {
            return;
        }
        let connection = Connection {
            dialler: node,
            acceptor: self.relay(node).peers[peer].node,
            dial: DialEnd::Pooled(id),
            accept: AcceptEnd::Unseen,
            peer,
            begun: self.queue.now(),
            keys: None,
            own: self.relay(node).key,
            shown: None,
            proven_by: None,
            hello: Vec::new(),
            is_given_up: false,
            acknowledged: false,
        };
        let key = self.connections.insert(connection);
        self.relay_mut(node).dials.begun(id, key);
        self.note_dial(node, peer);
        self.send(key, End::Acceptor, Packet::Syn);
    }

    /// Opens a connection of a hostile party, which sends these bytes as its hello.
    pub(crate) fn dial_hostile(&mut self, from: Node, to: Node, own: PublicKey, hello: Vec<u8>) {
        let now = self.queue.now();
        let key = self.connections.insert(Connection {
            dialler: from,
            acceptor: to,
            dial: DialEnd::Hostile,
            accept: AcceptEnd::Unseen,
            peer: usize::MAX,
            begun: now,
            keys: None,
            own,
            shown: None,
            proven_by: None,
            hello,
            is_given_up: false,
            acknowledged: false,
        });
        self.send(key, End::Acceptor, Packet::Syn);
        if usize::from(from) >= self.relays.len() {
            // An outsider sends without waiting for what it cannot use.
            self.send(key, End::Acceptor, Packet::Opening);
        }
    }

    /// The acceptor's kernel has accepted a connection: the handshake begins.
    pub(crate) fn on_connected(&mut self, key: Key) {
        if let Some((node, _, id)) = self.pooled(key) {
            let keys = self.relay_mut(node).dials.connected(id);
            if let (Some(connection), Some(keys)) = (self.connections.get_mut(key), keys) {
                connection.own = keys.own;
                connection.keys = Some(keys);
            }
        }
        self.send(key, End::Acceptor, Packet::Opening);
    }

    /// The acceptor has answered with its key.
    pub(crate) fn on_answer(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        if connection.dial == DialEnd::Hostile {
            let has_hello = !connection.hello.is_empty();
            self.send(key, End::Acceptor, Packet::Proof);
            if has_hello {
                self.send(key, End::Acceptor, Packet::Hello);
            }
            return;
        }
        let Some((node, peer, id)) = self.pooled(key) else {
            return;
        };
        let (now, at) = (self.local_now(node), self.queue.now());
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let keys = connection.keys.as_ref();
        let shown = { connection.shown }.filter(|key| keys.is_some_and(|k| k.peer.contains(key)));
        match shown {
            Some(shown) => {
                self.send(key, End::Acceptor, Packet::Proof);
                self.relay_mut(node).dials.proven(id, Some(shown), now);
                let known = self.peer_mut(node, peer);
                known.proven = Some(at);
                known.unanswered = Unanswered::default();
            }
            None => {
                self.relay_mut(node).dials.proved_no_key(id, now);
            }
        }
        self.act(node);
    }

    /// A dial, or a connection in a pool, has ended.
    pub(crate) fn on_lost(&mut self, key: Key, error: Errno) {
        if let Some((node, _, id)) = self.pooled(key) {
            self.close_silently(key, End::Dialler);
            let now = self.local_now(node);
            self.relay_mut(node).dials.lost(id, error, now);
            self.act(node);
        }
    }

    /// The acceptor of a connection has given it up: it is draining, or has no room for the connection.
    pub(crate) fn on_given_up(&mut self, key: Key, packet: Packet) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.is_given_up = true;
        }
        if self.broken == Some(Rule::GivenUp) {
            return;
        }
        // A session whose hello has crossed the message is served.
        if let Some((node, _, id)) = self.pooled(key) {
            let now = self.local_now(node);
            let dials = &mut self.relay_mut(node).dials;
            match packet {
                Packet::Full => dials.full(id, now),
                _ => dials.withdrawn(id, now),
            }
            self.act(node);
        }
    }

    /// Returns the relay, the peer and the ID of a connection that no session has.
    fn pooled(&self, key: Key) -> Option<(Node, usize, DialId)> {
        let connection = self.connections.get(key)?;
        match connection.dial {
            DialEnd::Pooled(id) => Some((connection.dialler, connection.peer, id)),
            DialEnd::Used(_) | DialEnd::Hostile | DialEnd::Closed => None,
        }
    }
}
