//! The mesh port of a relay: the real [`Arrivals`](taut_mesh::arrivals::Arrivals) decide what has room.

use std::net::IpAddr;
use std::time::Duration;

use taut_mesh::acceptor::{self, Acceptor, Withdrawal};
use taut_mesh::arrivals::{Action, ArrivalId, Bounds, Closing};

use crate::connection::{AcceptEnd, End, Packet};
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::world::{MAX_READY, MAX_UNPROVEN, World};

impl World {
    /// A connection has been accepted at the mesh port.
    pub(crate) fn admit(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, from) = (connection.acceptor, address_of(connection.dialler));
        let is_full = self.relay(node).arrivals.counts().unproven >= MAX_UNPROVEN;
        if is_full && self.broken == Some(Rule::Eviction) {
            // Whichever came last.
            if let Some(newest) = self.newest_unproven(node) {
                self.check_evicted(node, newest, from);
                self.close(newest, End::Acceptor);
            }
        }
        let (now, bounds) = (self.local_now(node), self.bounds());
        let acceptor = Acceptor::new(now, &limits(), None);
        let arrivals = &mut self.relay_mut(node).arrivals;
        let admitted = arrivals.admit(key, from, acceptor, bounds, now);
        // Whatever makes room for it.
        self.act_at_port(node, Some(from));
        match (admitted, self.connections.get_mut(key)) {
            (Ok(id), Some(connection)) => connection.accept = AcceptEnd::Arrived(id),
            (Ok(_), None) => {}
            (Err(_), _) => {
                self.close_silently(key, End::Acceptor);
                self.send(key, End::Dialler, Packet::Reset);
            }
        }
    }

    /// Carries out what the mesh port of a relay has decided, perhaps because of a `newcomer`.
    pub(crate) fn act_at_port(&mut self, node: Node, newcomer: Option<IpAddr>) {
        while let Some(action) = self.relay_mut(node).arrivals.next_action() {
            match action {
                Action::Close(key, why) => {
                    if let (Closing::Evicted, Some(newcomer)) = (why, newcomer) {
                        self.check_evicted(node, key, newcomer);
                        self.oracle.evicted += 1;
                    }
                    self.close(key, End::Acceptor);
                }
                Action::Withdraw(id, why) => {
                    let told = match why {
                        Withdrawal::Draining => Packet::Withdrawal,
                        Withdrawal::Full => Packet::Full,
                    };
                    if let Some((key, acceptor)) = self.relay_mut(node).arrivals.get_mut(id)
                        && acceptor.is_proven()
                        && !acceptor.hello_begun()
                    {
                        let key = *key;
                        self.send(key, End::Dialler, told);
                    }
                }
                Action::Full(_) => {}
            }
        }
        self.plan_poll(node);
    }

    /// Returns the ID of a connection without a hello, and whether its dialler has proven its key.
    pub(crate) fn arrived(&self, key: Key) -> Option<(Node, ArrivalId, bool)> {
        let connection = self.connections.get(key)?;
        let (node, AcceptEnd::Arrived(id)) = (connection.acceptor, connection.accept) else {
            return None;
        };
        let acceptor = self.relay(node).arrivals.acceptor(id)?;
        Some((node, id, acceptor.is_proven()))
    }

    /// Reports that the acceptor of a connection has been given something.
    pub(crate) fn advanced(&mut self, node: Node, id: ArrivalId) {
        let (now, bounds) = (self.local_now(node), self.bounds());
        let arrivals = &mut self.relay_mut(node).arrivals;
        arrivals.advanced(id, true, bounds, now);
        self.act_at_port(node, None);
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            unproven: MAX_UNPROVEN,
            ready: match self.broken {
                Some(Rule::Bounds) => usize::MAX,
                _ => MAX_READY,
            },
        }
    }

    /// The first bytes of a dialler have arrived.
    pub(crate) fn on_opening(&mut self, key: Key) {
        let Some((node, id, false)) = self.arrived(key) else {
            return;
        };
        let shown = self.relay(node).key;
        let relays = self.relays.len();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if usize::from(connection.dialler) >= relays {
            self.reject_noise(key, node, id);
            return;
        }
        connection.shown = Some(shown);
        self.send(key, End::Dialler, Packet::Answer);
    }

    /// Gives the bytes of an outsider to the acceptor, which has to refuse them.
    fn reject_noise(&mut self, key: Key, node: Node, id: ArrivalId) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let mut bytes = std::mem::take(&mut connection.hello);
        let now = self.local_now(node);
        let local = self.relay(node).local.clone();
        let Some((_, acceptor)) = self.relay_mut(node).arrivals.get_mut(id) else {
            return;
        };
        let (mut plain, mut out) = (vec![0; bytes.len()], Vec::new());
        let outcome = acceptor.receive(&mut bytes, &mut plain, now, &local, &mut out);
        if acceptor.is_proven() {
            self.violate(Rule::Members, format!("relay{node} admits an outsider"));
        }
        if outcome.is_err() {
            self.oracle.rejected += 1;
            self.close_silently(key, End::Dialler);
            self.close_silently(key, End::Acceptor);
        } else {
            self.advanced(node, id);
        }
    }

    /// The dialler has proven its key.
    pub(crate) fn on_proof(&mut self, key: Key) {
        let Some((node, id, false)) = self.arrived(key) else {
            return;
        };
        let Some(own) = self.connections.get(key).map(|connection| connection.own) else {
            return;
        };
        let Some(member) = self.members_at(node).by_key(&own).cloned() else {
            self.oracle.rejected += 1;
            self.send(key, End::Dialler, Packet::Refusal);
            self.close_silently(key, End::Acceptor);
            return;
        };
        let now = self.local_now(node);
        let list = self.relay(node).local.members.clone();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.proven_by = Some(list);
        }
        if let Some((_, acceptor)) = self.relay_mut(node).arrivals.get_mut(id) {
            // The handshake is simulated; what follows is read as in a trusted network.
            *acceptor = Acceptor::new(now, &limits(), Some(member));
        }
        self.advanced(node, id);
    }

    /// Returns the connection that has not proven a key for the shortest time.
    fn newest_unproven(&self, node: Node) -> Option<Key> {
        let all = self.connections_where(|c| c.acceptor == node);
        let is_unproven = |key: &Key| matches!(self.arrived(*key), Some((_, _, false)));
        all.into_iter()
            .filter(is_unproven)
            .max_by_key(|key| self.connections.get(*key).map(|c| c.begun))
    }

    /// Tells the diallers of unused connections that this relay is draining.
    pub(crate) fn withdraw(&mut self, node: Node) {
        let now = self.local_now(node);
        for id in self.relay_mut(node).arrivals.drain(now) {
            self.advanced(node, id);
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
