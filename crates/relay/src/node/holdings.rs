//! Resources that a node keeps from one configuration to the next: bound addresses, look-ups and
//! relays.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use taut_mesh::hello::Target;
use taut_mesh::members::MemberName;
use taut_sys::Errno;
use taut_sys::socket::{Listener, is_dual_stack};

use crate::access::{MeshAddresses, OwnAddresses};
use crate::net::addr::Destination;
use crate::net::backend::BackendTable;
use crate::net::targets::Targets;
use crate::route::auto::AutoRoute;
use crate::route::listener::ListenerId;
use crate::route::peer::{Peer, Way};
use crate::route::table::{Alternatives, Direct, Mesh, NextHop, Route, Setup};

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
    /// The addresses of this machine; one list for all configurations.
    pub(super) own: OwnAddresses,
    /// The addresses of the relays of the mesh; one list for all configurations.
    pub(super) relays: MeshAddresses,
    /// The addresses that the node listens on.
    pub(super) bound: Vec<BoundListener>,
    next_listener: u32,
    next_route: u32,
    /// Every relay so far; its index is its number.
    peers: Vec<MemberName>,
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

// === impl BoundListener ===

impl BoundListener {
    /// Returns whether its sockets also accept IPv4, although their address is one of IPv6.
    pub(super) fn accepts_ipv4(&self) -> bool {
        let mut open = self.listeners.iter().filter_map(Weak::upgrade);
        self.actual.ip() == Ipv6Addr::UNSPECIFIED && open.any(|socket| is_dual_stack(&*socket))
    }
}

// === impl Holdings ===

impl Holdings {
    /// Returns the initial holdings of the next configuration: numbers continue, and no address is
    /// bound.
    pub(super) fn successor(&self) -> Self {
        Self {
            setup: None,
            backends: self.backends.clone(),
            own: self.own.clone(),
            relays: self.relays.clone(),
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

    /// Returns the open listeners whose address `is_wanted`.
    pub(super) fn listeners(&self, is_wanted: impl Fn(SocketAddr) -> bool) -> Vec<Arc<Listener>> {
        let wanted = self.bound.iter().filter(|bound| is_wanted(bound.actual));
        let all = wanted.flat_map(|bound| &bound.listeners);
        all.filter_map(Weak::upgrade).collect()
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

    /// Returns the number of the relay `name`, which never changes.
    pub(super) fn peer_id(&mut self, name: &MemberName) -> usize {
        if let Some(id) = self.peers.iter().position(|known| known == name) {
            return id;
        }
        self.peers.push(name.clone());
        self.peers.len() - 1
    }

    /// Returns the addresses of `destination`, if they have been looked up.
    pub(super) fn target(&self, destination: &Destination) -> Option<Arc<Targets>> {
        let routes = self.setup.iter().flat_map(|setup| &setup.routes);
        let forwards = routes.flat_map(|route| route.targets());
        let peers = self.mesh().into_iter().flat_map(|mesh| &mesh.peers);
        let mut known = forwards.chain(peers.flat_map(|peer| &peer.targets));
        known.find(|t| t.destination() == destination).cloned()
    }

    /// Returns the automatic routes to `destination`: the former ones if there are any. Forwards that may take
    /// the direct path share them only with one another.
    pub(super) fn auto(&self, destination: &Target, direct: bool) -> Arc<AutoRoute> {
        let mut autos = self.setup.iter().flat_map(|setup| setup.autos());
        let known =
            autos.find(|auto| auto.route.destination == *destination && auto.direct == direct);
        let known = known.map(|auto| auto.route);
        known.unwrap_or_else(|| Arc::new(AutoRoute::new(destination.clone())))
    }

    /// Returns the mesh of the present configuration.
    pub(super) fn mesh(&self) -> Option<&Arc<Mesh>> {
        self.setup.as_ref().and_then(|setup| setup.mesh.as_ref())
    }

    /// Returns `peer`, or the former peer if nothing has changed.
    pub(super) fn peer(&self, peer: Peer) -> Arc<Peer> {
        let mut peers = self.mesh().into_iter().flat_map(|mesh| &mesh.peers);
        match peers.find(|known| is_same_peer(known, &peer)) {
            Some(known) => known.clone(),
            None => Arc::new(peer),
        }
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
    let same_targets = |a: &[Arc<Targets>], b: &[Arc<Targets>]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
    };
    let same_direct =
        |a: &Direct, b: &Direct| same_targets(&a.targets, &b.targets) && a.options == b.options;
    let same_way = |a: &Way, b: &Way| Arc::ptr_eq(&a.peer, &b.peer) && a.route == b.route;
    let next_hop = match (&a.next_hop, &b.next_hop) {
        (NextHop::Direct(a), NextHop::Direct(b)) => same_direct(a, b),
        (
            NextHop::Mesh {
                ways,
                destination,
                direct,
            },
            NextHop::Mesh {
                ways: others,
                destination: to,
                direct: other,
            },
        ) => {
            let same_last = match (direct, other) {
                (Some(a), Some(b)) => same_direct(a, b),
                (None, None) => true,
                _ => false,
            };
            let same_ways = match (ways, others) {
                (Alternatives::Fixed(a), Alternatives::Fixed(b)) => {
                    a.len() == b.len() && a.iter().zip(&**b).all(|(a, b)| same_way(a, b))
                }
                (Alternatives::Auto(a), Alternatives::Auto(b)) => Arc::ptr_eq(a, b),
                _ => false,
            };
            same_ways && same_last && destination == to
        }
        _ => false,
    };
    let by_name = match (&a.by_name, &b.by_name) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other, |a, b| is_same(a, b)),
        _ => false,
    };
    next_hop
        && Arc::ptr_eq(&a.stats, &b.stats)
        && by_name
        && a.listen == b.listen
        && a.early_syn == b.early_syn
        && a.sources == b.sources
        && a.identity == b.identity
        && a.check == b.check
        && a.max_sessions == b.max_sessions
        && a.timeouts == b.timeouts
}

/// Returns whether connections to two peers are made in the same way.
fn is_same_peer(a: &Peer, b: &Peer) -> bool {
    let same_targets = a.targets.len() == b.targets.len()
        && (a.targets.iter().zip(&b.targets)).all(|(a, b)| Arc::ptr_eq(a, b));
    a.id == b.id
        && a.is_named == b.is_named
        && a.keys == b.keys
        && a.options == b.options
        && a.sizes_window == b.sizes_window
        && same_targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_continue_from_one_configuration_to_the_next() {
        let mut first = Holdings::default();
        let a: MemberName = "a".parse().unwrap();
        let b: MemberName = "b".parse().unwrap();
        assert_eq!((first.peer_id(&a), first.peer_id(&b)), (0, 1));
        let bound = first.new_listener();
        let mut next = first.successor();
        assert_eq!(next.peer_id(&b), 1);
        assert_ne!(next.new_listener(), bound);
    }
}
