//! Which TCP connections may be open. Without sockets and clock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use crate::rate_limit::network;

/// The most connections at a time.
pub(super) const CONNECTIONS: usize = 512;
/// The most connections of an IPv4 /24 or IPv6 /56.
const OF_NETWORK: usize = 32;
/// The most connections of an IPv6 /48, which a customer of a provider usually gets (RFC 6177).
const OF_SITE: usize = 64;

/// The open connections. `T` is what closes one.
pub(super) struct Connections<T> {
    open: HashMap<Id, Connection<T>>,
    next: Id,
}

/// The number of a connection, which no later one has.
pub(super) type Id = u64;

struct Connection<T> {
    network: u64,
    site: u64,
    /// When it was accepted, or its last query arrived.
    active: Instant,
    closer: T,
}

/// The decision on a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission<T> {
    /// It is open, under this number. If there were too many, another is to be closed.
    Taken {
        /// Its number.
        id: Id,
        /// What closes the connection that was idle longest.
        displaced: Option<T>,
    },
    /// Its network has too many: close it.
    Refused,
}

// === impl Connections ===

impl<T> Connections<T> {
    pub(super) fn new() -> Self {
        Self {
            open: HashMap::new(),
            next: 0,
        }
    }

    /// Admits a connection from `source` at `now`, unless its network has too many. If all places are taken,
    /// the connection that has been idle longest loses its own: holding connections keeps nobody out.
    pub(super) fn admit(&mut self, source: IpAddr, closer: T, now: Instant) -> Admission<T> {
        let (network, site) = (network(source), site(source));
        let open = || self.open.values();
        if open().filter(|c| c.network == network).count() >= OF_NETWORK
            || open().filter(|c| c.site == site).count() >= OF_SITE
        {
            return Admission::Refused;
        }
        let mut displaced = None;
        if self.open.len() >= CONNECTIONS {
            let idle_longest = self.open.iter().min_by_key(|(id, c)| (c.active, **id));
            let id = idle_longest.map(|(id, _)| *id);
            displaced = id.and_then(|id| self.open.remove(&id)).map(|c| c.closer);
        }
        let id = self.next;
        self.next += 1;
        let connection = Connection {
            network,
            site,
            active: now,
            closer,
        };
        self.open.insert(id, connection);
        Admission::Taken { id, displaced }
    }

    /// Records that a query has arrived.
    pub(super) fn on_query(&mut self, id: Id, now: Instant) {
        if let Some(connection) = self.open.get_mut(&id) {
            connection.active = now;
        }
    }

    /// Records that a connection has ended.
    pub(super) fn on_end(&mut self, id: Id) {
        self.open.remove(&id);
    }
}

/// Returns the network that one customer may hold, with IPv4 the same as [`network`].
fn site(source: IpAddr) -> u64 {
    match source {
        IpAddr::V4(_) => network(source),
        IpAddr::V6(_) => (network(source) & !(1 << 63)) >> 8 | 1 << 63,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(admission: Admission<u32>) -> Option<(Id, Option<u32>)> {
        match admission {
            Admission::Taken { id, displaced } => Some((id, displaced)),
            Admission::Refused => None,
        }
    }

    /// Returns an address in a /48 of its own.
    fn in_site(site: u16) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, site, 0, 0, 0, 0, 1])
    }

    #[test]
    fn a_network_gets_32_connections_and_a_v6_site_64_whatever_their_addresses_are() {
        let (mut connections, now) = (Connections::new(), Instant::now());
        let of_network = (0..100).filter(|host| {
            let source = [192, 0, 2, *host].into();
            taken(connections.admit(source, 0, now)).is_some()
        });
        assert_eq!(of_network.count(), OF_NETWORK);
        // Each in a /56 of its own.
        let of_site = (0..256).filter(|net| {
            let source = IpAddr::from([0x2001, 0xdb8, 0, net << 8, 0, 0, 0, 1]);
            taken(connections.admit(source, 0, now)).is_some()
        });
        assert_eq!(of_site.count(), OF_SITE);
        assert!(taken(connections.admit(in_site(1), 0, now)).is_some());
    }

    #[test]
    fn when_all_places_are_taken_the_connection_that_was_idle_longest_makes_room() {
        let (mut connections, start) = (Connections::new(), Instant::now());
        for at in 0..CONNECTIONS as u32 {
            let now = start + Duration::from_millis(at.into());
            let admission = connections.admit(in_site(at as u16), at, now);
            assert_eq!(taken(admission), Some((at.into(), None)));
        }
        let later = start + Duration::from_secs(1);
        // The oldest is in use.
        connections.on_query(0, later);
        let displaced = taken(connections.admit(in_site(9999), 9999, later));
        assert_eq!(displaced, Some((512, Some(1))));
        assert_eq!(connections.open.len(), CONNECTIONS);
        // One that ends leaves its place, and one that was displaced leaves nothing more.
        connections.on_end(2);
        connections.on_end(1);
        let place = taken(connections.admit(in_site(9998), 9998, later));
        assert_eq!(place, Some((513, None)));
    }
}
