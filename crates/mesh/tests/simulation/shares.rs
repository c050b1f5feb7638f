//! What the sessions of a relay share, its places and its look-ups of names, and members that take all they can get.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use taut_mesh::hello::{DEFAULT_HOPS, Hello, Target};
use taut_mesh::member_quota;
use taut_mesh::members::MemberName;
use taut_mesh::name_cache::{Answer, Failure, Want};
use taut_mesh::onward::Policy as _;

use crate::destination::{self, PORT, Permissions, session_id, target};
use crate::engine::Key;
use crate::faults::Kind;
use crate::network::Node;
use crate::oracle::Rule;
use crate::session::{Admission, Session};
use crate::world::{DESTINATIONS, Event, MAX_SESSIONS, World, name, node_of};

/// How long a look-up takes that is answered.
const ANSWERED: Duration = Duration::from_millis(30);

/// How long the others take, and how their names begin.
const UNANSWERED: Duration = Duration::from_secs(10);
const DEAD: &str = "dead";

/// How long an answer holds.
const TTL: Duration = Duration::from_secs(2);

impl World {
    // === places ===

    /// Takes the place of a client's session.
    pub(crate) fn admit_client(&mut self, node: Node) -> Option<Admission> {
        let place = self.relay(node).places.take();
        if place.is_none() {
            self.violate(Rule::Places, format!("relay{node} refuses a client"));
        }
        Some(Admission {
            _place: place?,
            _of_member: None,
        })
    }

    /// Takes the places of a session that `member` requests, as `Worker::admit_session` does.
    pub(crate) fn admit_session(&mut self, node: Node, member: &MemberName) -> Option<Admission> {
        let share = match self.broken {
            Some(Rule::Places) => MAX_SESSIONS,
            _ => member_quota::default_limit(MAX_SESSIONS),
        };
        let relay = self.relay(node);
        let of_member = relay.quota.admit(member, share);
        let places = of_member.and_then(|of| Some((relay.places.take()?, of)));
        let Some((place, of_member)) = places else {
            self.check_refused(node, member, Rule::Places);
            return None;
        };
        Some(Admission {
            _place: place,
            _of_member: Some(of_member),
        })
    }

    // === names ===

    /// Asks for the name of a leg's destination on behalf of a member, as the relay's resolver does.
    pub(crate) fn ask_for_name(&mut self, leg: Key, node: Node, member: &MemberName, to: &Target) {
        let Target::Name { host, .. } = to else {
            unreachable!("an address needs no look-up");
        };
        let party = match self.broken {
            // All have one share together.
            Some(Rule::Names) => name(0),
            _ => member.clone(),
        };
        let (host, now) = (Arc::<str>::from(host.as_str()), self.local_now(node));
        let relay = self.relay_mut(node);
        let (answer, _) = relay.names.ask(&host, &party, Want::Known, now, leg);
        let starts = match answer {
            Answer::Known { result, starts } => {
                self.on_name(
                    leg,
                    node,
                    result.is_ok().then(|| destination::look_up(&host)),
                );
                starts
            }
            Answer::Waits { starts } => starts,
            Answer::Refused(_) => {
                self.check_refused(node, member, Rule::Names);
                self.end_leg(leg, None);
                false
            }
        };
        if starts {
            let wait = if host.starts_with(DEAD) {
                UNANSWERED
            } else {
                ANSWERED
            };
            let process = self.relay(node).process;
            self.queue.after(wait, Event::LookedUp(node, process, host));
        }
    }

    /// A look-up has ended.
    pub(crate) fn on_looked_up(&mut self, node: Node, process: u32, host: &str) {
        if self.relay(node).process != process {
            return;
        }
        let address = (!host.starts_with(DEAD)).then(|| destination::look_up(host));
        let result = address
            .map(|it| (Arc::from([it.ip()]), TTL))
            .ok_or(Failure {
                text: "no server answers".into(),
                is_answer: false,
                ttl: None,
            });
        let now = self.local_now(node);
        for (leg, result) in self.relay_mut(node).names.finish(host, result, now) {
            self.on_name(leg, node, address.filter(|_| result.is_ok()));
        }
    }

    /// Connects a leg to the address that its name leads to, which is somebody else's to choose.
    fn on_name(&mut self, leg: Key, node: Node, address: Option<SocketAddr>) {
        if self.legs.get(leg).is_none() {
            return;
        }
        let policy = Permissions {
            relay: self.relay(node),
            allows_all: self.broken == Some(Rule::Destinations),
        };
        match address.filter(|address| policy.may_reach(&name(usize::from(node)), *address)) {
            Some(address) => self.reach(leg, node, address),
            None => self.end_leg(leg, None),
        }
    }

    // === members that take all ===

    /// A member asks for another session, of a destination that this relay allows or of a name that nobody knows.
    pub(crate) fn asks_for_all(&mut self, from: Node, to: Node, by_dead_name: bool) {
        let number = self.sessions.len();
        self.sessions.push(Session::hostile(from, self.queue.now()));
        let allows = self.relay(to).allows;
        let allowed = (0..DESTINATIONS).find(|it| allows & 1 << it != 0);
        let destination = match by_dead_name {
            true => Target::Name {
                host: format!("{DEAD}{number}.example"),
                port: PORT,
            },
            false => target(allowed.unwrap_or(0), false),
        };
        let hello = Hello {
            source: SocketAddr::from(([10, 1, 0, 1], 40_000)),
            destination,
            receiver: name(usize::from(to)),
            route: Vec::new(),
            hops_left: DEFAULT_HOPS,
            session: session_id(number),
            passed: Default::default(),
        };
        self.dial_hostile(from, to, self.relay(from).key, hello.encode());
    }

    /// Checks that a member which is refused its share of something has taken it before.
    fn check_refused(&mut self, node: Node, member: &MemberName, rule: Rule) {
        let (now, other) = (self.queue.now(), node_of(member));
        let has_taken = self.faults.iter().any(|fault| {
            let takes = match rule {
                Rule::Names => fault.kind == Kind::DeadNames,
                _ => fault.kind.is_greedy(),
            };
            // What it has taken is given back when its last look-ups have ended.
            let until = fault.begins + fault.lasts + 2 * UNANSWERED;
            takes
                && (fault.begins..until).contains(&now)
                && fault.node == node
                && fault.other == other
        });
        match has_taken {
            true => self.oracle.unshared[usize::from(rule == Rule::Names)] += 1,
            false => self.violate(rule, format!("relay{node} refuses {member}")),
        }
    }
}
