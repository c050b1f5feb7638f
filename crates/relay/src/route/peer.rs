//! The relays that this one dials, and ways through them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use taut_mesh::dials::Keys;
use taut_mesh::members::MemberName;
use taut_mesh::tls::DialTls;
use taut_sys::socket::LegOptions;

use crate::counters::peer::PeerStats;
use crate::net::addr::UpstreamAddr;
use crate::net::targets::Targets;

/// A way through the mesh.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// The first relay.
    pub(crate) peer: Arc<Peer>,
    /// The relays after it.
    pub(crate) route: Vec<MemberName>,
}

impl Way {
    /// Returns all its relays.
    pub(crate) fn relays(&self) -> Vec<MemberName> {
        let first = std::iter::once(&self.peer.name);
        first.chain(&self.route).cloned().collect()
    }
}

/// A relay that this one dials.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The index of the peer's pool at every worker.
    pub(crate) id: usize,
    pub(crate) name: MemberName,
    /// The configuration names it. Otherwise it is dialled only for automatic routes.
    pub(crate) is_named: bool,
    /// Connections to it are held ready.
    pub(crate) kept: Arc<AtomicBool>,
    /// The keys that it may prove its identity with, and the one of this relay that `tls` uses.
    pub(crate) keys: Arc<Keys>,
    /// Its addresses as the list of members has them, in the order in which they are tried; never empty. One
    /// that is a name may not have been looked up yet.
    pub(crate) targets: Vec<Arc<Targets>>,
    /// What a connection to it needs, with the key of this relay.
    pub(crate) tls: DialTls,
    pub(crate) options: LegOptions,
    /// The windows of connections to it follow what it needs; otherwise `options` has them.
    pub(crate) sizes_window: bool,
    /// The peer's counters, and its name.
    pub(crate) stats: Arc<PeerStats>,
}

impl Peer {
    /// Returns whether connections to it are held ready.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// Returns the addresses in the order in which they are tried.
    pub(crate) fn addrs(&self) -> Vec<UpstreamAddr> {
        let current = self.targets.iter().map(|targets| targets.current());
        current.flat_map(|addrs| addrs.to_vec()).collect()
    }
}
