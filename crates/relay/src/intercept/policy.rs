//! The policy route: the kernel looks marked packets up in a table in which every address is local.
//!
//! Priority and table are constant, so that a new process finds and replaces what a killed process
//! left behind. The rule's protocol (`ip -d rule`) identifies the method of that process, and
//! therefore what else it left.

use std::net::{Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use taut_exposition::runtime;
use tokio::runtime::Builder;

use super::Method;
use crate::net::netlink::{ATTEMPTS, answered, hint, is_existing, is_unsupported};

/// The routing table in which every address is local.
pub const TABLE: u32 = 29_793;

/// The priority of the rule. It comes before the rules of VPNs and of the administrator, because
/// marked packets belong to the relay alone.
pub const PRIORITY: u32 = 74;

/// The protocol numbers of the rules, one per method; no routing daemon uses them (rt_protos).
const BPF_PROTOCOL: u8 = 0x74;
const NFT_PROTOCOL: u8 = 0x75;

/// The installed rules and routes. Dropping this removes them, unless they stay.
#[derive(Debug)]
pub(super) struct PolicyRoute {
    stays: bool,
}

/// The reason why the policy route cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The netlink socket cannot be opened.
    #[error("interception: cannot open a netlink socket: {0}")]
    Socket(#[source] std::io::Error),
    /// The kernel's answer did not arrive.
    #[error(
        "interception: the kernel's answer over netlink was lost; see whether this machine lacks memory (`free -m`)"
    )]
    Lost,
    /// The rules cannot be listed.
    #[error("interception: cannot list rules and routes: {0}")]
    List(#[source] Box<rtnetlink::Error>),
    /// The kernel rejected a change.
    #[error(
        "interception: cannot {what}: {source}{hint}",
        hint = hint(
            .source,
            &format!(
                "see whether `ip rule add priority {PRIORITY} fwmark {mark:#x} lookup {TABLE}` and \
                 `ip route add local default dev lo table {TABLE}` work"
            )
        )
    )]
    Refused {
        /// The change.
        what: &'static str,
        /// The mark that the rule is for.
        mark: u32,
        /// The kernel's error.
        source: Box<rtnetlink::Error>,
    },
    /// There is no loopback device.
    #[error("interception: there is no device `lo` to route to; `ip link` lists the devices")]
    NoLoopback,
}

/// The parts of the policy route that exist for one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// The rule exists, with its priority and table.
    pub rule: bool,
    /// The route that makes every address local exists.
    pub route: bool,
}

/// Returns which parts of the policy route exist for IPv4 and for IPv6, no matter which process
/// added them.
///
/// # Errors
/// [`PolicyError`]: the kernel does not answer.
pub fn presence() -> Result<[Presence; 2], PolicyError> {
    with_netlink(async |handle| {
        let mut found = [Presence {
            rule: false,
            route: false,
        }; 2];
        for (found, version) in found.iter_mut().zip([IpVersion::V4, IpVersion::V6]) {
            let rules = handle.rule().get(version.clone()).execute();
            let rules: Vec<_> = listed(rules.try_collect().await)?;
            found.rule = rules.iter().any(is_in_place);
            let routes = handle.route().get(route(&version, 0)).execute();
            let routes: Vec<_> = listed(routes.try_collect().await)?;
            found.route = routes.iter().any(|route| {
                route.header.kind == RouteType::Local
                    && route.header.destination_prefix_length == 0
                    && route.attributes.contains(&RouteAttribute::Table(TABLE))
            });
        }
        Ok(found)
    })
}

// === impl PolicyRoute ===

impl PolicyRoute {
    /// Adds rules and routes for IPv4 and, if the kernel supports it, IPv6. Those that another process needs,
    /// too, stay.
    pub(super) fn set_up(mark: u32, method: Method, stays: bool) -> Result<Self, PolicyError> {
        let lo = nix::net::if_::if_nametoindex("lo").map_err(|_| PolicyError::NoLoopback)?;
        // If a later step fails, dropping this undoes the earlier ones.
        let policy = Self { stays };
        with_netlink(async |handle| {
            for version in [IpVersion::V4, IpVersion::V6] {
                let refused = |what| {
                    move |source| PolicyError::Refused {
                        what,
                        mark,
                        source: Box::new(source),
                    }
                };
                let route = handle.route().add(route(&version, lo)).replace();
                match route.execute().await {
                    Err(e) if is_v6(&version) && is_unsupported(&e) => continue,
                    other => other.map_err(refused("add the local route"))?,
                }
                let mut add = handle
                    .rule()
                    .add()
                    .action(RuleAction::ToTable)
                    .priority(PRIORITY)
                    .fw_mark(mark)
                    .table_id(TABLE);
                let protocol = RouteProtocol::Other(protocol(method));
                let message = add.message_mut();
                message.attributes.push(RuleAttribute::Protocol(protocol));
                let added = match version {
                    IpVersion::V4 => add.v4().execute().await,
                    IpVersion::V6 => add.v6().execute().await,
                };
                match added {
                    // That of the process that this one replaces.
                    Err(e) if is_existing(&e) => {}
                    other => other.map_err(refused("add the policy rule"))?,
                }
            }
            Ok(())
        })?;
        Ok(policy)
    }

    /// Leaves the rules and routes, because another process needs them, or something stays of which they are
    /// the only record.
    pub(super) fn leave(&mut self) {
        self.stays = true;
    }

    /// Removes the rules and routes when this is dropped, because no other process needs them.
    pub(super) fn remove_at_end(&mut self) {
        self.stays = false;
    }

    /// Returns the methods of the processes that left rules behind. What else they left must be
    /// removed before the rules, which are its only record.
    pub(super) fn stale() -> Result<Vec<Method>, PolicyError> {
        with_netlink(async |handle| {
            let mut rules = Vec::new();
            for version in [IpVersion::V4, IpVersion::V6] {
                rules.extend(our_rules(&handle, version).await?);
            }
            Ok(rules.iter().filter_map(ours).collect())
        })
    }

    /// Removes the rules and routes that killed processes left behind.
    pub(super) fn remove_stale() -> Result<(), PolicyError> {
        let mut removed = Err(PolicyError::Lost);
        for _ in 0..ATTEMPTS {
            removed = with_netlink(async |handle| remove(&handle).await);
            if !matches!(removed, Err(PolicyError::Lost)) {
                break;
            }
        }
        removed
    }
}

impl Drop for PolicyRoute {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = Self::remove_stale() {
            tracing::warn!(
                %error,
                "the policy route stays; `ip rule delete priority {PRIORITY}` and `ip route flush \
                 table {TABLE}` take it away, with -6 for IPv6"
            );
        }
    }
}

/// Removes all of the relay's rules, and the route.
async fn remove(handle: &Handle) -> Result<(), PolicyError> {
    for version in [IpVersion::V4, IpVersion::V6] {
        for rule in our_rules(handle, version.clone()).await? {
            if let Err(error) = handle.rule().del(rule).execute().await {
                tracing::warn!(%error, "cannot remove a policy rule");
            }
        }
        let lo = nix::net::if_::if_nametoindex("lo").unwrap_or(1);
        // Usually the route does not exist.
        let _ = handle.route().del(route(&version, lo)).execute().await;
    }
    Ok(())
}

async fn our_rules(handle: &Handle, version: IpVersion) -> Result<Vec<RuleMessage>, PolicyError> {
    let rules = handle.rule().get(version).execute();
    let mut rules: Vec<_> = listed(rules.try_collect().await)?;
    rules.retain(|rule| ours(rule).is_some());
    Ok(rules)
}

/// Returns a list; that of a kernel without IPv6 is empty.
fn listed<T>(list: Result<Vec<T>, rtnetlink::Error>) -> Result<Vec<T>, PolicyError> {
    match list {
        Err(error) if is_unsupported(&error) => Ok(Vec::new()),
        other => other.map_err(|error| PolicyError::List(Box::new(error))),
    }
}

/// Returns whether the rule has the relay's priority and table.
fn is_in_place(rule: &RuleMessage) -> bool {
    let has = |attribute| rule.attributes.contains(&attribute);
    has(RuleAttribute::Priority(PRIORITY)) && has(RuleAttribute::Table(TABLE))
}

/// Returns the method of a rule of the relay, or `None` for any other rule.
fn ours(rule: &RuleMessage) -> Option<Method> {
    let has = |attribute| rule.attributes.contains(&attribute);
    if !is_in_place(rule) {
        return None;
    }
    [Method::Bpf, Method::Nft]
        .into_iter()
        .find(|m| has(RuleAttribute::Protocol(RouteProtocol::Other(protocol(*m)))))
}

fn protocol(method: Method) -> u8 {
    match method {
        Method::Bpf => BPF_PROTOCOL,
        Method::Nft => NFT_PROTOCOL,
    }
}

/// Returns the route `local default dev lo table TABLE`.
fn route(version: &IpVersion, lo: u32) -> RouteMessage {
    match version {
        IpVersion::V4 => RouteMessageBuilder::<Ipv4Addr>::new()
            .table_id(TABLE)
            .kind(RouteType::Local)
            .scope(RouteScope::Host)
            .output_interface(lo)
            .build(),
        IpVersion::V6 => RouteMessageBuilder::<Ipv6Addr>::new()
            .table_id(TABLE)
            .kind(RouteType::Local)
            .output_interface(lo)
            .build(),
    }
}

fn is_v6(version: &IpVersion) -> bool {
    matches!(version, IpVersion::V6)
}

/// Runs `job` with a netlink connection in the network namespace of the calling thread.
fn with_netlink<T>(
    job: impl AsyncFnOnce(Handle) -> Result<T, PolicyError>,
) -> Result<T, PolicyError> {
    let runtime = runtime::build(Builder::new_current_thread().enable_io().enable_time())
        .map_err(PolicyError::Socket)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(PolicyError::Socket)?;
        let connection = tokio::spawn(connection).abort_handle();
        let done = answered(&connection, job(handle)).await;
        connection.abort();
        done.unwrap_or(Err(PolicyError::Lost))
    })
}
