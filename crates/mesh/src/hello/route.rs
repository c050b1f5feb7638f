//! The route field: names of relays, each with its length (1 byte) before it.

use super::MAX_ROUTE;
use crate::name::MemberName;

/// Encodes the field's value. A route that is too long is truncated to one relay too many, which the
/// receiver refuses.
pub(super) fn encode(route: &[MemberName]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for relay in &route[..route.len().min(MAX_ROUTE + 1)] {
        let name = relay.as_str().as_bytes();
        // A name has at most 63 bytes.
        bytes.push(name.len() as u8);
        bytes.extend(name);
    }
    bytes
}

/// Decodes the field's value. Returns `None` if it is malformed or has too many relays.
pub(super) fn decode(mut bytes: &[u8]) -> Option<Vec<MemberName>> {
    let mut route = Vec::new();
    while let [len, rest @ ..] = bytes {
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        route.push(str::from_utf8(name).ok()?.parse().ok()?);
        if route.len() > MAX_ROUTE {
            return None;
        }
        bytes = rest;
    }
    bytes.is_empty().then_some(route)
}
