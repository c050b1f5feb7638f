//! How a session obtains its upstream connection. This module plans; [`super::dial`] executes.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_sys::random;
use taut_sys::socket::LegOptions;

use super::attempts::{Dial, Pick};
use crate::access::DestinationVerdict;
use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::outcome::mesh::MeshRefusal;
use crate::route::table::{Mesh, NextHop, OriginalDst, Peer, Route, Setup, Upstream};

/// How a session obtains its upstream connection, and the progress so far.
pub(super) enum DialPlan {
    /// Connect to one of the addresses of the destinations.
    Dial(Box<Dial>),
    /// Look up the addresses of the destination, then dial them.
    LookUp { name: String },
    /// Send another relay this hello.
    Ask {
        peer: Arc<Peer>,
        hello: Box<Hello>,
        tries_left: u8,
    },
}

// === impl DialPlan ===

impl DialPlan {
    /// Returns the relay that the plan asks, if it asks one.
    pub(super) fn peer(&self) -> Option<&Arc<Peer>> {
        match self {
            Self::Ask { peer, .. } => Some(peer),
            Self::Dial { .. } | Self::LookUp { .. } => None,
        }
    }

    /// Returns the plan for a client of `route`, or the reason for refusing its destination. `to`
    /// returns the address that the client connected to.
    pub(super) fn for_client(
        route: &Route,
        client: ClientAddr,
        to: impl FnOnce() -> Option<SocketAddr>,
        setup: &Setup,
        pick: Pick,
    ) -> Result<Self, DestinationVerdict> {
        let borrow = route.identity.borrow;
        match &route.next_hop {
            NextHop::OriginalDst(original) => {
                // A connection without a local address is gone already.
                let to = to().ok_or(DestinationVerdict::Unspecified)?;
                Self::for_original_dst(original, client, to, borrow, setup)
            }
            NextHop::Direct { targets, options } => {
                let backends: Vec<_> = targets.iter().map(|t| t.backends()).collect();
                let destinations: Vec<_> = backends.iter().map(|b| &b[..]).collect();
                let dial = Dial::new(&destinations, options, borrow, client, pick);
                Ok(Self::Dial(Box::new(dial)))
            }
            NextHop::Mesh {
                peer,
                route,
                destination,
            } => Ok(Self::for_peer(
                peer,
                client,
                destination.clone(),
                route,
                setup,
            )),
        }
    }

    /// Returns the plan for a client that was intercepted on its way to `to`.
    fn for_original_dst(
        original: &OriginalDst,
        client: ClientAddr,
        to: SocketAddr,
        borrow: bool,
        setup: &Setup,
    ) -> Result<Self, DestinationVerdict> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        // The client connected to the listener itself: forwarding that would loop.
        if !original.taking.covers(to) {
            return Err(DestinationVerdict::Own);
        }
        match original.access.check_addr(to, None) {
            DestinationVerdict::Allowed => {}
            refused => return Err(refused),
        }
        Ok(match &original.upstream {
            Upstream::Direct(options) => Self::to_addr(to, options, borrow),
            Upstream::Mesh { peer, route } => {
                Self::for_peer(peer, client, Target::Addr(to), route, setup)
            }
        })
    }

    /// Returns the client that a hello names and the plan for its session, or the reason for
    /// refusal.
    pub(super) fn for_hello(mesh: &Mesh, hello: Hello) -> Result<(ClientAddr, Self), MeshRefusal> {
        let client = ClientAddr(hello.source);
        if let Some((next, upstream)) = hello.next_hop().map_err(|_| MeshRefusal::HopLimit)? {
            let peer = mesh.peer(&next).ok_or(MeshRefusal::NextRelay)?;
            return Ok((client, Self::ask(peer, upstream)));
        }
        let plan = match hello.destination {
            Target::Addr(addr) => {
                let verdict = mesh.access.check_addr(addr, None);
                if !verdict.is_allowed() {
                    return Err(refused(&addr, verdict));
                }
                Self::to_addr(addr, &mesh.upstream, mesh.borrow)
            }
            Target::Name { ref host, port } => {
                let verdict = mesh.access.check_name(host, port);
                if !verdict.is_allowed() {
                    return Err(refused(&hello.destination, verdict));
                }
                Self::LookUp {
                    name: hello.destination.to_string(),
                }
            }
        };
        Ok((client, plan))
    }

    fn for_peer(
        peer: &Arc<Peer>,
        client: ClientAddr,
        destination: Target,
        route: &[Target],
        setup: &Setup,
    ) -> Self {
        let hello = Hello {
            source: client.0,
            destination,
            route: route.to_vec(),
            hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
            session: SessionId(random::bytes()),
        };
        Self::ask(peer, hello)
    }

    /// Returns a plan that tries one pooled connection, and then each address of the peer.
    fn ask(peer: &Arc<Peer>, hello: Hello) -> Self {
        let tries_left = u8::try_from(peer.targets.current().len())
            .unwrap_or(u8::MAX)
            .saturating_add(1);
        Self::Ask {
            peer: peer.clone(),
            hello: Box::new(hello),
            tries_left,
        }
    }

    fn to_addr(addr: SocketAddr, options: &Arc<LegOptions>, borrow: bool) -> Self {
        let dial = Dial::to_addr(UpstreamAddr(addr), options, borrow);
        Self::Dial(Box::new(dial))
    }
}

fn refused(destination: &impl std::fmt::Display, verdict: DestinationVerdict) -> MeshRefusal {
    tracing::debug!(%destination, cause = verdict.label(), "not an allowed destination");
    MeshRefusal::Destination
}
