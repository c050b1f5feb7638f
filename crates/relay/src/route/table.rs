//! The present configuration of a node: the route of each listener's connections, and the mesh.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use taut_mesh::acceptor::Local;
use taut_mesh::hello::Target;
use taut_mesh::identity::PrivateKey;
use taut_mesh::members::{Member, MemberName};
use taut_mesh::onward::Policy;
use taut_mesh::plan::{LegSettings, Options};
use taut_mesh::proxy::Tlvs;
use taut_sys::socket::LegOptions;

use crate::access::identity::{Identity, Introduction, ProxyVersion};
use crate::access::{DestinationVerdict, Destinations, Rule, Sources};
use crate::config::{ForwardTimeouts, HealthCheck, InboundLimits, PoolLimits, Removed, Timeouts};
use crate::counters::forward::ForwardStats;
use crate::intercept::Taking;
use crate::net::addr::{ClientAddr, ListenAddr, UpstreamAddr};
use crate::net::backend::Backend;
use crate::net::failures::Health;
use crate::net::targets::Targets;
use crate::route::auto::AutoRoute;
use crate::route::by_name::ByName;
use crate::route::peer::{Peer, Way};
use crate::turbo::TurboStart;

/// The configuration that new sessions use. A reload replaces it; running sessions keep theirs.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) timeouts: Arc<Timeouts>,
    /// Those of sessions from other relays. The first relay decides how long a session may be silent at first.
    pub(crate) timeouts_of_mesh: Arc<Timeouts>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) mesh: Option<Arc<Mesh>>,
}

/// One `[[relay.forward]]`, ready for use.
#[derive(Debug)]
pub(crate) struct Route {
    /// The route's number, never reused by this process.
    pub(crate) id: u32,
    /// The forward's counters, and its name: by default the first address that it listens on.
    pub(crate) stats: Arc<ForwardStats>,
    /// The destination, `host:port`, or several with commas between them.
    pub(crate) destination: Arc<str>,
    pub(crate) listen: Vec<ListenAddr>,
    pub(crate) next_hop: NextHop,
    /// The routes of clients by their TLS server names; `next_hop` is the default then.
    pub(crate) by_name: Option<ByName<Arc<Route>>>,
    /// The sources that may connect.
    pub(crate) sources: Sources,
    /// Whether to dial the upstream leg when the client's SYN arrives.
    pub(crate) early_syn: bool,
    /// How the forward learns its clients' addresses, and how it passes them on.
    pub(crate) identity: Identity,
    /// The health checks of its addresses; `None`: no checks.
    pub(crate) check: Option<HealthCheck>,
    /// The maximum number of its open sessions.
    pub(crate) max_sessions: Option<u32>,
    /// Time limits of its own.
    pub(crate) timeouts: ForwardTimeouts,
}

impl Setup {
    /// Returns the automatic routes of all forwards.
    pub(crate) fn autos(&self) -> Vec<OfForward> {
        let hops = self.routes.iter().flat_map(|route| {
            let forward = &route.stats.name;
            route.next_hops().map(move |hop| (forward, hop))
        });
        let auto = hops.filter_map(|(forward, hop)| match hop {
            NextHop::Mesh {
                ways: Alternatives::Auto(route),
                direct,
                ..
            } => Some(OfForward {
                forward: forward.to_string(),
                route: route.clone(),
                direct: direct.is_some(),
            }),
            _ => None,
        });
        auto.collect()
    }

    /// Returns whether `peer` still is a relay that this one dials, with the same keys.
    pub(crate) fn has_peer(&self, peer: &Peer) -> bool {
        let present = self.mesh.as_ref().and_then(|mesh| mesh.peer(&peer.name));
        present.is_some_and(|present| present.keys == peer.keys)
    }
}

/// An automatic route of a forward.
pub(crate) struct OfForward {
    /// The forward's name.
    pub(crate) forward: String,
    pub(crate) route: Arc<AutoRoute>,
    /// Sessions may take the direct connection.
    pub(crate) direct: bool,
}

impl Route {
    /// Returns the next hops: the forward's own, and those of its server names.
    pub(crate) fn next_hops(&self) -> impl Iterator<Item = &NextHop> {
        let named = self.by_name.iter().flat_map(ByName::all);
        std::iter::once(&self.next_hop).chain(named.map(|route| &route.next_hop))
    }

    /// Returns whether the forward has its `max_sessions` open. Workers that accept at the same time may each let one
    /// more in.
    pub(crate) fn is_full(&self) -> bool {
        { self.max_sessions }.is_some_and(|max| self.stats.sum(|c| &c.sessions) >= max.into())
    }

    /// Returns the time limits of the forward's sessions.
    pub(crate) fn timeouts(&self, node: &Arc<Timeouts>) -> Arc<Timeouts> {
        match self.timeouts == ForwardTimeouts::default() {
            true => node.clone(),
            false => Arc::new(self.timeouts.over(node)),
        }
    }

    /// Returns the destinations that this node dials.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Arc<Targets>> {
        self.next_hops().flat_map(NextHop::targets)
    }
}

/// The next hop of a forward's connections.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// The destinations, of which each session gets one.
    Direct(Direct),
    /// Other relays of the mesh.
    Mesh {
        ways: Alternatives,
        destination: Target,
        /// The destination, if sessions go there directly when no way works.
        direct: Option<Direct>,
    },
    /// The destination that each client connected to.
    OriginalDst(Box<OriginalDst>),
}

/// Destinations that this node dials.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    pub(crate) targets: Vec<Arc<Targets>>,
    pub(crate) options: Arc<LegOptions>,
}

/// The ways of a forward through the mesh.
#[derive(Clone, Debug)]
pub(crate) enum Alternatives {
    /// Those that the configuration names.
    Fixed(Arc<[Way]>),
    /// Those that are chosen by what relays have measured (`via = "auto"`).
    Auto(Arc<AutoRoute>),
}

/// The next hop of a transparent forward.
#[derive(Debug)]
pub(crate) struct OriginalDst {
    /// The connections that are intercepted.
    pub(crate) taking: Taking,
    /// Destinations that sessions may reach.
    pub(crate) access: Destinations,
    pub(crate) upstream: Upstream,
}

/// How a transparent forward reaches a destination.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// By a direct connection.
    Direct(Arc<LegOptions>),
    /// Through the mesh.
    Mesh {
        ways: Arc<[Way]>,
        /// The options of a direct connection, if sessions use one when no way works.
        direct: Option<Arc<LegOptions>>,
    },
}

/// The node's part in a mesh.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    /// This relay and the members.
    pub(crate) local: Local,
    /// This relay's private key, which signs its row.
    pub(crate) key: PrivateKey,
    /// Whether paths are measured and rows exchanged.
    pub(crate) measure: bool,
    /// How legs behave, for predictions.
    pub(crate) plan: Options,
    /// How this relay's legs to members with settings of their own begin, for predictions.
    pub(crate) planned_legs: HashMap<MemberName, LegSettings>,
    /// The file in which the choices of automatic routes are kept.
    pub(crate) routes_file: Option<PathBuf>,
    /// Relays that sessions of other relays are passed on to.
    pub(crate) passes: PassesOn,
    /// Networks in which connections between relays need no TLS.
    pub(crate) trusted: Vec<IpNet>,
    pub(crate) peers: Vec<Arc<Peer>>,
    pub(crate) hop_limit: u8,
    pub(crate) pool: PoolLimits,
    pub(crate) inbound: InboundLimits,
    /// Relays that may connect, by their addresses.
    pub(crate) sources: Sources,
    /// Destinations that sessions from the mesh may reach.
    pub(crate) access: Destinations,
    /// What single relays may do here.
    pub(crate) rules: HashMap<MemberName, Rules>,
    /// What happens to the sessions of a member that is removed.
    pub(crate) removed: Removed,
    /// The socket options of legs to those destinations.
    pub(crate) upstream: Arc<LegOptions>,
    /// What legs between relays use.
    pub(crate) turbo: Arc<TurboStart>,
    /// The windows of accepted connections follow what the peers need.
    pub(crate) sizes_window: bool,
    /// The socket options of legs to relays with settings of their own.
    pub(crate) legs: HashMap<MemberName, LegOptions>,
    /// Whether those legs use the client's address as their source.
    pub(crate) borrow: bool,
    /// The destinations to which those legs begin with a PROXY protocol header of this version.
    pub(crate) send_proxy: Vec<(ProxyVersion, Vec<Rule>)>,
    pub(crate) listen: Vec<ListenAddr>,
    /// The counters of sessions that other relays request.
    pub(crate) stats: Arc<ForwardStats>,
}

/// The relays that sessions of other relays are passed on to.
#[derive(Clone, Debug)]
pub(crate) enum PassesOn {
    /// All members (`peers = "*"`).
    All,
    /// These: the first relays of routes that the configuration names, and `peers`.
    To(Vec<MemberName>),
}

/// What one relay may do here.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Destinations that its sessions may reach.
    pub(crate) access: Destinations,
    /// Clients that it may speak for.
    pub(crate) clients: Sources,
}

impl Alternatives {
    /// Returns the ways that the configuration names; none if they are automatic.
    pub(crate) fn named(&self) -> &[Way] {
        match self {
            Self::Fixed(ways) => ways,
            Self::Auto(_) => &[],
        }
    }
}

impl Direct {
    /// Returns whether all addresses of the destinations have failed, and none is due for another
    /// try.
    pub(crate) fn is_dead(&self, now: Instant) -> bool {
        let dead = |targets: &Arc<Targets>| {
            let backends = targets.backends();
            let is_dead = |b: &Arc<Backend>| b.is_drained() || b.health(now) == Health::Dead;
            backends.iter().all(is_dead)
        };
        self.targets.iter().all(dead)
    }
}

impl NextHop {
    /// Returns the destinations that this node dials.
    pub(crate) fn targets(&self) -> &[Arc<Targets>] {
        match self {
            Self::Direct(direct) => &direct.targets,
            Self::Mesh { direct, .. } => direct.as_ref().map_or(&[], |direct| &direct.targets),
            Self::OriginalDst(_) => &[],
        }
    }
}

impl Mesh {
    /// Returns the peer of this name, if sessions may be forwarded to it.
    pub(crate) fn peer(&self, name: &MemberName) -> Option<&Arc<Peer>> {
        self.peers.iter().find(|peer| peer.name == *name)
    }

    /// Returns whether sessions of other relays are passed on to this one. A relay that this one
    /// dials only for its own automatic routes is none of these.
    pub(crate) fn passes_on(&self, name: &MemberName) -> bool {
        match &self.passes {
            PassesOn::All => true,
            PassesOn::To(names) => names.contains(name),
        }
    }

    /// Returns whether connections to and from this address need no TLS.
    pub(crate) fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted.iter().any(|net| net.contains(&ip))
    }

    /// Returns the member that has this address in a trusted network.
    pub(crate) fn trusted_member(&self, ip: IpAddr) -> Option<&Arc<Member>> {
        if !self.trusts(ip) {
            return None;
        }
        let ip = ip.to_canonical();
        let has = |target: &Target| matches!(target, Target::Addr(addr) if addr.ip().to_canonical() == ip);
        let mut members = self.local.members.iter();
        members.find(|m| m.name != self.local.name && m.addresses.iter().any(has))
    }

    /// Returns the version of the PROXY protocol header with which a leg to this address begins; `None`: it has
    /// none.
    pub(crate) fn proxy_version(&self, to: UpstreamAddr) -> Option<ProxyVersion> {
        let mut rules = self.send_proxy.iter();
        let rule = rules.find(|(_, of)| self.access.are_in(of, to.0));
        rule.map(|(version, _)| *version)
    }

    /// Returns the PROXY protocol header, with the fields `passed`, that a leg to the address `to`
    /// begins with; empty if it begins with none.
    pub(crate) fn introduction(
        &self,
        client: ClientAddr,
        to: UpstreamAddr,
        passed: &Tlvs,
    ) -> Vec<u8> {
        self.proxy_version(to).map_or_else(Vec::new, |version| {
            let introduction = Introduction {
                client: client.0,
                to: to.0,
                tlvs: passed.decode(),
            };
            introduction.header(version)
        })
    }

    /// Returns the destinations that sessions of this member may reach.
    pub(crate) fn access_of(&self, member: &MemberName) -> &Destinations {
        self.rules.get(member).map_or(&self.access, |r| &r.access)
    }
}

impl Policy for Mesh {
    fn may_speak_for(&self, member: &MemberName, client: IpAddr) -> bool {
        let rules = self.rules.get(member);
        rules.is_none_or(|r| r.clients.check(client).is_allowed())
    }

    fn leads_to(&self, relay: &MemberName) -> bool {
        self.passes_on(relay) && self.peer(relay).is_some()
    }

    fn may_reach(&self, member: &MemberName, destination: SocketAddr) -> bool {
        let verdict = self.access_of(member).check_addr(destination, None);
        is_allowed(&destination, verdict)
    }

    fn may_look_up(&self, member: &MemberName, host: &str, port: u16) -> bool {
        let verdict = self.access_of(member).check_name(host, port);
        is_allowed(&format_args!("{host}:{port}"), verdict)
    }
}

fn is_allowed(destination: &impl Display, verdict: DestinationVerdict) -> bool {
    let allowed = verdict.is_allowed();
    if !allowed {
        tracing::debug!(%destination, cause = verdict.label(), "not an allowed destination");
    }
    allowed
}
