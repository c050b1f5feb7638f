//! A route, and its two metrics of how connections begin: what is edited in it, and when it is to be left alone. Pure.
//!
//! The kernel replaces a route as a whole. So its own message is sent back to it, byte for byte but for these two metrics; a route that would not
//! come back as it was is left alone.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::NlasIterator;
use serde::{Deserialize, Serialize};

use super::metrics::{EACH, Metrics};

/// linux/rtnetlink.h.
pub(super) const RT_TABLE_MAIN: u32 = 254;
const RTN_UNICAST: u8 = 1;
const RTPROT_REDIRECT: u8 = 1;
const RTPROT_KERNEL: u8 = 2;
const RTPROT_RA: u8 = 9;
const RTM_F_CLONED: u32 = 0x200;
/// Those that whoever makes a route says: `RTNH_F_PERVASIVE` and `RTNH_F_ONLINK`. The others are the kernel's, which takes none of them back.
const FLAGS: u8 = 2 | 4;

pub(super) const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_FLOW: u16 = 11;
const RTA_CACHEINFO: u16 = 12;
pub(super) const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_PREF: u16 = 20;
const RTA_NH_ID: u16 = 30;

/// `struct rtmsg`, and the part of `struct rtnexthop` before its attributes.
pub(super) const HEADER: usize = 12;
const NEXT_HOP: usize = 8;
/// Bytes of a route's metrics; no kernel has so many.
const METRICS_MOST: usize = 4096;
/// `rta_expires` of `struct rta_cacheinfo`.
const EXPIRES: usize = 8;

pub(super) const V4: u8 = 2;
pub(super) const V6: u8 = 10;

/// What a route of the main table is known by. Protocols number their priorities for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Name {
    /// Its destination's first address,
    pub destination: IpAddr,
    /// and how many bits of that count.
    pub length: u8,
    /// The type of service that it is for.
    pub tos: u8,
    /// Which of several is taken: the least. `ip route` calls it metric.
    pub priority: u32,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which.
    pub name: Name,
    /// As they are.
    pub metrics: Metrics,
    /// It leads somewhere: it neither refuses nor drops.
    pub is_unicast: bool,
    header: [u8; HEADER],
    attributes: Vec<Attribute>,
    obstacle: Option<Obstacle>,
}

/// An attribute as it came, with its header and without what pads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attribute {
    kind: u16,
    raw: Vec<u8>,
}

/// Why a route is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Obstacle {
    /// It would last for ever.
    #[error("it expires, and would not any more")]
    Expires,
    /// The kernel finds its own routes again by marks that nobody else can set, and those of a network manager say the same of themselves.
    #[error(
        "it is from a router's advertisement (by the kernel, or by a network manager), and who has made it might not look after it any more"
    )]
    Advertised,
    /// The kernel's own.
    #[error("the kernel has made it, and would not look after it any more")]
    Kernels,
    /// Of IPv4 the kernel compares no metrics where it looks whether it has such a route already: others would get them, and it would not
    /// take them back.
    #[error(
        "its next hop is an object of its own, and the kernel would set it on other routes, too"
    )]
    Object,
    /// Its key has more in it than this program knows.
    #[error("it is for some sources only")]
    Source,
    /// An attribute that the kernel may not take back as it gives it: an encapsulation, or a newer kernel's.
    #[error("it has something (attribute {0}) that may not come back as it is")]
    Attribute(u16),
    /// The kernel replaces one of them.
    #[error("there is another for the same destination and with the same metric")]
    Ambiguous,
}

// === impl Name ===

impl Name {
    /// Its destination; `None`: there is no such one.
    pub fn prefix(&self) -> Option<IpNet> {
        IpNet::new(self.destination, self.length).ok()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.destination, self.length) {
            (IpAddr::V4(_), 0) => write!(f, "default")?,
            (IpAddr::V6(_), 0) => write!(f, "default of IPv6")?,
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
    /// What the kernel's message is about; `None`: no route of the main table, or nothing that can be read.
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
        let attributes = attributes(rest)?;
        let value = |kind| find(&attributes, kind);
        let number = |kind| value(kind).and_then(number);
        if number(RTA_TABLE).unwrap_or(table.into()) != RT_TABLE_MAIN
            || u32::from_ne_bytes(flags) & RTM_F_CLONED != 0
        {
            return None;
        }
        let destination = match (family, value(RTA_DST)) {
            (V4, None) => Ipv4Addr::UNSPECIFIED.into(),
            (V4, Some(bytes)) => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
            (V6, None) => Ipv6Addr::UNSPECIFIED.into(),
            (V6, Some(bytes)) => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
            _ => return None,
        };
        let name = Name {
            destination,
            length,
            tos,
            priority: number(RTA_PRIORITY).unwrap_or(0),
        };
        name.prefix()?;
        Some(Self {
            name,
            metrics: metrics(value(RTA_METRICS).unwrap_or_default())?,
            is_unicast: kind == RTN_UNICAST,
            obstacle: obstacle(family, source, protocol, &attributes),
            header: *header,
            attributes,
        })
    }

    /// Why it is to be left alone.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// Its message, with these metrics and all else as it is, as the kernel takes it.
    pub fn with(&self, to: Metrics) -> Vec<u8> {
        let mut message = self.header.to_vec();
        let by_object = find(&self.attributes, RTA_NH_ID).is_some();
        // A next hop that is an object of its own says these itself.
        let flags = match by_object {
            true => 0,
            false => u32::from(FLAGS),
        };
        let had = u32::from_ne_bytes([8, 9, 10, 11].map(|at| self.header[at]));
        message[8..HEADER].copy_from_slice(&(had & flags).to_ne_bytes());
        let nest = nest(find(&self.attributes, RTA_METRICS).unwrap_or_default(), to);
        let mut nest = Some(nest).filter(|nest| !nest.is_empty());
        for Attribute { kind, raw } in &self.attributes {
            match *kind {
                RTA_METRICS => {
                    if let Some(nest) = nest.take() {
                        put(&mut message, &raw[2..4], &nest);
                    }
                }
                // What it leads to is told in both ways, and taken in one.
                RTA_OIF | RTA_GATEWAY | RTA_VIA | RTA_MULTIPATH if by_object => {}
                RTA_MULTIPATH => put(&mut message, &raw[2..4], &next_hops(&raw[4..])),
                _ => put(&mut message, &raw[2..4], &raw[4..]),
            }
        }
        if let Some(nest) = nest {
            put(&mut message, &RTA_METRICS.to_ne_bytes(), &nest);
        }
        message
    }
}

/// Those of a list that are of these destinations and lead somewhere; each that the kernel could take for another has that obstacle.
pub fn choose(mut routes: Vec<Route>) -> Vec<Route> {
    // The kernel has no two that are the same in everything: it has told of one twice.
    let mut told = HashSet::new();
    routes.retain(|route| told.insert((route.header, route.attributes.clone())));
    let mut counts = HashMap::<Name, usize>::new();
    for route in &routes {
        *counts.entry(route.name).or_default() += 1;
    }
    for route in &mut routes {
        if counts[&route.name] > 1 {
            route.obstacle = Some(Obstacle::Ambiguous);
        }
    }
    routes.retain(|route| route.is_unicast);
    routes
}

fn obstacle(family: u8, source: u8, protocol: u8, attributes: &[Attribute]) -> Option<Obstacle> {
    if source != 0 {
        return Some(Obstacle::Source);
    }
    let expires = find(attributes, RTA_CACHEINFO).and_then(|info| number(info.get(EXPIRES..)?));
    if expires.is_some_and(|expires| expires != 0) {
        return Some(Obstacle::Expires);
    }
    if family == V4 && find(attributes, RTA_NH_ID).is_some() {
        return Some(Obstacle::Object);
    }
    // Of IPv4 it looks for what a route says, and not for marks.
    match (family, protocol) {
        (V6, RTPROT_RA) => return Some(Obstacle::Advertised),
        (V6, RTPROT_KERNEL | RTPROT_REDIRECT) => return Some(Obstacle::Kernels),
        _ => {}
    }
    let unknown = |attribute: &Attribute| match attribute.kind {
        RTA_DST | RTA_OIF | RTA_GATEWAY | RTA_PRIORITY | RTA_PREFSRC | RTA_METRICS | RTA_FLOW
        | RTA_CACHEINFO | RTA_TABLE | RTA_VIA | RTA_PREF | RTA_NH_ID => None,
        RTA_MULTIPATH => unknown_of_next_hops(&attribute.raw[4..]),
        kind => Some(kind),
    };
    let unknown = attributes.iter().find_map(unknown);
    unknown.map(Obstacle::Attribute)
}

/// `None`: they are cut.
pub(super) fn attributes(bytes: &[u8]) -> Option<Vec<Attribute>> {
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

/// The value of the first of this kind.
pub(super) fn find(attributes: &[Attribute], kind: u16) -> Option<&[u8]> {
    let found = attributes.iter().find(|attribute| attribute.kind == kind)?;
    found.raw.get(4..)
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

fn metrics(nest: &[u8]) -> Option<Metrics> {
    // The kernel has 17 of them. Two more always fit into an attribute then.
    if nest.len() > METRICS_MOST {
        return None;
    }
    let inside = attributes(nest)?;
    Some(Metrics::of(
        EACH.map(|(kind, _)| find(&inside, kind).and_then(number)),
    ))
}

/// The inside of the metrics' attribute, with these two.
fn nest(before: &[u8], to: Metrics) -> Vec<u8> {
    let mut nest = Vec::new();
    let others = attributes(before).unwrap_or_default().into_iter();
    for Attribute { raw, .. } in others.filter(|of| EACH.iter().all(|(kind, _)| *kind != of.kind)) {
        put(&mut nest, &raw[2..4], &raw[4..]);
    }
    for ((kind, _), value) in EACH.iter().zip(to.values()) {
        if let Some(value) = value {
            put(&mut nest, &kind.to_ne_bytes(), &value.to_ne_bytes());
        }
    }
    nest
}

/// Appends an attribute, whose kind may have marks of the kernel's on it.
fn put(message: &mut Vec<u8>, kind: &[u8], value: &[u8]) {
    // It was one before, or is short.
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind);
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Where each of several next hops begins, and its length.
fn each_next_hop(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
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

fn next_hops(bytes: &[u8]) -> Vec<u8> {
    let mut made = bytes.to_vec();
    for (at, _) in each_next_hop(bytes) {
        made[at + 2] &= FLAGS;
    }
    made
}

fn unknown_of_next_hops(bytes: &[u8]) -> Option<u16> {
    let mut end = 0;
    for (at, length) in each_next_hop(bytes) {
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
    // What is behind the last that can be read.
    (end < bytes.len()).then_some(RTA_MULTIPATH)
}

#[cfg(test)]
pub(super) mod tests;
