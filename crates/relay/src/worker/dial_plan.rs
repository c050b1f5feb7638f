//! How a session obtains its upstream connection. This module plans; [`super::dial`] executes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_mesh::hello::{Hello, SessionId, Target};
use taut_mesh::members::MemberName;
use taut_mesh::onward::{Onward, SessionRefusal, onward};
use taut_mesh::proxy::Tlvs;
use taut_mesh::ways::{Alternative, Attempt, Ways};
use taut_sys::socket::LegOptions;

use super::attempts::{Dial, Pick};
use super::untried::{DirectPath, Untried};
use crate::access::DestinationVerdict;
use crate::counters::worker::WorkerMetrics;
use crate::net::addr::{ClientAddr, UpstreamAddr};
use crate::route::peer::Peer;
use crate::route::table::{
    Alternatives, Direct, Mesh, NextHop, OriginalDst, Route, Setup, Upstream,
};

/// The reason why a client gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// Its destination is not allowed.
    Destination(DestinationVerdict),
    /// Every relay of the forward's routes is drained, or no longer a member.
    NoRoute,
}

/// How a session obtains its upstream connection, and the progress so far.
pub(super) enum DialPlan {
    /// Connect to one of the addresses of the destinations.
    Dial(Box<Dial>),
    /// Look up the addresses of the destination, then dial them.
    LookUp {
        name: String,
        /// The relay that the session comes from.
        member: MemberName,
        /// The fields of a header to the destination.
        passed: Tlvs,
    },
    /// Send another relay this hello.
    Ask {
        peer: Arc<Peer>,
        hello: Box<Hello>,
        attempt: Attempt,
        /// What is tried when this relay cannot be reached; `None` if the session comes from
        /// another relay.
        otherwise: Option<Box<Untried>>,
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

    /// Returns the plan for a client of `route`, or the reason for refusing it. Hellos carry the
    /// fields `passed`. `to` returns the address that the client connected to.
    pub(super) fn for_client(
        route: &Route,
        client: ClientAddr,
        passed: Tlvs,
        to: impl FnOnce() -> Option<SocketAddr>,
        setup: &Setup,
        pick: Pick,
    ) -> Result<Self, NoPlan> {
        let borrow = route.identity.borrow;
        match &route.next_hop {
            NextHop::OriginalDst(original) => {
                // A connection without a local address is gone already.
                let to = to().ok_or(NoPlan::Destination(DestinationVerdict::Unspecified))?;
                Self::for_original_dst(original, client, to, borrow, setup, pick)
            }
            NextHop::Direct(direct) => Ok(Self::to_one_of(direct, borrow, client, pick)),
            NextHop::Mesh {
                ways,
                destination,
                direct,
            } => {
                let last = direct.clone().map(DirectPath::OneOf);
                let (ways, auto) = match ways {
                    Alternatives::Fixed(ways) => (Ways::new(ways.clone(), last), None),
                    Alternatives::Auto(auto) => {
                        let chosen = auto.chosen();
                        // Each session would wait again for a destination that does not answer.
                        let is_dead = |direct: &Direct| direct.is_dead(pick.now);
                        let avoid = direct.as_ref().is_none_or(is_dead) || !chosen.direct_first;
                        let ways = auto.ways(&chosen, client.0.ip(), pick.now);
                        let ways = match last {
                            Some(first) if !avoid => Ways::direct_first(first, ways),
                            last => Ways::new(ways, last),
                        };
                        (ways, Some(auto.clone()))
                    }
                };
                let hops_left = setup.mesh.as_ref().map_or(1, |m| m.hop_limit);
                let untried =
                    Untried::new(client, passed, destination.clone(), hops_left, ways, auto);
                Self::first_of(untried, pick)
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
    ) -> Result<Self, NoPlan> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        // The client connected to the listener itself: forwarding that would loop.
        if !original.taking.covers(to) {
            return Err(NoPlan::Destination(DestinationVerdict::Own));
        }
        match original.access.check_addr(to, None) {
            DestinationVerdict::Allowed => {}
            refused => return Err(NoPlan::Destination(refused)),
        }
        Ok(match &original.upstream {
            Upstream::Direct(options) => Self::to_addr(to, options, borrow),
            Upstream::Mesh { ways, direct } => {
                let last = direct.clone();
                let last = last.map(|options| DirectPath::Addr(UpstreamAddr(to), options));
                let ways = Ways::new(ways.clone(), last);
                let hops_left = setup.mesh.as_ref().map_or(1, |m| m.hop_limit);
                let untried = Untried::new(
                    client,
                    Tlvs::default(),
                    Target::Addr(to),
                    hops_left,
                    ways,
                    None,
                );
                return Self::first_of(untried, pick);
            }
        })
    }

    /// Returns the client that a hello of this member names, the plan for its session, and the
    /// PROXY protocol header for its destination, empty if it gets none or its address is not known
    /// yet; or the reason for refusal.
    pub(super) fn for_hello(
        mesh: &Mesh,
        member: &MemberName,
        hello: Hello,
    ) -> Result<(ClientAddr, Self, Vec<u8>), SessionRefusal> {
        let client = ClientAddr(hello.source);
        let mut header = Vec::new();
        let plan = match onward(member, &hello, mesh)? {
            Onward::Relay(upstream) => {
                let peer = mesh
                    .peer(&upstream.receiver)
                    .ok_or(SessionRefusal::NextRelay)?;
                Self::ask(peer, upstream, None)
            }
            Onward::Address(addr) => {
                header = mesh.introduction(client, UpstreamAddr(addr), &hello.passed);
                Self::to_addr(addr, &mesh.upstream, mesh.borrow)
            }
            Onward::LookUp(destination) => Self::LookUp {
                name: destination.to_string(),
                member: member.clone(),
                passed: hello.passed,
            },
        };
        Ok((client, plan, header))
    }

    /// Returns the plan by the first of these ways, with the others behind it.
    fn first_of(untried: Untried, pick: Pick) -> Result<Self, NoPlan> {
        Self::next_of(Box::new(untried), pick).ok_or(NoPlan::NoRoute)
    }

    /// Returns the plan by the next of these ways, if there is one.
    fn next_of(mut untried: Box<Untried>, pick: Pick) -> Option<Self> {
        Some(match untried.take_next()? {
            Alternative::Route(way) => {
                let hello = untried.hello(&way);
                Self::ask(&way.peer, hello, Some(untried))
            }
            Alternative::Direct(DirectPath::OneOf(direct)) => {
                let mut dial = Self::dial_one_of(&direct, false, untried.client, pick);
                dial.otherwise = Some(untried).filter(|untried| untried.is_any_left());
                Self::Dial(Box::new(dial))
            }
            Alternative::Direct(DirectPath::Addr(addr, options)) => {
                Self::Dial(Box::new(Dial::to_addr(addr, &options, false)))
            }
        })
    }

    /// Returns a plan that tries one pooled connection, and then each address of the peer.
    fn ask(peer: &Arc<Peer>, hello: Hello, otherwise: Option<Box<Untried>>) -> Self {
        Self::Ask {
            peer: peer.clone(),
            hello: Box::new(hello),
            attempt: Attempt::new(peer.addrs().len()),
            otherwise,
        }
    }

    /// Returns whether no destination of the plan has an address, because their names cannot be looked up.
    pub(super) fn has_no_address(&self) -> bool {
        matches!(self, Self::Dial(dial) if !dial.has_address)
    }

    /// Returns the ID of the session, if it may go to another relay.
    pub(super) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Ask { hello, .. } => Some(hello.session),
            Self::Dial(dial) => dial.otherwise.as_ref().map(|untried| untried.session),
            Self::LookUp { .. } => None,
        }
    }

    /// Returns whether there is another plan after this one.
    pub(super) fn has_another_way(&self) -> bool {
        let untried = match self {
            Self::Ask { otherwise, .. } => otherwise,
            Self::Dial(dial) => &dial.otherwise,
            Self::LookUp { .. } => return false,
        };
        untried
            .as_ref()
            .is_some_and(|untried| untried.is_any_left())
    }

    /// Returns the time that a connection may take: `connect`, or less if the session has another
    /// way.
    pub(super) fn patience(&self, connect: Duration, setup: &Setup) -> Duration {
        let mesh = setup.mesh.as_ref();
        match mesh.filter(|_| self.has_another_way()) {
            Some(mesh) => connect.min(mesh.pool.dial_patience()),
            None => connect,
        }
    }

    /// Records that the relay of the plan has reset the session before the first byte of an answer.
    pub(super) fn on_refusal(&self, now: Instant, metrics: &WorkerMetrics) {
        let Self::Ask { otherwise, .. } = self else {
            return;
        };
        let untried = otherwise.as_ref();
        if let Some(is_kept) = untried.and_then(|untried| untried.on_refusal(now)) {
            metrics.routes_refused.add(1);
            metrics.refusals_not_kept.add(u64::from(!is_kept));
        }
    }

    /// Records the first byte of an answer.
    pub(super) fn on_answer(&self) {
        if let Self::Ask {
            otherwise: Some(untried),
            ..
        } = self
        {
            untried.on_answer();
        }
    }

    /// Releases the fields that hellos carry. Call this once a byte has gone either way: the session
    /// keeps its connection from then on.
    pub(super) fn forget_passed(&mut self) {
        let otherwise = match self {
            Self::Ask {
                hello, otherwise, ..
            } => {
                hello.passed = Tlvs::default();
                otherwise
            }
            Self::Dial(dial) => &mut dial.otherwise,
            Self::LookUp { .. } => return,
        };
        if let Some(untried) = otherwise {
            untried.forget_passed();
        }
    }

    /// Returns the plan after this one has failed, if the session has another way.
    pub(super) fn fall_back(&mut self, pick: Pick) -> Option<Self> {
        let untried = match self {
            Self::Ask { otherwise, .. } => otherwise.take(),
            Self::Dial(dial) => dial.otherwise.take(),
            Self::LookUp { .. } => None,
        };
        Self::next_of(untried?, pick)
    }

    fn to_one_of(direct: &Direct, borrow: bool, client: ClientAddr, pick: Pick) -> Self {
        Self::Dial(Box::new(Self::dial_one_of(direct, borrow, client, pick)))
    }

    fn dial_one_of(direct: &Direct, borrow: bool, client: ClientAddr, pick: Pick) -> Dial {
        let backends: Vec<_> = direct.targets.iter().map(|t| t.backends()).collect();
        let destinations: Vec<_> = backends.iter().map(|b| &b[..]).collect();
        Dial::new(&destinations, &direct.options, borrow, client, pick)
    }

    fn to_addr(addr: SocketAddr, options: &Arc<LegOptions>, borrow: bool) -> Self {
        let dial = Dial::to_addr(UpstreamAddr(addr), options, borrow);
        Self::Dial(Box::new(dial))
    }
}
