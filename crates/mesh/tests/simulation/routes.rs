//! Automatic routes in virtual time: some relays of [`RowWorld`] choose routes by the rows that they hold, with the
//! real planner, while relays are killed and paths are cut.
//!
//! What is true in the world, which no relay knows, says whether a route is good.

use std::time::Duration;

use taut_mesh::auto::{Predicted, Replan, RouteQuery, choose, planned};
use taut_mesh::hello::Target;
use taut_mesh::plan::{Ends, MAX_RELAYS, Network, Options, Path, Planner, Relay, RelayId};
use taut_mesh::rows::Key;

use crate::destination::target;
use crate::engine::{Random, Time};
use crate::network::Node;
use crate::rows::{Event, Fault, RELAYS, RowRule, RowWorld};
use crate::world::{name, node_of};

/// The number of destinations.
pub(crate) const DESTINATIONS: usize = 2;

/// The number of relays that choose routes: the first ones.
const CHOOSERS: usize = 4;

/// The time from a relay's death until no automatic route passes it, if nothing else is wrong: that in which its
/// neighbours notice, which the simulation does once a second, and in which the rows of all say so.
pub(crate) const AVOIDANCE: Duration = Duration::from_secs(3);

/// The time after the last fault until all routes are good: that of the rows ([`crate::rows::AGREEMENT`]) and a
/// choice.
pub(crate) const SETTLED: Duration = Duration::from_secs(31);

/// How much longer than the best route a good one may take: a relay keeps a route until another is better by the
/// hysteresis of 0.12, 1.14 times, and rows tell changes of a twentieth.
const GOOD: f64 = 1.2;

/// The routes of a relay.
#[derive(Default)]
pub(crate) struct Routing {
    pub(crate) replan: Replan,
    /// For each destination, the routes in the order in which sessions try them.
    chosen: [Vec<Predicted>; DESTINATIONS],
}

/// Draws which relays reach each destination, at least the last two.
pub(crate) fn reach(random: &mut Random) -> Vec<Vec<bool>> {
    let mut relay = |node: usize| node + 2 >= RELAYS || random.happens(0.4);
    let mut destination = |_| (0..RELAYS).map(&mut relay).collect();
    (0..DESTINATIONS).map(&mut destination).collect()
}

impl RowWorld {
    /// Measures the destinations that a relay reaches.
    pub(crate) fn sample_destinations(&mut self, node: usize) {
        let now = self.now();
        for number in 0..DESTINATIONS {
            let key = Key::destination(&to(number), None);
            let rtt = self.rtt_to(node, number);
            let own = &mut self.relays[node].own;
            match rtt {
                Some(rtt) => own.sample_outside(key, rtt, rtt, (10, 0), now),
                None => own.forget(key),
            }
        }
    }

    /// Chooses the routes of a relay again if its rows have changed.
    pub(crate) fn choose_routes(&mut self, node: usize) {
        let now = self.now();
        if node >= CHOOSERS {
            return;
        }
        let routing = &self.relays[node].routing;
        let is_due = routing.replan.next(now).is_some_and(|at| at <= now);
        let is_known = routing.chosen.iter().all(|routes| !routes.is_empty());
        if !is_due || (self.broken == Some(RowRule::Routes) && is_known) {
            return;
        }
        let own = name(node);
        let planned = planned(&own, &self.members, &self.relays[node].table);
        let planner = Planner::new(&planned.network, Options::default());
        for number in 0..DESTINATIONS {
            let relay = &self.relays[node];
            let query = RouteQuery {
                own: &own,
                destination: &to(number),
                direct: false,
                before: &relay.routing.chosen[number],
            };
            let routes = choose(query, &planner, &relay.table, |_| true);
            self.outcome.choices += 1;
            for route in &routes {
                self.check_route(node, number, route);
            }
            self.relays[node].routing.chosen[number] = routes;
        }
        let took = Duration::from_millis(1);
        self.relays[node].routing.replan.on_choice(now, took);
    }

    /// Returns a relay that a chosen route passes.
    pub(crate) fn relay_on_a_route(&self) -> Option<usize> {
        let all = (0..CHOOSERS).flat_map(|node| &self.relays[node].routing.chosen);
        let mut first = all.filter_map(|routes| routes.first()?.relays.last());
        first.next().map(|name| usize::from(node_of(name)))
    }

    // === the rules ===

    /// Checks what must hold for a route when it is chosen, whatever is wrong.
    fn check_route(&mut self, node: usize, number: usize, route: &Predicted) {
        let mut relays = self.relays_of(node, route);
        let is_short = relays.len() <= MAX_RELAYS;
        let reaches = relays.last().is_some_and(|last| self.reach[number][*last]);
        relays.sort_unstable();
        let is_loop = relays.windows(2).any(|pair| pair[0] == pair[1]);
        if !is_short || !reaches || is_loop {
            let what = format!("relay{node} chooses {:?} to {number}", route.relays);
            self.outcome.broken = Some((RowRule::Routes, what));
        }
    }

    /// Checks that routes avoid the relay that a fault has killed, and looks again until they do.
    pub(crate) fn check_avoidance(&mut self, fault: usize, since: Time) {
        let (Fault::Killed(dead), now) = (&self.faults[fault].0, self.queue.now()) else {
            return;
        };
        let (dead, waited) = (*dead, now - since);
        // Of several faults, one may keep the news of another from a relay.
        if self.relays[dead].runs || self.faults.len() > 1 {
            return;
        }
        let passes = |node: &usize| {
            let mut routes = self.relays[*node].routing.chosen.iter();
            routes.any(|routes| {
                let first = routes.first().map(|first| self.relays_of(*node, first));
                first.is_some_and(|relays| relays.contains(&dead))
            })
        };
        let Some(node) = (0..CHOOSERS).filter(|node| *node != dead).find(passes) else {
            self.outcome.deaths += u64::from(!waited.is_zero());
            self.outcome.avoided = self.outcome.avoided.max(waited);
            return;
        };
        if waited > AVOIDANCE {
            let what = format!("a route of relay{node} passes relay{dead}, dead for {waited:?}");
            self.outcome.broken = Some((RowRule::Routes, what));
            return;
        }
        let next = Event::Avoids(fault, since);
        self.queue.after(Duration::from_millis(50), next);
    }

    /// Checks whether all routes are good, and looks again later if they are not.
    pub(crate) fn check_routes(&mut self) {
        let waited = self.queue.now() - self.last_end;
        let bad = self.bad_route();
        match bad {
            None => self.outcome.settled = waited,
            Some(what) if waited > SETTLED => {
                self.outcome.broken = Some((RowRule::Routes, what));
            }
            Some(_) => self.queue.after(Duration::from_millis(250), Event::Settles),
        }
    }

    /// Returns a route that does not work, or takes too long.
    fn bad_route(&self) -> Option<String> {
        let relay = |node| {
            let member = self.members.by_name(name(node).as_str());
            Relay::from_member(member.expect("a member"))
        };
        let mut network = Network::new((0..RELAYS).map(relay).collect());
        for from in 0..RELAYS {
            for to in 0..RELAYS {
                if from != to && self.works(from, to) {
                    let rtt = 2 * self.network.delay(from as Node, to as Node);
                    network.set(id(from), id(to), Path::new(rtt, 0.0, None));
                }
            }
        }
        let planner = Planner::new(&network, Options::default());
        for node in 0..CHOOSERS {
            for number in 0..DESTINATIONS {
                let others = (0..RELAYS).map(|relay| match relay == node {
                    true => Path::UNKNOWN,
                    false => self
                        .rtt_to(relay, number)
                        .map_or(Path::UNKNOWN, |rtt| Path::new(rtt, 0.0, None)),
                });
                let ends = Ends::at_relay(&network, id(node), others.collect());
                let Some(best) = planner.choose(&ends, None).routes.first().cloned() else {
                    continue;
                };
                let chosen = self.relays[node].routing.chosen[number].first();
                let relays = chosen.map_or(Vec::new(), |chosen| self.relays_of(node, chosen));
                let relays: Vec<_> = relays.into_iter().map(id).collect();
                let takes = planner.predict(&ends, &relays);
                let limit = best.score().mul_f64(GOOD);
                if takes.as_ref().is_none_or(|route| route.score() > limit) {
                    return Some(format!(
                        "relay{node} sends sessions to {number} by {relays:?} and not by {:?}",
                        best.relays
                    ));
                }
            }
        }
        None
    }

    /// Returns the relays of a route of `node`, itself first.
    fn relays_of(&self, node: usize, route: &Predicted) -> Vec<usize> {
        let after = route.relays.iter().map(|name| usize::from(node_of(name)));
        std::iter::once(node).chain(after).collect()
    }

    fn works(&self, from: usize, to: usize) -> bool {
        let (a, b) = (from as Node, to as Node);
        let both_run = self.relays[from].runs && self.relays[to].runs;
        both_run && !self.network.is_cut(a, b) && !self.network.is_cut(b, a)
    }

    /// Returns the round-trip time from a relay to a destination that it reaches.
    fn rtt_to(&self, node: usize, number: usize) -> Option<Duration> {
        let (a, b) = (node as Node, (RELAYS + number) as Node);
        let is_cut = self.network.is_cut(a, b) || self.network.is_cut(b, a);
        let reaches = self.reach[number][node] && self.relays[node].runs && !is_cut;
        reaches.then(|| 2 * self.network.delay(a, b))
    }
}

fn to(number: usize) -> Target {
    target(number, false)
}

fn id(node: usize) -> RelayId {
    node as RelayId
}
