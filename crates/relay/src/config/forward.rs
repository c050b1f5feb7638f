//! A forward: its listeners, its destinations and their ways, and limits of its own.

use std::time::Duration;

use taut_mesh::members::MemberName;
use taut_sys::socket::PathOptions;

use crate::access::Sources;
use crate::access::identity::Identity;
use crate::net::addr::{Destination, Listen};

use super::{Named, Timeouts, Transparent};

/// The time limits that a forward has instead of the node's; `None`: the node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardTimeouts {
    /// Instead of [`Timeouts::connect`].
    pub connect: Option<Duration>,
    /// Instead of [`Timeouts::half_closed`].
    pub half_closed: Option<Duration>,
    /// Instead of [`Timeouts::idle`].
    pub idle: Option<Option<Duration>>,
    /// Instead of [`Timeouts::first_byte`].
    pub first_byte: Option<Option<Duration>>,
    /// Instead of [`Timeouts::evict`].
    pub evict: Option<Option<Duration>>,
    /// Instead of [`Timeouts::queue`].
    pub queue: Option<Option<Duration>>,
}

/// How an address is checked by connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The time from one check to the next.
    pub interval: Duration,
    /// Checks in a row that connect after which an address that was down is up.
    pub rise: u8,
    /// Checks in a row that fail after which an address that was up is down.
    pub fall: u8,
}

/// One `[[relay.forward]]`.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The name in logs, metrics and commands; `None`: the first address of `listen`.
    pub name: Option<String>,
    /// The addresses that clients connect to.
    pub listen: Vec<Listen>,
    /// The destinations, of which each session gets one. Empty: the destination that each client
    /// connected to (`transparent`). With `via`, one.
    pub to: Vec<Destination>,
    /// The destinations of TLS clients by the server name in their ClientHello; `to` is for all others
    /// then. Empty: all clients go to `to`.
    pub sni: Vec<Named>,
    /// How each address of `to` and `sni` is checked; `None`: no checks.
    pub check: Option<HealthCheck>,
    /// The connections to intercept.
    pub transparent: Option<Transparent>,
    /// How the forward learns its clients' addresses, and how it passes them on.
    pub identity: Identity,
    /// The routes through the mesh, in the order in which they are tried, each the relays that sessions
    /// pass through; empty: directly to the destination.
    pub via: Vec<Vec<MemberName>>,
    /// Sessions take the routes that are best by what relays have measured (`via = "auto"`).
    pub auto: bool,
    /// Whether sessions go directly to the destination if no route works.
    pub direct: bool,
    /// Dials the upstream leg when the client's SYN arrives, before its handshake completes
    /// (pied-piper 3.2, improvement 1).
    pub early_syn: bool,
    /// The sources that may connect.
    pub sources: Sources,
    /// The maximum number of its open sessions; `None`: that of the node.
    pub max_sessions: Option<u32>,
    /// Time limits of its own.
    pub timeouts: ForwardTimeouts,
    /// Congestion control towards the client; `None`: the kernel's default.
    pub client_congestion: Option<String>,
    /// How packets to the destination are sent.
    pub path: PathOptions,
    /// Congestion control towards the destination; `None`: the kernel's default.
    pub upstream_congestion: Option<String>,
}

impl Forward {
    /// Returns the settings that contradict each other, as the end of a sentence that begins with
    /// the forward's name.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let Identity {
            borrow,
            send_proxy,
            accept_proxy,
        } = &self.identity;
        let introduced = accept_proxy.is_some();
        Some(match (&self.to[..], &self.transparent) {
            (_, Some(_)) if !self.sni.is_empty() => {
                ": `sni` and `transparent` exclude each other; remove one"
            }
            (_, Some(_)) if self.auto => {
                ".via: `auto` needs a destination that relays can measure; name the routes of intercepted clients"
            }
            _ if self.early_syn && !self.sni.is_empty() => {
                ".early_syn: cannot be combined with `sni`: the destination is not known at the SYN"
            }
            ([], None) if self.sni.is_empty() => {
                ".to: set the destination, or `transparent = true` for the one that each client connected to"
            }
            ([_, ..], Some(_)) => ": `to` and `transparent` exclude each other; remove one",
            (_, Some(_)) if introduced => {
                ".accept_proxy: an intercepted connection comes from the client itself, without a header"
            }
            _ if self.early_syn && introduced => {
                ".early_syn: cannot be combined with `accept_proxy`: the client is not known at the SYN"
            }
            _ if self.uses_mesh() && self.lists().any(|to| to.len() > 1) => {
                ".to: with `via` there is one destination, which the last relay dials; write a name that \
                 has all the addresses"
            }
            _ if self.check.is_some() && (self.transparent.is_some() || self.uses_mesh()) => {
                ".check: only destinations that this relay connects to itself can be checked; remove \
                 `check`, or `transparent` or `via`"
            }
            _ if self.direct && !self.uses_mesh() => {
                ".direct: is for forwards with `via`; without it, sessions go directly anyway"
            }
            _ if self.uses_mesh() && !self.direct && self.upstream_congestion.is_some() => {
                ".upstream_congestion: with `via` the last relay connects to the destination; write \
                 `upstream_congestion` into [relay.mesh] there"
            }
            _ if self.uses_mesh() && self.path != PathOptions::default() => {
                ".via: `upstream_mark`, `upstream_dscp`, `upstream_device` and `upstream_address` are for \
                 connections of forwards without `via`; write them into [relay.mesh] of the last relay"
            }
            _ if *borrow && !self.path.sources.addrs().is_empty() => {
                ".upstream_address: excludes `source = \"client\"`; remove one"
            }
            _ if self.uses_mesh() && (send_proxy.is_some() || *borrow) => {
                ".via: `send_proxy` and `source` are for connections to the destination itself; write \
                 `source` or `send_proxy` into [relay.mesh] of the last relay"
            }
            _ => return None,
        })
    }

    /// Returns whether sessions go through other relays.
    pub fn uses_mesh(&self) -> bool {
        self.auto || !self.via.is_empty()
    }

    /// Returns `to`, and the destinations of each server name.
    fn lists(&self) -> impl Iterator<Item = &Vec<Destination>> {
        std::iter::once(&self.to).chain(self.sni.iter().map(|(_, to)| to))
    }

    /// Returns the destinations: `to`, then those of each server name.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.lists().flatten()
    }

    /// Returns a forward that intercepts connections.
    pub fn transparent(listen: Vec<Listen>, transparent: Transparent) -> Self {
        Self {
            transparent: Some(transparent),
            ..Self::leading_to(listen, Vec::new())
        }
    }

    /// Returns a forward from `listen` to `to`, with the kernel's defaults on both legs.
    pub fn new(listen: Vec<Listen>, to: Destination) -> Self {
        Self::leading_to(listen, vec![to])
    }

    fn leading_to(listen: Vec<Listen>, to: Vec<Destination>) -> Self {
        Self {
            name: None,
            listen,
            to,
            sni: Vec::new(),
            check: None,
            transparent: None,
            identity: Identity::default(),
            via: Vec::new(),
            auto: false,
            direct: false,
            early_syn: false,
            sources: Sources::default(),
            max_sessions: None,
            timeouts: ForwardTimeouts::default(),
            client_congestion: None,
            path: PathOptions::default(),
            upstream_congestion: None,
        }
    }
}

impl ForwardTimeouts {
    /// Returns these limits, and those of the node where there is none.
    pub(crate) fn over(&self, node: &Timeouts) -> Timeouts {
        Timeouts {
            connect: self.connect.unwrap_or(node.connect),
            half_closed: self.half_closed.unwrap_or(node.half_closed),
            idle: self.idle.unwrap_or(node.idle),
            first_byte: self.first_byte.unwrap_or(node.first_byte),
            evict: self.evict.unwrap_or(node.evict),
            queue: self.queue.unwrap_or(node.queue),
            ..*node
        }
    }
}

impl HealthCheck {
    /// Returns checks at this interval.
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            rise: 2,
            fall: 3,
        }
    }
}
