//! Sessions: how a relay gets the upstream connection of each, as its worker does it.
//!
//! [`Ways`] and [`Attempt`] decide which relay a session asks and when it goes on to the next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taut_mesh::dialler::Ready;
use taut_mesh::hello::{DEFAULT_HOPS, Hello, Target};
use taut_mesh::members::MemberName;
use taut_mesh::ways::{Alternative, Attempt, Prospect, Step, Ways};

use crate::connection::{DialEnd, End, Packet};
use crate::destination::{destination_number, look_up, session_id, target};
use crate::engine::{Key, Time};
use crate::network::Node;
use crate::oracle::Rule;
use crate::world::{CONNECT, DIAL_PATIENCE, Event, Forward, PATIENCE, State, World, name};

/// When the client of a session that has not been connected leaves.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(20);

/// The longest session.
const LONGEST: Duration = Duration::from_secs(4);

/// What a session has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    SettingUp,
    Open,
    Over,
}

/// How a session fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Its client is reset.
    Reset,
    /// It is not connected before its client leaves.
    Slow,
    /// The process of its first relay ends.
    Stopped,
    /// The relay that it asks is no member any more, so that the operator wants it reset.
    Removed,
}

/// A client's session, along all its relays.
pub(crate) struct Session {
    pub(crate) first: Node,
    /// The client sends before it hears from the destination.
    pub(crate) talks_first: bool,
    pub(crate) began: Time,
    pub(crate) phase: Phase,
    /// How many ways it has.
    pub(crate) ways: usize,
    /// The routes that it has tried, the present one last. The direct path is an empty one.
    pub(crate) tried: Vec<Arc<[Node]>>,
    /// When it sent its hello to the first relay of its present route.
    pub(crate) joined: Option<Time>,
    /// A hostile member requests it, with a hello of its own.
    pub(crate) hostile: bool,
    leg: Option<Key>,
}

/// A session at one relay.
pub(crate) struct Leg {
    pub(crate) session: usize,
    pub(crate) relay: Node,
    /// From the relay before; `None` at the first.
    pub(crate) inbound: Option<Key>,
    pub(crate) upstream: Option<Key>,
    plan: Plan,
    /// Counts the waits for a connection.
    waits: u32,
    is_waiting: bool,
    made_before: bool,
    answered: bool,
}

/// How a leg gets its upstream connection.
enum Plan {
    Ask {
        peer: usize,
        hello: Box<Hello>,
        attempt: Attempt,
        ways: Ways<Arc<[Node]>, ()>,
    },
    /// The relay connects to the destination.
    Connect,
}

impl World {
    // === at the first relay ===

    /// A client connects to a forward.
    pub(crate) fn connects(&mut self, forward: usize) {
        let Forward {
            relay: first,
            destination,
            ref routes,
            direct,
        } = self.forwards[forward];
        let direct = direct.then_some(());
        let ways = Ways::new(routes.clone(), direct);
        let relay = self.relay(first);
        if relay.state != State::Running || relay.stopped_until.is_some() {
            // The client is not accepted.
            return;
        }
        let number = self.sessions.len();
        let session = Session {
            first,
            talks_first: self.random.happens(0.5),
            began: self.queue.now(),
            phase: Phase::SettingUp,
            ways: self.forwards[forward].routes.len() + usize::from(direct.is_some()),
            tried: Vec::new(),
            joined: None,
            hostile: false,
            leg: None,
        };
        self.sessions.push(session);
        let by_name = self.random.happens(0.3);
        let hello = Hello {
            source: SocketAddr::from(([10, 1, 0, 1], 40_000)),
            destination: target(destination, by_name),
            receiver: name(0),
            route: Vec::new(),
            hops_left: DEFAULT_HOPS,
            session: session_id(number),
        };
        let leg = self.legs.insert(Leg::new(number, first, None));
        self.sessions[number].leg = Some(leg);
        self.queue.after(CLIENT_PATIENCE, Event::Leaves(number));
        self.take_way(leg, hello, ways);
    }

    /// Goes on with the next way of a session, or ends it if there is none.
    fn take_way(&mut self, leg: Key, hello: Hello, mut ways: Ways<Arc<[Node]>, ()>) {
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        let (node, session) = (place.relay, place.session);
        let way = match self.broken {
            // The relay does not know another way.
            Some(Rule::Sessions) if !self.sessions[session].tried.is_empty() => None,
            _ => ways.take_next(),
        };
        match way {
            Some(Alternative::Route(route)) => {
                let names: Vec<MemberName> =
                    route.iter().map(|node| name(usize::from(*node))).collect();
                let hello = Hello {
                    receiver: names[0].clone(),
                    route: names[1..].to_vec(),
                    ..hello
                };
                self.sessions[session].tried.push(route.clone());
                self.sessions[session].joined = None;
                self.ask_peer(leg, node, route[0], hello, ways);
            }
            Some(Alternative::Direct(())) => {
                self.sessions[session].tried.push(Arc::from([]));
                let destination = hello.destination;
                self.connect(leg, &destination);
            }
            None => self.end_leg(leg, None),
        }
    }

    /// Makes a leg ask the relay `next`.
    pub(crate) fn ask_peer(
        &mut self,
        leg: Key,
        node: Node,
        next: Node,
        hello: Hello,
        ways: Ways<Arc<[Node]>, ()>,
    ) {
        let peers = &self.relay(node).peers;
        let peer = peers.iter().position(|peer| peer.node == next);
        let Some(peer) = peer else {
            self.end_leg(leg, None);
            return;
        };
        if let Some(place) = self.legs.get_mut(leg) {
            place.plan = Plan::Ask {
                peer,
                hello: Box::new(hello),
                attempt: Attempt::new(1),
                ways,
            };
        }
        self.ask(leg, true);
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
        let known = self.peer_mut(node, peer);
        let spare = takes.then(|| known.pool.take(now)).flatten();
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

    /// Sends the hello of a leg on a connection.
    fn join(&mut self, leg: Key, connection: Key, made_before: bool) {
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
        let (now, at) = (self.local_now(node), self.queue.now());
        let known = self.peer_mut(node, peer);
        let Some(useless) = known.pool.on_fault(now) else {
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

    // === the destination ===

    /// Connects a leg to its destination, which answers after a handshake and a round trip.
    pub(crate) fn connect(&mut self, leg: Key, destination: &Target) {
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        place.plan = Plan::Connect;
        let node = place.relay;
        let number = match destination {
            Target::Addr(address) => destination_number(*address),
            name => destination_number(look_up(name)),
        };
        let place = (self.size.relays + number.unwrap_or(0)) as Node;
        let wait = 4 * self.network.delay(node, place);
        self.queue.after(wait, Event::Answers(leg));
    }

    pub(crate) fn answers(&mut self, leg: Key) {
        self.pass_reply(leg);
    }

    /// A reply has come along a connection.
    pub(crate) fn on_reply(&mut self, key: Key) {
        if let Some(DialEnd::Used(leg)) = self.connections.get(key).map(|c| c.dial) {
            self.pass_reply(leg);
        }
    }

    /// Passes the first bytes of the destination on to the relay before, or to the client.
    fn pass_reply(&mut self, leg: Key) {
        let Some(place) = self.legs.get_mut(leg) else {
            return;
        };
        place.answered = true;
        let session = place.session;
        match place.inbound {
            Some(inbound) => self.send(inbound, End::Dialler, Packet::Reply),
            None if self.sessions[session].phase == Phase::SettingUp => {
                self.sessions[session].phase = Phase::Open;
                self.oracle.connected += 1;
                let length = LONGEST.mul_f64(self.random.unit());
                self.queue.after(length, Event::Leaves(session));
            }
            None => {}
        }
    }

    // === ends ===

    /// A session's client leaves: because it is done, or because it was not connected in time.
    pub(crate) fn leaves(&mut self, session: usize) {
        let Session { phase, leg, .. } = self.sessions[session];
        let Some(leg) = leg.filter(|_| phase != Phase::Over) else {
            return;
        };
        if phase == Phase::SettingUp {
            self.check_failed(session, Failure::Slow);
        }
        self.sessions[session].phase = Phase::Over;
        self.end_leg(leg, None);
    }

    /// Ends a leg. `broken` is the connection whose loss ends it, if one is.
    pub(crate) fn end_leg(&mut self, leg: Key, broken: Option<Key>) {
        if self.broken == Some(Rule::Leftovers) && broken.is_some() && self.random.happens(0.2) {
            return;
        }
        let Some(place) = self.legs.remove(leg) else {
            return;
        };
        if let (Plan::Ask { peer, .. }, true) = (&place.plan, place.is_waiting) {
            self.peer_mut(place.relay, *peer).pool.forget(leg);
        }
        if let Some(upstream) = place.upstream {
            self.close(upstream, End::Dialler);
        }
        match place.inbound {
            Some(inbound) => self.close(inbound, End::Acceptor),
            None if self.sessions[place.session].phase != Phase::Over => {
                self.check_failed(place.session, Failure::Reset);
                self.sessions[place.session].phase = Phase::Over;
            }
            None => {}
        }
    }

    /// Ends the legs of a relay that come from a former member or go to it.
    pub(crate) fn end_legs_of(&mut self, node: Node, former: Node) {
        let is_former = |leg: &Leg| {
            let peer = match leg.plan {
                Plan::Ask { peer, .. } => Some(self.relay(node).peers[peer].node),
                Plan::Connect => None,
            };
            let from = leg.inbound.and_then(|key| self.connections.get(key));
            peer == Some(former) || from.is_some_and(|from| from.dialler == former)
        };
        let all = self.legs.iter();
        let legs: Vec<Key> = all
            .filter(|(_, leg)| leg.relay == node && is_former(leg))
            .map(|(key, _)| key)
            .collect();
        for key in legs {
            let Some(leg) = self.legs.get(key) else {
                continue;
            };
            let (session, is_first) = (leg.session, leg.inbound.is_none());
            if is_first && self.sessions[session].phase != Phase::Over {
                self.check_failed(session, Failure::Removed);
                self.sessions[session].phase = Phase::Over;
            }
            self.end_leg(key, None);
        }
    }
}

impl Session {
    /// Returns a session that a hostile member requests.
    pub(crate) fn hostile(first: Node, began: Time) -> Self {
        Self {
            first,
            talks_first: true,
            began,
            phase: Phase::Over,
            ways: 0,
            tried: Vec::new(),
            joined: None,
            hostile: true,
            leg: None,
        }
    }
}

impl Leg {
    /// Returns a leg that does not know yet where to go.
    pub(crate) fn new(session: usize, relay: Node, inbound: Option<Key>) -> Self {
        Self {
            session,
            relay,
            inbound,
            upstream: None,
            plan: Plan::Connect,
            waits: 0,
            is_waiting: false,
            made_before: false,
            answered: false,
        }
    }
}
