//! How a leg gets its connection to the next relay, as the relay's worker does it.
//!
//! [`Ways`] and [`Attempt`] decide which relay a session asks and when it goes on to the next.

use std::sync::Arc;
use std::time::Duration;

use taut_mesh::dialler::Ready;
use taut_mesh::hello::Hello;
use taut_mesh::ways::{Attempt, Prospect, Step, Ways};

use crate::connection::{DialEnd, End, Packet};
use crate::engine::Key;
use crate::network::Node;
use crate::oracle::Rule;
use crate::session::{Leg, Phase, Plan};
use crate::world::{CONNECT, DIAL_PATIENCE, Event, PATIENCE, World};

impl World {
    /// Makes a leg ask the relay `next`.
    pub(crate) fn ask_peer(
        &mut self,
        leg: Key,
        node: Node,
        next: Node,
        hello: Hello,
        ways: Ways<Arc<[Node]>, ()>,
    ) {
        match self.plan_to_ask(leg, node, next, hello, ways) {
            true => self.ask(leg, true),
            false => self.end_leg(leg, None),
        }
    }

    /// Plans that a leg asks the relay `next`. Returns whether that is a peer.
    pub(crate) fn plan_to_ask(
        &mut self,
        leg: Key,
        node: Node,
        next: Node,
        hello: Hello,
        ways: Ways<Arc<[Node]>, ()>,
    ) -> bool {
        let peer = self.peer_number(node, next);
        if let (Some(place), Some(peer)) = (self.legs.get_mut(leg), peer) {
            place.plan = Plan::Ask {
                peer,
                hello: Box::new(hello),
                attempt: Attempt::new(1),
                ways,
            };
        }
        peer.is_some()
    }

    /// Gets a leg its connection to a relay, as `Worker::ask_relay` does.
    pub(crate) fn ask(&mut self, leg: Key, at_first: bool) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        let (node, Plan::Ask { peer, ways, .. }) = (place.relay, &place.plan) else {
            return;
        };
        let (peer, may_leave) = (*peer, ways.is_any_left());
        let now = self.local_now(node);
        let known = &self.relay(node).peers[peer];
        let prospect = Prospect {
            is_peer: !known.pool.is_retired(),
            is_broken: known.pool.is_broken(now),
            may_leave,
        };
        let Some(Leg {
            plan: Plan::Ask { attempt, .. },
            is_waiting,
            ..
        }) = self.legs.get_mut(leg)
        else {
            return;
        };
        *is_waiting = false;
        let takes = match attempt.step(at_first, prospect) {
            Step::Take => true,
            Step::Dial => false,
            Step::Leave => {
                self.leave_relay(leg);
                return;
            }
        };
        let is_first = self.legs.get(leg).is_some_and(|leg| leg.inbound.is_none());
        let known = self.peer_mut(node, peer);
        let spare = takes.then(|| known.pool.take(now)).flatten();
        if is_first && may_leave {
            self.check_detour(node, peer, spare.is_some());
        }
        match spare {
            Some(connection) => {
                self.join(leg, connection, true);
                self.fill_pool(node, peer);
            }
            None => {
                let wait = if may_leave { DIAL_PATIENCE } else { CONNECT };
                self.wait(leg, node, peer, wait);
            }
        }
    }

    /// Leaves the relay of a leg for the next way.
    fn leave_relay(&mut self, leg: Key) {
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        let plan = std::mem::replace(&mut place.plan, Plan::Connect);
        if let Plan::Ask { hello, ways, .. } = plan {
            self.take_way(leg, *hello, ways);
        }
    }

    /// Makes a leg wait for a connection that is dialled.
    fn wait(&mut self, leg: Key, node: Node, peer: usize, wait: Duration) {
        if let Some(place) = self.legs.get_mut(leg) {
            place.waits += 1;
            place.is_waiting = true;
            let until = self.when(node, self.local_now(node) + wait);
            let waits = self.legs.get(leg).map_or(0, |place| place.waits);
            self.queue.at(until, Event::WaitEnds(leg, waits));
        }
        if self.peer_mut(node, peer).pool.wait(leg) == taut_mesh::pool::Wait::Dial {
            self.dial(node, peer);
        }
    }

    pub(crate) fn on_wait_ends(&mut self, leg: Key, waits: u32) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        let Plan::Ask { peer, .. } = place.plan else {
            return;
        };
        if !place.is_waiting || place.waits != waits {
            return;
        }
        let node = place.relay;
        self.peer_mut(node, peer).pool.forget(leg);
        self.on_fault_of(node, peer);
        self.ask(leg, false);
    }

    /// Gives a connection that was dialled to a leg that waits.
    pub(crate) fn join_waiting(&mut self, leg: Key, connection: Key) {
        let is_waiting = self.legs.get(leg).is_some_and(|place| place.is_waiting);
        if !is_waiting {
            self.close(connection, End::Dialler);
            return;
        }
        let Some(Leg {
            plan: Plan::Ask { ways, .. },
            ..
        }) = self.legs.get(leg)
        else {
            return;
        };
        let may_leave = ways.is_any_left();
        self.join(leg, connection, may_leave);
    }

    /// Gives a leg its connection.
    fn join(&mut self, leg: Key, connection: Key, made_before: bool) {
        self.send_hello(leg, connection, made_before);
        self.expect_answer(leg, connection);
    }

    /// Sends the hello of a leg on a connection.
    pub(crate) fn send_hello(&mut self, leg: Key, connection: Key, made_before: bool) {
        let now = self.queue.now();
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        let Plan::Ask { hello, .. } = &place.plan else {
            return;
        };
        place.is_waiting = false;
        place.upstream = Some(connection);
        place.made_before = made_before;
        let (node, session, is_first) = (place.relay, place.session, place.inbound.is_none());
        let (bytes, _) = Ready::trusted().hello(hello).expect("without TLS");
        if is_first {
            self.sessions[session].joined = Some(now);
        }
        if let Some(used) = self.connections.get_mut(connection) {
            used.dial = DialEnd::Used(leg);
            used.hello = bytes;
            let to = used.acceptor;
            self.trace.tell(now, || {
                format!("session {session}: relay{node} sends its hello to relay{to}")
            });
        }
        self.send(connection, End::Acceptor, Packet::Hello);
    }

    /// Has the hello of a leg watched: the other relay must acknowledge it.
    pub(crate) fn expect_answer(&mut self, leg: Key, connection: Key) {
        let Some(node) = self.legs.get(leg).map(|leg| leg.relay) else {
            return;
        };
        let until = self.when(node, self.local_now(node) + PATIENCE);
        self.queue.at(until, Event::Patience(leg, connection));
    }

    /// The time has passed in which a relay should have acknowledged a hello.
    pub(crate) fn on_patience(&mut self, leg: Key, connection: Key) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        let Plan::Ask { peer, .. } = place.plan else {
            return;
        };
        let is_silent = self
            .connections
            .get(connection)
            .is_some_and(|connection| !connection.acknowledged);
        if place.upstream != Some(connection) || place.answered || !is_silent {
            return;
        }
        let (node, session) = (place.relay, place.session);
        self.on_fault_of(node, peer);
        if !self.sessions[session].talks_first {
            self.close(connection, End::Dialler);
            self.redial(leg);
        }
    }

    /// Records that a peer does not work.
    pub(crate) fn on_fault_of(&mut self, node: Node, peer: usize) {
        if self.broken == Some(Rule::Detour) {
            return;
        }
        let (now, at) = (self.local_now(node), self.queue.now());
        let known = self.peer_mut(node, peer);
        let Some(useless) = known.pool.on_fault(now, now, |_| true) else {
            return;
        };
        known.noticed = Some(at);
        let to = known.node;
        self.trace
            .tell(at, || format!("relay{node} takes relay{to} for broken"));
        self.close_all(useless);
        self.fill_pool(node, peer);
    }

    /// Gets a leg another connection.
    fn redial(&mut self, leg: Key) {
        if let Some(place) = self.legs.get_mut(leg) {
            place.upstream = None;
            place.made_before = false;
        }
        self.ask(leg, false);
    }

    /// The upstream connection of a leg has broken.
    pub(crate) fn upstream_failed(&mut self, leg: Key, connection: Key, is_refusal: bool) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        if place.upstream != Some(connection) {
            return;
        }
        let (node, session) = (place.relay, place.session);
        if place.inbound.is_none() && self.sessions[session].phase == Phase::Awaited {
            // The relay watches the connection once the client has come.
            if let Some(place) = self.legs.get_mut(leg) {
                place.lost = true;
            }
            return;
        }
        if let (Plan::Ask { peer, .. }, true) = (&place.plan, is_refusal) {
            let peer = *peer;
            self.on_fault_of(node, peer);
        }
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        // A byte of the client may have arrived even without an acknowledgement.
        let is_touched = place.answered || self.sessions[session].talks_first;
        match place.made_before && !is_touched {
            true => self.redial(leg),
            false => self.end_leg(leg, Some(connection)),
        }
    }
}
