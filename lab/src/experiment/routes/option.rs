//! The routes that are measured for a pair.

use super::sites::{self, Pair, Site, Stop};

/// What relays do between each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// Turbo start, as `taut relay` has by default, and as the planner assumes.
    Turbo,
    /// Slow start and Cubic, as in the paper's figure 12.
    Cubic,
}

/// A route: its relays, from the client to the server. Empty: end to end.
pub(super) type Route = Vec<Site>;

// === impl Mode ===

impl Mode {
    /// Returns the size of the downloaded file in bytes: what the planner predicts, and about the 3.9 MB of
    /// the paper.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Turbo => 1_000_000,
            Self::Cubic => 4_000_000,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Turbo => "turbo",
            Self::Cubic => "cubic",
        }
    }
}

/// Returns the relays nearest to the two ends of a pair (pied-piper 2.1).
pub(super) fn baseline(pair: Pair) -> Route {
    match pair.is_local() {
        true => vec![pair.client],
        false => vec![pair.client, pair.server],
    }
}

/// Returns the routes with a third relay between those of the baseline.
pub(super) fn thirds(pair: Pair, sites: usize) -> impl Iterator<Item = Route> {
    let between = (0..sites).filter(move |&m| m != pair.client && m != pair.server);
    between
        .filter(move |_| !pair.is_local())
        .map(move |m| vec![pair.client, m, pair.server])
}

/// Returns every route of figure 10 for a pair.
pub(super) fn all(pair: Pair, sites: usize) -> Vec<Route> {
    let mut routes = vec![Vec::new()];
    routes.extend((0..sites).map(|relay| vec![relay]));
    if !pair.is_local() {
        routes.push(baseline(pair));
    }
    routes.extend(thirds(pair, sites));
    routes
}

/// Returns the links of a route. The ends of each are sorted, so that a link is the same in both
/// directions.
pub(super) fn links(route: &[Site]) -> Vec<[Stop; 2]> {
    let relays = route.iter().map(|&site| Stop::Relay(site));
    let stops: Vec<_> = std::iter::once(Stop::Client)
        .chain(relays)
        .chain([Stop::Server])
        .collect();
    let ends = stops.windows(2);
    ends.map(|ends| [ends[0].min(ends[1]), ends[0].max(ends[1])])
        .collect()
}

/// Returns the route's name in the figures.
pub(super) fn label(route: &[Site]) -> String {
    match route {
        [] => "e2e".to_owned(),
        relays => {
            let names: Vec<_> = relays.iter().map(|&site| sites::name(site)).collect();
            names.join(" > ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sites::PAIRS;
    use super::*;

    #[test]
    fn a_pair_has_one_two_and_three_relays_beside_the_direct_path() {
        let count = |routes: &[Route], len| routes.iter().filter(|r| r.len() == len).count();
        let far = all(PAIRS[0], 7);
        assert_eq!([0, 1, 2, 3].map(|len| count(&far, len)), [1, 7, 1, 5]);
        let local = all(PAIRS[2], 7);
        assert_eq!([0, 1, 2, 3].map(|len| count(&local, len)), [1, 7, 0, 0]);
        assert_eq!(label(&far[8]), "london > sydney");
    }

    #[test]
    fn a_link_is_the_same_whichever_way_a_route_takes_it() {
        let (there, back) = (links(&[1, 4]), links(&[4, 1]));
        assert_eq!(there[0], [Stop::Client, Stop::Relay(1)]);
        assert_eq!(there[1], [Stop::Relay(1), Stop::Relay(4)]);
        assert_eq!(there[1], back[1]);
        assert_eq!(there[2], [Stop::Relay(4), Stop::Server]);
        assert_eq!(links(&[]), [[Stop::Client, Stop::Server]]);
    }
}
