//! What a member sends that does not keep to the rules.

use std::net::SocketAddr;

use taut_mesh::hello::{Hello, MAX_ROUTE, Target};
use taut_mesh::members::MemberName;

use crate::destination::{session_id, target};
use crate::network::Node;
use crate::session::Session;
use crate::world::{DESTINATIONS, World, name};

impl World {
    /// A member sends a hello of its own making.
    pub(crate) fn attack(&mut self, from: Node, to: Node, act: u32) {
        let number = self.sessions.len();
        self.sessions.push(Session::hostile(from, self.queue.now()));
        let relays = self.size.relays;
        let mut hello = Hello {
            source: SocketAddr::from(([10, 1, 0, 1], 40_000)),
            destination: target(self.random.below(DESTINATIONS), act.is_multiple_of(3)),
            receiver: name(usize::from(to)),
            route: Vec::new(),
            hops_left: u8::MAX,
            session: session_id(number),
            passed: Default::default(),
        };
        let forbidden = Target::Addr(SocketAddr::from(([169, 254, 169, 254], 80)));
        match act % 9 {
            0 => {}
            1 => hello.destination = forbidden,
            2 => {
                hello.destination = Target::Name {
                    host: "evil.example".into(),
                    port: 443,
                }
            }
            3 => hello.route = self.back_and_forth(to),
            4 => hello.source = SocketAddr::from(([192, 0, 2, 1], 1)),
            5 => hello.receiver = name((usize::from(to) + 1) % relays),
            6 => hello.hops_left = 0,
            _ => {}
        }
        let mut bytes = hello.encode();
        match act % 9 {
            7 => bytes.truncate(self.random.below(bytes.len())),
            8 => {
                for _ in 0..8 {
                    let at = self.random.below(bytes.len());
                    bytes[at] = self.random.bits() as u8;
                }
            }
            _ => {}
        }
        let own = self.relay(from).key;
        // Also connections that are never used.
        for _ in 0..4 {
            self.dial_hostile(from, to, own, Vec::new());
        }
        self.dial_hostile(from, to, own, bytes);
    }

    /// Returns the longest route, between a relay and one of its peers.
    fn back_and_forth(&mut self, node: Node) -> Vec<MemberName> {
        let peers = &self.relays[usize::from(node)].peers;
        let next = self.random.pick(peers).node;
        let nodes = [next, node].into_iter().cycle().take(MAX_ROUTE);
        nodes.map(|node| name(usize::from(node))).collect()
    }
}
