//! Connections between relays: TCP and the handshake as far as relays can see them.
//!
//! TCP is simulated: packets are lost and sent again, a machine without the process resets, one that is
//! gone is silent. So is the exchange of keys in TLS, whose own tests are in the crate. What the two ends
//! make of it is decided by the real [`Dials`](taut_mesh::dials::Dials) and [`Arrivals`](taut_mesh::arrivals::Arrivals).

use std::sync::Arc;

use rustix::io::Errno;
use taut_mesh::arrivals::ArrivalId;
use taut_mesh::dials::{DialId, Keys};
use taut_mesh::identity::PublicKey;
use taut_mesh::members::Members;

use crate::engine::{Key, Time};
use crate::network::Node;
use crate::world::{Event, State, World};

/// How often a packet is sent again before its sender gives up.
const MAX_TRIES: u8 = 12;

/// A connection from a pool, or one of a hostile party.
pub(crate) struct Connection {
    pub(crate) dialler: Node,
    pub(crate) acceptor: Node,
    pub(crate) dial: DialEnd,
    pub(crate) accept: AcceptEnd,
    /// The pool that dialled it.
    pub(crate) peer: usize,
    pub(crate) begun: Time,
    /// The keys that the handshake uses, once it has begun.
    pub(crate) keys: Option<Arc<Keys>>,
    /// The key that the dialler proves.
    pub(crate) own: PublicKey,
    /// The key that the acceptor has proven.
    pub(crate) shown: Option<PublicKey>,
    /// The acceptor's list of members when the dialler proved its key.
    pub(crate) proven_by: Option<Arc<Members>>,
    /// The hello, as it is sent.
    pub(crate) hello: Vec<u8>,
    /// The dialler knows that the acceptor has given the connection up.
    pub(crate) is_given_up: bool,
    /// The dialler's kernel knows that the hello has arrived.
    pub(crate) acknowledged: bool,
}

/// The dialling end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialEnd {
    /// Dialled, or ready in its pool.
    Pooled(DialId),
    /// The upstream connection of this leg.
    Used(Key),
    /// A hostile party has it.
    Hostile,
    Closed,
}

/// The accepting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptEnd {
    /// The machine has not seen the connection.
    Unseen,
    /// Without a hello.
    Arrived(ArrivalId),
    /// The inbound connection of this leg.
    Used(Key),
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Dialler,
    Acceptor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Syn,
    SynAck,
    /// The dialler's part of the handshake, the acceptor's with its key, and the dialler's key.
    Opening,
    Answer,
    Proof,
    /// The acceptor does not accept the dialler's key.
    Refusal,
    /// The acceptor is draining.
    Withdrawal,
    /// The acceptor has no room for another connection that waits.
    Full,
    /// A hello and the first bytes of the client.
    Hello,
    /// The first bytes of the destination.
    Reply,
    Reset,
}

impl World {
    // === the network and the kernels ===

    /// Sends a packet to one end of a connection.
    pub(crate) fn send(&mut self, key: Key, to: End, packet: Packet) {
        self.transmit(key, to, packet, 0);
    }

    fn transmit(&mut self, key: Key, to: End, packet: Packet, tries: u8) {
        let Some((from, node)) = self.path(key, to) else {
            return;
        };
        let now = self.queue.now();
        match self.network.send((from, node), now, &mut self.random) {
            Some(delay) => self
                .queue
                .after(delay, Event::Arrives(key, to, packet, tries)),
            None => self.send_later(key, to, packet, tries),
        }
    }

    /// Sends a packet again when its retransmission is due.
    fn send_later(&mut self, key: Key, to: End, packet: Packet, tries: u8) {
        let Some((from, node)) = self.path(key, to) else {
            return;
        };
        if tries < MAX_TRIES {
            let is_syn = matches!(packet, Packet::Syn | Packet::SynAck);
            let wait = self.network.retransmission_wait(from, node, is_syn, tries);
            self.queue
                .after(wait, Event::Resends(key, to, packet, tries + 1));
        }
    }

    pub(crate) fn resends(&mut self, key: Key, to: End, packet: Packet, tries: u8) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let is_open = match to {
            End::Dialler => !matches!(connection.accept, AcceptEnd::Closed),
            End::Acceptor => connection.dial != DialEnd::Closed,
        };
        // A connection that is closed still resets: its peer's keepalive asks for it.
        if is_open || matches!(packet, Packet::Reset | Packet::Refusal) {
            self.transmit(key, to, packet, tries);
        }
    }

    pub(crate) fn arrives(&mut self, key: Key, to: End, packet: Packet, tries: u8) {
        let Some((_, node)) = self.path(key, to) else {
            return;
        };
        if usize::from(node) >= self.relays.len() {
            // An outsider does not listen.
            if packet == Packet::Reset {
                self.close_silently(key, to);
            }
            return;
        }
        let relay = self.relay(node);
        let (state, is_stopped) = (relay.state, relay.stopped_until.is_some());
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let is_closed = match to {
            End::Dialler => connection.dial == DialEnd::Closed,
            End::Acceptor => matches!(connection.accept, AcceptEnd::Closed),
        };
        if state == State::Vanished {
            self.send_later(key, to, packet, tries);
            return;
        }
        if is_closed || state == State::Killed {
            // The machine knows no such connection.
            self.close_silently(key, to);
            if packet != Packet::Reset {
                self.send(key, other(to), Packet::Reset);
            }
            return;
        }
        match packet {
            Packet::Syn => self.send(key, End::Dialler, Packet::SynAck),
            Packet::Hello => self.acknowledge(key),
            _ => {}
        }
        if is_stopped {
            let event = Event::Arrives(key, to, packet, tries);
            self.relay_mut(node).missed.push_back(event);
            return;
        }
        self.reads(key, to, packet);
    }

    /// Acknowledges the hello of a connection to its dialler.
    pub(crate) fn acknowledge(&mut self, key: Key) {
        let Some((from, to)) = self.path(key, End::Dialler) else {
            return;
        };
        let now = self.queue.now();
        match self.network.send((from, to), now, &mut self.random) {
            Some(delay) => self.queue.after(delay, Event::Acknowledged(key)),
            None => {
                // The hello arrives once more.
                let wait = self.network.retransmission_wait(to, from, false, 1);
                self.queue.after(wait, Event::Acknowledges(key));
            }
        }
    }

    /// Returns the node that sends to this end, and the end's own.
    fn path(&self, key: Key, to: End) -> Option<(Node, Node)> {
        let connection = self.connections.get(key)?;
        Some(match to {
            End::Acceptor => (connection.dialler, connection.acceptor),
            End::Dialler => (connection.acceptor, connection.dialler),
        })
    }

    /// The process of a relay reads what has arrived at its end of a connection.
    pub(crate) fn reads(&mut self, key: Key, to: End, packet: Packet) {
        match (to, packet) {
            (End::Acceptor, Packet::Syn) => self.admit(key),
            (End::Dialler, Packet::SynAck) => self.on_connected(key),
            (End::Acceptor, Packet::Opening) => self.on_opening(key),
            (End::Dialler, Packet::Answer) => self.on_answer(key),
            (End::Acceptor, Packet::Proof) => self.on_proof(key),
            (End::Dialler, Packet::Refusal) => self.on_reset(key, to, true),
            (_, Packet::Reset) => self.on_reset(key, to, false),
            (End::Dialler, Packet::Withdrawal | Packet::Full) => self.on_given_up(key, packet),
            (End::Acceptor, Packet::Hello) => self.on_hello(key),
            (End::Dialler, Packet::Reply) => self.on_reply(key),
            _ => {}
        }
    }

    // === both ends ===

    fn on_reset(&mut self, key: Key, to: End, is_refusal: bool) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let dial = connection.dial;
        let is_gone = { self.relays.get(usize::from(connection.acceptor)) }
            .is_some_and(|relay| relay.state == State::Vanished);
        if to == End::Acceptor {
            if let AcceptEnd::Used(leg) = connection.accept {
                self.close_silently(key, to);
                self.end_leg(leg, Some(key));
            } else {
                self.close_silently(key, to);
            }
            return;
        }
        let error = match (is_refusal, is_gone) {
            (true, _) => Errno::ACCESS,
            // Keepalive has ended it.
            (false, true) => Errno::TIMEDOUT,
            (false, false) => Errno::CONNRESET,
        };
        match dial {
            DialEnd::Pooled(_) => self.on_lost(key, error),
            DialEnd::Used(leg) => {
                self.close_silently(key, to);
                self.upstream_failed(leg, key, error);
            }
            DialEnd::Hostile => self.close_silently(key, to),
            DialEnd::Closed => {}
        }
    }

    /// Closes one end of a connection and resets the other.
    pub(crate) fn close(&mut self, key: Key, end: End) {
        let accept = self.connections.get(key).map(|c| &c.accept);
        match accept {
            // What is on its way finds no connection.
            Some(AcceptEnd::Unseen) => self.close_silently(key, other(end)),
            _ => self.send(key, other(end), Packet::Reset),
        }
        self.close_silently(key, end);
    }

    /// Closes one end of a connection, and forgets the connection once both are closed.
    pub(crate) fn close_silently(&mut self, key: Key, end: End) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let acceptor = connection.acceptor;
        match end {
            End::Dialler => connection.dial = DialEnd::Closed,
            End::Acceptor => {
                let was = std::mem::replace(&mut connection.accept, AcceptEnd::Closed);
                if let AcceptEnd::Arrived(id) = was {
                    self.relay_mut(acceptor).arrivals.take(id);
                }
            }
        }
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let is_accepted = !matches!(connection.accept, AcceptEnd::Closed);
        if connection.dial == DialEnd::Closed && !is_accepted {
            self.connections.remove(key);
        }
    }

    /// Returns the connections that fit.
    pub(crate) fn connections_where(&self, fits: impl Fn(&Connection) -> bool) -> Vec<Key> {
        let all = self.connections.iter();
        all.filter(|(_, c)| fits(c)).map(|(key, _)| key).collect()
    }
}

fn other(end: End) -> End {
    match end {
        End::Dialler => End::Acceptor,
        End::Acceptor => End::Dialler,
    }
}
