//! Sessions: how they begin at their first relay, reach a destination, and end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use taut_mesh::answer::Answer;
use taut_mesh::hello::{DEFAULT_HOPS, Hello, Target};
use taut_mesh::member_quota::MemberPermit;
use taut_mesh::members::MemberName;
use taut_mesh::places::SessionPlace;
use taut_mesh::ways::{Alternative, Attempt, Ways};

use crate::connection::{DialEnd, End, Packet};
use crate::destination::{destination_number, look_up, session_id, target};
use crate::engine::{Key, Time};
use crate::network::Node;
use crate::oracle::Rule;
use crate::world::{Event, Forward, World, name};

/// When the client of a session that has not been connected leaves.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(20);

/// The longest session.
const LONGEST: Duration = Duration::from_secs(4);

/// What a session has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A SYN has come. Its client's handshake is under way, if it has one.
    Awaited,
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
    pub(crate) forward: usize,
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
    pub(crate) leg: Option<Key>,
}

/// A session at one relay.
pub(crate) struct Leg {
    pub(crate) session: usize,
    pub(crate) relay: Node,
    /// From the relay before; `None` at the first.
    pub(crate) inbound: Option<Key>,
    /// Given back when the leg ends. Legs that were begun at SYNs have none.
    pub(crate) admission: Option<Admission>,
    pub(crate) upstream: Option<Key>,
    pub(crate) plan: Plan,
    /// Counts the waits for a connection.
    pub(crate) waits: u32,
    pub(crate) is_waiting: bool,
    /// How long it waits.
    pub(crate) wait: Duration,
    pub(crate) answer: Answer,
    pub(crate) answered: bool,
    /// How the upstream connection has broken before the client came.
    pub(crate) lost: Option<Errno>,
}

/// The places of a leg.
pub(crate) struct Admission {
    pub(crate) _place: SessionPlace,
    /// If another relay requests it.
    pub(crate) _of_member: Option<MemberPermit>,
}

/// How a leg gets its upstream connection.
pub(crate) enum Plan {
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
            early_syn,
            ..
        } = self.forwards[forward];
        if !self.is_up(first) {
            // The client is not accepted.
            return;
        }
        let session = self.new_session(forward);
        match early_syn {
            true => self.begins_handshake(session),
            false => self.starts(session),
        }
    }

    /// Adds a session whose client is not accepted yet.
    pub(crate) fn new_session(&mut self, forward: usize) -> usize {
        let known = &self.forwards[forward];
        let (first, ways) = (known.relay, known.routes.len() + usize::from(known.direct));
        let talks_first = self.random.happens(0.5);
        self.sessions.push(Session {
            first,
            forward,
            talks_first,
            began: self.queue.now(),
            phase: Phase::Awaited,
            ways,
            tried: Vec::new(),
            joined: None,
            hostile: false,
            leg: None,
        });
        self.sessions.len() - 1
    }

    /// Begins the session of a client that has been accepted.
    pub(crate) fn begins(&mut self, session: usize) {
        self.sessions[session].phase = Phase::SettingUp;
        self.sessions[session].began = self.queue.now();
        self.queue.after(CLIENT_PATIENCE, Event::Leaves(session));
    }

    /// Begins the session of a client for which no leg waits.
    pub(crate) fn starts(&mut self, session: usize) {
        self.begins(session);
        let Session { first, forward, .. } = self.sessions[session];
        let known = &self.forwards[forward];
        let ways = Ways::new(known.routes.clone(), known.direct.then_some(()));
        let mut leg = Leg::new(session, first, None);
        leg.admission = self.admit_client(first);
        let leg = self.legs.insert(leg);
        self.sessions[session].leg = Some(leg);
        let hello = self.hello(session, &[]);
        self.take_way(leg, hello, ways);
    }

    /// Returns the hello of a session on a route.
    pub(crate) fn hello(&self, session: usize, route: &[Node]) -> Hello {
        let names = route.iter().map(|node| name(usize::from(*node)));
        let mut names: Vec<MemberName> = names.collect();
        let receiver = match names.is_empty() {
            true => name(0),
            false => names.remove(0),
        };
        let destination = self.forwards[self.sessions[session].forward].destination;
        let by_name = session.is_multiple_of(3);
        Hello {
            source: SocketAddr::from(([10, 1, 0, 1], 40_000)),
            destination: target(destination, by_name),
            receiver,
            route: names,
            hops_left: DEFAULT_HOPS,
            session: session_id(session),
            passed: Default::default(),
        }
    }

    /// Goes on with the next way of a session, or ends it if there is none.
    pub(crate) fn take_way(&mut self, leg: Key, hello: Hello, mut ways: Ways<Arc<[Node]>, ()>) {
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
                let hello = self.hello(session, &route);
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
            Target::Name { host, .. } => destination_number(look_up(host)),
        };
        let place = (self.size.relays + number.unwrap_or(0)) as Node;
        let wait = 4 * self.network.delay(node, place);
        self.queue.after(wait, Event::Answers(leg));
    }

    /// A reply has come along a connection.
    pub(crate) fn on_reply(&mut self, key: Key) {
        if let Some(DialEnd::Used(leg)) = self.connections.get(key).map(|c| c.dial) {
            self.pass_reply(leg);
        }
    }

    /// Passes the first bytes of the destination on to the relay before, or to the client.
    pub(crate) fn pass_reply(&mut self, leg: Key) {
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
            let dials = &mut self.relay_mut(place.relay).dials;
            dials.forget(*peer, leg);
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
            if is_first && self.sessions[session].phase == Phase::Awaited {
                // Its client gets another one.
                continue;
            }
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
            forward: 0,
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
            admission: None,
            upstream: None,
            plan: Plan::Connect,
            waits: 0,
            is_waiting: false,
            wait: Duration::ZERO,
            answer: Answer::default(),
            answered: false,
            lost: None,
        }
    }

    /// Returns the relay and which of its peers the leg asks.
    pub(crate) fn asks(&self) -> Option<(Node, usize)> {
        match self.plan {
            Plan::Ask { peer, .. } => Some((self.relay, peer)),
            Plan::Connect => None,
        }
    }

    /// Returns whether the leg was begun at a SYN and waits for a connection.
    pub(crate) fn awaits_connection(&self) -> bool {
        matches!(self.plan, Plan::Ask { .. }) && self.upstream.is_none()
    }
}
