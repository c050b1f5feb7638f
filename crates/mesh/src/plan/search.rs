//! The search for the best routes of a given number of relays.
//!
//! Branch and bound: a route is extended relay by relay, and left out as soon as the best that can
//! become of it ([`Bounds`]) does not beat what is kept. Nothing is lost by that. A search that has
//! read [`MAX_ROWS`] rows of the mesh stops with what it has, and says so.

use super::bounds::{Bounds, larger};
use super::network::RelayId;
use super::terms::{FirstTerms, LastTerms, MeshTerms};
use super::{MAX_RELAYS, Options};

/// The largest number of rows of the mesh that one search reads. In the meshes of the tests no
/// search needs a tenth of it.
pub(super) const MAX_ROWS: usize = 10_000;

/// A route's relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relays {
    ids: [RelayId; MAX_RELAYS],
    len: u8,
}

/// The terms of one pair of ends.
pub(super) struct Pair<'a> {
    pub(super) mesh: &'a MeshTerms,
    pub(super) first: &'a FirstTerms,
    pub(super) last: &'a LastTerms,
    pub(super) bounds: &'a Bounds,
    /// The price per GB of each relay.
    pub(super) prices: &'a [f64],
    pub(super) options: &'a Options,
}

/// The best routes of one search, and what it took.
#[derive(Debug)]
pub(super) struct Found {
    /// Score and relays, best first.
    pub(super) best: Vec<(f32, Relays)>,
    keep: usize,
    limit: f32,
    rows: usize,
}

// === impl Relays ===

impl Relays {
    pub(super) const NONE: Self = Self {
        ids: [0; MAX_RELAYS],
        len: 0,
    };

    pub(super) fn ids(&self) -> &[RelayId] {
        &self.ids[..usize::from(self.len)]
    }

    fn with(mut self, id: usize) -> Self {
        self.ids[usize::from(self.len)] = id as RelayId;
        self.len += 1;
        self
    }
}

// === impl Pair ===

impl Pair<'_> {
    /// Returns the `keep` best routes of exactly `relays` relays whose score is below `limit`.
    pub(super) fn search(&self, relays: usize, keep: usize, limit: f32) -> Found {
        let mut found = Found::new(keep, limit);
        let mut starts: Vec<(f32, usize)> = (0..self.mesh.len())
            .map(|id| (self.bound(id as RelayId, relays), id))
            .filter(|&(bound, _)| bound < limit)
            .collect();
        starts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for (bound, id) in starts {
            if bound >= found.worst() {
                break;
            }
            let (weight, time) = (self.first.weights[id], self.first.times[id]);
            self.extend(&mut found, Relays::NONE.with(id), weight, time, relays - 1);
        }
        found
    }

    /// Returns the best route of exactly `relays` relays that begins with `first` and whose score
    /// is below `limit`.
    pub(super) fn search_from(&self, first: RelayId, relays: usize, limit: f32) -> Found {
        let mut found = Found::new(1, limit);
        let id = usize::from(first);
        if self.bound(first, relays) < limit {
            let (weight, time) = (self.first.weights[id], self.first.times[id]);
            self.extend(&mut found, Relays::NONE.with(id), weight, time, relays - 1);
        }
        found
    }

    /// Returns a score that no route of exactly `relays` relays from `first` is below.
    pub(super) fn bound(&self, first: RelayId, relays: usize) -> f32 {
        let id = usize::from(first);
        let time = larger(self.first.times[id], self.bounds.times(relays)[id]);
        self.first.weights[id] + self.bounds.weights(relays)[id] + time
    }

    /// Returns the score of a route; infinite if it may not be used, or if it is none.
    pub(super) fn score(&self, route: &Relays) -> f32 {
        let ids = route.ids();
        let known = ids.iter().all(|&id| usize::from(id) < self.mesh.len());
        let allowed =
            known && ids.len() <= self.options.max_relays.max(1) && self.is_affordable(ids);
        let (Some(&first), Some(&last), true) = (ids.first(), ids.last(), allowed) else {
            return f32::INFINITY;
        };
        let (first, last) = (usize::from(first), usize::from(last));
        let together =
            FirstTerms::together(self.first.rtts[first], self.last.rtts[last], self.options);
        let mut weight = self.first.weights[first] + self.last.weights[last] + together;
        let mut slowest = larger(self.first.times[first], self.last.times[last]);
        for leg in ids.windows(2) {
            let (from, to) = (usize::from(leg[0]), usize::from(leg[1]));
            weight += self.mesh.weights(from)[to];
            slowest = larger(slowest, self.mesh.times(from)[to]);
        }
        weight + slowest
    }

    /// Extends a route whose legs so far have this weight and largest transfer time by `left`
    /// relays.
    fn extend(&self, found: &mut Found, route: Relays, weight: f32, time: f32, left: usize) {
        let Some(&here) = route.ids().last() else {
            return;
        };
        if left == 0 {
            let end = usize::from(here);
            let first_rtt = self.first.rtts[usize::from(route.ids()[0])];
            let together = FirstTerms::together(first_rtt, self.last.rtts[end], self.options);
            let score =
                weight + self.last.weights[end] + together + larger(time, self.last.times[end]);
            if self.is_affordable(route.ids()) {
                found.add(score, route);
            }
            return;
        }
        found.rows += 1;
        if found.is_exhausted() {
            return;
        }
        let from = usize::from(here);
        let (weights, times) = (self.mesh.weights(from), self.mesh.times(from));
        let (rest_weights, rest_times) = (self.bounds.weights(left), self.bounds.times(left));
        let worst = found.worst();
        let bound = |to: usize| {
            let slowest = larger(larger(time, times[to]), rest_times[to]);
            weight + weights[to] + rest_weights[to] + slowest
        };
        let mut next: Vec<(f32, usize)> = (0..weights.len())
            .map(|to| (bound(to), to))
            .filter(|&(bound, _)| bound < worst)
            .collect();
        // The most promising first: a good route found early leaves out most others.
        next.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for (bound, to) in next {
            if bound >= found.worst() {
                break;
            }
            if !route.ids().contains(&(to as RelayId)) {
                let slowest = larger(time, times[to]);
                self.extend(
                    found,
                    route.with(to),
                    weight + weights[to],
                    slowest,
                    left - 1,
                );
            }
        }
    }

    /// Returns whether the sum of the relays' prices is allowed.
    pub(super) fn is_affordable(&self, relays: &[RelayId]) -> bool {
        let price = self.price(relays);
        self.options.max_price.is_none_or(|most| price <= most)
    }

    /// Returns the sum of the relays' prices.
    pub(super) fn price(&self, relays: &[RelayId]) -> f64 {
        // A sum of no prices would be -0.
        let prices = relays.iter().map(|&id| self.prices[usize::from(id)]);
        prices.fold(0.0, |sum, price| sum + price)
    }
}

// === impl Found ===

impl Found {
    fn new(keep: usize, limit: f32) -> Self {
        Self {
            best: Vec::new(),
            keep,
            limit,
            rows: 0,
        }
    }

    /// Returns the score that a route must be below to be kept.
    fn worst(&self) -> f32 {
        match self.best.get(self.keep - 1) {
            Some(&(score, _)) => score.min(self.limit),
            None => self.limit,
        }
    }

    fn add(&mut self, score: f32, route: Relays) {
        if score < self.worst() {
            let at = self.best.partition_point(|&(s, _)| s <= score);
            self.best.insert(at, (score, route));
            self.best.truncate(self.keep);
        }
    }

    /// Returns whether the search stopped before it had seen everything.
    pub(super) fn is_exhausted(&self) -> bool {
        self.rows > MAX_ROWS
    }
}
