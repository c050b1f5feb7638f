//! The route field: a list of relays, each encoded as a type (1 byte), the length of its host (1
//! byte), the host, and the port (2 bytes).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::MAX_ROUTE;
use super::target::{Target, cut};

/// Type of an IPv4 address of 4 bytes.
const V4: u8 = 1;
/// Type of an IPv6 address of 16 bytes.
const V6: u8 = 2;
/// Type of a host name.
const NAME: u8 = 3;

/// Encodes the field's value. A route that is too long is truncated to one relay too many, which the
/// receiver refuses.
pub(super) fn encode(route: &[Target]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for relay in &route[..route.len().min(MAX_ROUTE + 1)] {
        let mut push = |kind: u8, host: &[u8], port: u16| {
            // `cut` limits names to 254 bytes.
            bytes.extend([kind, host.len() as u8]);
            bytes.extend(host);
            bytes.extend(port.to_be_bytes());
        };
        match relay {
            Target::Addr(addr) => match addr.ip().to_canonical() {
                std::net::IpAddr::V4(ip) => push(V4, &ip.octets(), addr.port()),
                std::net::IpAddr::V6(ip) => push(V6, &ip.octets(), addr.port()),
            },
            Target::Name { host, port } => push(NAME, cut(host), *port),
        }
    }
    bytes
}

/// Decodes the field's value. Returns `None` if it is malformed or has too many relays. The caller must
/// check each relay.
pub(super) fn decode(mut bytes: &[u8]) -> Option<Vec<Target>> {
    let mut route = Vec::new();
    while let [kind, len, rest @ ..] = bytes {
        let (host, rest) = rest.split_at_checked(usize::from(*len))?;
        let (port, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*port);
        route.push(match *kind {
            V4 => Target::Addr((Ipv4Addr::from(<[u8; 4]>::try_from(host).ok()?), port).into()),
            V6 => {
                let ip = Ipv6Addr::from(<[u8; 16]>::try_from(host).ok()?);
                Target::Addr((ip.to_canonical(), port).into())
            }
            NAME => Target::Name {
                host: str::from_utf8(host).ok()?.to_owned(),
                port,
            },
            _ => return None,
        });
        // `Hello::check` enforces the rule; this check limits memory.
        if route.len() > MAX_ROUTE {
            return None;
        }
        bytes = rest;
    }
    bytes.is_empty().then_some(route)
}
