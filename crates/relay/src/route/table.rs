//! The present configuration of a node: the route of each listener's connections, and the mesh.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use taut_mesh::hello::Target;
use taut_mesh::key::Keys;
use taut_sys::socket::LegOptions;

use crate::access::identity::Identity;
use crate::access::{Destinations, Sources};
use crate::config::{InboundLimits, PoolLimits, Timeouts};
use crate::counters::forward::ForwardStats;
use crate::counters::peer::PeerStats;
use crate::intercept::Taking;
use crate::net::addr::ListenAddr;
use crate::net::targets::Targets;

/// The configuration that new sessions use. A reload replaces it; running sessions keep theirs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) timeouts: Arc<Timeouts>,
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
    /// The sources that may connect.
    pub(crate) sources: Sources,
    /// Whether to dial the upstream leg when the client's SYN arrives.
    pub(crate) early_syn: bool,
    /// How the forward learns its clients' addresses, and how it passes them on.
    pub(crate) identity: Identity,
    /// The interval of health checks; `None`: no checks.
    pub(crate) check: Option<Duration>,
}

/// The next hop of a forward's connections.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// The destinations, of which each session gets one.
    Direct {
        targets: Vec<Arc<Targets>>,
        options: Arc<LegOptions>,
    },
    /// Another relay of the mesh, `peer`.
    Mesh {
        peer: Arc<Peer>,
        /// The relays after `peer`.
        route: Vec<Target>,
        destination: Target,
    },
    /// The destination that each client connected to.
    OriginalDst(Box<OriginalDst>),
}

impl NextHop {
    /// Returns the destinations that this node dials.
    pub(crate) fn targets(&self) -> &[Arc<Targets>] {
        match self {
            Self::Direct { targets, .. } => targets,
            Self::Mesh { .. } | Self::OriginalDst(_) => &[],
        }
    }
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
    /// Through the mesh, beginning with `peer`.
    Mesh {
        peer: Arc<Peer>,
        /// The relays after `peer`.
        route: Vec<Target>,
    },
}

/// A relay that this one dials.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The index of the peer's pool at every worker.
    pub(crate) id: usize,
    pub(crate) targets: Arc<Targets>,
    pub(crate) options: LegOptions,
    /// The peer's counters, and its name.
    pub(crate) stats: Arc<PeerStats>,
}

/// The node's part in a mesh.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) keys: ArcSwap<Keys>,
    pub(crate) peers: Vec<Arc<Peer>>,
    pub(crate) hop_limit: u8,
    pub(crate) pool: PoolLimits,
    pub(crate) inbound: InboundLimits,
    /// Relays that may connect.
    pub(crate) sources: Sources,
    /// Destinations that sessions from the mesh may reach.
    pub(crate) access: Destinations,
    /// The socket options of legs to those destinations.
    pub(crate) upstream: Arc<LegOptions>,
    /// Whether those legs use the client's address as their source.
    pub(crate) borrow: bool,
    pub(crate) listen: Vec<ListenAddr>,
    /// The counters of sessions that other relays request.
    pub(crate) stats: Arc<ForwardStats>,
}

impl Mesh {
    /// Returns the peer at `target`, if sessions may be forwarded to it.
    pub(crate) fn peer(&self, target: &Target) -> Option<&Arc<Peer>> {
        let wanted = target.to_string();
        self.peers
            .iter()
            .find(|peer| peer.targets.destination().to_string() == wanted)
    }
}
