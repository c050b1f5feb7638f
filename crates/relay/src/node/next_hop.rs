//! Derives the next hops of forwards and the destinations of the mesh from the configuration.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use taut_mesh::hello::Target;
use taut_mesh::members::MemberName;
use taut_sys::socket::LegOptions;

use super::error::StartError;
use super::holdings::Holdings;
use crate::access::identity::ProxyVersion;
use crate::access::{Destinations, MeshAddresses, Nat64Prefix, OwnAddresses, Rule, bounded};
use crate::config::{Forward, MeshConfig, Transparent};
use crate::net::addr::{Destination, ListenAddr};
use crate::net::targets::Targets;
use crate::route::peer::{Peer, Way};
use crate::route::table::{Alternatives, Direct, NextHop, OriginalDst, Rules, Setup, Upstream};

/// The addresses of this machine and of relays, and the NAT64 prefixes, for the checks of
/// destinations.
pub(super) struct Locality<'a> {
    pub(super) own: &'a OwnAddresses,
    pub(super) relays: &'a MeshAddresses,
    pub(super) nat64: &'a [Nat64Prefix],
}

/// Returns the next hop of a forward to `to`. `targets` are the addresses of `to`, if this node
/// dials it.
pub(super) fn next_hop(
    forward: &Forward,
    to: &[Destination],
    targets: Vec<Arc<Targets>>,
    options: &Arc<LegOptions>,
    peers: &[Arc<Peer>],
    before: &Holdings,
) -> NextHop {
    let direct = Direct {
        targets,
        options: options.clone(),
    };
    match to.first() {
        Some(to) if forward.uses_mesh() => NextHop::Mesh {
            ways: match forward.auto {
                false => Alternatives::Fixed(ways(forward, peers)),
                true => Alternatives::Auto(before.auto(&target(to), forward.direct)),
            },
            destination: target(to),
            direct: forward.direct.then_some(direct),
        },
        // Without destinations, clients that name no server are refused before they get here.
        _ => NextHop::Direct(direct),
    }
}

/// Returns the ways of a forward through the mesh.
fn ways(forward: &Forward, peers: &[Arc<Peer>]) -> Arc<[Way]> {
    let way = |route: &Vec<MemberName>| {
        let (first, rest) = route.split_first()?;
        let peer = peers.iter().find(|peer| peer.name == *first)?;
        Some(Way {
            peer: peer.clone(),
            route: rest.to_vec(),
        })
    };
    forward.via.iter().filter_map(way).collect()
}

/// Returns the next hop of a transparent forward.
pub(super) fn original(
    forward: &Forward,
    transparent: &Transparent,
    listen: &[ListenAddr],
    options: LegOptions,
    peers: &[Arc<Peer>],
    locality: &Locality<'_>,
) -> Result<NextHop, StartError> {
    let mut access = Destinations::new(transparent.allow.clone(), transparent.deny.clone())?;
    locality.apply(&mut access);
    let options = Arc::new(options);
    let upstream = match forward.via.is_empty() {
        false => Upstream::Mesh {
            ways: ways(forward, peers),
            direct: forward.direct.then_some(options),
        },
        true => Upstream::Direct(options),
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

/// Returns the destinations that sessions from the mesh may reach, and the rules for single relays.
pub(super) fn access(
    mesh: &MeshConfig,
    locality: &Locality<'_>,
) -> Result<(Destinations, HashMap<MemberName, Rules>), StartError> {
    let destinations = |allow: &[Rule], deny: &[Rule]| {
        let deny = [&mesh.deny, deny].concat();
        let mut access = Destinations::new(allow.to_vec(), deny)?;
        locality.apply(&mut access);
        Ok::<_, StartError>(access)
    };
    let rules = mesh.rules.iter().map(|rule| {
        let allow = rule.allow.as_ref().unwrap_or(&mesh.allow);
        let rules = Rules {
            access: destinations(allow, &rule.deny)?,
            clients: rule.clients.clone(),
        };
        Ok::<_, StartError>((rule.name.clone(), rules))
    });
    let rules = rules.collect::<Result<_, _>>()?;
    Ok((destinations(&mesh.allow, &[])?, rules))
}

/// Returns the destinations to which legs of sessions from the mesh begin with a PROXY protocol
/// header.
pub(super) fn send_proxy(mesh: &MeshConfig) -> Result<Vec<(ProxyVersion, Vec<Rule>)>, StartError> {
    let rules = mesh.send_proxy.iter();
    let rules = rules.map(|(version, to)| Ok((*version, bounded(to.clone())?)));
    rules.collect()
}

// === impl Locality ===

impl Locality<'_> {
    fn apply(&self, access: &mut Destinations) {
        access.set_own(self.own.clone());
        access.set_mesh(self.relays.clone());
        access.set_nat64(self.nat64);
    }
}

/// Returns the addresses of the relays that this node dials.
pub(super) fn addrs_of(peers: &[Arc<Peer>]) -> impl Iterator<Item = SocketAddr> {
    peers
        .iter()
        .flat_map(|peer| peer.addrs())
        .map(|addr| addr.0)
}

/// Puts the present addresses of all relays, as far as they are known without a look-up, into
/// `relays`: those that relays are dialled at, those that the list of members has, and this relay's
/// mesh port.
pub(super) fn note_relays(relays: &MeshAddresses, setup: &Setup) {
    let Some(mesh) = &setup.mesh else {
        return relays.replace([]);
    };
    let written = mesh.local.members.iter().flat_map(|m| &m.addresses);
    let written = written.filter_map(|address| match address {
        Target::Addr(addr) => Some(addr.ip()),
        Target::Name { .. } => None,
    });
    let dialled = addrs_of(&mesh.peers).map(|addr| addr.ip());
    let own = mesh.listen.iter().map(|listen| listen.0.ip());
    relays.replace(dialled.chain(written).chain(own));
}

/// Reads the present addresses of this machine into `own`. Returns whether they have changed.
///
/// # Errors
/// The error of getifaddrs(3).
pub(super) fn read_own(own: &OwnAddresses) -> io::Result<bool> {
    let ip = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let found = nix::ifaddrs::getifaddrs()?;
    Ok(own.replace(found.filter_map(|i| i.address).filter_map(ip)))
}
