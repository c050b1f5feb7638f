//! How a session obtains its upstream connection. This module plans; [`super::dial`] executes.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_mesh::members::MemberName;
use taut_sys::random;
use taut_sys::socket::LegOptions;

use super::attempts::{Dial, Pick};
use crate::access::DestinationVerdict;
use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::outcome::mesh::MeshRefusal;
use crate::route::table::{Direct, Mesh, NextHop, OriginalDst, Peer, Route, Setup, Upstream, Way};

/// How a session obtains its upstream connection, and the progress so far.
pub(super) enum DialPlan {
    /// Connect to one of the addresses of the destinations.
    Dial(Box<Dial>),
    /// Look up the addresses of the destination, then dial them.
    LookUp {
        name: String,
        /// The relay that the session comes from.
        member: MemberName,
    },
    /// Send another relay this hello.
    Ask {
        peer: Arc<Peer>,
        hello: Box<Hello>,
        tries_left: u8,
        /// What is tried when this relay cannot be reached.
        otherwise: Box<Otherwise>,
    },
}

/// The ways of a session that are left.
#[derive(Default)]
pub(super) struct Otherwise {
    ways: Option<Arc<[Way]>>,
    next: usize,
    direct: Option<LastResort>,
}

/// The direct connection of a session whose ways have all failed.
enum LastResort {
    OneOf(Direct),
    Addr(UpstreamAddr, Arc<LegOptions>),
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
                Self::for_original_dst(original, client, to, borrow, setup, pick)
            }
            NextHop::Direct(direct) => Ok(Self::to_one_of(direct, borrow, client, pick)),
            NextHop::Mesh {
                ways,
                destination,
                direct,
            } => {
                let last = direct.clone().map(LastResort::OneOf);
                Self::through(ways, client, destination.clone(), last, setup, pick)
            }
        }
    }

    /// Returns the plan for a client that was intercepted on its way to `to`.
    fn for_original_dst(
        original: &OriginalDst,
        client: ClientAddr,
        to: SocketAddr,
        borrow: bool,
        setup: &Setup,
        pick: Pick,
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
            Upstream::Mesh { ways, direct } => {
                let last = direct.clone();
                let last = last.map(|options| LastResort::Addr(UpstreamAddr(to), options));
                return Self::through(ways, client, Target::Addr(to), last, setup, pick);
            }
        })
    }

    /// Returns the client that a hello of this member names and the plan for its session, or the reason
    /// for refusal.
    pub(super) fn for_hello(
        mesh: &Mesh,
        member: &MemberName,
        hello: Hello,
    ) -> Result<(ClientAddr, Self), MeshRefusal> {
        let client = ClientAddr(hello.source);
        if !mesh.may_speak_for(member, client.0.ip()) {
            return Err(MeshRefusal::Client);
        }
        if let Some(upstream) = hello.next_hop().map_err(|_| MeshRefusal::HopLimit)? {
            let peer = mesh
                .peer(&upstream.receiver)
                .ok_or(MeshRefusal::NextRelay)?;
            return Ok((client, Self::ask(peer, upstream, Otherwise::default())));
        }
        let access = mesh.access_of(member);
        let plan = match hello.destination {
            Target::Addr(addr) => {
                let verdict = access.check_addr(addr, None);
                if !verdict.is_allowed() {
                    return Err(refused(&addr, verdict));
                }
                Self::to_addr(addr, &mesh.upstream, mesh.borrow)
            }
            Target::Name { ref host, port } => {
                let verdict = access.check_name(host, port);
                if !verdict.is_allowed() {
                    return Err(refused(&hello.destination, verdict));
                }
                Self::LookUp {
                    name: hello.destination.to_string(),
                    member: member.clone(),
                }
            }
        };
        Ok((client, plan))
    }

    /// Returns the plan for a session through the first of `ways`, with the others and the direct
    /// connection behind it.
    fn through(
        ways: &Arc<[Way]>,
        client: ClientAddr,
        destination: Target,
        direct: Option<LastResort>,
        setup: &Setup,
        pick: Pick,
    ) -> Result<Self, DestinationVerdict> {
        // Without a way if all first relays have been removed from the list of members.
        let Some(first) = ways.first() else {
            let direct = direct.ok_or(DestinationVerdict::Unspecified)?;
            return Ok(Self::last_resort(direct, client, pick));
        };
        let hello = Hello {
            source: client.0,
            destination,
            receiver: first.peer.name.clone(),
            route: first.route.clone(),
            hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
            session: SessionId(random::bytes()),
        };
        let otherwise = Otherwise {
            ways: Some(ways.clone()),
            next: 1,
            direct,
        };
        Ok(Self::ask(&first.peer, hello, otherwise))
    }

    /// Returns a plan that tries one pooled connection, and then each address of the peer.
    fn ask(peer: &Arc<Peer>, hello: Hello, otherwise: Otherwise) -> Self {
        let tries_left = u8::try_from(peer.addrs().len())
            .unwrap_or(u8::MAX)
            .saturating_add(1);
        Self::Ask {
            peer: peer.clone(),
            hello: Box::new(hello),
            tries_left,
            otherwise: Box::new(otherwise),
        }
    }

    /// Returns whether there is another plan after this one.
    pub(super) fn has_another_way(&self) -> bool {
        let Self::Ask { otherwise, .. } = self else {
            return false;
        };
        let ways = otherwise.ways.as_ref().map_or(0, |ways| ways.len());
        otherwise.next < ways || otherwise.direct.is_some()
    }

    /// Returns the plan after this one has failed, if the session has another way.
    pub(super) fn fall_back(&mut self, pick: Pick) -> Option<Self> {
        let Self::Ask {
            hello, otherwise, ..
        } = self
        else {
            return None;
        };
        let next = otherwise.next;
        if let Some(way) = otherwise.ways.as_ref().and_then(|ways| ways.get(next)) {
            let hello = Hello {
                receiver: way.peer.name.clone(),
                route: way.route.clone(),
                ..(**hello).clone()
            };
            let peer = way.peer.clone();
            let mut otherwise = std::mem::take(&mut **otherwise);
            otherwise.next += 1;
            return Some(Self::ask(&peer, hello, otherwise));
        }
        let client = ClientAddr(hello.source);
        let direct = otherwise.direct.take()?;
        Some(Self::last_resort(direct, client, pick))
    }

    fn last_resort(direct: LastResort, client: ClientAddr, pick: Pick) -> Self {
        match direct {
            LastResort::OneOf(direct) => Self::to_one_of(&direct, false, client, pick),
            LastResort::Addr(addr, options) => {
                Self::Dial(Box::new(Dial::to_addr(addr, &options, false)))
            }
        }
    }

    fn to_one_of(direct: &Direct, borrow: bool, client: ClientAddr, pick: Pick) -> Self {
        let backends: Vec<_> = direct.targets.iter().map(|t| t.backends()).collect();
        let destinations: Vec<_> = backends.iter().map(|b| &b[..]).collect();
        let dial = Dial::new(&destinations, &direct.options, borrow, client, pick);
        Self::Dial(Box::new(dial))
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
