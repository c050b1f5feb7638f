//! Checks whether a node's forwards lead back to the node.

use std::collections::HashSet;
use std::sync::Arc;

use taut_sys::socket::is_local;

use crate::net::addr::{Destination, UpstreamAddr};
use crate::net::forward_loops::{self, Edge};
use crate::net::targets::Targets;
use crate::route::table::{NextHop, Route};

/// Returns the first forward that leads back to the node, and its destinations or relays that do.
pub(super) fn find_loop(routes: &[Arc<Route>]) -> Option<(usize, Vec<Destination>)> {
    let upstream = upstream_of(routes, None);
    let edges = edges(routes, &upstream);
    let first = forward_loops::find(&edges, is_local)?;
    let returns = |targets: &Arc<Targets>| {
        forward_loops::returns(&edges, first, &targets.current(), is_local)
    };
    // Server names and ways may lead to the same ones.
    let mut known = HashSet::new();
    let leading = targets_of(&routes[first])
        .filter(|targets| known.insert(Arc::as_ptr(targets)))
        .filter(returns);
    let names = leading.map(|targets| targets.destination().clone());
    Some((first, names.collect()))
}

/// Returns whether a forward would lead back to the node with these new addresses of one of its destinations.
pub(super) fn would_loop(routes: &[Arc<Route>], targets: &Targets, new: &[UpstreamAddr]) -> bool {
    // A new loop goes through a new address. Only these are looked for on this machine: there may be thousands of others.
    let upstream = upstream_of(routes, Some((targets, new)));
    let edges = edges(routes, &upstream);
    let has_it = |route: &Arc<Route>| targets_of(route).any(|of| std::ptr::eq(&*of, targets));
    let mut with_it = (0..routes.len()).filter(|&at| has_it(&routes[at]));
    with_it.any(|start| forward_loops::returns(&edges, start, new, is_local))
}

/// Returns the destinations and next relays of a forward.
fn targets_of(route: &Route) -> impl Iterator<Item = Arc<Targets>> {
    route.next_hops().flat_map(|hop| {
        let relays: Vec<_> = match hop {
            NextHop::Mesh { ways, .. } => {
                // An automatic route leads to other members only, never to this one.
                let ways = ways.named().iter();
                ways.flat_map(|way| way.peer.targets.clone()).collect()
            }
            // Destinations of a transparent forward are checked for each connection.
            NextHop::Direct(_) | NextHop::OriginalDst(_) => Vec::new(),
        };
        hop.targets().iter().cloned().chain(relays)
    })
}

/// Returns the addresses of the destinations and next relays of each forward: the present ones, but for one with `new`
/// addresses.
fn upstream_of(
    routes: &[Arc<Route>],
    new: Option<(&Targets, &[UpstreamAddr])>,
) -> Vec<Vec<UpstreamAddr>> {
    let addrs = |targets: Arc<Targets>| match new {
        Some((of, addrs)) if std::ptr::eq(of, &*targets) => addrs.to_vec(),
        _ => targets.current().to_vec(),
    };
    let of_route = |route: &Arc<Route>| targets_of(route).flat_map(addrs).collect();
    routes.iter().map(of_route).collect()
}

fn edges<'a>(routes: &'a [Arc<Route>], upstream: &'a [Vec<UpstreamAddr>]) -> Vec<Edge<'a>> {
    let edge = |(route, upstream): (&'a Arc<Route>, &'a Vec<UpstreamAddr>)| Edge {
        listen: &route.listen,
        upstream,
    };
    routes.iter().zip(upstream).map(edge).collect()
}
