//! The present configuration of a node: where each listener's connections go, and its mesh.

use std::sync::Arc;

use arc_swap::ArcSwap;
use taut_mesh::hello::Target;
use taut_mesh::key::Keys;
use taut_sys::socket::LegOptions;

use crate::access::identity::Identity;
use crate::access::{Destinations, Sources};
use crate::config::{InboundLimits, PoolLimits, Timeouts};
use crate::intercept::Taking;
use crate::net::addr::ListenAddr;
use crate::net::targets::Targets;

/// The configuration that new sessions begin with. A reload replaces it; sessions keep theirs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) timeouts: Arc<Timeouts>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) mesh: Option<Arc<Mesh>>,
}

/// One `[[relay.forward]]`, ready to be used.
#[derive(Debug)]
pub(crate) struct Route {
    /// Its number, never reused by this process.
    pub(crate) id: u32,
    /// What the session log calls it: the first address it listens on.
    pub(crate) name: Arc<str>,
    /// The destination, `host:port`.
    pub(crate) destination: Arc<str>,
    pub(crate) listen: Vec<ListenAddr>,
    pub(crate) next_hop: NextHop,
    /// Which clients may connect.
    pub(crate) sources: Sources,
    /// The upstream leg is dialled when the client's SYN is seen.
    pub(crate) early_syn: bool,
    /// How clients' addresses are learnt and passed on.
    pub(crate) identity: Identity,
}

/// The next hop of a forward's connections.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// The destination.
    Direct {
        targets: Arc<Targets>,
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

/// The next hop of a transparent forward.
#[derive(Debug)]
pub(crate) struct OriginalDst {
    /// The connections that are intercepted.
    pub(crate) taking: Taking,
    /// Destinations that sessions may have.
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
    /// The index of its pool at every worker.
    pub(crate) id: usize,
    pub(crate) targets: Arc<Targets>,
    pub(crate) options: LegOptions,
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
    /// Destinations that sessions from the mesh may have.
    pub(crate) access: Destinations,
    /// The socket options of legs to these destinations.
    pub(crate) upstream: Arc<LegOptions>,
    /// These legs connect from the client's address.
    pub(crate) borrow: bool,
    pub(crate) listen: Vec<ListenAddr>,
}

impl Mesh {
    /// Returns the peer at this address, if sessions may be passed on to it.
    pub(crate) fn peer(&self, target: &Target) -> Option<&Arc<Peer>> {
        let wanted = target.to_string();
        self.peers
            .iter()
            .find(|peer| peer.targets.destination().to_string() == wanted)
    }
}
