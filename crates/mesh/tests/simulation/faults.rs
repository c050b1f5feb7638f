//! What happens to a mesh: deaths, cuts, restarts, changes of keys and members, and hostile parties.

use std::time::Duration;

use taut_mesh::arrivals::Arrivals;
use taut_mesh::dials::Dials;
use taut_mesh::early_syn::Limiter;
use taut_mesh::name_cache::NameCache;

use crate::connection::{AcceptEnd, Connection, DialEnd, End, Packet};
use crate::dialling::PROBED_AFTER;
use crate::early;
use crate::engine::{Key, Time};
use crate::membership::ADOPTION;
use crate::network::{Cut, Group, Node};
use crate::oracle::{Location, Trouble, Unanswered};
use crate::session::{Failure, Phase};
use crate::world::{Event, State, World, key};

/// When the kernel of a peer gives up a connection with a session to a machine that is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The number of outsiders, and how many connections they open each time.
const OUTSIDERS: usize = 3;
const OUTSIDERS_AT_ONCE: usize = 40;

/// The number of sessions for which a greedy member asks each time.
const ASKED_AT_ONCE: usize = 8;

/// The number of SYNs that are forged each time.
const SYNS_AT_ONCE: usize = 5;

/// A fault of a world.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) node: Node,
    /// Another relay that it concerns.
    pub(crate) other: Node,
    pub(crate) begins: Time,
    pub(crate) lasts: Duration,
    /// The cut that it has made.
    cut: Option<Cut>,
    /// The place of the trouble that it has caused.
    trouble: Option<usize>,
    /// How often it has acted.
    acts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A process is killed; its machine resets what arrives.
    Killed,
    /// A machine is gone and returns.
    Vanished,
    /// A process does not run for a while, as on a machine without CPU time.
    Stopped,
    /// What one relay sends to another is lost.
    OnePathCut,
    /// What one relay sends is lost.
    Mute,
    /// What is sent to one relay is lost.
    Deaf,
    /// What one half of the relays sends to the other is lost.
    Split,
    /// A relay is replaced by a new process without a pause.
    HandedOver,
    /// A relay gets another key, as docs/relay-mesh.md says.
    NewKey,
    /// A relay is removed from the list of members, and added again.
    Removed,
    /// A relay returns with an old list of members.
    OldList,
    /// Outsiders connect to a mesh port, and send noise or nothing.
    Outsiders,
    /// The other relay is a member that requests sessions which it should not get, most of them of this one.
    HostileMember,
    /// Somebody forges SYNs of clients.
    ForgedSyns,
    /// The other relay is a member that takes as many sessions of this one as it gets.
    TakesAll,
    /// The other relay is a member that asks this one for names that nobody answers for.
    DeadNames,
}

impl Kind {
    pub(crate) const ALL: [Self; 16] = [
        Self::Killed,
        Self::Vanished,
        Self::Stopped,
        Self::OnePathCut,
        Self::Mute,
        Self::Deaf,
        Self::Split,
        Self::HandedOver,
        Self::NewKey,
        Self::Removed,
        Self::OldList,
        Self::Outsiders,
        Self::HostileMember,
        Self::ForgedSyns,
        Self::TakesAll,
        Self::DeadNames,
    ];

    /// Returns whether the other relay is a member that uses up what it may.
    pub(crate) fn is_greedy(self) -> bool {
        matches!(self, Self::TakesAll | Self::DeadNames)
    }

    /// Returns the least and the longest time that it lasts.
    fn lasts(self) -> (Duration, Duration) {
        let (least, most) = match self {
            Self::Stopped => (200, 6_000),
            Self::NewKey => (8_000, 8_001),
            Self::Removed => (4_000, 8_000),
            Self::Outsiders
            | Self::HostileMember
            | Self::ForgedSyns
            | Self::TakesAll
            | Self::DeadNames => (2_000, 3_000),
            _ => (500, 8_000),
        };
        (Duration::from_millis(least), Duration::from_millis(most))
    }
}

impl Fault {
    /// Returns the relay that it touches; `None` for all.
    pub(crate) fn touched(&self) -> Option<Node> {
        (self.kind != Kind::Split).then_some(self.node)
    }
}

impl World {
    /// Draws the faults of the run.
    pub(crate) fn plan_faults(&mut self) {
        let (least, most) = self.size.faults;
        let count = least + self.random.below(most - least + 1);
        for number in 0..count {
            let mut kind = *self.random.pick(&Kind::ALL);
            // An operator makes one change of the list at a time.
            let changes_list = |kind| matches!(kind, Kind::NewKey | Kind::Removed);
            if changes_list(kind) && self.faults.iter().any(|fault| changes_list(fault.kind)) {
                kind = Kind::Killed;
            }
            // One that sessions use, if there is one.
            let forward = self.random.below(self.forwards.len().max(1));
            let node = match self.forwards.get(forward) {
                Some(forward) if self.random.happens(0.2) => forward.relay,
                Some(forward) => *self.random.pick(&forward.routes[0]),
                None => 0,
            };
            // Two of these together may leave the others nothing.
            if kind.is_greedy()
                && self
                    .faults
                    .iter()
                    .any(|it| it.kind.is_greedy() && it.node == node)
            {
                kind = Kind::Killed;
            }
            let peers = &self.relays[usize::from(node)].peers;
            let other = peers[self.random.below(peers.len())].node;
            let (least, most) = kind.lasts();
            let lasts = self.random.between(least, most);
            let begins = self
                .random
                .between(Duration::from_secs(2), Duration::from_secs(14));
            self.faults.push(Fault {
                kind,
                node,
                other,
                begins,
                lasts,
                cut: None,
                trouble: None,
                acts: 0,
            });
            self.queue.at(begins, Event::Begins(number));
        }
    }

    /// Draws when clients connect, to which forward. Half of them use what a fault may touch.
    pub(crate) fn plan_sessions(&mut self) {
        if self.forwards.is_empty() {
            return;
        }
        let touched: Vec<usize> = (0..self.forwards.len())
            .filter(|&i| {
                let forward = &self.forwards[i];
                let uses = |node| {
                    forward.relay == node || forward.routes.iter().any(|r| r.contains(&node))
                };
                self.faults.iter().any(|fault| uses(fault.node))
            })
            .collect();
        for _ in 0..self.size.sessions {
            let at = self
                .random
                .between(Duration::from_secs(1), Duration::from_secs(30));
            let forward = match self.random.happens(0.5) && !touched.is_empty() {
                true => *self.random.pick(&touched),
                false => self.random.below(self.forwards.len()),
            };
            self.queue.at(at, Event::Connects(forward));
        }
    }

    pub(crate) fn begin_fault(&mut self, number: usize) {
        let Fault {
            kind,
            node,
            other,
            lasts,
            ..
        } = self.faults[number];
        let now = self.queue.now();
        self.trace.tell(now, || {
            format!("{kind:?}: relay{node} (other: relay{other}), for {lasts:?}")
        });
        self.queue.after(lasts, Event::Ends(number));
        let cut = match kind {
            Kind::OnePathCut => Some((Group::One(node), Group::One(other))),
            Kind::Mute => Some((Group::One(node), Group::All)),
            Kind::Deaf => Some((Group::All, Group::One(node))),
            Kind::Split => Some((Group::Half(0), Group::Half(1))),
            _ => None,
        };
        let location = match (cut, kind) {
            (Some((from, to)), _) => Some(Location::Path(from, to)),
            // These cost nobody a session.
            (_, Kind::HandedOver | Kind::NewKey | Kind::Outsiders | Kind::ForgedSyns) => None,
            // The sessions of its own clients find nothing left for them at this relay.
            (_, Kind::TakesAll | Kind::DeadNames) => {
                Some(Location::Path(Group::One(other), Group::One(node)))
            }
            // A hostile member may use up what a relay keeps ready for all.
            _ => Some(Location::Relay(node)),
        };
        if let Some(location) = location {
            self.faults[number].trouble = Some(self.oracle.troubles.len());
            self.oracle.troubles.push(Trouble {
                location,
                from: now,
                to: Time::MAX,
            });
        }
        if let Some((from, to)) = cut {
            let cut = Cut { from, to };
            self.network.cut(cut.clone());
            self.faults[number].cut = Some(cut);
        }
        match kind {
            Kind::Killed | Kind::OldList => self.stop(node, State::Killed),
            Kind::Vanished => self.stop(node, State::Vanished),
            Kind::Stopped => {
                let until = now + lasts;
                self.relay_mut(node).stopped_until = Some(until);
                self.queue.at(until, Event::Resumes(node));
            }
            Kind::HandedOver => self.hand_over(node),
            Kind::Removed => self.publish(node, Vec::new()),
            Kind::NewKey
            | Kind::Outsiders
            | Kind::HostileMember
            | Kind::ForgedSyns
            | Kind::TakesAll
            | Kind::DeadNames => {
                self.queue.after(Duration::ZERO, Event::Attacks(number));
            }
            Kind::OnePathCut | Kind::Mute | Kind::Deaf | Kind::Split => {}
        }
    }

    pub(crate) fn end_fault(&mut self, number: usize) {
        let Fault {
            kind,
            node,
            other,
            ref cut,
            ..
        } = self.faults[number];
        if let Some(cut) = cut {
            self.network.heal(cut);
        }
        let mut works_at = self.queue.now();
        match kind {
            Kind::Killed | Kind::Vanished => self.start(node, self.lists.len() - 1),
            Kind::OldList => {
                self.start(node, 0);
                let newest = self.lists.len() - 1;
                self.queue.after(ADOPTION, Event::Adopts(node, newest));
                works_at += ADOPTION;
            }
            Kind::Removed => {
                let keys = vec![self.relay(node).key];
                self.publish(node, keys);
                works_at += ADOPTION;
            }
            Kind::HostileMember | Kind::TakesAll | Kind::DeadNames => {
                let its = |c: &Connection| c.dialler == other && c.dial == DialEnd::Hostile;
                for key in self.connections_where(its) {
                    self.close(key, End::Dialler);
                }
            }
            _ => {}
        }
        if let Some(trouble) = self.faults[number].trouble {
            self.oracle.troubles[trouble].to = works_at;
        }
        let now = self.queue.now();
        self.trace
            .tell(now, || format!("{kind:?} of relay{node} is over"));
        let first = works_at + Duration::from_millis(10);
        self.queue.at(first, Event::Checks(number, works_at));
    }

    // === processes ===

    /// Ends the process of a relay, or its machine.
    fn stop(&mut self, node: Node, state: State) {
        let relay = self.relay_mut(node);
        // Another fault may have stopped it.
        if relay.state == State::Vanished {
            return;
        }
        relay.state = state;
        relay.stopped_until = None;
        relay.missed.clear();
        relay.early.clear();
        relay.limiter = Limiter::new(early::limits());
        relay.names = NameCache::default();
        let legs: Vec<Key> = {
            let all = self.legs.iter();
            all.filter(|(_, leg)| leg.relay == node)
                .map(|(key, _)| key)
                .collect()
        };
        for leg in legs {
            if let Some(leg) = self.legs.remove(leg)
                && leg.inbound.is_none()
            {
                self.check_failed(leg.session, Failure::Stopped);
                self.sessions[leg.session].phase = Phase::Over;
            }
        }
        for key in self.connections_where(|c| c.dialler == node) {
            self.stop_end(key, End::Dialler, state);
        }
        for key in self.connections_where(|c| c.acceptor == node) {
            self.stop_end(key, End::Acceptor, state);
        }
    }

    /// Closes one end of a connection with its process.
    fn stop_end(&mut self, key: Key, end: End, state: State) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let (is_open, other, has_session) = match end {
            End::Dialler => (
                !matches!(connection.dial, DialEnd::Closed | DialEnd::Hostile),
                End::Acceptor,
                matches!(connection.accept, AcceptEnd::Used(_)),
            ),
            End::Acceptor => (
                !matches!(connection.accept, AcceptEnd::Closed | AcceptEnd::Unseen),
                End::Dialler,
                matches!(connection.dial, DialEnd::Used(_)),
            ),
        };
        if !is_open {
            return;
        }
        if state == State::Killed {
            self.close(key, end);
            return;
        }
        self.close_silently(key, end);
        let wait = if has_session { KEEPALIVE } else { PROBED_AFTER };
        let event = Event::Arrives(key, other, Packet::Reset, 0);
        self.queue.after(wait, event);
    }

    /// Starts a relay, with this list of members.
    fn start(&mut self, node: Node, list: usize) {
        if self.relay(node).state == State::Running {
            return;
        }
        let members = self.lists[list].members.clone();
        let dials = Dials::new(self.random.bits());
        let relay = self.relay_mut(node);
        (relay.dials, relay.polled_at) = (dials, None);
        relay.arrivals = Arrivals::default();
        for known in &mut relay.peers {
            (known.noticed, known.proven) = (None, None);
            known.unanswered = Unanswered::default();
        }
        for peer in self.relays.iter_mut().flat_map(|relay| &mut relay.peers) {
            if peer.node == node {
                peer.unanswered = Unanswered::default();
            }
        }
        let relay = self.relay_mut(node);
        relay.state = State::Running;
        relay.process += 1;
        relay.list = list;
        relay.local.members = members;
        self.adopt_peers(node);
    }

    /// Replaces the process of a relay. The former one serves its sessions to their ends, and takes no new ones.
    fn hand_over(&mut self, node: Node) {
        if self.relay(node).state != State::Running {
            return;
        }
        self.withdraw(node);
        // The new process begins with empty pools.
        let now = self.local_now(node);
        for peer in 0..self.relay(node).peers.len() {
            while let Some(ready) = self.relay_mut(node).dials.take_where(peer, |_| true, now) {
                self.close(ready, End::Dialler);
            }
        }
        self.act(node);
    }

    /// Returns a forward whose legs begin at SYNs, of this relay if it has one.
    fn early_forward(&self, node: Node) -> Option<usize> {
        let all = || 0..self.forwards.len();
        let is_early = |forward: &usize| self.forwards[*forward].early_syn;
        let its = |forward: &usize| self.forwards[*forward].relay == node;
        let own = all().find(|forward| is_early(forward) && its(forward));
        own.or_else(|| all().find(is_early))
    }

    /// The next step of a fault.
    pub(crate) fn attacks(&mut self, number: usize) {
        let Fault {
            kind,
            node,
            other,
            acts,
            begins,
            lasts,
            ..
        } = self.faults[number];
        self.faults[number].acts += 1;
        if self.queue.now() >= begins + lasts {
            return;
        }
        let next = match kind {
            Kind::NewKey => self.change_key(node, acts),
            Kind::Outsiders => {
                for number in 0..OUTSIDERS_AT_ONCE {
                    let from = (self.size.relays + self.random.below(OUTSIDERS)) as Node;
                    // Half of them are silent.
                    let length = (number % 2) * self.random.below(40);
                    let noise = (0..length).map(|_| self.random.bits() as u8).collect();
                    self.dial_hostile(from, node, key(0, 0), noise);
                }
                Some(Duration::from_millis(200))
            }
            Kind::HostileMember => {
                if self.relay(other).state != State::Running {
                    return;
                }
                let to = match acts % 2 {
                    0 => node,
                    _ => self.random.below(self.size.relays) as Node,
                };
                if to != other {
                    self.attack(other, to, acts);
                }
                Some(Duration::from_millis(60))
            }
            Kind::TakesAll | Kind::DeadNames => {
                if self.relay(other).state != State::Running {
                    return;
                }
                for _ in 0..ASKED_AT_ONCE {
                    self.asks_for_all(other, node, kind == Kind::DeadNames);
                }
                Some(Duration::from_millis(30))
            }
            Kind::ForgedSyns => {
                if let Some(forward) = self.early_forward(node)
                    && self.is_up(self.forwards[forward].relay)
                {
                    for _ in 0..SYNS_AT_ONCE {
                        self.forges_syn(forward);
                    }
                }
                Some(Duration::from_millis(20))
            }
            _ => None,
        };
        if let Some(wait) = next {
            self.queue.after(wait, Event::Attacks(number));
        }
    }
}
