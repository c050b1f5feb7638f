//! Connections at the mesh port whose peer has not proven its key: how many there may be, and which one makes room
//! for a new one.
//!
//! Anyone can open such connections. If there are too many, a new one takes the place of the oldest one of the
//! source that has the most, so that a party with few addresses cannot keep relays out.

use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::occupancy::Occupancy;

/// The time for which a connection is safe from another connection of its own source. An honest relay proves its
/// key within two round trips.
pub const GRACE: Duration = Duration::from_secs(1);

/// The connections without a proof. `K` identifies a connection, and is never used twice.
#[derive(Debug)]
pub struct Unproven<K>(Occupancy<K, Source>);

/// Whether a new connection has room, and at the cost of which other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room<K> {
    /// There are fewer connections than the limit.
    Free,
    /// It has room if this connection is closed.
    Evict(K),
    /// No connection makes room: the new one must be closed.
    Full,
}

/// The unit by which connections are counted: an IPv4 address, or an IPv6 /48, because a site has 65,536 networks
/// of /64 (RFC 6177 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    V4(u32),
    /// The upper 48 bits of the address.
    V6(u64),
}

// === impl Unproven ===

impl<K> Default for Unproven<K> {
    fn default() -> Self {
        Self(Occupancy::default())
    }
}

impl<K: Copy + Eq + Hash> Unproven<K> {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a connection from `from`, accepted at `now`, has room among at most `max`.
    ///
    /// If its source is itself the one with the most connections, only one older than [`GRACE`] makes room: younger
    /// ones are further along than the new one, and a relay that dials many at a time would undo its own work.
    pub fn room(&self, from: IpAddr, max: usize, now: Instant) -> Room<K> {
        if self.len() < max {
            return Room::Free;
        }
        let Some((key, oldest)) = self.0.oldest_of_most() else {
            return Room::Full;
        };
        let is_old = now.saturating_duration_since(oldest.since) >= GRACE;
        let has_most = self.0.of(&Source::of(from)) == self.0.of(&oldest.party);
        match is_old || !has_most {
            true => Room::Evict(key),
            false => Room::Full,
        }
    }

    /// Adds a connection from `from`, accepted at `now`.
    pub fn insert(&mut self, key: K, from: IpAddr, now: Instant) {
        self.0.insert(key, Source::of(from), now);
    }

    /// Removes a connection that was closed, or whose peer has proven its key. Returns whether it was there.
    pub fn remove(&mut self, key: K) -> bool {
        self.0.remove(key)
    }
}

// === impl Source ===

impl Source {
    fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.to_bits()),
            IpAddr::V6(ip) => Self::V6(u64::try_from(ip.to_bits() >> 80).unwrap_or(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_oldest_of_the_source_with_the_most_makes_room_for_another_source() {
        let (mut unproven, now) = (Unproven::default(), Instant::now());
        for (key, from) in [(1, "192.0.2.1"), (2, "192.0.2.9"), (3, "192.0.2.9")] {
            assert_eq!(unproven.room(ip(from), 3, now), Room::Free);
            unproven.insert(key, ip(from), now);
        }
        assert_eq!(unproven.room(ip("192.0.2.7"), 3, now), Room::Evict(2));
        assert!(unproven.remove(2) && !unproven.remove(2));
        assert_eq!(unproven.room(ip("192.0.2.7"), 3, now), Room::Free);
    }

    #[test]
    fn a_source_with_the_most_cannot_evict_its_own_young_connections() {
        let (mut unproven, start) = (Unproven::default(), Instant::now());
        for key in [1, 2] {
            unproven.insert(key, ip("192.0.2.9"), start);
        }
        let just_before = start + GRACE - Duration::from_nanos(1);
        assert_eq!(unproven.room(ip("192.0.2.9"), 2, just_before), Room::Full);
        assert_eq!(
            unproven.room(ip("192.0.2.9"), 2, start + GRACE),
            Room::Evict(1)
        );
    }

    #[test]
    fn all_addresses_of_an_ipv6_site_are_one_source() {
        let (mut unproven, now) = (Unproven::default(), Instant::now());
        unproven.insert(1, ip("2001:db8:1:2::1"), now);
        unproven.insert(2, ip("2001:db8:1:9::7"), now);
        unproven.insert(3, ip("2001:db8:2::1"), now);
        assert_eq!(unproven.room(ip("192.0.2.1"), 3, now), Room::Evict(1));
        let mapped = [4, 5].map(|key| (key, ip("::ffff:192.0.2.1")));
        for (key, from) in mapped {
            unproven.insert(key, from, now);
        }
        unproven.insert(6, ip("192.0.2.1"), now);
        assert_eq!(unproven.room(ip("192.0.2.5"), 6, now), Room::Evict(4));
    }

    proptest! {
        #[test]
        fn there_are_never_more_than_the_limit_and_a_lone_source_is_never_displaced_by_a_crowd(
            steps in prop::collection::vec((0u8..4, 0u64..700), 1..200),
        ) {
            // Source 0 opens one connection and keeps it; the others open many.
            let (mut unproven, mut now) = (Unproven::default(), Instant::now());
            const MAX: usize = 8;
            unproven.insert(usize::MAX, ip("192.0.2.0"), now);
            for (key, (source, wait)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(wait);
                let from = IpAddr::from([192, 0, 2, source + 1]);
                match unproven.room(from, MAX, now) {
                    Room::Free => unproven.insert(key, from, now),
                    Room::Evict(old) => {
                        prop_assert_ne!(old, usize::MAX);
                        prop_assert!(unproven.remove(old));
                        unproven.insert(key, from, now);
                    }
                    Room::Full => {}
                }
                prop_assert!(unproven.len() <= MAX);
            }
        }
    }
}
