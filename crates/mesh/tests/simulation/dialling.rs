//! The pools of a relay: what they dial, and what becomes of it, as `Pools` of the relay does it.

use std::collections::VecDeque;

use taut_mesh::identity::PublicKey;
use taut_mesh::members::Members;
use taut_mesh::pool::{Given, expiry};

use crate::connection::{AcceptEnd, Connection, DialEnd, End, Packet};
use crate::engine::{Key, Time};
use crate::network::Node;
use crate::oracle::{Rule, Unanswered};
use crate::world::{CONNECT, DIAL_PATIENCE, Event, MAX_AGE, Peer, World, name};

impl World {
    /// Dials what a pool wants, for itself and for the sessions that wait.
    pub(crate) fn fill_pool(&mut self, node: Node, peer: usize) {
        let now = self.local_now(node);
        let wanted = self.peer_mut(node, peer).pool.dials_wanted(now);
        let never = self.broken == Some(Rule::Recovery)
            && self.peer_mut(node, peer).pool.retry_at().is_some();
        for _ in 0..wanted {
            if !never {
                self.dial(node, peer);
            }
        }
        while self.peer_mut(node, peer).pool.is_dial_awaited() {
            self.dial(node, peer);
        }
    }

    pub(crate) fn dial(&mut self, node: Node, peer: usize) {
        let Peer { node: to, pool, .. } = self.peer_mut(node, peer);
        let (to, tried) = (*to, pool.on_dial());
        let relay = self.relay(node);
        let now = self.queue.now();
        let connection = Connection {
            dialler: node,
            acceptor: to,
            dial: DialEnd::Dialling,
            accept: AcceptEnd::Unseen,
            peer,
            tried,
            begun: now,
            until: now + DIAL_PATIENCE,
            list: relay.list,
            own: relay.key,
            shown: None,
            hello: Vec::new(),
            acknowledged: false,
        };
        let key = self.connections.insert(connection);
        self.queue.after(DIAL_PATIENCE, Event::DialTimer(key));
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
            tried: 0,
            begun: now,
            until: Time::MAX,
            list: 0,
            own,
            shown: None,
            hello,
            acknowledged: false,
        });
        self.send(key, End::Acceptor, Packet::Syn);
        if usize::from(from) >= self.relays.len() {
            // An outsider sends without waiting for what it cannot use.
            self.send(key, End::Acceptor, Packet::Opening);
        }
    }

    /// The acceptor has answered with its key.
    pub(crate) fn on_answer(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, peer) = (connection.dialler, connection.peer);
        match connection.dial {
            DialEnd::Dialling => {}
            DialEnd::Hostile => {
                let has_hello = !connection.hello.is_empty();
                self.send(key, End::Acceptor, Packet::Proof);
                if has_hello {
                    self.send(key, End::Acceptor, Packet::Hello);
                }
                return;
            }
            _ => return,
        }
        let named = name(usize::from(connection.acceptor));
        let (shown, own) = (connection.shown, connection.own);
        let has_key = |members: &Members| {
            let member = members.by_name(named.as_str());
            member.is_some_and(|member| shown.is_some_and(|key| member.keys.contains(&key)))
        };
        if !has_key(&self.lists[connection.list].members) {
            self.lose_dial(key);
            return;
        }
        let setup = self.queue.now() - connection.begun;
        self.send(key, End::Acceptor, Packet::Proof);
        let (now, at) = (self.local_now(node), self.queue.now());
        let known = self.peer_mut(node, peer);
        known.pool.on_dial_succeeded(setup, now);
        known.proven = Some(at);
        known.unanswered = Unanswered::default();
        // The list of members, or this relay's key, may have changed during the handshake.
        if !has_key(self.members_at(node)) || self.relay(node).key != own {
            self.close(key, End::Dialler);
            self.fill_pool(node, peer);
            return;
        }
        if let Some(connection) = self.connections.get_mut(key) {
            connection.dial = DialEnd::Ready;
        }
        match self.peer_mut(node, peer).pool.give(key) {
            Given::To(leg) => {
                self.join_waiting(leg, key);
                self.fill_pool(node, peer);
            }
            Given::Surplus => self.close(key, End::Dialler),
            Given::Kept => {
                let until = expiry(now, MAX_AGE, self.random.bits());
                let until = self.when(node, until);
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.until = until;
                }
                self.queue.at(until, Event::DialTimer(key));
                self.serve_early(node);
            }
        }
    }

    pub(crate) fn on_dial_timer(&mut self, key: Key) {
        let now = self.queue.now();
        let Some(connection) = self.connections.get(key).filter(|c| c.until <= now) else {
            return;
        };
        match connection.dial {
            DialEnd::Dialling => self.on_slow_dial(key),
            DialEnd::Ready => self.discard(key),
            _ => {}
        }
    }

    /// A dial has taken long: first long enough to doubt the peer, then too long.
    fn on_slow_dial(&mut self, key: Key) {
        let now = self.queue.now();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let begun = connection.begun;
        if now >= begun + CONNECT {
            return self.lose_dial(key);
        }
        connection.until = begun + CONNECT;
        let (node, peer) = (connection.dialler, connection.peer);
        self.queue.at(begun + CONNECT, Event::DialTimer(key));
        let begun = self.local_then(node, begun);
        // If a later dial has succeeded, only this one has lost its SYN.
        if !self.peer_mut(node, peer).pool.has_connected_since(begun) {
            self.on_fault_of(node, peer);
        }
    }

    /// Ends a dial that has failed.
    pub(crate) fn lose_dial(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, peer, tried) = (connection.dialler, connection.peer, connection.tried);
        let to = connection.acceptor;
        let at = self.queue.now();
        self.trace
            .tell(at, || format!("relay{node}: a dial to relay{to} fails"));
        self.close(key, End::Dialler);
        let now = self.local_now(node);
        let waiter = self.peer_mut(node, peer).pool.on_dial_failed(tried, now);
        if let Some(leg) = waiter {
            self.ask(leg, false);
        }
        self.fill_pool(node, peer);
    }

    /// Closes a ready connection of a pool.
    pub(crate) fn discard(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, peer) = (connection.dialler, connection.peer);
        self.peer_mut(node, peer).pool.remove(key);
        self.close(key, End::Dialler);
        self.fill_pool(node, peer);
    }

    /// Closes connections that a pool has given up.
    pub(crate) fn close_all(&mut self, keys: VecDeque<Key>) {
        for key in keys {
            self.close(key, End::Dialler);
        }
    }

    /// The acceptor of a connection in a pool has no room for it.
    pub(crate) fn on_full(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        // A session whose hello has crossed the message is served.
        if connection.dial != DialEnd::Ready {
            return;
        }
        let (node, peer) = (connection.dialler, connection.peer);
        let now = self.local_now(node);
        self.peer_mut(node, peer).pool.on_full(now);
        self.discard(key);
    }

    /// The acceptor of a connection in a pool is draining.
    pub(crate) fn on_withdrawal(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        // A session whose hello has crossed the message is served.
        if connection.dial != DialEnd::Ready {
            return;
        }
        let (node, peer) = (connection.dialler, connection.peer);
        let is_young = self.queue.now() < connection.begun + CONNECT;
        if is_young {
            let now = self.local_now(node);
            self.peer_mut(node, peer).pool.on_failure(now);
        }
        self.discard(key);
    }
}
