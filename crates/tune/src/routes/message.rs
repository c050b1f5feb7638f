//! Parses the kernel's message about a route, and edits it for sending back. Pure.
//!
//! The kernel replaces a route as a whole. So Taut sends the kernel's own message back byte for
//! byte, except for two metrics. A route that would not survive this unchanged has an [`Obstacle`]
//! and is left alone.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::NlasIterator;
use serde::{Deserialize, Serialize};
use taut_sys::route::{Family, MAIN_TABLE};

use super::metrics::{ATTRIBUTES, Metrics};

/// linux/rtnetlink.h.
const RTN_UNICAST: u8 = 1;
const RTPROT_REDIRECT: u8 = 1;
const RTPROT_KERNEL: u8 = 2;
const RTPROT_RA: u8 = 9;
const RTM_F_CLONED: u32 = 0x200;
/// The flags that a request may set: `RTNH_F_PERVASIVE` and `RTNH_F_ONLINK`. The kernel sets all
/// other flags and rejects them in requests.
const REQUEST_FLAGS: u8 = 2 | 4;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_FLOW: u16 = 11;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_PREF: u16 = 20;
const RTA_NH_ID: u16 = 30;

/// The size of `struct rtmsg`, in bytes.
const HEADER: usize = 12;
/// The size of `struct rtnexthop`, in bytes. The attributes of a next hop follow it.
const NEXT_HOP: usize = 8;
/// The maximum size of a route's metrics, in bytes; the kernel has 17 metrics of 8 bytes each.
const MAX_METRICS: usize = 4096;
/// The offset of `rta_expires` in `struct rta_cacheinfo`.
const EXPIRES: usize = 8;

/// The identity of a route in the main table. IPv4 and IPv6 number their priorities separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    /// The first address of the destination.
    pub destination: IpAddr,
    /// The prefix length of the destination.
    pub length: u8,
    /// The type of service that the route is for.
    pub tos: u8,
    /// The priority. The kernel prefers the lowest one. `ip route` calls it metric.
    pub priority: u32,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its identity.
    pub key: RouteKey,
    /// Its metrics.
    pub metrics: Metrics,
    /// Whether it forwards packets: it neither rejects nor drops them.
    pub is_unicast: bool,
    header: [u8; HEADER],
    attributes: Vec<Attribute>,
    obstacle: Option<Obstacle>,
}

/// An attribute as received, with its header but without padding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attribute {
    kind: u16,
    raw: Vec<u8>,
}

/// Why a route is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Obstacle {
    /// The route expires. Its replacement would not.
    #[error("it expires, which a change would prevent")]
    Expires,
    /// The route comes from a router advertisement. The kernel recognizes the routes that it made
    /// from advertisements by marks that no request can set. The routes of a network manager have
    /// the same protocol.
    #[error(
        "it comes from a router advertisement, and its owner (the kernel or a network manager) may no longer maintain a changed one"
    )]
    Advertised,
    /// The kernel created the route for its own use.
    #[error("the kernel made it and would no longer maintain a changed one")]
    KernelMade,
    /// The route uses a nexthop object. The kernel shares internal data between IPv4 routes that
    /// look alike, and ignores their metrics in the comparison if they use a nexthop object. So
    /// other routes would also get the metrics, and would keep them after an undo.
    #[error(
        "its next hop is a nexthop object, and the kernel would change other routes that use it"
    )]
    NexthopObject,
    /// The route has a source prefix, which is not part of [`RouteKey`].
    #[error("it is for some sources only")]
    Source,
    /// The route has an attribute that the kernel may not accept back unchanged: an encapsulation,
    /// or an attribute of a newer kernel.
    #[error("it has attribute {0}, which may not come back unchanged")]
    Attribute(u16),
    /// Several routes have the same key, and the kernel replaces one of them.
    #[error("there is another for the same destination and with the same metric")]
    Ambiguous,
}

/// The position of a message's route in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DumpPosition {
    /// The address family; `None`: neither IPv4 nor IPv6.
    pub(super) family: Option<Family>,
    /// The first address of the destination; `None`: unreadable.
    pub(super) destination: Option<IpAddr>,
    /// The routing table.
    pub(super) table: u32,
}

// === impl RouteKey ===

impl RouteKey {
    /// Returns the destination; `None` if the length is not valid.
    pub fn prefix(&self) -> Option<IpNet> {
        IpNet::new(self.destination, self.length).ok()
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.destination, self.length) {
            (IpAddr::V4(_), 0) => write!(f, "default")?,
            (IpAddr::V6(_), 0) => write!(f, "IPv6 default")?,
            (destination, length) => write!(f, "{destination}/{length}")?,
        }
        if self.tos != 0 {
            write!(f, " tos {:#x}", self.tos)?;
        }
        match self.priority {
            0 => Ok(()),
            priority => write!(f, " metric {priority}"),
        }
    }
}

// === impl Route ===

impl Route {
    /// Parses the kernel's message; `None` if the message is not about a route of the main table,
    /// or is unreadable.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (header, rest) = message.split_first_chunk::<HEADER>()?;
        let [
            family,
            length,
            source,
            tos,
            table,
            protocol,
            _,
            kind,
            flags @ ..,
        ] = *header;
        let family = Family::from_number(family)?;
        let attributes = attributes(rest)?;
        let value = |kind| find(&attributes, kind);
        if route_table(table, &attributes) != u32::from(MAIN_TABLE)
            || u32::from_ne_bytes(flags) & RTM_F_CLONED != 0
        {
            return None;
        }
        let key = RouteKey {
            destination: destination(family, value(RTA_DST))?,
            length,
            tos,
            priority: value(RTA_PRIORITY).and_then(number).unwrap_or(0),
        };
        key.prefix()?;
        Some(Self {
            key,
            metrics: metrics(value(RTA_METRICS).unwrap_or_default())?,
            is_unicast: kind == RTN_UNICAST,
            obstacle: obstacle(family, source, protocol, &attributes),
            header: *header,
            attributes,
        })
    }

    /// Returns the reason to leave the route alone, if any.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// Returns the message that replaces the route with one that has the metrics `to` and is
    /// otherwise unchanged.
    pub fn with(&self, to: Metrics) -> Vec<u8> {
        let mut message = self.header.to_vec();
        let has_object = find(&self.attributes, RTA_NH_ID).is_some();
        // The nexthop object stores these flags itself.
        let accepted = match has_object {
            true => 0,
            false => u32::from(REQUEST_FLAGS),
        };
        let flags = u32::from_ne_bytes([8, 9, 10, 11].map(|at| self.header[at]));
        message[8..HEADER].copy_from_slice(&(flags & accepted).to_ne_bytes());
        let nest = metrics_nest(find(&self.attributes, RTA_METRICS).unwrap_or_default(), to);
        let mut nest = Some(nest).filter(|nest| !nest.is_empty());
        for Attribute { kind, raw } in &self.attributes {
            match *kind {
                RTA_METRICS => {
                    if let Some(nest) = nest.take() {
                        put(&mut message, &raw[2..4], &nest);
                    }
                }
                // The kernel reports the object and its next hops, and accepts only the object.
                RTA_OIF | RTA_GATEWAY | RTA_VIA | RTA_MULTIPATH if has_object => {}
                RTA_MULTIPATH => put(&mut message, &raw[2..4], &with_request_flags(&raw[4..])),
                _ => put(&mut message, &raw[2..4], &raw[4..]),
            }
        }
        if let Some(nest) = nest {
            put(&mut message, &RTA_METRICS.to_ne_bytes(), &nest);
        }
        message
    }
}

/// Returns each unicast route of a dump once, and marks routes that the kernel could confuse with
/// one another.
pub fn unicast(mut routes: Vec<Route>) -> Vec<Route> {
    // A dump may report a route twice, but no two routes in the kernel are equal.
    let mut reported = HashSet::new();
    routes.retain(|route| reported.insert((route.header, route.attributes.clone())));
    let mut counts = HashMap::<RouteKey, usize>::new();
    for route in &routes {
        *counts.entry(route.key).or_default() += 1;
    }
    for route in &mut routes {
        if counts[&route.key] > 1 {
            route.obstacle = Some(Obstacle::Ambiguous);
        }
    }
    routes.retain(|route| route.is_unicast);
    routes
}

/// Returns the position of the message's route in a dump; `None` if the message is unreadable.
pub(super) fn dump_position(message: &[u8]) -> Option<DumpPosition> {
    let (header, rest) = message.split_first_chunk::<HEADER>()?;
    let attributes = attributes(rest)?;
    let family = Family::from_number(header[0]);
    Some(DumpPosition {
        family,
        destination: family.and_then(|family| destination(family, find(&attributes, RTA_DST))),
        table: route_table(header[4], &attributes),
    })
}

/// Returns the first address of a destination; a missing attribute means a default route. `None` if
/// the attribute's length is wrong.
fn destination(family: Family, attribute: Option<&[u8]>) -> Option<IpAddr> {
    Some(match (family, attribute) {
        (Family::V4, None) => Ipv4Addr::UNSPECIFIED.into(),
        (Family::V4, Some(bytes)) => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        (Family::V6, None) => Ipv6Addr::UNSPECIFIED.into(),
        (Family::V6, Some(bytes)) => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    })
}

/// Returns the route's table. Prefers the attribute, because the header has room for only 8 bits.
fn route_table(header: u8, attributes: &[Attribute]) -> u32 {
    let attribute = find(attributes, RTA_TABLE).and_then(number);
    attribute.unwrap_or(header.into())
}

fn obstacle(
    family: Family,
    source: u8,
    protocol: u8,
    attributes: &[Attribute],
) -> Option<Obstacle> {
    if source != 0 {
        return Some(Obstacle::Source);
    }
    let expires = find(attributes, RTA_CACHEINFO).and_then(|info| number(info.get(EXPIRES..)?));
    if expires.is_some_and(|expires| expires != 0) {
        return Some(Obstacle::Expires);
    }
    if family == Family::V4 && find(attributes, RTA_NH_ID).is_some() {
        return Some(Obstacle::NexthopObject);
    }
    // The kernel identifies its own IPv4 routes by their contents, not by marks.
    match (family, protocol) {
        (Family::V6, RTPROT_RA) => return Some(Obstacle::Advertised),
        (Family::V6, RTPROT_KERNEL | RTPROT_REDIRECT) => return Some(Obstacle::KernelMade),
        _ => {}
    }
    let unknown = |attribute: &Attribute| match attribute.kind {
        RTA_DST | RTA_OIF | RTA_GATEWAY | RTA_PRIORITY | RTA_PREFSRC | RTA_METRICS | RTA_FLOW
        | RTA_CACHEINFO | RTA_TABLE | RTA_VIA | RTA_PREF | RTA_NH_ID => None,
        RTA_MULTIPATH => unknown_in_next_hops(&attribute.raw[4..]),
        kind => Some(kind),
    };
    let unknown = attributes.iter().find_map(unknown);
    unknown.map(Obstacle::Attribute)
}

/// Parses attributes; `None` if they are truncated.
fn attributes(bytes: &[u8]) -> Option<Vec<Attribute>> {
    NlasIterator::new(bytes)
        .map(|attribute| {
            let attribute = attribute.ok()?;
            let length = usize::from(attribute.length());
            Some(Attribute {
                kind: attribute.kind(),
                raw: attribute.into_inner().get(..length)?.to_vec(),
            })
        })
        .collect()
}

/// Returns the value of the first attribute of this kind.
fn find(attributes: &[Attribute], kind: u16) -> Option<&[u8]> {
    let found = attributes.iter().find(|attribute| attribute.kind == kind)?;
    found.raw.get(4..)
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

fn metrics(nest: &[u8]) -> Option<Metrics> {
    // Two more metrics always fit into an attribute of this size.
    if nest.len() > MAX_METRICS {
        return None;
    }
    let inside = attributes(nest)?;
    Some(Metrics::of(
        ATTRIBUTES.map(|(kind, _)| find(&inside, kind).and_then(number)),
    ))
}

/// Returns the value of the metrics attribute: the two metrics in `to`, and the other metrics of
/// `before`.
fn metrics_nest(before: &[u8], to: Metrics) -> Vec<u8> {
    let mut nest = Vec::new();
    let is_other = |of: &Attribute| ATTRIBUTES.iter().all(|(kind, _)| *kind != of.kind);
    let others = attributes(before).unwrap_or_default().into_iter();
    for Attribute { raw, .. } in others.filter(is_other) {
        put(&mut nest, &raw[2..4], &raw[4..]);
    }
    for ((kind, _), value) in ATTRIBUTES.iter().zip(to.values()) {
        if let Some(value) = value {
            put(&mut nest, &kind.to_ne_bytes(), &value.to_ne_bytes());
        }
    }
    nest
}

/// Appends an attribute. `kind` includes the kernel's flags, such as `NLA_F_NESTED`.
fn put(message: &mut Vec<u8>, kind: &[u8], value: &[u8]) {
    // Cannot overflow: the value was an attribute before, or is short.
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind);
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Returns the offset and the length of each next hop of a multipath attribute.
fn next_hops(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(at..at + NEXT_HOP)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        if length < NEXT_HOP || length > bytes.len() - at {
            return None;
        }
        let found = (at, length);
        at += length.next_multiple_of(4);
        Some(found)
    })
}

/// Returns a multipath attribute with only the flags that a request may set.
fn with_request_flags(bytes: &[u8]) -> Vec<u8> {
    let mut edited = bytes.to_vec();
    for (at, _) in next_hops(bytes) {
        edited[at + 2] &= REQUEST_FLAGS;
    }
    edited
}

fn unknown_in_next_hops(bytes: &[u8]) -> Option<u16> {
    let mut end = 0;
    for (at, length) in next_hops(bytes) {
        end = (at + length).next_multiple_of(4);
        let Some(inside) = attributes(&bytes[at + NEXT_HOP..at + length]) else {
            return Some(RTA_MULTIPATH);
        };
        let unknown = inside
            .iter()
            .find(|of| !matches!(of.kind, RTA_GATEWAY | RTA_VIA | RTA_FLOW));
        if let Some(unknown) = unknown {
            return Some(unknown.kind);
        }
    }
    // Unreadable bytes follow the last next hop.
    (end < bytes.len()).then_some(RTA_MULTIPATH)
}

#[cfg(test)]
pub(super) mod tests;
