//! What is asked of the kernel, and told to it.

use std::io;
use std::net::IpAddr;

use futures_util::{FutureExt as _, TryStreamExt as _};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use rtnetlink::{Handle, IpVersion, MulticastGroup};

use super::plan::{address, family, host_route, is_ours, prefix_length};
use super::{PRIORITY, PROTOCOL, RouteMetricsError, TABLE};
use crate::net::netlink::is_unsupported;

/// What may change how a relay is reached. Of a device that goes down the kernel does not report
/// every route that goes with it.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv6Rule,
];

/// Reports that are read in one go; the socket's buffer rarely holds as many.
const REPORTS: usize = 4096;

const FAMILIES: [(IpVersion, AddressFamily); 2] = [
    (IpVersion::V4, AddressFamily::Inet),
    (IpVersion::V6, AddressFamily::Inet6),
];

/// The kernel's reports of changes. That there is one is all that is read of them, so a flood of them
/// waits in the socket's buffer, or is lost there, and costs nothing.
pub(super) struct Changes(TokioSocket);

// === impl Changes ===

impl Changes {
    pub(super) fn listen() -> io::Result<Self> {
        let mut socket = TokioSocket::new(rtnetlink::sys::protocols::NETLINK_ROUTE)?;
        let groups = GROUPS
            .iter()
            .fold(0, |groups, group| groups | 1 << (*group as u32 - 1));
        let netlink = socket.socket_mut();
        netlink.bind(&SocketAddr::new(0, groups))?;
        netlink.add_membership(MulticastGroup::Nexthop as u32)?;
        Ok(Self(socket))
    }

    /// There is a report, or one was lost.
    pub(super) async fn next(&self) {
        let mut byte = [0; 1];
        // An error says that the buffer was full.
        let _ = self.0.recv(&mut &mut byte[..]).await;
    }

    /// Reads all there are.
    pub(super) fn drain(&self) {
        for _ in 0..REPORTS {
            if self.next().now_or_never().is_none() {
                return;
            }
        }
    }
}

/// The route by which the kernel would reach `address`, ours left aside: it is asked on behalf of
/// no protocol, or of UDP, and ours are for TCP only.
pub(super) async fn matched(handle: &Handle, address: IpAddr) -> Option<RouteMessage> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(address);
    question.header.destination_prefix_length = prefix_length(address);
    // The route itself, and not what it comes to for this one address.
    question.header.flags = RouteFlags::FibMatch;
    question.attributes = vec![RouteAttribute::Destination(address.into())];
    let mut answers = Box::pin(handle.route().get(question).execute());
    answers.try_next().await.ok().flatten()
}

/// Everything in our table.
pub(super) async fn found(handle: &Handle) -> Vec<RouteMessage> {
    let mut found = Vec::new();
    for (_, family) in FAMILIES {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        question.attributes = vec![RouteAttribute::Table(TABLE)];
        let routes = handle.route().get(question).execute();
        // There is no table until there is something in it.
        let routes: Vec<_> = routes.try_collect().await.unwrap_or_default();
        found.extend(routes);
    }
    found
}

/// Puts a route into our table, in the place of the one that is there.
pub(super) async fn put(handle: &Handle, route: RouteMessage) -> Result<(), rtnetlink::Error> {
    handle.route().add(route).replace().execute().await
}

/// Takes our route to `address` away.
pub(super) async fn remove(handle: &Handle, address: IpAddr) -> Result<(), rtnetlink::Error> {
    let mut route = host_route(address);
    // Whatever scope it has.
    route.header.scope = RouteScope::NoWhere;
    handle.route().del(route).execute().await
}

/// Makes sure that there are rules that lead to our table, for IPv4 and, where there is any, IPv6.
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
            // What this machine sends itself; that also spares the kernel a look into the headers of
            // what it forwards.
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

/// Takes away everything that has our protocol: first the rules, so that from then on nothing is
/// led to a table that is half empty.
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

async fn rules(handle: &Handle, version: IpVersion) -> Vec<RuleMessage> {
    let rules = handle.rule().get(version).execute();
    // Without IPv6 there is nothing to list.
    rules.try_collect().await.unwrap_or_default()
}

fn is_our_rule(rule: &RuleMessage) -> bool {
    let has = |attribute| rule.attributes.contains(&attribute);
    has(RuleAttribute::Table(TABLE)) && has(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)))
}
