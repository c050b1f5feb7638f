//! Checks whether a node's forwards lead back to the node.

use std::sync::Arc;

use taut_sys::socket::is_local;

use crate::net::forward_loops::{self, Edge};
use crate::net::names::Addrs;
use crate::net::targets::Targets;
use crate::route::table::{NextHop, Route};

/// Returns the index of the first forward that leads back to the node. `new` overrides the
/// addresses of one destination.
pub(super) fn find_loop(routes: &[Arc<Route>], new: Option<(&Targets, &Addrs)>) -> Option<usize> {
    let upstream: Vec<Addrs> = routes
        .iter()
        .map(|route| {
            let targets = route.next_hops().flat_map(|hop| match hop {
                NextHop::Direct(direct) => direct.targets.clone(),
                NextHop::Mesh { ways, .. } => {
                    // An automatic route leads to other members only, never to this one.
                    let ways = ways.named().iter();
                    ways.flat_map(|way| way.peer.targets.clone()).collect()
                }
                // Destinations of a transparent forward are checked for each connection.
                NextHop::OriginalDst(_) => Vec::new(),
            });
            let addrs = targets.map(|targets| match new {
                Some((which, addrs)) if std::ptr::eq(which, Arc::as_ptr(&targets)) => addrs.clone(),
                _ => targets.current(),
            });
            addrs.flat_map(|addrs| addrs.to_vec()).collect()
        })
        .collect();
    let edges: Vec<_> = routes
        .iter()
        .zip(&upstream)
        .map(|(route, upstream)| Edge {
            listen: &route.listen,
            upstream,
        })
        .collect();
    forward_loops::find(&edges, is_local)
}
