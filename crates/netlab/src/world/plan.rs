//! Plans addresses and routes. Pure.
//!
//! Every host has an address on its `lo` that does not depend on its links, and every link has a subnet.
//! All are private, and the same in every world, since worlds cannot see one another:
//!
//! | object | IPv4 | IPv6 |
//! |---|---|---|
//! | host number h (from 1) | 10.77.0.0/17 + h | fd77::h |
//! | link number l (from 0) | the l-th /30 of 10.77.128.0/17 | fd77:0:0:l+1::/126 |
//!
//! In a link's subnet the end named first has number 1, the other 2. Routes take the path with the
//! fewest links, then with the shortest round trip, then by a fixed order of links. All three are the
//! same from either end, so replies take the same path back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The two addresses of a host or of an end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// A link: its ends, by host number from 0, and its round trip.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) ends: [usize; 2],
    pub(crate) round_trip: Duration,
}

/// A route of a host: to `destination` (address and prefix length), through its end of link `link`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: (IpAddr, u8),
    pub(crate) link: usize,
    pub(crate) gateway: IpAddr,
}

/// The most hosts for which there are addresses.
pub(crate) const MAX_HOSTS: usize = 32_766;
/// The most links for which there are addresses.
pub(crate) const MAX_LINKS: usize = 8_192;
const HOSTS_V4: u32 = 0x0a4d_0000;
const LINKS_V4: u32 = 0x0a4d_8000;

// === impl Addresses ===

impl Addresses {
    /// Returns both addresses: IPv4, then IPv6.
    pub(crate) fn each(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

/// Returns a host's own addresses.
pub(crate) fn host(host: usize) -> Addresses {
    let number = host as u32 + 1;
    Addresses {
        v4: Ipv4Addr::from(HOSTS_V4 + number),
        v6: Ipv6Addr::from((0xfd77_u128 << 112) | u128::from(number)),
    }
}

/// Returns the addresses of end 0 or 1 of a link.
pub(crate) fn end(link: usize, end: usize) -> Addresses {
    in_subnet(link, end as u32 + 1)
}

fn in_subnet(link: usize, number: u32) -> Addresses {
    Addresses {
        v4: Ipv4Addr::from(LINKS_V4 + 4 * link as u32 + number),
        v6: Ipv6Addr::from((0xfd77_u128 << 112) | ((link as u128 + 1) << 64) | u128::from(number)),
    }
}

/// The prefix lengths of a link's subnets: IPv4, then IPv6.
pub(crate) const LINK_PREFIX: [u8; 2] = [30, 126];
/// The prefix lengths of a host's own addresses: IPv4, then IPv6.
pub(crate) const HOST_PREFIX: [u8; 2] = [32, 128];

/// Returns a locally administered MAC address for end 0 or 1 of a link.
pub(crate) fn mac(link: usize, end: usize) -> [u8; 6] {
    let [high, low] = (link as u16).to_be_bytes();
    [0x02, 0x77, 0, high, low, end as u8 + 1]
}

/// Returns the routes of host `from`: to every other host that it can reach, and to every subnet that it
/// is not on.
pub(crate) fn routes(hosts: usize, edges: &[Edge], from: usize) -> Vec<Route> {
    let paths = cheapest_paths(hosts, edges, from);
    let mut routes = Vec::new();
    let mut add = |link: usize, to: Addresses, prefixes: [u8; 2]| {
        let far = usize::from(edges[link].ends[0] == from);
        for ((to, prefix), gateway) in to
            .each()
            .into_iter()
            .zip(prefixes)
            .zip(end(link, far).each())
        {
            routes.push(Route {
                destination: (to, prefix),
                link,
                gateway,
            });
        }
    };
    for (to, path) in paths.iter().enumerate() {
        if let Some(Path {
            first: Some(link), ..
        }) = path
        {
            add(*link, host(to), HOST_PREFIX);
        }
    }
    for (subnet, edge) in edges.iter().enumerate() {
        // Through the nearer end.
        let nearer = edge
            .ends
            .iter()
            .filter_map(|&end| paths[end])
            .min_by_key(|path| path.cost);
        if let Some(Path {
            first: Some(link), ..
        }) = nearer
            && !edge.ends.contains(&from)
        {
            add(link, in_subnet(subnet, 0), LINK_PREFIX);
        }
    }
    routes
}

/// The number of links, the round trip, and the set of links, which breaks ties: no two paths cost the
/// same (among the first 128 links).
type Cost = (usize, Duration, u128);

#[derive(Debug, Clone, Copy)]
struct Path {
    cost: Cost,
    /// The first link; `None` for the path to the host itself.
    first: Option<usize>,
}

/// Returns the cheapest path from `from` to each host (Bellman-Ford: worlds are small).
fn cheapest_paths(hosts: usize, edges: &[Edge], from: usize) -> Vec<Option<Path>> {
    let mut paths: Vec<Option<Path>> = vec![None; hosts];
    paths[from] = Some(Path {
        cost: (0, Duration::ZERO, 0),
        first: None,
    });
    let mut changed = true;
    while changed {
        changed = false;
        for (link, edge) in edges.iter().enumerate() {
            for [near, far] in [edge.ends, [edge.ends[1], edge.ends[0]]] {
                let Some(path) = paths[near] else { continue };
                let (links, time, set) = path.cost;
                let cost = (links + 1, time + edge.round_trip, set | 1 << (link % 128));
                if paths[far].is_none_or(|known| cost < known.cost) {
                    paths[far] = Some(Path {
                        cost,
                        first: path.first.or(Some(link)),
                    });
                    changed = true;
                }
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(a: usize, b: usize, ms: u64) -> Edge {
        Edge {
            ends: [a, b],
            round_trip: Duration::from_millis(ms),
        }
    }

    fn first_link(routes: &[Route], to: usize) -> Option<usize> {
        let to = IpAddr::V4(host(to).v4);
        routes
            .iter()
            .find(|route| route.destination.0 == to)
            .map(|route| route.link)
    }

    #[test]
    fn a_chain_routes_through_its_middle() {
        let edges = [edge(0, 1, 10), edge(1, 2, 10)];
        assert_eq!(first_link(&routes(3, &edges, 0), 2), Some(0));
        assert_eq!(first_link(&routes(3, &edges, 1), 2), Some(1));
        assert_eq!(first_link(&routes(3, &edges, 2), 0), Some(1));
    }

    #[test]
    fn the_far_end_of_a_link_is_the_gateway() {
        let edges = [edge(0, 1, 10)];
        assert_eq!(routes(2, &edges, 0)[0].gateway, IpAddr::V4(end(0, 1).v4));
        assert_eq!(routes(2, &edges, 1)[0].gateway, IpAddr::V4(end(0, 0).v4));
    }

    #[test]
    fn fewest_links_win_over_the_shortest_time() {
        let edges = [edge(0, 1, 1), edge(1, 2, 1), edge(0, 2, 500)];
        assert_eq!(first_link(&routes(3, &edges, 0), 2), Some(2));
    }

    #[test]
    fn of_equally_many_links_the_faster_path_wins_in_both_directions() {
        let edges = [edge(0, 1, 50), edge(1, 3, 50), edge(0, 2, 5), edge(2, 3, 5)];
        assert_eq!(first_link(&routes(4, &edges, 0), 3), Some(2));
        assert_eq!(first_link(&routes(4, &edges, 3), 0), Some(3));
    }

    #[test]
    fn a_tie_is_broken_the_same_way_from_both_ends() {
        let edges = [edge(0, 1, 5), edge(1, 3, 5), edge(0, 2, 5), edge(2, 3, 5)];
        let there = first_link(&routes(4, &edges, 0), 3);
        let back = first_link(&routes(4, &edges, 3), 0);
        assert!(matches!(
            (there, back),
            (Some(0), Some(1)) | (Some(2), Some(3))
        ));
    }

    #[test]
    fn hosts_without_a_path_between_them_have_no_route() {
        assert!(routes(3, &[edge(0, 1, 5)], 2).is_empty());
    }

    #[test]
    fn subnets_of_other_links_have_routes_and_those_of_own_links_have_none() {
        let edges = [edge(0, 1, 10), edge(1, 2, 10)];
        let subnets: Vec<_> = routes(3, &edges, 0)
            .into_iter()
            .filter(|route| route.destination.1 == 30)
            .collect();
        assert_eq!(subnets.len(), 1);
        assert_eq!(
            subnets[0].destination.0,
            IpAddr::V4(Ipv4Addr::new(10, 77, 128, 4))
        );
    }
}
