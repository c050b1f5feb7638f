//! The list of members: how it changes, how relays read it, and how a relay gets another key.

use std::sync::Arc;
use std::time::Duration;

use taut_mesh::acceptor::Acceptor;
use taut_mesh::identity::PublicKey;

use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::world::{Event, List, State, World, key, members, name};

/// The longest time from a change of the list of members until a relay has read it.
pub(crate) const ADOPTION: Duration = Duration::from_secs(2);

impl World {
    /// Publishes a list in which a member has these keys, or is missing without one.
    pub(crate) fn publish(&mut self, node: Node, keys: Vec<PublicKey>) {
        let last = &self.lists[self.lists.len() - 1].members;
        let keys: Vec<Vec<PublicKey>> = (0..self.size.relays)
            .map(|other| match other == usize::from(node) {
                true => keys.clone(),
                false => last
                    .by_name(name(other).as_str())
                    .map_or(Vec::new(), |member| member.keys.clone()),
            })
            .collect();
        let number = self.lists.len();
        self.lists.push(List {
            members: Arc::new(members(&keys)),
            changed: vec![node],
        });
        for other in 0..self.size.relays {
            let wait = self.random.between(Duration::ZERO, ADOPTION);
            self.queue.after(wait, Event::Adopts(other as Node, number));
        }
    }

    /// A relay reads a list.
    pub(crate) fn adopts(&mut self, node: Node, list: usize) {
        let relay = self.relay(node);
        if relay.state != State::Running || relay.list >= list {
            return;
        }
        let changed: Vec<Node> = self.lists[relay.list + 1..=list]
            .iter()
            .flat_map(|list| list.changed.iter().copied())
            .collect();
        let members = self.lists[list].members.clone();
        let relay = self.relay_mut(node);
        relay.list = list;
        if self.broken == Some(Rule::Members) {
            return;
        }
        let relay = self.relay_mut(node);
        relay.local.members = members;
        self.adopt_peers(node);
        for other in changed {
            self.drop_old_keys(node, other);
        }
    }

    /// Ends what `node` has from a member whose keys have changed: unused connections with a former key, and
    /// the sessions of a former member.
    fn drop_old_keys(&mut self, node: Node, other: Node) {
        let keys = {
            let name = name(usize::from(other));
            let member = self.members_at(node).by_name(name.as_str());
            member.map_or(Vec::new(), |member| member.keys.clone())
        };
        let connections = &self.connections;
        let is_current = |key: &Key, acceptor: &Acceptor| {
            let connection = connections.get(*key);
            let is_its = connection.is_some_and(|c| c.dialler == other) && acceptor.is_proven();
            !is_its || connection.is_some_and(|c| keys.contains(&c.own))
        };
        self.relays[usize::from(node)].arrivals.drop_old(is_current);
        self.act_at_port(node, None);
        if keys.is_empty() {
            self.end_legs_of(node, other);
        }
    }

    /// The steps of docs/relay-mesh.md by which a relay gets another key. Returns the time before the next.
    pub(crate) fn change_key(&mut self, node: Node, step: u32) -> Option<Duration> {
        let (old, new) = (key(usize::from(node), 0), key(usize::from(node), 1));
        match step {
            0 => self.publish(node, vec![old, new]),
            1 => {
                self.relay_mut(node).key = new;
                if self.relay(node).state != State::Running {
                    return Some(ADOPTION);
                }
                self.adopt_peers(node);
            }
            2 => self.publish(node, vec![new]),
            _ => return None,
        }
        Some(ADOPTION + Duration::from_millis(500))
    }
}
