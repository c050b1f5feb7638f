//! The choice for one pair of ends.

use std::time::Duration;

use super::bounds::Bounds;
use super::candidate::{self, Candidate, Leg};
use super::network::{Ends, Network, RelayId};
use super::search::Pair;
use super::terms::{FirstTerms, LastTerms, MeshTerms};
use super::{MAX_RELAYS, Options};

/// Routes whose scores differ by no more than this share are equally good: the price decides, then
/// the number of relays.
pub(super) const TIE: f64 = 0.01;

/// The number of routes that are kept of each number of relays, from one to four. A session needs
/// others to fall back on, which differ in their next relay; a third and a fourth relay are for
/// comparison.
const KEEP: [usize; MAX_RELAYS] = [4, 4, 2, 1];

/// How exactly the round trips of a [`Change`] are computed.
const PRECISION: Duration = Duration::from_micros(100);

/// Chooses routes through one network.
#[derive(Debug)]
pub struct Planner<'a> {
    network: &'a Network,
    options: Options,
    mesh: MeshTerms,
    prices: Vec<f64>,
}

/// The routes for one pair of ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The routes, the choice first, then by their scores. Empty if no route is known.
    pub routes: Vec<Candidate>,
    /// Whether every route was considered. A search that takes too long stops early; then there may
    /// be a better one.
    pub is_complete: bool,
}

/// A change of the network after which the choice would be another.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The round trip of a leg of the choice rises above this.
    Rises {
        /// The leg's place in the choice.
        leg: usize,
        /// The round trip.
        rtt: Duration,
        /// The place in the ranking of the route that is better then.
        then: usize,
    },
    /// The round trip of a leg of the runner-up, which the choice does not use, falls below this.
    Falls {
        /// The leg's place in the runner-up.
        leg: usize,
        /// The round trip.
        rtt: Duration,
    },
    /// A relay of the choice is lost.
    Lost {
        /// The relay.
        relay: RelayId,
        /// The choice without it, if a route is left.
        then: Option<Box<Candidate>>,
    },
}

// === impl Planner ===

impl<'a> Planner<'a> {
    /// Creates a planner for this network. Takes n² steps for n relays, and 8 n² bytes.
    pub fn new(network: &'a Network, options: Options) -> Self {
        let prices = network.ids().map(|id| network.relay(id).price);
        Self {
            mesh: MeshTerms::new(network, &options),
            prices: prices.map(Option::unwrap_or_default).collect(),
            network,
            options,
        }
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the network.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// Ranks the routes for these ends. The route that is in use, `current`, stays the choice
    /// unless another beats it by [`Options::hysteresis`] or one of its legs is gone.
    ///
    /// # Panics
    /// If the ends do not have a path for each relay.
    pub fn choose(&self, ends: &Ends, current: Option<&[RelayId]>) -> Ranking {
        let n = self.network.len();
        assert!(
            ends.from.len() == n && ends.to.len() == n,
            "a path for each relay"
        );
        let (routes, is_complete) = self.candidates(ends);
        let mut routes: Vec<Candidate> = routes
            .iter()
            .filter_map(|relays| self.predict(ends, relays))
            .collect();
        routes.sort_by_key(Candidate::score);
        let chosen = preferred(&routes);
        if let Some(chosen) = chosen {
            routes[..=chosen].rotate_right(1);
        }
        if let Some(current) = current.and_then(|relays| self.usable(ends, relays)) {
            self.keep(current, &mut routes);
        }
        Ranking {
            routes,
            is_complete,
        }
    }

    /// Predicts the route through these relays. `None` if a leg of it is unknown.
    pub fn predict(&self, ends: &Ends, relays: &[RelayId]) -> Option<Candidate> {
        Candidate::predict(self.network, ends, &self.options, relays)
    }

    /// Returns what would make another route the choice, at most one change for each leg of the
    /// choice and of its runner-up, and one for each relay of the choice. A round trip that would
    /// have to be more than ten times as long is left out.
    pub fn changes(&self, ends: &Ends, ranking: &Ranking) -> Vec<Change> {
        let Some(choice) = ranking.routes.first() else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        for (leg, of) in choice.legs.iter().enumerate() {
            let rtt = of.path.rtt().unwrap_or_default();
            // Another route that uses the same leg suffers as well.
            let best_other = |rtt| {
                let others = (1..ranking.routes.len()).map(|at| {
                    let score = self.score_with(ends, &ranking.routes[at], of, rtt);
                    (score, at)
                });
                others.min()
            };
            let stays = |rtt| {
                let other = best_other(rtt);
                other.is_none_or(|(other, _)| self.score_with(ends, choice, of, rtt) <= other)
            };
            if let Some(rtt) = crossing(rtt, rtt * 10, stays)
                && let Some((_, then)) = best_other(rtt + PRECISION)
            {
                changes.push(Change::Rises { leg, rtt, then });
            }
        }
        let uses = |leg: &Leg| choice.legs.iter().any(|other| is_same(leg, other));
        if let Some(runner_up) = ranking.routes.get(1) {
            let score = choice.score();
            for (leg, of) in runner_up.legs.iter().enumerate() {
                let wins = |rtt| self.score_with(ends, runner_up, of, rtt) < score;
                let rtt = of.path.rtt().unwrap_or_default();
                if !uses(of)
                    && let Some(rtt) = crossing(Duration::ZERO, rtt, wins)
                {
                    changes.push(Change::Falls { leg, rtt });
                }
            }
        }
        for &relay in &choice.relays {
            let mut network = self.network.clone();
            network.set_usable(relay, false);
            let without = Planner::new(&network, self.options.clone());
            let then = without.choose(ends, None).routes.into_iter().next();
            let then = then.map(Box::new);
            changes.push(Change::Lost { relay, then });
        }
        changes
    }

    /// Returns the score of a route if `leg` had another round trip.
    fn score_with(&self, ends: &Ends, route: &Candidate, leg: &Leg, rtt: Duration) -> Duration {
        match route.legs.iter().position(|other| is_same(leg, other)) {
            Some(at) => route
                .with_rtt(self.network, ends, &self.options, at, rtt)
                .score(),
            None => route.score(),
        }
    }

    /// Returns the relays of every route that is worth a prediction, and whether the search was
    /// complete.
    fn candidates(&self, ends: &Ends) -> (Vec<Vec<RelayId>>, bool) {
        let mut routes = vec![Vec::new()];
        let mut is_complete = true;
        let most = self.options.max_relays.min(MAX_RELAYS);
        let last = [LastTerms::new(self.network, &ends.to, &self.options)];
        let bounds = Bounds::of(&self.mesh, &last, most.max(1));
        let pair = Pair {
            mesh: &self.mesh,
            first: &FirstTerms::new(self.network, ends, &self.options),
            last: &last[0],
            bounds: &bounds[0],
            prices: &self.prices,
            options: &self.options,
        };
        for (relays, keep) in (1..=most).zip(KEEP) {
            let found = pair.search(relays, keep, f32::INFINITY);
            is_complete &= !found.is_exhausted();
            routes.extend(found.best.iter().map(|(_, relays)| relays.ids().to_vec()));
        }
        let baseline = candidate::baseline(self.network, ends, &self.options);
        let may_be = |relays: &Vec<RelayId>| {
            relays.len() <= most && pair.is_affordable(relays) && !routes.contains(relays)
        };
        if let Some(baseline) = baseline.filter(may_be) {
            routes.push(baseline);
        }
        (routes, is_complete)
    }

    /// Predicts the route in use, if it may still be used.
    fn usable(&self, ends: &Ends, relays: &[RelayId]) -> Option<Candidate> {
        let n = self.network.len();
        let allowed = |&id: &RelayId| {
            usize::from(id) < n && super::terms::is_allowed(self.network, &self.options, id)
        };
        let allowed = relays.iter().all(allowed) && relays.len() <= self.options.max_relays;
        allowed.then(|| self.predict(ends, relays)).flatten()
    }

    /// Puts the route in use first unless the best one beats it clearly.
    fn keep(&self, current: Candidate, routes: &mut Vec<Candidate>) {
        let score = |route: &Candidate| route.score().as_secs_f64();
        let beaten = routes
            .first()
            .is_some_and(|best| is_clearly_less(score(best), score(&current), &self.options));
        if !beaten {
            routes.retain(|route| route.relays != current.relays);
            routes.insert(0, current);
        }
    }
}

/// Returns whether a score replaces that of the route in use.
fn is_clearly_less(new: f64, current: f64, options: &Options) -> bool {
    new < current * (1.0 - options.hysteresis)
}

/// Returns the place of the route to choose, of routes sorted by their scores: the cheapest of
/// those that are about as good as the best, and of these the one with the fewest relays.
fn preferred(routes: &[Candidate]) -> Option<usize> {
    let best = routes.first()?.score().as_secs_f64();
    let good = |route: &Candidate| route.score().as_secs_f64() <= best * (1.0 + TIE);
    (0..routes.len())
        .take_while(|&at| good(&routes[at]))
        .min_by(|&a, &b| {
            let (a, b) = (&routes[a], &routes[b]);
            let price = a.price.total_cmp(&b.price);
            price.then(a.relays.len().cmp(&b.relays.len()))
        })
}

/// Returns whether two legs lead from and to the same.
fn is_same(a: &Leg, b: &Leg) -> bool {
    (a.from, a.to) == (b.from, b.to)
}

/// Returns the largest value up to `high` for which `holds`, to a tenth of a millisecond. `None` if
/// it holds everywhere, or not even at `low`.
fn crossing(
    mut low: Duration,
    mut high: Duration,
    holds: impl Fn(Duration) -> bool,
) -> Option<Duration> {
    if !holds(low) || holds(high) {
        return None;
    }
    while high - low > PRECISION {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}
