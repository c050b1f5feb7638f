//! Sessions that another relay requests: the real [`Acceptor`] reads the hello, and [`onward`] decides where the
//! session goes.

use std::net::SocketAddr;
use std::time::Duration;

use taut_mesh::acceptor::{self, Local};
use taut_mesh::hello::{Hello, Target};
use taut_mesh::members::MemberName;
use taut_mesh::onward::{Onward, onward};
use taut_mesh::ways::Ways;

use crate::connection::{AcceptEnd, Connection, End, Packet};
use crate::destination::{Permissions, session_number};
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::session::{Admission, Leg};
use crate::world::{Event, World, node_of};

impl World {
    /// A hello has arrived.
    pub(crate) fn on_hello(&mut self, key: Key) {
        let is_unseen = |c: &Connection| c.accept == AcceptEnd::Unseen;
        let arrived = self.arrived(key);
        let (node, id) = match arrived {
            Some((node, id, true)) => (node, id),
            None if !self.connections.get(key).is_some_and(is_unseen) => return,
            _ => {
                // The proof was lost and is sent again; TCP keeps the order.
                let event = Event::Arrives(key, End::Acceptor, Packet::Hello, 0);
                self.queue.after(Duration::from_millis(50), event);
                return;
            }
        };
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let mut bytes = std::mem::take(&mut connection.hello);
        let list = connection.proven_by.clone();
        let now = self.local_now(node);
        let (mut plain, mut out) = (vec![0; bytes.len()], Vec::new());
        let relay = &mut self.relays[usize::from(node)];
        // With TLS, a key is checked when it is proven, and when the list of members changes.
        let local = Local {
            members: list.unwrap_or_else(|| relay.local.members.clone()),
            ..relay.local.clone()
        };
        let Some((_, acceptor)) = relay.arrivals.get_mut(id) else {
            return;
        };
        let event = acceptor.receive(&mut bytes, &mut plain, now, &local, &mut out);
        let member = acceptor.member().map(|member| member.name.clone());
        match event {
            Ok(acceptor::Event::Hello { hello, .. }) => {
                relay.arrivals.take(id);
                if let Some(member) = member {
                    self.serve(key, &member, &hello);
                }
            }
            Ok(_) => self.advanced(node, id),
            Err(_) => {
                self.oracle.rejected += 1;
                self.close(key, End::Acceptor);
            }
        }
    }

    /// Serves the session that another relay requests, as `Worker::serve` does.
    fn serve(&mut self, key: Key, member: &MemberName, hello: &Hello) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (node, own) = (connection.acceptor, connection.own);
        let number = session_number(hello.session);
        // A session that has ended meanwhile is served all the same, until the reset arrives.
        if number >= self.sessions.len() {
            self.close(key, End::Acceptor);
            return;
        }
        self.oracle.served += 1;
        self.check_served(key, node, member, &own);
        let policy = Permissions {
            relay: self.relay(node),
            allows_all: self.broken == Some(Rule::Destinations),
        };
        let decision = onward(member, hello, &policy);
        let admitted = decision.ok().zip(self.admit_session(node, member));
        let Some((onward, admission)) = admitted else {
            self.oracle.refused += 1;
            self.close(key, End::Acceptor);
            return;
        };
        let leg = self.new_leg(number, node, key, admission);
        match onward {
            Onward::Relay(next) => {
                let to = node_of(&next.receiver);
                self.ask_peer(leg, node, to, next, Ways::default());
            }
            Onward::Address(address) => self.reach(leg, node, address),
            Onward::LookUp(name) => self.ask_for_name(leg, node, member, &name),
        }
    }

    /// Connects a leg to an address that its relay may reach.
    pub(crate) fn reach(&mut self, leg: Key, node: Node, address: SocketAddr) {
        self.check_destination(node, address);
        self.connect(leg, &Target::Addr(address));
    }

    fn new_leg(&mut self, session: usize, node: Node, inbound: Key, admission: Admission) -> Key {
        let mut leg = Leg::new(session, node, Some(inbound));
        leg.admission = Some(admission);
        let leg = self.legs.insert(leg);
        if let Some(connection) = self.connections.get_mut(inbound) {
            connection.accept = AcceptEnd::Used(leg);
        }
        leg
    }
}
