//! Decides which routes to keep. Pure: takes the kernel's answers, returns changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteNextHopFlags, RouteProtocol, RouteType,
};

use super::{MAX_ADDRESSES, PROTOCOL, TABLE};

/// The reason why an address has no route in the relay's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    /// More than [`MAX_ADDRESSES`] addresses are wanted.
    TooMany,
    /// The kernel has no route to the address.
    NoRoute,
    /// The address belongs to this machine, or is not unicast.
    NotUnicast,
    /// A policy rule sends the address to a table other than main.
    OtherTable,
    /// The route to the address already sets an initial window.
    HasWindow,
    /// Another program has a route for the address in the relay's table.
    Occupied,
    /// The kernel rejected the route.
    Refused,
}

/// The changes to make.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Routes to add, or to replace.
    pub(super) put: Vec<(IpAddr, RouteMessage)>,
    /// Routes to remove.
    pub(super) remove: Vec<IpAddr>,
    /// Wanted addresses for which another program has a route in the table.
    pub(super) occupied: Vec<IpAddr>,
}

// === impl Without ===

impl Without {
    /// Returns the reason for a log message.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::TooMany => "there are more relays than the limit",
            Self::NoRoute => "there is no route to it",
            Self::NotUnicast => "it is not a unicast address of another machine",
            Self::OtherTable => "a policy rule routes it by another table than main",
            Self::HasWindow => "its route has an initcwnd already, which stays",
            Self::Occupied => "another program has a route for it in this table",
            Self::Refused => "the kernel refused it",
        }
    }
}

/// Returns the addresses that get a route, and the number of the others. The first addresses of
/// `wanted` are chosen, so `wanted` must be in order of importance.
pub(super) fn choose(wanted: impl IntoIterator<Item = IpAddr>) -> (BTreeSet<IpAddr>, usize) {
    let mut chosen = BTreeSet::new();
    let mut others = BTreeSet::new();
    for address in wanted.into_iter().map(|ip| ip.to_canonical()) {
        if chosen.contains(&address) || !may_have_route(address) {
            continue;
        }
        match chosen.len() < MAX_ADDRESSES {
            true => chosen.insert(address),
            false => others.insert(address),
        };
    }
    (chosen, others.len())
}

/// Returns whether `address` can, by its form, be another machine's. A link-local address alone is
/// ambiguous.
fn may_have_route(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// Returns the route to `address` that copies the kernel's route `matched` and adds an initial
/// window of `segments`.
pub(super) fn copy(
    address: IpAddr,
    matched: &RouteMessage,
    segments: u32,
) -> Result<RouteMessage, Without> {
    if matched.header.kind != RouteType::Unicast {
        return Err(Without::NotUnicast);
    }
    if table(matched) != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return Err(Without::OtherTable);
    }
    let attributes = &matched.attributes;
    // A next hop object is enough: the kernel rejects a route that also lists the parts of the hop.
    let numbered = attributes
        .iter()
        .any(|a| matches!(a, RouteAttribute::NhId(_)));
    let mut message = host_route(address);
    message.header.kind = RouteType::Unicast;
    message.header.scope = matched.header.scope;
    if !numbered {
        message.header.flags = matched.header.flags & RouteFlags::Onlink;
    }
    let mut metrics = Vec::new();
    for attribute in attributes {
        match attribute {
            RouteAttribute::NhId(_) | RouteAttribute::PrefSource(_) => {
                message.attributes.push(attribute.clone());
            }
            RouteAttribute::Metrics(theirs) => metrics.extend(theirs.iter().cloned()),
            RouteAttribute::MultiPath(hops) if !numbered => {
                let mut hops = hops.clone();
                for hop in &mut hops {
                    // The other attributes report state and cannot be set.
                    hop.flags &= RouteNextHopFlags::Onlink;
                }
                message.attributes.push(RouteAttribute::MultiPath(hops));
            }
            RouteAttribute::Gateway(_)
            | RouteAttribute::Via(_)
            | RouteAttribute::Oif(_)
            | RouteAttribute::EncapType(_)
            | RouteAttribute::Encap(_)
                if !numbered =>
            {
                message.attributes.push(attribute.clone());
            }
            _ => {}
        }
    }
    let has_window = |m: &RouteMetric| matches!(m, RouteMetric::InitCwnd(_));
    if metrics.iter().any(has_window) {
        return Err(Without::HasWindow);
    }
    metrics.push(RouteMetric::InitCwnd(segments));
    message.attributes.push(RouteAttribute::Metrics(metrics));
    Ok(message)
}

/// Returns a route to `address` in the relay's table, with only the fields that identify it.
pub(super) fn host_route(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.header.destination_prefix_length = prefix_length(address);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.attributes = vec![
        RouteAttribute::Destination(address.into()),
        RouteAttribute::Table(TABLE),
    ];
    message
}

/// Returns the changes that turn the routes `found` in the relay's table into `copies`. `before`
/// are the relay's routes as it requested them; the kernel reports them in another form.
pub(super) fn plan(
    copies: &BTreeMap<IpAddr, RouteMessage>,
    before: &BTreeMap<IpAddr, RouteMessage>,
    found: &[RouteMessage],
) -> Plan {
    let mut ours = BTreeSet::new();
    let mut theirs = BTreeSet::new();
    for route in found.iter().filter(|route| table(route) == TABLE) {
        match (is_ours(route), address(route)) {
            (true, Some(address)) => ours.insert(address),
            (false, Some(address)) => theirs.insert(address),
            (_, None) => false,
        };
    }
    let mut plan = Plan::default();
    for (address, copy) in copies {
        if theirs.contains(address) {
            plan.occupied.push(*address);
        } else if !ours.contains(address) || before.get(address) != Some(copy) {
            plan.put.push((*address, copy.clone()));
        }
    }
    let stays = |address: &IpAddr| copies.contains_key(address) && !theirs.contains(address);
    plan.remove = ours.into_iter().filter(|a| !stays(a)).collect();
    plan
}

/// Returns whether a route is one of the relay's.
pub(super) fn is_ours(route: &RouteMessage) -> bool {
    table(route) == TABLE && route.header.protocol == RouteProtocol::Other(PROTOCOL)
}

/// Returns the address that a host route leads to.
pub(super) fn address(route: &RouteMessage) -> Option<IpAddr> {
    let address = route.attributes.iter().find_map(|a| match a {
        RouteAttribute::Destination(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Destination(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })?;
    (route.header.destination_prefix_length == prefix_length(address)).then_some(address)
}

fn table(route: &RouteMessage) -> u32 {
    let attribute = route.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    attribute.unwrap_or(u32::from(route.header.table))
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

pub(super) fn prefix_length(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests;
