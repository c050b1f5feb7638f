//! The mesh port of a relay: what it admits, as `Inbound` of the relay does it.

use std::net::IpAddr;
use std::time::Duration;

use taut_mesh::acceptor::{self, Acceptor};
use taut_mesh::members::MemberName;
use taut_mesh::unproven::Room;

use crate::connection::{AcceptEnd, Connection, End, Packet};
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::world::{Event, MAX_READY, MAX_UNPROVEN, World};

/// How long a connection without a place waits for a hello that is on its way.
const WITHDRAWN_FOR: Duration = Duration::from_secs(5);

impl World {
    /// A connection has been accepted at the mesh port.
    pub(crate) fn admit(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, from) = (connection.acceptor, address_of(connection.dialler));
        let now = self.local_now(node);
        match self.relay(node).unproven.room(from, MAX_UNPROVEN, now) {
            Room::Free => {}
            Room::Evict(victim) => {
                let victim = match self.broken {
                    // Whichever came last.
                    Some(Rule::Eviction) => self.newest_unproven(node).unwrap_or(victim),
                    _ => victim,
                };
                self.check_evicted(node, victim, from);
                self.oracle.evicted += 1;
                self.close(victim, End::Acceptor);
            }
            Room::Full => {
                self.close_silently(key, End::Acceptor);
                self.send(key, End::Dialler, Packet::Reset);
                return;
            }
        }
        self.relay_mut(node).unproven.insert(key, from, now);
        let acceptor = Acceptor::new(now, &limits(), None);
        let until = self.when(node, acceptor.deadline());
        if let Some(connection) = self.connections.get_mut(key) {
            connection.accept = AcceptEnd::Handshaking(Box::new(acceptor));
        }
        self.queue.at(until, Event::AcceptTimer(key));
    }

    /// The first bytes of a dialler have arrived.
    pub(crate) fn on_opening(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let node = connection.acceptor;
        let is_outsider = usize::from(connection.dialler) >= self.relays.len();
        let AcceptEnd::Handshaking(_) = connection.accept else {
            return;
        };
        if is_outsider {
            self.reject_noise(key);
            return;
        }
        let shown = self.relay(node).key;
        if let Some(connection) = self.connections.get_mut(key) {
            connection.shown = Some(shown);
        }
        self.send(key, End::Dialler, Packet::Answer);
    }

    /// Gives the bytes of an outsider to the acceptor, which has to refuse them.
    fn reject_noise(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let node = connection.acceptor;
        let mut bytes = std::mem::take(&mut connection.hello);
        let now = self.local_now(node);
        let local = self.relay(node).local.clone();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let AcceptEnd::Handshaking(acceptor) = &mut connection.accept else {
            return;
        };
        let (mut plain, mut out) = (vec![0; bytes.len()], Vec::new());
        let outcome = acceptor.receive(&mut bytes, &mut plain, now, &local, &mut out);
        let is_proven = acceptor.is_proven();
        if is_proven {
            self.violate(Rule::Members, format!("relay{node} admits an outsider"));
        }
        if outcome.is_err() {
            self.oracle.rejected += 1;
            self.close_silently(key, End::Dialler);
            self.close_silently(key, End::Acceptor);
        }
    }

    /// The dialler has proven its key.
    pub(crate) fn on_proof(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let AcceptEnd::Handshaking(_) = connection.accept else {
            return;
        };
        let (node, own) = (connection.acceptor, connection.own);
        let member = self.members_at(node).by_key(&own);
        let Some(member) = member.map(|member| member.name.clone()) else {
            self.oracle.rejected += 1;
            self.send(key, End::Dialler, Packet::Refusal);
            self.close_silently(key, End::Acceptor);
            return;
        };
        let until = self.queue.now() + limits().idle;
        if let Some(connection) = self.connections.get_mut(key) {
            connection.accept = AcceptEnd::Proven(until);
        }
        self.relay_mut(node).unproven.remove(key);
        self.queue.at(until, Event::AcceptTimer(key));
        self.give_place(key, node, member);
    }

    /// Gives a connection a place among those that wait for a hello, or withdraws it or another one.
    fn give_place(&mut self, key: Key, node: Node, member: MemberName) {
        let now = self.local_now(node);
        let room = match self.broken {
            Some(Rule::Bounds) => Room::Free,
            _ => self.relay(node).ready.room(&member, MAX_READY),
        };
        match room {
            Room::Free => {}
            Room::Full => return self.withdraw_one(key),
            Room::Evict(oldest) => {
                self.relay_mut(node).ready.remove(oldest);
                self.withdraw_one(oldest);
            }
        }
        self.relay_mut(node).ready.insert(key, member, now);
    }

    /// Tells the dialler of a connection that there is no room for it. A hello that is on its way is served.
    fn withdraw_one(&mut self, key: Key) {
        let until = self.queue.now() + WITHDRAWN_FOR;
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if let AcceptEnd::Proven(_) = connection.accept {
            connection.accept = AcceptEnd::Withdrawn(until);
            self.queue.at(until, Event::AcceptTimer(key));
            self.send(key, End::Dialler, Packet::Full);
        }
    }

    /// Returns the connection that has not proven a key for the shortest time.
    fn newest_unproven(&self, node: Node) -> Option<Key> {
        let is_unproven =
            |c: &Connection| c.acceptor == node && matches!(c.accept, AcceptEnd::Handshaking(_));
        let all = self.connections_where(is_unproven).into_iter();
        all.max_by_key(|key| self.connections.get(*key).map(|c| c.begun))
    }

    pub(crate) fn on_accept_timer(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (now, node) = (self.queue.now(), connection.acceptor);
        let is_expired = match &connection.accept {
            AcceptEnd::Handshaking(acceptor) | AcceptEnd::Greeting(acceptor) => {
                acceptor.expired(self.local_now(node)).is_some()
            }
            AcceptEnd::Proven(until) | AcceptEnd::Withdrawn(until) => now >= *until,
            AcceptEnd::Unseen | AcceptEnd::Used(_) | AcceptEnd::Closed => false,
        };
        if is_expired {
            self.close(key, End::Acceptor);
        }
    }

    /// Tells the diallers of unused connections that this relay is draining.
    pub(crate) fn withdraw(&mut self, node: Node) {
        for key in self
            .connections_where(|c| c.acceptor == node && matches!(c.accept, AcceptEnd::Proven(_)))
        {
            self.send(key, End::Dialler, Packet::Withdrawal);
        }
    }
}

/// Returns the address of a node.
pub(crate) fn address_of(node: Node) -> IpAddr {
    let [high, low] = node.to_be_bytes();
    IpAddr::from([10, 3, high, low])
}

/// The time limits of the mesh port.
pub(crate) fn limits() -> acceptor::Limits {
    acceptor::Limits {
        idle: Duration::from_secs(60),
        ..acceptor::Limits::default()
    }
}
