//! The routes of many pairs, kept up to date.

use super::bounds::Bounds;
use super::network::{Network, RelayId};
use super::path::Path;
use super::ranking::TIE;
use super::search::{Pair, Relays};
use super::terms::{FirstTerms, LastTerms, MeshTerms};
use super::{MAX_RELAYS, Options};

/// The number of destinations whose bounds are computed together: with 1,000 relays, 2 MiB.
const TOGETHER: usize = 64;

/// The routes of every pair of an ingress relay, at which sessions come in, and a destination. 10
/// bytes a pair.
///
/// A route changes only if another beats it by [`Options::hysteresis`], or if it cannot be used any
/// more.
#[derive(Debug)]
pub struct Choices {
    ingress: Vec<RelayId>,
    options: Options,
    /// One row for each destination.
    routes: Vec<Relays>,
    incomplete: usize,
}

// === impl Choices ===

impl Choices {
    /// Creates the table for these ingress relays, without a destination.
    pub fn new(ingress: Vec<RelayId>, options: Options) -> Self {
        Self {
            ingress,
            options,
            routes: Vec::new(),
            incomplete: 0,
        }
    }

    /// Computes every route again, after the network or the paths to the destinations have changed,
    /// and returns the number of routes that are others now. Each destination has its place in
    /// `destinations`, and a path from every relay; new ones come after those of the last call.
    ///
    /// # Panics
    /// If a destination does not have a path from each relay.
    pub fn update(&mut self, network: &Network, destinations: &[Vec<Path>]) -> usize {
        let mesh = MeshTerms::new(network, &self.options);
        let prices = network.ids().map(|id| network.relay(id).price);
        let prices: Vec<f64> = prices.map(Option::unwrap_or_default).collect();
        let relays = self.options.max_relays.clamp(1, MAX_RELAYS);
        let first = FirstTerms::at_every_relay(network, &self.options);
        let pairs = destinations.len() * self.ingress.len();
        self.routes.resize(pairs, Relays::NONE);
        self.incomplete = 0;
        let mut changed = 0;
        let rows = self.routes.chunks_mut(self.ingress.len().max(1) * TOGETHER);
        for (destinations, routes) in destinations.chunks(TOGETHER).zip(rows) {
            let terms = |to: &Vec<Path>| {
                assert_eq!(to.len(), network.len(), "a path from each relay");
                LastTerms::new(network, to, &self.options)
            };
            let last: Vec<LastTerms> = destinations.iter().map(terms).collect();
            let bounds = Bounds::of(&mesh, &last, relays);
            for (at, routes) in routes.chunks_mut(self.ingress.len()).enumerate() {
                let pair = Pair {
                    mesh: &mesh,
                    first: &first,
                    last: &last[at],
                    bounds: &bounds[at],
                    prices: &prices,
                    options: &self.options,
                };
                for (&ingress, current) in self.ingress.iter().zip(routes) {
                    let now = pair.score(current);
                    // A route that does not beat the one in use clearly is of no interest.
                    let limit = match now.is_finite() {
                        true => now * (1.0 - self.options.hysteresis as f32),
                        false => f32::INFINITY,
                    };
                    let (best, is_complete) = best(&pair, ingress, relays, limit);
                    self.incomplete += usize::from(!is_complete);
                    let new = match best {
                        Some(new) => new,
                        None if now.is_finite() => *current,
                        None => Relays::NONE,
                    };
                    changed += usize::from(new != *current);
                    *current = new;
                }
            }
        }
        changed
    }

    /// Returns the route of a pair, by the places of its relay and its destination. It begins with
    /// the ingress relay. `None` if no route is known.
    pub fn route(&self, ingress: usize, destination: usize) -> Option<&[RelayId]> {
        let at = destination
            .checked_mul(self.ingress.len())?
            .checked_add(ingress)?;
        let route = self
            .routes
            .get(at)
            .filter(|_| ingress < self.ingress.len())?;
        Some(route.ids()).filter(|ids| !ids.is_empty())
    }

    /// Returns the number of pairs whose search stopped early at the last update, so that there may
    /// be a better route.
    pub fn incomplete(&self) -> usize {
        self.incomplete
    }
}

/// Returns the route to choose from a relay, if its score is below `limit`, and whether every route
/// was considered.
fn best(pair: &Pair<'_>, ingress: RelayId, relays: usize, limit: f32) -> (Option<Relays>, bool) {
    let mut found: Vec<(f32, Relays)> = Vec::with_capacity(MAX_RELAYS);
    let mut least = limit;
    let mut is_complete = true;
    // The most promising number of relays first: its best route leaves out most others.
    let mut numbers: Vec<usize> = (1..=relays).collect();
    numbers.sort_by(|&a, &b| pair.bound(ingress, a).total_cmp(&pair.bound(ingress, b)));
    for number in numbers {
        let search = pair.search_from(ingress, number, (least * (1.0 + TIE as f32)).min(limit));
        is_complete &= !search.is_exhausted();
        if let Some(&(score, route)) = search.best.first() {
            least = least.min(score);
            found.push((score, route));
        }
    }
    let good = found
        .into_iter()
        .filter(|&(score, _)| score <= least * (1.0 + TIE as f32));
    let choice = good.min_by(|(_, a), (_, b)| {
        let price = pair.price(a.ids()).total_cmp(&pair.price(b.ids()));
        price.then(a.ids().len().cmp(&b.ids().len()))
    });
    (choice.map(|(_, route)| route), is_complete)
}
