//! The invariants, checked against what is true in the world and not what relays believe.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use taut_mesh::arrivals::WITHDRAWN;
use taut_mesh::hello::MAX_ROUTE;
use taut_mesh::identity::PublicKey;
use taut_mesh::members::{Member, MemberName};
use taut_mesh::pool::{DIALS_AT_ONCE, Pool};
use taut_mesh::unproven::GRACE;

use crate::accepting::address_of;
use crate::connection::{AcceptEnd, Connection, DialEnd};
use crate::early;
use crate::engine::{Key, Time};
use crate::faults::Kind;
use crate::network::{Cut, Group, Node};
use crate::session::{Failure, Phase};
use crate::world::{
    BOUNDS, DIAL_PATIENCE, Event, MAX_READY, MAX_UNPROVEN, PATIENCE, Relay, State, World, name,
};

/// The time after the end of a fault within which everything that it touched works again: the end of a dial
/// that is in progress, the longest pause (10 s) and one more dial, with the retransmissions of its SYN.
pub(crate) const RECOVERY: Duration = Duration::from_secs(25);

/// What the clock of a relay may be off by in the time within which it notices a dead relay.
const CLOCK_ERROR: Duration = Duration::from_millis(5);

/// For how long what was sent last may be unheard without a loss: a round trip across the world.
const UNHEARD: Duration = Duration::from_millis(500);

/// Something that must hold, whatever happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Destinations,
    Members,
    Loop,
    Sessions,
    Bounds,
    Recovery,
    Leftovers,
    EarlySyn,
    Eviction,
    Detour,
    Places,
    Names,
    Blame,
    GivenUp,
    Twice,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) what: String,
    pub(crate) at: Time,
}

/// What is known of a run.
#[derive(Default)]
pub(crate) struct Oracle {
    pub(crate) violation: Option<Violation>,
    pub(crate) troubles: Vec<Trouble>,
    /// For each kind of fault: how many, and the longest time after one until everything worked again.
    pub(crate) recoveries: [(u32, Duration); Kind::ALL.len()],
    /// Sessions that were connected, and that failed with their route.
    pub(crate) connected: u64,
    pub(crate) lost: u64,
    /// Hellos that were served or refused, and connections that were rejected.
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) rejected: u64,
    /// Connections that made room for others at a mesh port, and legs that were begun at SYNs and never used.
    pub(crate) evicted: u64,
    pub(crate) expired: u64,
    /// Sessions and look-ups that members were refused which had taken all they may.
    pub(crate) unshared: [u64; 2],
    /// For how long sessions were sent to a dead relay, since a first hello and since a first dial.
    pub(crate) detours: [Duration; 2],
    /// The legs whose hello the next relay has read, with the first bytes of a client.
    pub(crate) sent: HashSet<Key>,
    /// The most connections and legs at one time.
    pub(crate) most: (usize, usize),
}

/// A time in which relays or paths did not work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) location: Location,
    pub(crate) from: Time,
    /// [`Time::MAX`] until its end.
    pub(crate) to: Time,
}

/// When sessions first needed a relay that is dead: a hello was sent to it, or a dial of it awaited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unanswered {
    since: [Option<Time>; 2],
}

/// What does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Relay(Node),
    Path(Group, Group),
}

impl Rule {
    pub(crate) const ALL: [Self; 15] = [
        Self::Destinations,
        Self::Members,
        Self::Loop,
        Self::Sessions,
        Self::Bounds,
        Self::Recovery,
        Self::Leftovers,
        Self::EarlySyn,
        Self::Eviction,
        Self::Detour,
        Self::Places,
        Self::Names,
        Self::Blame,
        Self::GivenUp,
        Self::Twice,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Destinations => {
                "no session reaches a destination that its last relay does not allow"
            }
            Self::Members => {
                "no relay serves a session of a relay that is not in its list of members, or asks such a relay"
            }
            Self::Loop => "no session passes a relay twice, or more relays than a route may have",
            Self::Sessions => {
                "a session fails only on routes that were in trouble, and not before it has tried all of its ways"
            }
            Self::Bounds => "no table grows beyond its limit",
            Self::Recovery => "what a fault has touched works again within the bound",
            Self::Leftovers => "a session that is over leaves nothing behind",
            Self::EarlySyn => {
                "a SYN takes no connection that sessions need, and causes no dial beyond the limit of a pool or in its pauses"
            }
            Self::Eviction => {
                "a full mesh port closes a connection of the source that has the most"
            }
            Self::Detour => "new sessions go around a dead relay within the bound",
            Self::Places => "a member that takes all it may costs no other session its place",
            Self::Names => {
                "a member whose names are not answered costs no other session its look-up"
            }
            Self::Blame => "a relay is taken for broken only if it did not answer or refused a key",
            Self::GivenUp => "no session gets a connection that its acceptor has given up",
            Self::Twice => "what a client has sent reaches the next relay once",
        }
    }
}

impl World {
    /// Checks a session that a relay is about to serve, on this inbound connection.
    pub(crate) fn check_served(
        &mut self,
        inbound: Key,
        node: Node,
        member: &MemberName,
        own: &PublicKey,
    ) {
        let dialler = self.connections.get(inbound).map(|c| c.dialler);
        let dialler = name(dialler.map_or(usize::from(node), usize::from));
        let list = &self.lists[self.relay(node).list].members;
        let known = list.by_name(dialler.as_str());
        if dialler != *member || known.is_none_or(|known| !known.keys.contains(own)) {
            let what = format!("relay{node} serves {member}, which is not in its list");
            self.violate(Rule::Members, what);
        }
        if let Some(DialEnd::Used(leg)) = self.connections.get(inbound).map(|c| c.dial)
            && let Some(session) = self.legs.get(leg).map(|leg| leg.session)
            && self.sessions[session].talks_first
            && !self.oracle.sent.insert(leg)
        {
            let what = format!("relay{node} is sent session {session} again");
            self.violate(Rule::Twice, what);
        }
        // The relays before this one, the nearest first.
        let mut before = Vec::new();
        let mut at = Some(inbound);
        while let Some(DialEnd::Used(leg)) =
            at.and_then(|key| self.connections.get(key)).map(|c| c.dial)
            && let Some(leg) = self.legs.get(leg)
            && before.len() <= MAX_ROUTE
        {
            before.push(leg.relay);
            at = leg.inbound;
        }
        // A member may ask for a loop, which ends with its route.
        let is_honest = at.is_none();
        if before.len() > MAX_ROUTE || (is_honest && before.contains(&node)) {
            let what = format!("a session comes to relay{node} by way of {before:?}");
            self.violate(Rule::Loop, what);
        }
    }

    /// Checks that a relay that is sent a hello is a member with the key that it has proven, and has not given the
    /// connection up.
    pub(crate) fn check_asked(&mut self, node: Node, connection: Key) {
        let Some(known) = self.connections.get(connection) else {
            return;
        };
        let (to, shown) = (known.acceptor, known.shown);
        if known.is_given_up {
            let what = format!("relay{node} uses a connection that relay{to} has given up");
            self.violate(Rule::GivenUp, what);
        }
        let list = &self.lists[self.relay(node).list].members;
        let known = list.by_name(name(usize::from(to)).as_str());
        let has_key = |known: &Member| shown.is_some_and(|key| known.keys.contains(&key));
        if !known.is_some_and(|known| has_key(known)) {
            let what = format!("relay{node} asks relay{to}, which is not in its list");
            self.violate(Rule::Members, what);
        }
    }

    /// Checks that a relay has a reason to take a peer for broken, since this time.
    pub(crate) fn check_blame(&mut self, node: Node, to: Node, error: Errno, since: Time) {
        let now = self.queue.now();
        let from = since.saturating_sub(UNHEARD);
        let concerns = |kind: Kind| matches!(kind, Kind::NewKey | Kind::Removed | Kind::OldList);
        let mut faults = self.faults.iter();
        let has_reason = match error {
            // The list of members, or a key, is not the same everywhere.
            Errno::ACCESS => faults.any(|f| concerns(f.kind) && [node, to].contains(&f.node)),
            Errno::TIMEDOUT => {
                self.network.has_lost_since(node, to, from)
                    || self.is_in_trouble(node, &[to], from, now)
            }
            _ => false,
        };
        if !has_reason {
            let what = format!("relay{node} takes relay{to} for broken: {error}");
            self.violate(Rule::Blame, what);
        }
    }

    /// Checks the destination that a relay is about to connect to.
    pub(crate) fn check_destination(&mut self, node: Node, address: SocketAddr) {
        if !self.relay(node).may_reach(address) {
            self.violate(
                Rule::Destinations,
                format!("relay{node} connects to {address}"),
            );
        }
    }

    /// Checks whether a session had a reason to fail.
    pub(crate) fn check_failed(&mut self, session: usize, how: Failure) {
        let now = self.queue.now();
        let known = &self.sessions[session];
        if known.hostile || known.phase == Phase::Awaited {
            return;
        }
        let tried = known.tried.clone();
        self.trace.tell(now, || {
            format!("session {session} fails ({how:?}) after {tried:?}")
        });
        let is_committed = known.joined.is_some() && known.talks_first;
        let has_another = known.tried.len() < known.ways;
        if how == Failure::Reset && known.phase == Phase::SettingUp && has_another && !is_committed
        {
            let what = format!("session {session} fails after {tried:?} and had another way");
            self.violate(Rule::Sessions, what);
            return;
        }
        let from = known.began.saturating_sub(RECOVERY);
        let first = known.first;
        // It may have left another route because a packet was lost.
        let judged = match how {
            Failure::Removed => known.tried.len().saturating_sub(1),
            _ => 0,
        };
        let well = known.tried[judged..]
            .iter()
            .find(|route| !self.is_in_trouble(first, route, from, now));
        if let Some(route) = well {
            let what = format!(
                "session {session} of relay{first} fails ({how:?}) on {route:?}, which works"
            );
            self.violate(Rule::Sessions, what);
            return;
        }
        self.oracle.lost += 1;
        // A relay that has noticed that a peer does not answer sends no session there before a dial has
        // succeeded.
        let Some((joined, route)) = known.joined.zip(known.tried.last()) else {
            return;
        };
        let Some(&next) = route.first() else {
            return;
        };
        let mut peers = self.relay(first).peers.iter();
        let knew = peers.any(|peer| {
            let noticed = peer.noticed.is_some_and(|at| at < joined);
            peer.node == next && noticed && peer.proven < peer.noticed
        });
        if knew {
            let what =
                format!("session {session} went to relay{next}, which was known not to answer");
            self.violate(Rule::Sessions, what);
        }
    }

    /// Checks that a session that has another way may still use a peer, by a hello or by a dial.
    pub(crate) fn check_detour(&mut self, node: Node, peer: usize, by_hello: bool) {
        let (now, to) = (self.queue.now(), self.relay(node).peers[peer].node);
        if self.relay(to).state == State::Running {
            return;
        }
        let Unanswered { since } = self.relay(node).peers[peer].unanswered;
        // A process that does not run notices nothing.
        let earliest = since.iter().flatten().min().copied().unwrap_or(now);
        let was_stopped = self.faults.iter().any(|fault| {
            let ends = fault.begins + fault.lasts;
            fault.kind == Kind::Stopped && fault.node == node && ends >= earliest
        });
        for (number, bound) in [PATIENCE, DIAL_PATIENCE].into_iter().enumerate() {
            let Some(since) = since[number].filter(|_| !was_stopped) else {
                continue;
            };
            let longest = &mut self.oracle.detours[number];
            *longest = (*longest).max(now - since);
            if now > since + bound + CLOCK_ERROR {
                let what = format!(
                    "relay{node} sends a session to relay{to}, which has not answered for {:?}",
                    now - since
                );
                self.violate(Rule::Detour, what);
            }
        }
        let number = usize::from(!by_hello);
        let since = &mut self.peer_mut(node, peer).unanswered.since[number];
        since.get_or_insert(now);
    }

    /// Records that a relay dials a peer.
    pub(crate) fn note_dial(&mut self, node: Node, peer: usize) {
        let now = self.queue.now();
        let to = self.relay(node).peers[peer].node;
        if self.relay(to).state != State::Running {
            let since = &mut self.peer_mut(node, peer).unanswered.since[1];
            since.get_or_insert(now);
        }
    }

    /// Checks whether a connection at the mesh port of a relay may make room for one from `newcomer`.
    pub(crate) fn check_evicted(&mut self, node: Node, victim: Key, newcomer: IpAddr) {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (key, connection) in self.connections.iter() {
            // The victim has just been removed.
            let is_unproven = key == victim || matches!(self.arrived(key), Some((_, _, false)));
            if connection.acceptor == node && is_unproven {
                *counts.entry(address_of(connection.dialler)).or_default() += 1;
            }
        }
        let Some(connection) = self.connections.get(victim) else {
            let what = format!("relay{node} closes a connection that it does not have");
            return self.violate(Rule::Eviction, what);
        };
        let from = address_of(connection.dialler);
        let most = counts.values().copied().max();
        let is_young = self.queue.now() + CLOCK_ERROR < connection.begun + GRACE;
        if counts.get(&from).copied() != most || (from == newcomer && is_young) {
            let what = format!("relay{node} closes a connection of {from}: {counts:?}");
            self.violate(Rule::Eviction, what);
        }
    }

    /// Returns whether something on a route did not work in this time.
    fn is_in_trouble(&self, first: Node, route: &[Node], from: Time, to: Time) -> bool {
        let mut all = self.oracle.troubles.iter();
        all.any(|trouble| {
            let overlaps = trouble.from <= to && trouble.to >= from;
            let mut at = first;
            let mut touches = trouble.location.is_relay(first);
            for &next in route {
                touches |= trouble.location.is_relay(next) || trouble.location.is_between(at, next);
                at = next;
            }
            overlaps && touches
        })
    }

    /// Returns whether relay `node` can use its peer, or has no reason to: one of them is not up, or something
    /// between them is not well or became so after `since`.
    fn is_well(&self, node: Node, peer: usize, since: Time) -> bool {
        let relay = self.relay(node);
        let known = &relay.peers[peer];
        let is_up = |relay: &Relay| relay.state == State::Running && relay.stopped_until.is_none();
        if !relay.dials.is_dialled(peer) || !is_up(relay) || !is_up(self.relay(known.node)) {
            return true;
        }
        let is_excused = self.oracle.troubles.iter().any(|trouble| {
            let location = trouble.location;
            let touches = location.is_relay(node)
                || location.is_relay(known.node)
                || location.is_between(node, known.node);
            touches && trouble.to > since
        });
        let now = self.local_now(node);
        let works = |pool: &Pool<u32, Key>| !pool.is_broken(now) && pool.ready() > 0;
        is_excused || relay.dials.pool(peer).is_some_and(works)
    }

    /// Checks whether what a fault has touched works again, and looks again later if it does not.
    pub(crate) fn check_recovery(&mut self, fault: usize, since: Time) {
        let now = self.queue.now();
        let touched = self.faults[fault].touched();
        let ill = (0..self.size.relays as Node)
            .flat_map(|node| (0..self.relay(node).peers.len()).map(move |peer| (node, peer)))
            .find(|&(node, peer)| {
                let to = self.relay(node).peers[peer].node;
                let concerns = touched.is_none_or(|it| it == node || it == to);
                concerns && !self.is_well(node, peer, since)
            });
        let kind = self.faults[fault].kind;
        let Some((node, peer)) = ill else {
            let (count, longest) = &mut self.oracle.recoveries[kind as usize];
            *count += 1;
            *longest = (*longest).max(now - since);
            self.trace
                .tell(now, || format!("everything works after {kind:?}"));
            return;
        };
        if now > since + RECOVERY {
            let to = self.relay(node).peers[peer].node;
            let what = format!("relay{node} cannot use relay{to} {RECOVERY:?} after {kind:?}");
            self.violate(Rule::Recovery, what);
            return;
        }
        let next = Event::Checks(fault, since);
        self.queue.after(Duration::from_millis(500), next);
    }

    /// Checks the sizes of tables, and at the end of the run that nothing is left.
    pub(crate) fn audit(&mut self) {
        let sizes = (self.connections.len(), self.legs.len());
        let most = &mut self.oracle.most;
        *most = (most.0.max(sizes.0), most.1.max(sizes.1));
        let mut found = None;
        let mut accepted = vec![0; self.size.relays];
        let mut unproven = vec![0; self.size.relays];
        let mut dialled = vec![0; self.size.relays];
        let makes_all_dials = self.broken != Some(Rule::Recovery);
        for (key, connection) in self.connections.iter() {
            let node = usize::from(connection.acceptor);
            if let DialEnd::Pooled(_) = connection.dial {
                dialled[usize::from(connection.dialler)] += 1;
            }
            match self.arrived(key) {
                Some((_, _, true)) => accepted[node] += 1,
                Some((_, _, false)) => unproven[node] += 1,
                None => {}
            }
        }
        for (node, relay) in self.relays.iter().enumerate() {
            let begun = (relay.early.len(), relay.limiter.pending());
            if begun.0 > begun.1 || begun.1 > early::limits().pending {
                let what = format!("relay{node} has {begun:?} legs that were begun at SYNs");
                found = Some((Rule::Bounds, what));
            }
            let counts = relay.arrivals.counts();
            let held = (unproven[node], counts.unproven);
            if held.0 != held.1 || held.1 > MAX_UNPROVEN {
                let what = format!("relay{node} holds {held:?} connections without a proof");
                found = Some((Rule::Bounds, what));
            }
            let is_too_many =
                counts.ready > MAX_READY || counts.withdrawn > MAX_READY.div_ceil(WITHDRAWN);
            if is_too_many || accepted[node] != counts.ready + counts.withdrawn {
                let (all, what) = (
                    accepted[node],
                    "connections that are ready at its mesh port",
                );
                let what = format!("relay{node} holds {all} {what}: {counts:?}");
                found = Some((Rule::Bounds, what));
            }
            let dials = relay.dials.len();
            if dialled[node] != dials && relay.state == State::Running && makes_all_dials {
                let held = (dialled[node], dials);
                let what = format!("relay{node} knows of {held:?} dials and ready connections");
                found = Some((Rule::Leftovers, what));
            }
            for (number, peer) in relay.peers.iter().enumerate() {
                let Some(pool) = relay.dials.pool(number) else {
                    continue;
                };
                let dials = BOUNDS.ceiling.max(DIALS_AT_ONCE);
                let waiting = pool.waiting() as usize;
                if pool.ready() > BOUNDS.ceiling
                    || pool.dialling() > dials
                    || waiting > self.legs.len()
                {
                    found = Some((
                        Rule::Bounds,
                        format!("the pool of relay{node} to relay{} is too large", peer.node),
                    ));
                }
            }
        }
        let is_end = self.queue.now() >= self.size.length;
        let is_left = |c: &&Connection| {
            matches!(c.dial, DialEnd::Used(_)) || matches!(c.accept, AcceptEnd::Used(_))
        };
        if is_end {
            let used = self.connections.iter().filter(|(_, c)| is_left(c)).count();
            if self.legs.len() + used > 0 {
                let what = format!("{} legs and {used} connections are left", self.legs.len());
                found = Some((Rule::Leftovers, what));
            }
        }
        if let Some((rule, what)) = found {
            self.violate(rule, what);
        }
        if !is_end {
            self.queue.after(Duration::from_secs(1), Event::Audits);
        }
    }
}

impl Location {
    fn is_relay(self, node: Node) -> bool {
        self == Self::Relay(node)
    }

    /// Returns whether it is the path between two relays, in either direction.
    fn is_between(self, a: Node, b: Node) -> bool {
        let Self::Path(from, to) = self else {
            return false;
        };
        let cut = Cut { from, to };
        cut.covers(a, b) || cut.covers(b, a)
    }
}
