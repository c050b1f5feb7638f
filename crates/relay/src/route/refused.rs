//! Routes that have lately refused the sessions of a client's network. Pure.
//!
//! A relay may not let another speak for every client (`clients` of `[[relay.mesh.peer]]`), and
//! rows do not say so: a refusal shows only as a reset before the first byte of an answer. New
//! sessions of that network then try the other routes first. A destination that resets its
//! connections looks the same; then all routes are avoided alike, and their order is what it was.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use taut_mesh::members::MemberName;
use taut_mesh::rows::Key;

/// The number of networks and routes that are remembered for a destination. Further ones are not.
pub(crate) const MAX_REFUSALS: usize = 1024;

/// How long a route is avoided.
const AVOIDED_FOR: Duration = Duration::from_secs(60);

/// The refusals of the routes to one destination.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The time until which a route is avoided, by the client's network (IPv4 /24, IPv6 /48) and
    /// the relays.
    until: HashMap<(Key, Vec<MemberName>), Instant>,
}

// === impl Refusals ===

impl Refusals {
    /// Records that a session of `client` was reset on the route through these relays before the
    /// first byte of an answer.
    pub(crate) fn add(&mut self, client: IpAddr, relays: Vec<MemberName>, now: Instant) {
        self.forget_old(now);
        if self.until.len() < MAX_REFUSALS {
            let key = (Key::prefix(client), relays);
            self.until.insert(key, now + AVOIDED_FOR);
        }
    }

    /// Returns whether sessions of `client` try this route after others.
    pub(crate) fn avoids(&self, client: IpAddr, relays: Vec<MemberName>, now: Instant) -> bool {
        let until = self.until.get(&(Key::prefix(client), relays));
        until.is_some_and(|until| now < *until)
    }

    /// Forgets refusals that no longer count. Returns whether there are others.
    pub(crate) fn forget_old(&mut self, now: Instant) -> bool {
        self.until.retain(|_, until| now < *until);
        !self.until.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relays(names: &[&str]) -> Vec<MemberName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_route_is_avoided_by_the_refused_network_alone_and_for_a_minute() {
        let (now, mut refusals) = (Instant::now(), Refusals::default());
        let (refused, neighbour, other) = ([192, 0, 2, 1], [192, 0, 2, 9], [198, 51, 100, 1]);
        refusals.add(refused.into(), relays(&["mid", "far"]), now);
        let avoids = |refusals: &Refusals, client: [u8; 4], names: &[&str], now| {
            refusals.avoids(client.into(), relays(names), now)
        };
        assert!(avoids(&refusals, refused, &["mid", "far"], now));
        assert!(avoids(&refusals, neighbour, &["mid", "far"], now));
        assert!(!avoids(&refusals, other, &["mid", "far"], now));
        assert!(!avoids(&refusals, refused, &["mid"], now));
        assert!(!avoids(
            &refusals,
            refused,
            &["mid", "far"],
            now + AVOIDED_FOR
        ));
        assert!(refusals.forget_old(now));
        assert!(!refusals.forget_old(now + AVOIDED_FOR));
    }

    #[test]
    fn the_number_of_refusals_is_bounded() {
        let (now, mut refusals) = (Instant::now(), Refusals::default());
        for n in 0..2 * u32::try_from(MAX_REFUSALS).unwrap() {
            let client = std::net::Ipv4Addr::from(n << 8);
            refusals.add(client.into(), relays(&["mid"]), now);
        }
        assert_eq!(refusals.until.len(), MAX_REFUSALS);
    }
}
