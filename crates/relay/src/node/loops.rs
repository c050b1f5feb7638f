//! Whether a node's forwards lead back to itself.

use std::sync::Arc;

use taut_sys::socket::is_local;

use crate::net::forward_loops::{self, Edge};
use crate::net::targets::{Addrs, Targets};
use crate::route::table::{NextHop, Route};

/// The first forward that leads back to itself, when the addresses of `new` are what is said there.
pub(super) fn find_loop(routes: &[Arc<Route>], new: Option<(&Targets, &Addrs)>) -> Option<usize> {
    let upstream: Vec<Addrs> = routes
        .iter()
        .map(|route| {
            let targets: &Targets = match &route.next_hop {
                NextHop::Direct { targets, .. } => targets,
                NextHop::Mesh { peer, .. } => &peer.targets,
                // Where it goes is judged for each connection.
                NextHop::OriginalDst(_) => return Addrs::from([]),
            };
            match new {
                Some((which, addrs)) if std::ptr::eq(which, targets) => addrs.clone(),
                _ => targets.current(),
            }
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
