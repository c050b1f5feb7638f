//! How a session obtains its upstream connection. This module plans; [`super::dial`] executes.

use std::net::SocketAddr;
use std::sync::Arc;

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_mesh::members::MemberName;
use taut_mesh::onward::{Onward, Refusal, onward};
use taut_mesh::ways::{Alternative, Attempt, Ways};
use taut_sys::random;
use taut_sys::socket::LegOptions;

use super::attempts::{Dial, Pick};
use crate::access::DestinationVerdict;
use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::route::peer::{Peer, Way};
use crate::route::table::{
    Alternatives, Direct, Mesh, NextHop, OriginalDst, Route, Setup, Upstream,
};

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
        attempt: Attempt,
        /// What is tried when this relay cannot be reached.
        otherwise: Box<Otherwise>,
    },
}

/// The ways of a session that are left.
type Otherwise = Ways<Way, LastResort>;

/// The direct connection of a session whose ways have all failed.
pub(super) enum LastResort {
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
                let ways = match ways {
                    Alternatives::Fixed(ways) => ways.clone(),
                    Alternatives::Auto(auto) => {
                        let chosen = auto.chosen();
                        if let Some(direct) = direct.as_ref().filter(|_| chosen.direct_first) {
                            return Ok(Self::to_one_of(direct, false, client, pick));
                        }
                        chosen.ways.clone()
                    }
                };
                let last = direct.clone().map(LastResort::OneOf);
                Self::through(&ways, client, destination.clone(), last, setup, pick)
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
    ) -> Result<(ClientAddr, Self), Refusal> {
        let client = ClientAddr(hello.source);
        let plan = match onward(member, &hello, mesh)? {
            Onward::Relay(upstream) => {
                let peer = mesh.peer(&upstream.receiver).ok_or(Refusal::NextRelay)?;
                Self::ask(peer, upstream, Otherwise::default())
            }
            Onward::Address(addr) => Self::to_addr(addr, &mesh.upstream, mesh.borrow),
            Onward::LookUp(destination) => Self::LookUp {
                name: destination.to_string(),
                member: member.clone(),
            },
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
        let mut otherwise = Otherwise::new(ways.clone(), direct);
        // Without a way if all first relays have been removed from the list of members.
        let first = match otherwise.take_next() {
            Some(Alternative::Route(first)) => first,
            Some(Alternative::Direct(direct)) => {
                return Ok(Self::last_resort(direct, client, pick));
            }
            None => return Err(DestinationVerdict::Unspecified),
        };
        let hello = Hello {
            source: client.0,
            destination,
            receiver: first.peer.name.clone(),
            route: first.route.clone(),
            hops_left: setup.mesh.as_ref().map_or(1, |m| m.hop_limit),
            session: SessionId(random::bytes()),
        };
        Ok(Self::ask(&first.peer, hello, otherwise))
    }

    /// Returns a plan that tries one pooled connection, and then each address of the peer.
    fn ask(peer: &Arc<Peer>, hello: Hello, otherwise: Otherwise) -> Self {
        Self::Ask {
            peer: peer.clone(),
            hello: Box::new(hello),
            attempt: Attempt::new(peer.addrs().len()),
            otherwise: Box::new(otherwise),
        }
    }

    /// Returns whether there is another plan after this one.
    pub(super) fn has_another_way(&self) -> bool {
        let Self::Ask { otherwise, .. } = self else {
            return false;
        };
        otherwise.is_any_left()
    }

    /// Returns the plan after this one has failed, if the session has another way.
    pub(super) fn fall_back(&mut self, pick: Pick) -> Option<Self> {
        let Self::Ask {
            hello, otherwise, ..
        } = self
        else {
            return None;
        };
        match otherwise.take_next()? {
            Alternative::Route(way) => {
                let hello = Hello {
                    receiver: way.peer.name.clone(),
                    route: way.route.clone(),
                    ..(**hello).clone()
                };
                let otherwise = std::mem::take(&mut **otherwise);
                Some(Self::ask(&way.peer, hello, otherwise))
            }
            Alternative::Direct(direct) => {
                let client = ClientAddr(hello.source);
                Some(Self::last_resort(direct, client, pick))
            }
        }
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
