//! How a leg gets its connection to the next relay, as the relay's worker does it.
//!
//! [`Ways`] and [`Attempt`] decide which relay a session asks and when it goes on to the next.

use std::sync::Arc;

use rustix::io::Errno;
use taut_mesh::answer::Consequence;
use taut_mesh::dialler::Ready;
use taut_mesh::dials::{Asked, Asking, Fault};
use taut_mesh::hello::Hello;
use taut_mesh::ways::{Attempt, Ways};

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
        let Some(Leg {
            plan: Plan::Ask { attempt, .. },
            is_waiting,
            ..
        }) = self.legs.get_mut(leg)
        else {
            return;
        };
        *is_waiting = false;
        let asking = Asking {
            session: leg,
            attempt,
            at_first,
            may_leave,
        };
        let dials = &mut self.relays[usize::from(node)].dials;
        let asked = dials.ask(peer, asking, now);
        let is_first = self.legs.get(leg).is_some_and(|leg| leg.inbound.is_none());
        if is_first && may_leave && !matches!(asked, Asked::Leaves { .. }) {
            self.check_detour(node, peer, matches!(asked, Asked::Ready(_)));
        }
        match asked {
            Asked::Ready(connection) => self.join(leg, connection, true),
            Asked::Waits(_) => self.wait(leg, node, may_leave),
            Asked::Leaves { .. } => self.leave_relay(leg),
        }
        self.act(node);
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

    /// Limits the time for which a leg waits for a connection.
    fn wait(&mut self, leg: Key, node: Node, may_leave: bool) {
        let wait = if may_leave { DIAL_PATIENCE } else { CONNECT };
        let until = self.when(node, self.local_now(node) + wait);
        if let Some(place) = self.legs.get_mut(leg) {
            place.waits += 1;
            (place.is_waiting, place.wait) = (true, wait);
            self.queue.at(until, Event::WaitEnds(leg, place.waits));
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
        let (node, wait) = (place.relay, place.wait);
        let now = self.local_now(node);
        self.relay_mut(node).dials.forget(peer, leg);
        let (error, since) = (Errno::TIMEDOUT, now - wait);
        self.on_fault(node, Fault { peer, error, since });
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
        place.answer.joined(made_before);
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
            self.check_asked(node, connection);
        }
        self.send(connection, End::Acceptor, Packet::Hello);
    }

    /// Has the hello of a leg watched: the other relay must acknowledge it.
    pub(crate) fn expect_answer(&mut self, leg: Key, connection: Key) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        let now = self.local_now(place.relay);
        let until = self.when(place.relay, now + PATIENCE);
        if let Some(place) = self.legs.get_mut(leg) {
            place.answer.expect(PATIENCE, now);
        }
        self.queue.at(until, Event::Patience(leg, connection));
    }

    /// The time has passed in which a relay should have acknowledged a hello.
    pub(crate) fn on_patience(&mut self, leg: Key, connection: Key) {
        let Some(place) = self.legs.get(leg) else {
            return;
        };
        let is_silent = self
            .connections
            .get(connection)
            .is_some_and(|connection| !connection.acknowledged);
        if place.upstream != Some(connection) {
            return;
        }
        let (now, session) = (self.local_now(place.relay), place.session);
        let is_untouched = !self.sessions[session].talks_first;
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        if let Some((patience, until)) = place.answer.take_due(now)
            && !place.answered
            && is_silent
        {
            let consequence = place.answer.on_silence(until - patience, is_untouched);
            self.follow(leg, consequence, Errno::TIMEDOUT);
            if consequence.redials {
                self.close(connection, End::Dialler);
                self.redial(leg);
            }
        }
    }

    /// Records that the peer that a leg asks does not work, if that is so.
    fn follow(&mut self, leg: Key, consequence: Consequence, error: Errno) {
        let asks = self.legs.get(leg).and_then(Leg::asks);
        if let (Some((node, peer)), Some(since)) = (asks, consequence.broken_since) {
            self.on_fault(node, Fault { peer, error, since });
        }
    }

    /// Records that a peer does not work.
    fn on_fault(&mut self, node: Node, fault: Fault) {
        if self.broken == Some(Rule::Detour) {
            return;
        }
        let now = self.local_now(node);
        self.relay_mut(node).dials.on_fault(fault, now);
        self.act(node);
    }

    /// Gets a leg another connection.
    fn redial(&mut self, leg: Key) {
        if let Some(place) = self.legs.get_mut(leg) {
            place.upstream = None;
        }
        self.ask(leg, false);
    }

    /// The upstream connection of a leg has broken.
    pub(crate) fn upstream_failed(&mut self, leg: Key, connection: Key, error: Errno) {
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        if place.upstream != Some(connection) {
            return;
        }
        let (node, session) = (place.relay, place.session);
        if place.inbound.is_none() && self.sessions[session].phase == Phase::Awaited {
            // The relay watches the connection once the client has come.
            place.lost = Some(error);
            return;
        }
        let error = match self.broken {
            // A refused session is taken for a refused key.
            Some(Rule::Blame) if error == Errno::CONNRESET => Errno::ACCESS,
            _ => error,
        };
        let breaks_rule = self.broken == Some(Rule::Twice);
        let now = self.local_now(node);
        // A byte of the client may have arrived even without an acknowledgement.
        let talks_first = self.sessions[session].talks_first;
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        let is_untouched = !place.answered && (!talks_first || breaks_rule);
        let consequence = place.answer.on_end(error, is_untouched, now);
        self.follow(leg, consequence, error);
        match consequence.redials {
            true => self.redial(leg),
            false => self.end_leg(leg, Some(connection)),
        }
    }
}
