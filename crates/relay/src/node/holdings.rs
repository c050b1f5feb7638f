//! Resources that a node keeps from one configuration to the next: bound addresses, look-ups and
//! relays.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use taut_sys::Errno;
use taut_sys::socket::{LegOptions, Listener};

use crate::counters::peer::PeerStats;
use crate::net::addr::Destination;
use crate::net::backend::BackendTable;
use crate::net::targets::Targets;
use crate::route::listener::ListenerId;
use crate::route::table::{Mesh, NextHop, Peer, Route, Setup};

/// The resources that exist when a configuration is assembled.
///
/// Numbers are never reused, so that a message or event with an old number cannot refer to a new
/// object.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// The present configuration; `None` at the start.
    pub(super) setup: Option<Arc<Setup>>,
    /// What the node knows about the addresses of destinations; one table for all configurations.
    pub(super) backends: Arc<BackendTable>,
    /// The addresses that the node listens on.
    pub(super) bound: Vec<BoundListener>,
    next_listener: u32,
    next_route: u32,
    /// Every relay so far; its index is its number.
    peers: Vec<Destination>,
}

/// An address that the node listens on.
#[derive(Clone, Debug)]
pub(super) struct BoundListener {
    /// One number per socket of a worker; several if more sockets were inherited than there are
    /// workers.
    pub(super) ids: Vec<ListenerId>,
    /// The address as written in the configuration; its port may be 0.
    pub(super) asked: SocketAddr,
    /// The address with the port that the kernel chose.
    pub(super) actual: SocketAddr,
    /// The sockets of the workers, which also close them.
    pub(super) listeners: Vec<Weak<Listener>>,
}

// === impl Holdings ===

impl Holdings {
    /// Returns the initial holdings of the next configuration: numbers continue, and no address is
    /// bound.
    pub(super) fn successor(&self) -> Self {
        Self {
            setup: None,
            backends: self.backends.clone(),
            bound: Vec::new(),
            next_listener: self.next_listener,
            next_route: self.next_route,
            peers: self.peers.clone(),
        }
    }

    /// Allocates a number for a new listener.
    pub(super) fn new_listener(&mut self) -> ListenerId {
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        id
    }

    /// Returns duplicates of the listening sockets.
    pub(super) fn duplicates(&self) -> Result<Vec<OwnedFd>, Errno> {
        let all = self.bound.iter().flat_map(|bound| &bound.listeners);
        all.filter_map(Weak::upgrade)
            .map(|listener| listener.duplicate())
            .collect()
    }

    /// Returns the `nth` bound address that was written as `asked`.
    pub(super) fn held(&self, asked: SocketAddr, nth: usize) -> Option<&BoundListener> {
        self.bound.iter().filter(|d| d.asked == asked).nth(nth)
    }

    /// Returns whether a bound address of the same family uses the port of `addr`.
    pub(super) fn overlaps(&self, addr: SocketAddr) -> bool {
        self.bound.iter().any(|bound| {
            bound.actual.port() == addr.port() && bound.actual.is_ipv4() == addr.is_ipv4()
        })
    }

    /// Returns the number of the relay at `destination`, which never changes.
    pub(super) fn peer_id(&mut self, destination: &Destination) -> usize {
        if let Some(id) = self.peers.iter().position(|known| known == destination) {
            return id;
        }
        self.peers.push(destination.clone());
        self.peers.len() - 1
    }

    /// Returns the addresses of `destination`, if a forward has looked them up.
    pub(super) fn target(&self, destination: &Destination) -> Option<Arc<Targets>> {
        let routes = self.setup.iter().flat_map(|setup| &setup.routes);
        let mut known = routes.flat_map(|route| route.next_hop.targets());
        known.find(|t| t.destination() == destination).cloned()
    }

    fn mesh(&self) -> Option<&Arc<Mesh>> {
        self.setup.as_ref().and_then(|setup| setup.mesh.as_ref())
    }

    /// Returns the relay at `destination`, if it is known.
    pub(super) fn peer(&self, destination: &Destination) -> Option<&Arc<Peer>> {
        let mut peers = self.mesh().into_iter().flat_map(|mesh| &mesh.peers);
        peers.find(|peer| peer.targets.destination() == destination)
    }

    /// Assigns a number to `route`: its former number if the route is unchanged.
    pub(super) fn route(&self, mut route: Route, next: &mut Self) -> Arc<Route> {
        let mut routes = self.setup.iter().flat_map(|setup| &setup.routes);
        if let Some(same) = routes.find(|before| is_same(before, &route)) {
            return same.clone();
        }
        route.id = next.next_route;
        next.next_route += 1;
        Arc::new(route)
    }
}

/// Returns whether two forwards treat connections in the same way.
fn is_same(a: &Route, b: &Route) -> bool {
    let next_hop = match (&a.next_hop, &b.next_hop) {
        (
            NextHop::Direct { targets, options },
            NextHop::Direct {
                targets: other,
                options: others,
            },
        ) => {
            targets.len() == other.len()
                && targets.iter().zip(other).all(|(a, b)| Arc::ptr_eq(a, b))
                && options == others
        }
        (
            NextHop::Mesh {
                peer,
                route,
                destination,
            },
            NextHop::Mesh {
                peer: other,
                route: others,
                destination: to,
            },
        ) => Arc::ptr_eq(peer, other) && route == others && destination == to,
        _ => false,
    };
    next_hop
        && Arc::ptr_eq(&a.stats, &b.stats)
        && a.listen == b.listen
        && a.early_syn == b.early_syn
        && a.sources == b.sources
        && a.identity == b.identity
        && a.check == b.check
}

/// Returns the peer with number `id`: the existing one if nothing has changed.
pub(super) fn peer(
    before: &Holdings,
    id: usize,
    targets: Arc<Targets>,
    options: LegOptions,
    stats: Arc<PeerStats>,
) -> Arc<Peer> {
    match before.peer(targets.destination()) {
        Some(known) if known.options == options && Arc::ptr_eq(&known.targets, &targets) => {
            known.clone()
        }
        _ => Arc::new(Peer {
            id,
            targets,
            options,
            stats,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_from_one_configuration_to_the_next() {
        let mut first = Holdings::default();
        let a: Destination = "a:1".parse().unwrap();
        let b: Destination = "b:1".parse().unwrap();
        assert_eq!((first.peer_id(&a), first.peer_id(&b)), (0, 1));
        let bound = first.new_listener();
        let mut next = first.successor();
        assert_eq!(next.peer_id(&b), 1);
        assert_ne!(next.new_listener(), bound);
    }
}
