//! What a node does at present: where each listener's connections go, and the mesh it is part of.

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

/// What new sessions are begun by. A reload puts another in its place; sessions keep what they
/// began with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) timeouts: Arc<Timeouts>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) mesh: Option<Arc<Mesh>>,
}

/// One `[[relay.forward]]`, ready to be used.
#[derive(Debug)]
pub(crate) struct Route {
    /// Its number: of no other route of this process, before or after.
    pub(crate) id: u32,
    /// What the session log calls it: the first address it listens on.
    pub(crate) name: Arc<str>,
    /// The destination, `host:port`.
    pub(crate) destination: Arc<str>,
    pub(crate) listen: Vec<ListenAddr>,
    pub(crate) next_hop: NextHop,
    /// Who may connect.
    pub(crate) sources: Sources,
    /// Its upstream legs are begun when the client's SYN is seen.
    pub(crate) early_syn: bool,
    /// How its clients' addresses are learnt and passed on.
    pub(crate) identity: Identity,
}

/// How a forward's connections go on.
#[derive(Debug)]
pub(crate) enum NextHop {
    /// By a connection of their own.
    Direct {
        targets: Arc<Targets>,
        options: Arc<LegOptions>,
    },
    /// Through the mesh, beginning with `peer`.
    Mesh {
        peer: Arc<Peer>,
        /// The relays after `peer`.
        route: Vec<Target>,
        destination: Target,
    },
    /// To where each client wanted to go.
    OriginalDst(Box<OriginalDst>),
}

/// A transparent forward's way.
#[derive(Debug)]
pub(crate) struct OriginalDst {
    /// What it takes.
    pub(crate) taking: Taking,
    /// Where sessions may go.
    pub(crate) access: Destinations,
    pub(crate) upstream: Upstream,
}

/// How a transparent forward's connections go on.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// By a connection of their own.
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
    /// Its place among the pools of every worker.
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
    /// Which relays may connect.
    pub(crate) sources: Sources,
    /// Where sessions from the mesh may go.
    pub(crate) access: Destinations,
    /// What legs to their destinations ask of their sockets.
    pub(crate) upstream: Arc<LegOptions>,
    /// These legs come from the address of the client.
    pub(crate) borrow: bool,
    pub(crate) listen: Vec<ListenAddr>,
}

impl Mesh {
    /// The peer at this address, if sessions may be passed on to it.
    pub(crate) fn peer(&self, target: &Target) -> Option<&Arc<Peer>> {
        let wanted = target.to_string();
        self.peers
            .iter()
            .find(|peer| peer.targets.destination().to_string() == wanted)
    }
}
