//! `[relay.mesh]`: the node's part in a mesh of relays.

mod section;

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use taut_mesh::identity::PublicKey;
use taut_mesh::members::MemberName;
use taut_sys::socket::PathOptions;

pub(super) use self::section::MeshSection;
use super::etcd::EtcdConfig;
use super::limits::{InboundLimits, PoolLimits};
use crate::access::identity::ProxyVersion;
use crate::access::{Rule, Sources};
use crate::net::addr::Listen;

/// The default limit of relays that a session may pass through, counted from the first. RFC 9110
/// sets no such limit for proxies; eight is more than any sensible route needs.
const HOP_LIMIT: u8 = 8;

/// A node's part in a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// The file with this relay's private key.
    pub private_key_file: PathBuf,
    /// The file with the list of all relays of the mesh.
    pub members_file: PathBuf,
    /// The keys of the mesh, one of which must have signed the list of relays. Empty: the list has no
    /// signature, or it is not checked.
    pub members_key: Vec<PublicKey>,
    /// Where the signed list comes from besides its file.
    pub etcd: Option<EtcdConfig>,
    /// The addresses of the mesh port; empty: this node only dials.
    pub listen: Vec<Listen>,
    /// Relays that may connect, by their own addresses.
    pub sources: Sources,
    /// Destinations that sessions from other relays may reach.
    pub allow: Vec<Rule>,
    /// Exceptions from `allow`.
    pub deny: Vec<Rule>,
    /// Networks in which connections between relays need no TLS.
    pub trusted_networks: Vec<IpNet>,
    /// Relays that sessions from other relays may be forwarded to, besides those in the routes of
    /// forwards.
    pub peers: Vec<MemberName>,
    /// Sessions from other relays may be forwarded to every member.
    pub pass_to_all: bool,
    /// Whether paths are measured, and rows exchanged with other relays.
    pub measure: bool,
    /// The file in which the choices of automatic routes are kept for the next start; `None`: nowhere.
    pub routes_file: Option<PathBuf>,
    /// What single relays may do here.
    pub rules: Vec<PeerRule>,
    /// What happens to the sessions of a relay that is removed from the list.
    pub removed: Removed,
    /// The number of relays that a session may pass through.
    pub hop_limit: u8,
    /// The pool of ready connections.
    pub pool: PoolLimits,
    /// Limits of connections to the mesh port before they carry a session.
    pub inbound: InboundLimits,
    /// Legs to destinations use the client's address, as reported by the first relay, as their
    /// source.
    pub borrow: bool,
    /// Destinations to which legs begin with a PROXY protocol header of this version. The first that matches counts.
    /// Names match nothing, because a client may ask for their addresses.
    pub send_proxy: Vec<(ProxyVersion, Vec<Rule>)>,
    /// Congestion control of legs to destinations; `None`: the kernel's default.
    pub upstream_congestion: Option<String>,
    /// How packets to destinations are sent.
    pub path: PathOptions,
    /// Turbo start of legs between relays; `None`: off.
    pub turbo: Option<Turbo>,
    /// The keys of protected legs go to the kernel where it has TLS.
    pub kernel_tls: bool,
    /// Congestion control of legs between relays, as [`LegConfig::congestion`].
    pub congestion: Option<String>,
    /// The highest rate of such a leg in bytes a second; `None`: no limit.
    pub max_rate: Option<u64>,
    /// The kernel memory, in bytes, of legs whose windows are not configured; `None`: half of what the
    /// kernel has for TCP before it comes under pressure.
    pub window_budget: Option<u64>,
}

/// How connections between this relay and another are used for sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegConfig {
    /// Turbo start; `None`: off.
    pub turbo: Option<Turbo>,
    /// The kernel's congestion control. `None`: `taut_pipe` with turbo start, otherwise the kernel's
    /// default.
    pub congestion: Option<String>,
    /// The highest rate in bytes a second; `None`: no limit.
    pub max_rate: Option<u64>,
}

/// `[[relay.mesh.peer]]`: what one relay may do here.
#[derive(Clone, Debug)]
pub struct PeerRule {
    /// The relay.
    pub name: MemberName,
    /// Destinations that its sessions may reach, instead of those of the mesh; `None`: those.
    pub allow: Option<Vec<Rule>>,
    /// Exceptions, besides those of the mesh.
    pub deny: Vec<Rule>,
    /// Clients that it may speak for; the default is all.
    pub clients: Sources,
    /// Legs between this relay and it; `None`: as those to others.
    pub leg: Option<LegConfig>,
}

/// What happens to the sessions of a relay that is removed from the list of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Removed {
    /// They are reset at once.
    #[default]
    Reset,
    /// They end by themselves; no new ones begin.
    Drain,
}

/// Turbo start of legs between relays (pied-piper 3.2, improvement 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turbo {
    /// The initial rate of a leg, in bytes a second.
    pub rate: u64,
    /// Bytes that may be in flight on a new leg: its initial window and its socket buffers. `None`: they
    /// begin at [`INITIAL_WINDOW`] and follow what the peer needs.
    pub window: Option<u32>,
}

/// The window of a leg whose peer is not known to need more: 1 Gbit/s over 32 ms, or 150 Mbit/s over
/// 215 ms.
pub const INITIAL_WINDOW: u32 = 4 << 20;

impl Turbo {
    /// Returns the window of a leg to a peer of which nothing is known.
    pub fn initial_window(&self) -> u32 {
        self.window.unwrap_or(INITIAL_WINDOW)
    }
}

impl Default for Turbo {
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            window: None,
        }
    }
}

impl MeshConfig {
    /// Returns the defaults with this private key and list of members: no mesh port and no allowed
    /// destinations.
    pub fn new(private_key_file: PathBuf, members_file: PathBuf) -> Self {
        Self {
            private_key_file,
            members_file,
            members_key: Vec::new(),
            etcd: None,
            listen: Vec::new(),
            sources: Sources::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            trusted_networks: Vec::new(),
            peers: Vec::new(),
            pass_to_all: false,
            measure: true,
            routes_file: None,
            rules: Vec::new(),
            removed: Removed::default(),
            hop_limit: HOP_LIMIT,
            pool: PoolLimits::default(),
            inbound: InboundLimits::default(),
            borrow: false,
            send_proxy: Vec::new(),
            upstream_congestion: None,
            path: PathOptions::default(),
            turbo: Some(Turbo::default()),
            congestion: None,
            max_rate: None,
            window_budget: None,
            kernel_tls: true,
        }
    }

    /// Returns how connections to relays are used that have no settings of their own.
    pub fn leg(&self) -> LegConfig {
        LegConfig {
            turbo: self.turbo,
            congestion: self.congestion.clone(),
            max_rate: self.max_rate,
        }
    }

    /// Returns how connections between this relay and `member` are used.
    pub fn leg_to(&self, member: &MemberName) -> LegConfig {
        let rule = self.rules.iter().find(|rule| rule.name == *member);
        rule.and_then(|rule| rule.leg.clone())
            .unwrap_or_else(|| self.leg())
    }

    /// Returns whether legs to any relay have turbo start.
    pub fn wants_turbo(&self) -> bool {
        self.legs().any(|leg| leg.turbo.is_some())
    }

    /// Returns the default, and what relays with settings of their own have.
    pub(crate) fn legs(&self) -> impl Iterator<Item = LegConfig> {
        let own = self.rules.iter().filter_map(|rule| rule.leg.clone());
        std::iter::once(self.leg()).chain(own)
    }
}

// === impl LegConfig ===

impl LegConfig {
    /// Returns whether the windows of such legs follow what the peer needs.
    pub(crate) fn sizes_window(&self) -> bool {
        self.turbo.is_some_and(|turbo| turbo.window.is_none())
    }

    /// Returns whether such legs use `taut_pipe`, if the kernel accepts it.
    pub(crate) fn wants_pipe(&self) -> bool {
        self.turbo.is_some() && self.congestion.is_none()
    }
}

/// The value of `peers` that stands for all members.
const ALL: &str = "*";

/// The name of `taut_pipe` in the configuration.
const TURBO: &str = "turbo";

/// The range of `pool_age`. The dialler replaces a connection before the acceptor's limit ends it.
const POOL_AGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// The range of windows that the kernel accepts both as congestion window and as buffer, within
/// reason.
pub(crate) const WINDOW: std::ops::RangeInclusive<u64> = (64 << 10)..=(256 << 20);

/// The smallest `window_budget`.
const LEAST_BUDGET: u64 = 16 << 20;
