//! Queries and changes through rtnetlink.

use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use rtnetlink::{Handle, IpVersion, MulticastGroup};
use tokio::task::AbortHandle;

use super::plan::{address, family, host_route, is_ours, prefix_length};
use super::{PRIORITY, PROTOCOL, RouteMetricsError, TABLE};
use crate::net::netlink::{answered, is_unsupported};

/// The notifications of changes that may affect the route to a relay. Devices are included, because
/// the kernel does not report every route that disappears with a device.
pub(super) const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Nexthop,
];

const FAMILIES: [(IpVersion, AddressFamily); 2] = [
    (IpVersion::V4, AddressFamily::Inet),
    (IpVersion::V6, AddressFamily::Inet6),
];

/// A netlink connection.
#[derive(Clone)]
pub(super) struct Netlink {
    pub(super) handle: Handle,
    connection: AbortHandle,
}

// === impl Netlink ===

impl Netlink {
    /// Connects in the network namespace of the calling thread.
    pub(super) fn connect() -> Result<Self, RouteMetricsError> {
        let (connection, handle, _) =
            rtnetlink::new_connection_with_strict_check().map_err(RouteMetricsError::Netlink)?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection).abort_handle(),
        })
    }

    /// Runs a job that makes requests over this connection. If an answer is lost, the connection ends.
    pub(super) async fn run<T>(
        &self,
        job: impl Future<Output = Result<T, RouteMetricsError>>,
    ) -> Result<T, RouteMetricsError> {
        let done = answered(&self.connection, job).await;
        done.unwrap_or(Err(RouteMetricsError::Lost))
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_finished()
    }
}

/// Returns the route that the kernel would use to reach `address` without the relay's routes. The
/// query names no protocol, or UDP; the relay's routes are for TCP only.
pub(super) async fn matched(handle: &Handle, address: IpAddr) -> Option<RouteMessage> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(address);
    question.header.destination_prefix_length = prefix_length(address);
    // Requests the route itself, not its result for this one address.
    question.header.flags = RouteFlags::FibMatch;
    question.attributes = vec![RouteAttribute::Destination(address.into())];
    let mut answers = Box::pin(handle.route().get(question).execute());
    answers.try_next().await.ok().flatten()
}

/// Returns all routes in the relay's table.
pub(super) async fn found(handle: &Handle) -> Vec<RouteMessage> {
    let mut found = Vec::new();
    for (_, family) in FAMILIES {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        question.attributes = vec![RouteAttribute::Table(TABLE)];
        let routes = handle.route().get(question).execute();
        // The kernel reports an error for an empty table, because it does not exist.
        let routes: Vec<_> = routes.try_collect().await.unwrap_or_default();
        found.extend(routes);
    }
    found
}

/// Adds a route to the relay's table, or replaces the one for the same address.
pub(super) async fn put(handle: &Handle, route: RouteMessage) -> Result<(), rtnetlink::Error> {
    handle.route().add(route).replace().execute().await
}

/// Removes the relay's route to `address`.
pub(super) async fn remove(handle: &Handle, address: IpAddr) -> Result<(), rtnetlink::Error> {
    let mut route = host_route(address);
    // Matches any scope.
    route.header.scope = RouteScope::NoWhere;
    handle.route().del(route).execute().await
}

/// Adds the rules for the relay's table, for IPv4 and, if the kernel supports it, IPv6.
pub(super) async fn ensure_rules(handle: &Handle) -> Result<(), RouteMetricsError> {
    for (version, family) in FAMILIES {
        if rules(handle, version.clone()).await.iter().any(is_our_rule) {
            continue;
        }
        let mut add = handle
            .rule()
            .add()
            .action(RuleAction::ToTable)
            .priority(PRIORITY)
            // Matches only what this machine itself sends. It also spares the kernel from parsing
            // the headers of forwarded packets.
            .input_interface("lo")
            .table_id(TABLE);
        let message = add.message_mut();
        message.header.family = family;
        message.attributes.extend([
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
        ]);
        match add.execute().await {
            Err(error) if version == IpVersion::V6 && is_unsupported(&error) => {}
            other => other.map_err(|error| RouteMetricsError::Rule(Box::new(error)))?,
        }
    }
    Ok(())
}

/// Removes everything with the relay's protocol number. The rules go first, so that no connection
/// is routed by a half-empty table.
pub(super) async fn remove_all(handle: &Handle) {
    for (version, _) in FAMILIES {
        let ours = rules(handle, version).await.into_iter().filter(is_our_rule);
        for rule in ours {
            if let Err(error) = handle.rule().del(rule).execute().await {
                tracing::warn!(%error, "cannot remove the policy rule of route metrics");
            }
        }
    }
    for address in found(handle)
        .await
        .iter()
        .filter(|r| is_ours(r))
        .filter_map(address)
    {
        if let Err(error) = remove(handle, address).await {
            tracing::warn!(%error, %address, "cannot remove a route with an initial window");
        }
    }
}

/// Returns whether there is a rule or a route that the relay has added.
pub(super) async fn is_any(handle: &Handle) -> bool {
    for (version, _) in FAMILIES {
        if rules(handle, version).await.iter().any(is_our_rule) {
            return true;
        }
    }
    found(handle).await.iter().any(is_ours)
}

async fn rules(handle: &Handle, version: IpVersion) -> Vec<RuleMessage> {
    let rules = handle.rule().get(version).execute();
    // A kernel without IPv6 has no rules to list.
    rules.try_collect().await.unwrap_or_default()
}

fn is_our_rule(rule: &RuleMessage) -> bool {
    let has = |attribute| rule.attributes.contains(&attribute);
    has(RuleAttribute::Table(TABLE)) && has(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)))
}
