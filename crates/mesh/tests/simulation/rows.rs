//! Rows in virtual time: small meshes whose relays tell one another what they have measured, while processes end
//! and return with another clock, paths are cut in one direction, and a member forges rows.
//!
//! It is a world of its own, without sessions: signatures take 100 microseconds each. Some of the relays choose
//! automatic routes by the rows ([`crate::routes`]).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use taut_mesh::identity::PrivateKey;
use taut_mesh::members::{Member, Members};
use taut_mesh::rows::{
    Exchange, LinkId, MAX_BYTES, MAX_FRAME, MemberId, OwnRow, RATE, Received, Row, Table,
    neighbours,
};

use crate::engine::{Queue, Random, Time};
use crate::network::{Cut, Network, Node};
use crate::routes::{self, AVOIDANCE, DESTINATIONS, Routing, SETTLED};
use crate::world::name;

/// The relays of a mesh.
pub(crate) const RELAYS: usize = 16;

/// How long it runs.
const LENGTH: Time = Duration::from_secs(90);

/// The time after the last fault within which all relays have the newest rows of all: that in which a silent
/// link is noticed (20 s), and what was lost is told again.
pub(crate) const AGREEMENT: Duration = Duration::from_secs(30);

/// How often a relay measures its paths.
const SAMPLE: Duration = Duration::from_secs(1);

/// How long a relay waits before it makes a link again.
const AGAIN: Duration = Duration::from_secs(1);

/// The bytes that a relay may send at once after a pause, with its pings.
const BURST: u64 = 65_536 + MAX_FRAME as u64 + 16_384;

/// A rule of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowRule {
    /// Every row that a relay holds is one that its origin has made.
    Truth,
    /// All relays have the newest rows of all within [`AGREEMENT`] after the last fault.
    Agreement,
    /// Automatic routes lead to where they should, avoid a dead relay within [`AVOIDANCE`](crate::routes::AVOIDANCE),
    /// and are good again within [`SETTLED`](crate::routes::SETTLED) after the last fault.
    Routes,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) broken: Option<(RowRule, String)>,
    /// The time from the end of the last fault until all agreed.
    pub(crate) agreed: Duration,
    pub(crate) news: u64,
    pub(crate) refused: u64,
    /// The most bytes that a relay has sent, and the most memory of a table.
    pub(crate) sent: u64,
    pub(crate) bytes: usize,
    /// Choices of routes, and how often a relay that a route passed was killed.
    pub(crate) choices: u64,
    pub(crate) deaths: u64,
    /// The longest time from a death until no route passed the dead relay, and from the last fault until all
    /// routes were good.
    pub(crate) avoided: Duration,
    pub(crate) settled: Duration,
}

pub(crate) enum Event {
    Wakes(usize, u32),
    Samples(usize),
    Arrives(usize, usize, Vec<u8>),
    Links(usize, u32),
    Begins(usize),
    Ends(usize),
    Forges,
    Checks,
    /// Whether routes still pass a relay that was killed at this time, in this fault.
    Avoids(usize, Time),
    /// Whether all routes are good.
    Settles,
}

pub(crate) struct Relay {
    pub(crate) runs: bool,
    pub(crate) process: u32,
    pub(crate) table: Table,
    exchange: Exchange,
    pub(crate) own: OwnRow,
    floor: u64,
    /// What its clock shows at the beginning, in milliseconds.
    clock: u64,
    pub(crate) links: BTreeMap<LinkId, usize>,
    pub(crate) routing: Routing,
}

/// A connection between two relays, for rows.
pub(crate) struct Link {
    pub(crate) ends: [(usize, LinkId); 2],
    is_open: bool,
    /// What each end has sent into a cut, in order.
    pub(crate) held: [VecDeque<Vec<u8>>; 2],
    arrives: [Time; 2],
}

pub(crate) enum Fault {
    Killed(usize),
    Cut(Cut),
}

pub(crate) struct RowWorld {
    pub(crate) queue: Queue<Event>,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) base: Instant,
    pub(crate) members: Members,
    pub(crate) relays: Vec<Relay>,
    pub(crate) links: Vec<Link>,
    pub(crate) faults: Vec<(Fault, Duration)>,
    /// The rows that each relay has made.
    pub(crate) made: Vec<Vec<Row>>,
    pub(crate) last_end: Time,
    pub(crate) broken: Option<RowRule>,
    pub(crate) outcome: Outcome,
    /// The relays that reach each destination.
    pub(crate) reach: Vec<Vec<bool>>,
}

// === impl RowWorld ===

impl RowWorld {
    pub(crate) fn new(seed: u64, broken: Option<RowRule>) -> Self {
        let mut random = Random::new(seed);
        let network = Network::new(RELAYS + DESTINATIONS, &mut random);
        let reach = routes::reach(&mut random);
        let base = Instant::now();
        let member = |node: usize| Member {
            name: name(node),
            keys: vec![secret(node).public()],
            addresses: vec!["192.0.2.1:7440".parse().expect("an address")],
            site: None,
            cloud: None,
            price: None,
        };
        let members = Members::new((0..RELAYS).map(member).collect()).expect("a valid list");
        let mut world = Self {
            queue: Queue::new(),
            network,
            base,
            relays: Vec::new(),
            links: Vec::new(),
            faults: Vec::new(),
            made: vec![Vec::new(); RELAYS],
            last_end: Time::ZERO,
            broken,
            outcome: Outcome::default(),
            random,
            members,
            reach,
        };
        for node in 0..RELAYS {
            let relay = world.new_relay(node, 0);
            world.relays.push(relay);
        }
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        for node in 0..RELAYS {
            self.queue.after(Time::ZERO, Event::Samples(node));
            self.queue.after(Time::ZERO, Event::Links(node, 0));
            self.queue.after(Time::ZERO, Event::Wakes(node, 0));
        }
        self.plan_faults();
        self.queue.after(Duration::from_secs(3), Event::Forges);
        let first = self.last_end + Duration::from_millis(100);
        self.queue.at(first, Event::Checks);
        self.queue.at(first, Event::Settles);
        while self.outcome.broken.is_none() && self.queue.now() < LENGTH {
            match self.queue.next() {
                Some(event) => self.handle(event),
                None => break,
            }
        }
        self.outcome
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wakes(node, process) => self.wakes(node, process),
            Event::Samples(node) => self.samples(node),
            Event::Arrives(link, end, bytes) => self.arrives(link, end, &bytes),
            Event::Links(node, process) => self.make_links(node, process),
            Event::Begins(fault) => self.begins(fault),
            Event::Ends(fault) => self.ends(fault),
            Event::Forges => self.forges(),
            Event::Checks => self.checks(),
            Event::Avoids(fault, since) => self.check_avoidance(fault, since),
            Event::Settles => self.check_routes(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + self.queue.now()
    }

    pub(crate) fn new_relay(&mut self, node: usize, process: u32) -> Relay {
        let now = self.base + self.queue.now();
        let mut own = OwnRow::default();
        let others = (0..RELAYS).filter(|other| *other != node);
        own.adopt(others.map(|other| (MemberId::of(&name(other)), true)));
        // Up to two hours off, and back as well as forth after a restart.
        let clock = 1_700_000_000_000 + self.random.below(7_200_000) as u64;
        Relay {
            runs: true,
            process,
            table: Table::new(&name(node), &self.members),
            exchange: Exchange::new(now),
            own,
            floor: 0,
            clock,
            links: BTreeMap::new(),
            routing: Routing::default(),
        }
    }

    // === a relay ===

    fn samples(&mut self, node: usize) {
        let now = self.now();
        for other in (0..RELAYS).filter(|other| *other != node) {
            let (a, b) = (node as Node, other as Node);
            let works =
                self.relays[other].runs && !self.network.is_cut(a, b) && !self.network.is_cut(b, a);
            let rtt = 2 * self.network.delay(a, b);
            let own = &mut self.relays[node].own;
            let id = MemberId::of(&name(other));
            own.set_down(id, !works);
            if works {
                own.sample(id, rtt, rtt, now);
            }
        }
        self.sample_destinations(node);
        self.queue.after(SAMPLE, Event::Samples(node));
    }

    fn wakes(&mut self, node: usize, process: u32) {
        let now = self.now();
        let relay = &mut self.relays[node];
        if !relay.runs || relay.process != process {
            return;
        }
        let wall = relay.clock + self.queue.now().as_millis() as u64;
        if let Some(row) = relay.own.poll(wall, relay.floor, now) {
            self.made[node].push(row.clone());
            let signed = row.sign(&name(node), &secret(node));
            relay.table.publish(signed, now);
            relay
                .exchange
                .changed(MemberId::of(&name(node)), &relay.table);
            relay.routing.replan.is_due = true;
        }
        let silent = relay.exchange.silent(now).into_iter();
        let silent: Vec<_> = silent
            .filter_map(|id| relay.links.get(&id).copied())
            .collect();
        for link in silent {
            self.close(link);
        }
        self.flush(node);
        self.choose_routes(node);
        self.queue
            .after(Duration::from_millis(250), Event::Wakes(node, process));
    }

    /// Sends what the exchange of a relay has to send.
    fn flush(&mut self, node: usize) {
        let now = self.now();
        loop {
            let relay = &mut self.relays[node];
            let Some((id, bytes)) = relay.exchange.poll(now, &relay.table) else {
                break;
            };
            if let Some(&link) = relay.links.get(&id) {
                self.send(link, node, bytes);
            }
        }
        let sent = self.relays[node].exchange.traffic().sent;
        self.outcome.sent = self.outcome.sent.max(sent);
        let limit = u64::from(RATE) * self.queue.now().as_secs() + BURST + u64::from(RATE);
        assert!(
            sent <= limit,
            "relay{node} has sent {sent} bytes of {limit}"
        );
    }

    fn arrives(&mut self, link: usize, end: usize, bytes: &[u8]) {
        let now = self.now();
        let Link { ends, is_open, .. } = &self.links[link];
        let (node, id) = ends[end];
        if !is_open {
            return;
        }
        let relay = &mut self.relays[node];
        let Ok(received) = relay.exchange.receive(id, bytes, now, &mut relay.table) else {
            self.close(link);
            return;
        };
        let held = relay.table.bytes();
        self.outcome.bytes = self.outcome.bytes.max(held);
        assert!(held <= MAX_BYTES, "a table of {held} bytes");
        for event in received {
            match event {
                Received::News(origin) => {
                    self.relays[node].routing.replan.is_due = true;
                    self.check_news(node, origin);
                }
                Received::Own(version) if self.broken != Some(RowRule::Agreement) => {
                    let floor = &mut self.relays[node].floor;
                    *floor = (*floor).max(version);
                }
                Received::Refused(_) => self.outcome.refused += 1,
                Received::Own(_) | Received::Rtt(_) => {}
            }
        }
        self.flush(node);
    }

    // === links ===

    /// Makes the links that a relay lacks.
    fn make_links(&mut self, node: usize, process: u32) {
        if !self.relays[node].runs || self.relays[node].process != process {
            return;
        }
        let now = self.now();
        for other in neighbours(&name(node), &self.members, |_| false) {
            let other = usize::from(crate::world::node_of(&other));
            let is_linked = |link: &Link| {
                let both = [link.ends[0].0, link.ends[1].0];
                link.is_open && both.contains(&node) && both.contains(&other)
            };
            let (a, b) = (node as Node, other as Node);
            let is_cut = self.network.is_cut(a, b) || self.network.is_cut(b, a);
            if !self.relays[other].runs || is_cut || self.links.iter().any(is_linked) {
                continue;
            }
            let (Some(here), Some(there)) = (
                self.relays[node].exchange.open(now),
                self.relays[other].exchange.open(now),
            ) else {
                continue;
            };
            let link = self.links.len();
            self.relays[node].links.insert(here, link);
            self.relays[other].links.insert(there, link);
            self.links.push(Link {
                ends: [(node, here), (other, there)],
                is_open: true,
                held: Default::default(),
                arrives: [self.queue.now(); 2],
            });
        }
        self.queue.after(AGAIN, Event::Links(node, process));
    }

    pub(crate) fn close(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.is_open = false;
        for (node, id) in link.ends {
            self.relays[node].links.remove(&id);
            self.relays[node].exchange.close(id);
        }
    }

    /// Sends bytes on a link. They arrive in order, and after a cut has ended.
    pub(crate) fn send(&mut self, link: usize, from: usize, bytes: Vec<u8>) {
        let ends = self.links[link].ends;
        let end = usize::from(ends[0].0 == from);
        let (a, b) = (from as Node, ends[end].0 as Node);
        let known = &mut self.links[link];
        if self.network.is_cut(a, b) {
            known.held[end].push_back(bytes);
            return;
        }
        let at = (self.queue.now() + self.network.delay(a, b)).max(known.arrives[end]);
        known.arrives[end] = at;
        self.queue.at(at, Event::Arrives(link, end, bytes));
    }

    // === the rules ===

    fn check_news(&mut self, node: usize, origin: MemberId) {
        self.outcome.news += 1;
        let Some(row) = self.relays[node].table.row(origin) else {
            return;
        };
        let is_made = (0..RELAYS)
            .filter(|of| MemberId::of(&name(*of)) == origin)
            .any(|of| self.made[of].contains(row));
        if !is_made {
            let what = format!("relay{node} holds a row that nobody has made: {row:?}");
            self.outcome.broken = Some((RowRule::Truth, what));
        }
    }

    fn checks(&mut self) {
        let waited = self.queue.now() - self.last_end;
        let newest = |of: usize| self.made[of].last().map(|row| row.version);
        let lacks = (0..RELAYS)
            .flat_map(|node| (0..RELAYS).map(move |of| (node, of)))
            .find(|&(node, of)| {
                let row = self.relays[node].table.row(MemberId::of(&name(of)));
                row.map(|row| row.version) != newest(of)
            });
        match lacks {
            None => self.outcome.agreed = waited,
            Some((node, of)) if waited > AGREEMENT => {
                let what =
                    format!("relay{node} lacks the newest row of relay{of} after {waited:?}");
                self.outcome.broken = Some((RowRule::Agreement, what));
            }
            Some(_) => self.queue.after(Duration::from_millis(250), Event::Checks),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rows: {} news, {} refused; at most {} bytes sent by a relay in {LENGTH:?}, {} bytes of memory; all agree at most {:.2} s after the last fault (bound {AGREEMENT:?})",
            self.news,
            self.refused,
            self.sent,
            self.bytes,
            self.agreed.as_secs_f64()
        )?;
        write!(
            f,
            "\nroutes: {} choices; {} relays on routes were killed, and avoided at most {:.2} s later (bound {AVOIDANCE:?}); all routes are good at most {:.2} s after the last fault (bound {SETTLED:?})",
            self.choices,
            self.deaths,
            self.avoided.as_secs_f64(),
            self.settled.as_secs_f64()
        )
    }
}

/// Returns the private key of a relay.
pub(crate) fn secret(node: usize) -> PrivateKey {
    PrivateKey::from_seed(&[u8::try_from(node + 1).expect("few relays"); 32])
}
