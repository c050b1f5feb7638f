//! The world of one seed: its relays, connections and sessions, and the events that move them.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use taut_mesh::acceptor::Local;
use taut_mesh::arrivals::Arrivals;
use taut_mesh::dials::Dials;
use taut_mesh::early_syn::Limiter;
use taut_mesh::identity::{PrivateKey, PublicKey};
use taut_mesh::member_quota::MemberQuota;
use taut_mesh::members::{Member, MemberName, Members};
use taut_mesh::name_cache::NameCache;
use taut_mesh::places::SessionPlaces;
use taut_mesh::pool::Bounds;
use taut_mesh::tls::AcceptTls;

use crate::connection::{Connection, End, Packet};
use crate::early::{self, EarlyLegs};
use crate::engine::{Key, Queue, Random, Table, Time};
use crate::faults::Fault;
use crate::network::{Network, Node};
use crate::oracle::{Oracle, Rule, Unanswered, Violation};
use crate::session::{Leg, Session};
use crate::trace::Trace;

/// The pool of each pair of relays.
pub(crate) const BOUNDS: Bounds = Bounds {
    floor: 2,
    ceiling: 16,
};

/// Age at which an unused connection is replaced. Much less than by default, so that a short run sees it.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30);

/// Connections that have proven their key and wait for a hello, at each relay.
pub(crate) const MAX_READY: usize = 96;

/// Connections that have not proven a key, at each relay.
pub(crate) const MAX_UNPROVEN: usize = 64;

/// Sessions at each relay.
pub(crate) const MAX_SESSIONS: u32 = 256;

/// The time from a dial to the end of its handshake, and of a session's connecting.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// How long a relay may leave a hello unacknowledged.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// How long a relay may leave a dial unanswered.
pub(crate) const DIAL_PATIENCE: Duration = Duration::from_secs(2);

/// The number of peers that each relay dials.
const PEERS: usize = 4;

/// The number of destinations.
pub(crate) const DESTINATIONS: usize = 12;

/// An event. Most belong to one relay, which may be stopped, or gone by then.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A packet arrives at the machine of this end.
    Arrives(Key, End, Packet, u8),
    /// A packet that was lost is sent again.
    Resends(Key, End, Packet, u8),
    /// An acknowledgement of a hello arrives, or leaves.
    Acknowledged(Key),
    Acknowledges(Key),
    /// A relay polls its dials and its mesh port, if it still is the process that planned this.
    Polls(Node, u32),
    /// A session has waited long enough for the acknowledgement of its hello, or for a connection.
    Patience(Key, Key),
    WaitEnds(Key, u32),
    /// A client connects to a forward.
    Connects(usize),
    /// The handshake of a client is complete whose SYN has begun a leg.
    Accepts(usize),
    /// Clients whose SYN has begun a leg may not have come, if the relay still is this process.
    EarlyExpires(Node, u32),
    /// The look-up of a name ends, if the relay still is this process.
    LookedUp(Node, u32, Arc<str>),
    /// The destination of a leg has answered.
    Answers(Key),
    /// A session's client leaves.
    Leaves(usize),
    /// A relay reads the list of members.
    Adopts(Node, usize),
    Begins(usize),
    Ends(usize),
    /// A relay that was stopped goes on.
    Resumes(Node),
    /// Whether what a fault has touched works again.
    Checks(usize, Time),
    /// A hostile party acts.
    Attacks(usize),
    /// All pairs and tables are checked.
    Audits,
}

/// Whether the process of a relay runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// The process has ended; its machine resets what arrives.
    Killed,
    /// The machine is gone: nothing answers.
    Vanished,
}

/// A relay.
pub(crate) struct Relay {
    pub(crate) state: State,
    /// Counts the processes.
    pub(crate) process: u32,
    pub(crate) key: PublicKey,
    /// The list of members that it has read, by its number.
    pub(crate) list: usize,
    pub(crate) local: Local,
    clock: Clock,
    pub(crate) peers: Vec<Peer>,
    pub(crate) dials: Dials<Key, Key>,
    /// When its dials and its mesh port are polled next.
    pub(crate) polled_at: Option<Time>,
    /// Connections at its mesh port without a hello.
    pub(crate) arrivals: Arrivals<Key>,
    /// The places of its sessions, and how many the sessions of each member have.
    pub(crate) places: Arc<SessionPlaces>,
    pub(crate) quota: Arc<MemberQuota>,
    /// What it knows of names, and which legs wait for which.
    pub(crate) names: NameCache<MemberName, Key>,
    /// What SYNs may begin, and the legs that they have begun.
    pub(crate) limiter: Limiter,
    pub(crate) early: EarlyLegs,
    /// Until when the process does not run although it has not ended.
    pub(crate) stopped_until: Option<Time>,
    /// What happened in that time.
    pub(crate) missed: VecDeque<Event>,
    /// Its destinations, one bit each.
    pub(crate) allows: u32,
}

/// A clock that is off by `offset` and runs `rate` times as fast as time.
struct Clock {
    offset: Duration,
    rate: f64,
}

/// A relay that another one dials.
pub(crate) struct Peer {
    pub(crate) node: Node,
    /// When the dialler last noticed that this peer leaves sessions unanswered, and when a dial last succeeded.
    pub(crate) noticed: Option<Time>,
    pub(crate) proven: Option<Time>,
    /// When sessions first used it since it is dead.
    pub(crate) unanswered: Unanswered,
}

/// A version of the list of members, and the members that differ from the version before.
pub(crate) struct List {
    pub(crate) members: Arc<Members>,
    pub(crate) changed: Vec<Node>,
}

/// Clients of a relay, and how their sessions get to a destination.
pub(crate) struct Forward {
    pub(crate) relay: Node,
    pub(crate) destination: usize,
    pub(crate) routes: Arc<[Arc<[Node]>]>,
    pub(crate) direct: bool,
    /// Legs begin at the clients' SYNs.
    pub(crate) early_syn: bool,
}

/// The differences between worlds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) relays: usize,
    pub(crate) forwards: usize,
    pub(crate) sessions: usize,
    /// The least and the largest number of faults.
    pub(crate) faults: (usize, usize),
    pub(crate) length: Duration,
}

pub(crate) struct World {
    pub(crate) size: Size,
    pub(crate) queue: Queue<Event>,
    pub(crate) random: Random,
    pub(crate) network: Network,
    base: Instant,
    pub(crate) relays: Vec<Relay>,
    pub(crate) connections: Table<Connection>,
    pub(crate) legs: Table<Leg>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) lists: Vec<List>,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) oracle: Oracle,
    /// A rule that this world breaks on purpose.
    pub(crate) broken: Option<Rule>,
    pub(crate) trace: Trace,
}

// === impl World ===

impl World {
    /// Creates the world of `seed`. `broken` is a rule that its relays break on purpose.
    pub(crate) fn new(seed: u64, size: Size, broken: Option<Rule>, tells: bool) -> Self {
        let mut random = Random::new(seed);
        let network = Network::new(size.relays + DESTINATIONS, &mut random);
        let keys: Vec<_> = (0..size.relays).map(|i| vec![key(i, 0)]).collect();
        let members = Arc::new(members(&keys));
        let mut world = Self {
            size,
            queue: Queue::new(),
            network,
            base: Instant::now(),
            relays: Vec::with_capacity(size.relays),
            connections: Table::new(),
            legs: Table::new(),
            sessions: Vec::new(),
            lists: vec![List {
                members,
                changed: Vec::new(),
            }],
            forwards: Vec::new(),
            faults: Vec::new(),
            oracle: Oracle::default(),
            broken,
            trace: Trace::new(tells),
            random,
        };
        for node in 0..size.relays {
            let relay = world.new_relay(node as Node);
            world.relays.push(relay);
        }
        for node in 0..size.relays {
            world.choose_peers(node as Node);
        }
        world.choose_forwards();
        world
    }

    /// Runs the world to its end, or to the first rule that is broken.
    pub(crate) fn run(mut self) -> Self {
        for node in 0..self.size.relays {
            self.adopt_peers(node as Node);
        }
        self.plan_faults();
        self.plan_sessions();
        self.queue.at(Duration::from_secs(1), Event::Audits);
        while self.oracle.violation.is_none() && self.queue.now() <= self.size.length {
            let Some(event) = self.queue.next() else {
                break;
            };
            self.handle(event);
        }
        self
    }

    /// Records that a rule was broken. The first one ends the run.
    pub(crate) fn violate(&mut self, rule: Rule, what: String) {
        let at = self.queue.now();
        self.trace
            .tell(at, || format!("BROKEN: {}: {what}", rule.text()));
        self.oracle
            .violation
            .get_or_insert(Violation { rule, what, at });
    }

    fn handle(&mut self, event: Event) {
        // A stopped process does nothing; its machine's kernel goes on.
        if let Some(node) = self.process_of(&event)
            && self.relays[usize::from(node)].stopped_until.is_some()
        {
            self.relays[usize::from(node)].missed.push_back(event);
            return;
        }
        match event {
            Event::Arrives(key, to, packet, tries) => self.arrives(key, to, packet, tries),
            Event::Resends(key, to, packet, tries) => self.resends(key, to, packet, tries),
            Event::Acknowledged(key) => {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.acknowledged = true;
                }
            }
            Event::Acknowledges(key) => self.acknowledge(key),
            Event::Polls(node, process) => self.polls(node, process),
            Event::Patience(leg, connection) => self.on_patience(leg, connection),
            Event::WaitEnds(leg, wait) => self.on_wait_ends(leg, wait),
            Event::Connects(forward) => self.connects(forward),
            Event::Accepts(session) => self.accepts(session),
            Event::EarlyExpires(node, process) => self.early_expires(node, process),
            Event::LookedUp(node, process, name) => self.on_looked_up(node, process, &name),
            Event::Answers(leg) => self.pass_reply(leg),
            Event::Leaves(session) => self.leaves(session),
            Event::Adopts(node, list) => self.adopts(node, list),
            Event::Begins(fault) => self.begin_fault(fault),
            Event::Ends(fault) => self.end_fault(fault),
            Event::Resumes(node) => self.resumes(node),
            Event::Checks(fault, since) => self.check_recovery(fault, since),
            Event::Attacks(fault) => self.attacks(fault),
            Event::Audits => self.audit(),
        }
    }

    /// Returns the relay whose process handles an event. Packets reach a machine's kernel first.
    fn process_of(&self, event: &Event) -> Option<Node> {
        match event {
            Event::Polls(node, _)
            | Event::Adopts(node, _)
            | Event::EarlyExpires(node, _)
            | Event::LookedUp(node, ..) => Some(*node),
            Event::Patience(leg, _) | Event::WaitEnds(leg, _) | Event::Answers(leg) => {
                self.legs.get(*leg).map(|leg| leg.relay)
            }
            Event::Leaves(session) | Event::Accepts(session) => Some(self.sessions[*session].first),
            _ => None,
        }
        .filter(|node| usize::from(*node) < self.relays.len())
    }

    /// Goes on with a process that was stopped.
    fn resumes(&mut self, node: Node) {
        let relay = self.relay_mut(node);
        relay.stopped_until = None;
        for event in std::mem::take(&mut self.relay_mut(node).missed) {
            match event {
                Event::Arrives(key, to, packet, _) => self.reads(key, to, packet),
                event => self.handle(event),
            }
        }
    }

    // === nodes ===

    pub(crate) fn relay(&self, node: Node) -> &Relay {
        &self.relays[usize::from(node)]
    }

    pub(crate) fn relay_mut(&mut self, node: Node) -> &mut Relay {
        &mut self.relays[usize::from(node)]
    }

    /// Returns whether the process of a relay runs.
    pub(crate) fn is_up(&self, node: Node) -> bool {
        let relay = self.relay(node);
        relay.state == State::Running && relay.stopped_until.is_none()
    }

    /// Returns the number of the peer `next` of a relay.
    pub(crate) fn peer_number(&self, node: Node, next: Node) -> Option<usize> {
        let peers = &self.relay(node).peers;
        peers.iter().position(|peer| peer.node == next)
    }

    pub(crate) fn peer_mut(&mut self, node: Node, peer: usize) -> &mut Peer {
        &mut self.relays[usize::from(node)].peers[peer]
    }

    /// Returns the members that a relay knows.
    pub(crate) fn members_at(&self, node: Node) -> &Members {
        &self.relay(node).local.members
    }

    /// Returns what the clock of a relay shows now.
    pub(crate) fn local_now(&self, node: Node) -> Instant {
        self.local_then(node, self.queue.now())
    }

    /// Returns what the clock of a relay shows at `time`.
    pub(crate) fn local_then(&self, node: Node, time: Time) -> Instant {
        let clock = &self.relay(node).clock;
        self.base + clock.offset + time.mul_f64(clock.rate)
    }

    /// Returns when the clock of a relay will show `at`.
    pub(crate) fn when(&self, node: Node, at: Instant) -> Time {
        let clock = &self.relay(node).clock;
        let elapsed = at.saturating_duration_since(self.base + clock.offset);
        // A microsecond later, so that the clock shows it in spite of rounding.
        elapsed.div_f64(clock.rate) + Duration::from_micros(1)
    }

    fn new_relay(&mut self, node: Node) -> Relay {
        Relay {
            state: State::Running,
            process: 0,
            key: key(usize::from(node), 0),
            list: 0,
            local: Local {
                name: name(usize::from(node)),
                tls: tls(),
                members: self.lists[0].members.clone(),
            },
            clock: Clock {
                offset: self
                    .random
                    .between(Duration::ZERO, Duration::from_secs(7200)),
                rate: 1.0 + 1e-3 * (self.random.unit() - 0.5),
            },
            peers: Vec::new(),
            dials: Dials::new(self.random.bits()),
            polled_at: None,
            arrivals: Arrivals::default(),
            places: SessionPlaces::new(MAX_SESSIONS),
            quota: Arc::default(),
            names: NameCache::default(),
            limiter: Limiter::new(early::limits()),
            early: EarlyLegs::new(),
            stopped_until: None,
            missed: VecDeque::new(),
            allows: self.random.bits() as u32 & ((1 << DESTINATIONS) - 1),
        }
    }

    /// Chooses the relays that `node` dials: near ones and others.
    fn choose_peers(&mut self, node: Node) {
        let mut chosen: Vec<Node> = Vec::with_capacity(PEERS);
        while chosen.len() < PEERS.min(self.size.relays - 1) {
            let candidates: Vec<Node> = (0..6)
                .map(|_| self.random.below(self.size.relays) as Node)
                .filter(|other| *other != node && !chosen.contains(other))
                .collect();
            let near = |other: &&Node| self.network.delay(node, **other);
            chosen.extend(candidates.iter().min_by_key(near));
        }
        for other in chosen {
            self.relay_mut(node).peers.push(Peer {
                node: other,
                noticed: None,
                proven: None,
                unanswered: Unanswered::default(),
            });
        }
    }

    /// Chooses forwards and their routes, which follow the peers to relays that allow the destination.
    fn choose_forwards(&mut self) {
        let mut tries = 0;
        while self.forwards.len() < self.size.forwards && tries < 20 * self.size.forwards {
            tries += 1;
            let relay = self.random.below(self.size.relays) as Node;
            let destination = self.random.below(DESTINATIONS);
            let mut routes: Vec<Arc<[Node]>> = Vec::new();
            for _ in 0..12 {
                if routes.len() == 3 {
                    break;
                }
                let route = self.walk(relay);
                let last = route[route.len() - 1];
                let allowed = self.relay(last).allows & 1 << destination != 0;
                if allowed && routes.iter().all(|known| known[0] != route[0]) {
                    routes.push(route.into());
                }
            }
            if !routes.is_empty() {
                let direct = self.random.happens(0.3);
                let early_syn = self.random.happens(0.4);
                self.forwards.push(Forward {
                    relay,
                    destination,
                    routes: routes.into(),
                    direct,
                    early_syn,
                });
            }
        }
    }

    /// Returns one to three relays that are each a peer of the one before, beginning at `node`.
    fn walk(&mut self, node: Node) -> Vec<Node> {
        let wanted = 1 + self.random.below(3);
        let mut route = Vec::with_capacity(wanted);
        let mut at = node;
        for _ in 0..wanted {
            let peer = self.random.below(self.relay(at).peers.len());
            let next = self.relay(at).peers[peer].node;
            let seen = next == node || route.contains(&next);
            if seen && self.broken != Some(Rule::Loop) {
                continue;
            }
            route.push(next);
            at = next;
        }
        if route.is_empty() {
            route.push(self.relay(node).peers[0].node);
        }
        route
    }
}

// === names and keys ===

/// The most nodes of a world, with outsiders.
const MAX_NODES: usize = 1_040;

/// Returns the name of a relay.
pub(crate) fn name(node: usize) -> MemberName {
    static NAMES: OnceLock<Vec<MemberName>> = OnceLock::new();
    let make = |i| format!("relay{i}").parse().expect("a valid name");
    NAMES.get_or_init(|| (0..MAX_NODES).map(make).collect())[node].clone()
}

/// Returns the number of a relay, by its name.
pub(crate) fn node_of(name: &MemberName) -> Node {
    name.as_str()["relay".len()..]
        .parse()
        .expect("a name of a relay")
}

/// Returns a key of a node; each number has its own.
pub(crate) fn key(node: usize, number: usize) -> PublicKey {
    static KEYS: OnceLock<Vec<PublicKey>> = OnceLock::new();
    let make = |i: usize| {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&(i as u64).to_le_bytes());
        PrivateKey::from_seed(&seed).public()
    };
    KEYS.get_or_init(|| (0..2 * MAX_NODES).map(make).collect())[2 * node + number % 2]
}

/// Returns the list of members with these keys. A relay without keys is no member.
pub(crate) fn members(keys: &[Vec<PublicKey>]) -> Members {
    let all = keys.iter().enumerate().filter(|(_, keys)| !keys.is_empty());
    let member = |(node, keys): (usize, &Vec<PublicKey>)| Member {
        name: name(node),
        keys: keys.clone(),
        addresses: Vec::new(),
        site: None,
        cloud: None,
        price: None,
    };
    Members::new(all.map(member).collect()).expect("a valid list")
}

/// TLS for the real acceptors, which never get to it: handshakes are simulated.
fn tls() -> AcceptTls {
    static TLS: OnceLock<AcceptTls> = OnceLock::new();
    TLS.get_or_init(|| AcceptTls::new(&PrivateKey::from_seed(&[1; 32]), Arc::default()))
        .clone()
}
