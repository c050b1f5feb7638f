//! Which routes there are to be. Pure: the kernel's answers come in, what to do comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteNextHopFlags, RouteProtocol, RouteType,
};

use super::{MAX_ADDRESSES, PROTOCOL, TABLE};

/// Why an address has no route of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    /// More than [`MAX_ADDRESSES`] are wanted.
    TooMany,
    /// There is no way there.
    NoRoute,
    /// It is this machine's, or not one machine's.
    NotUnicast,
    /// A policy rule of somebody's leads elsewhere than to the main table.
    OtherTable,
    /// Its route has an initial window that somebody has set.
    HasWindow,
    /// Somebody has put another one into our table.
    Occupied,
    /// The kernel refused it.
    Refused,
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// To be added, or put in the place of what is there for the same address.
    pub(super) put: Vec<(IpAddr, RouteMessage)>,
    /// To be removed.
    pub(super) remove: Vec<IpAddr>,
    /// Wanted, and somebody else's is in its place.
    pub(super) occupied: Vec<IpAddr>,
}

// === impl Without ===

impl Without {
    /// What to tell the administrator.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::TooMany => "there are more relays than get one",
            Self::NoRoute => "there is no route to it",
            Self::NotUnicast => "it is not the address of one other machine",
            Self::OtherTable => "a policy rule routes it by another table than main",
            Self::HasWindow => "its route has an initcwnd already, which stays",
            Self::Occupied => "somebody else has put a route for it into this table",
            Self::Refused => "the kernel refused it",
        }
    }
}

/// The addresses that get a route, and how many others are wanted. The first of `wanted` are taken:
/// so the order is to be that of importance.
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

/// Whether it can be another machine's, by its form. A link-local address alone says nothing.
fn may_have_route(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// The route to `address` that is like the one that the kernel has `matched`, with an initial window
/// of `segments`.
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
    // A next hop with a number of its own is followed by the kernel; told besides what it is made
    // of, the kernel refuses.
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
                    // The others say how it is at present, and are not to be set.
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

/// A route of ours to `address`, as far as is needed to find it.
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

/// What to do so that the routes there are, `found` in our table, become `copies`. `before`: those
/// that were put there, as they were asked for; the kernel shows them in other words.
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

/// Whether it is one that this module has put there.
pub(super) fn is_ours(route: &RouteMessage) -> bool {
    table(route) == TABLE && route.header.protocol == RouteProtocol::Other(PROTOCOL)
}

/// The address that a host route leads to.
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
