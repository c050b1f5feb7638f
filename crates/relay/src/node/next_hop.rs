//! Derives the next hops of forwards and the destinations of the mesh from the configuration.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use taut_mesh::hello::Target;
use taut_sys::socket::LegOptions;

use super::StartError;
use crate::access::Destinations;
use crate::config::{Forward, MeshConfig, Transparent};
use crate::net::addr::{Destination, ListenAddr};
use crate::net::targets::Targets;
use crate::route::table::{NextHop, OriginalDst, Peer, Upstream};

/// Returns the next hop of a forward. `targets` are its destinations', if this node dials them.
pub(super) fn next_hop(
    forward: &Forward,
    targets: Vec<Arc<Targets>>,
    options: LegOptions,
    peers: &[Arc<Peer>],
) -> NextHop {
    let first = forward.via.first();
    let peer = peers
        .iter()
        .find(|peer| Some(peer.targets.destination()) == first);
    match (targets.is_empty(), peer, forward.to.first()) {
        (true, Some(peer), Some(to)) => NextHop::Mesh {
            peer: peer.clone(),
            route: forward.via[1..].iter().map(target).collect(),
            destination: target(to),
        },
        (false, ..) => NextHop::Direct {
            targets,
            options: Arc::new(options),
        },
        (true, ..) => unreachable!("every first relay of a route has been looked up"),
    }
}

/// Returns the next hop of a transparent forward.
pub(super) fn original(
    forward: &Forward,
    transparent: &Transparent,
    listen: &[ListenAddr],
    options: LegOptions,
    peers: &[Arc<Peer>],
) -> Result<NextHop, StartError> {
    let mut access = Destinations::new(transparent.allow.clone(), transparent.deny.clone())?;
    access.set_own(own_addresses()?);
    access.set_mesh(addrs_of(peers).map(|addr| addr.ip().into()));
    let first = forward.via.first();
    let peer = first.and_then(|first| peers.iter().find(|p| p.targets.destination() == first));
    let upstream = match peer {
        Some(peer) => Upstream::Mesh {
            peer: peer.clone(),
            route: forward.via[1..].iter().map(target).collect(),
        },
        None => Upstream::Direct(Arc::new(options)),
    };
    Ok(NextHop::OriginalDst(Box::new(OriginalDst {
        taking: transparent.taking(listen.iter().map(|l| l.0).collect()),
        access,
        upstream,
    })))
}

/// Returns a destination in the form used by a hello.
fn target(destination: &Destination) -> Target {
    match destination.host.parse() {
        Ok(ip) => Target::Addr(SocketAddr::new(ip, destination.port)),
        Err(_) => Target::Name {
            host: destination.host.clone(),
            port: destination.port,
        },
    }
}

/// Returns the destinations that sessions from the mesh may reach.
pub(super) fn access(
    mesh: &MeshConfig,
    listen: &[ListenAddr],
    peers: &[Arc<Peer>],
) -> Result<Destinations, StartError> {
    let own = listen.iter().map(|l| l.0);
    let others = addrs_of(peers);
    let mut access = Destinations::new(mesh.allow.clone(), mesh.deny.clone())?;
    access.set_mesh(own.chain(others).map(|addr| addr.ip().into()));
    access.set_own(own_addresses()?);
    Ok(access)
}

/// Returns the addresses of the relays that this node dials.
pub(super) fn addrs_of(peers: &[Arc<Peer>]) -> impl Iterator<Item = SocketAddr> {
    peers.iter().flat_map(|peer| {
        let addrs = peer.targets.current();
        addrs.iter().map(|a| a.0).collect::<Vec<_>>()
    })
}

/// Returns the present addresses of this machine.
fn own_addresses() -> Result<Vec<IpAddr>, StartError> {
    let own = nix::ifaddrs::getifaddrs().map_err(|e| StartError::Addresses(e.into()))?;
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    Ok(own.filter_map(|i| i.address).filter_map(ip).collect())
}
