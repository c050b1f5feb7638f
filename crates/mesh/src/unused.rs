//! Connections at the mesh port that are ready for a session: how many there may be, and which one makes room for
//! a new one.
//!
//! Every member may hold as many ready as it likes while there is room. If there is none, a new one takes the place
//! of the oldest one of the member that has the most, but only if that member still has no fewer than the new one
//! afterwards. So the shares become equal, and two members never displace each other's connections in turn.

use std::hash::Hash;
use std::time::Instant;

use crate::members::MemberName;
use crate::occupancy::Occupancy;
use crate::unproven::Room;

/// The connections that are ready for a session. `K` identifies a connection, and is never used twice.
#[derive(Debug)]
pub struct Unused<K>(Occupancy<K, MemberName>);

// === impl Unused ===

impl<K> Default for Unused<K> {
    fn default() -> Self {
        Self(Occupancy::default())
    }
}

impl<K: Copy + Eq + Hash> Unused<K> {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the member that has the most connections.
    pub fn greatest(&self) -> Option<&MemberName> {
        self.0.oldest_of_most().map(|(_, oldest)| &oldest.party)
    }

    /// Removes the oldest connection of the member that has the most, if there are more than `max`.
    pub fn take_excess(&mut self, max: usize) -> Option<K> {
        if self.len() <= max {
            return None;
        }
        let (key, _) = self.0.oldest_of_most()?;
        self.remove(key);
        Some(key)
    }

    /// Returns whether a new connection of `member` has room among at most `max`.
    pub fn room(&self, member: &MemberName, max: usize) -> Room<K> {
        if self.len() < max {
            return Room::Free;
        }
        match self.0.oldest_of_most() {
            Some((key, oldest)) if self.0.of(&oldest.party) > self.0.of(member) + 1 => {
                Room::Evict(key)
            }
            _ => Room::Full,
        }
    }

    /// Adds a connection of `member`.
    pub fn insert(&mut self, key: K, member: MemberName, now: Instant) {
        self.0.insert(key, member, now);
    }

    /// Removes a connection that was closed or has its session. Returns whether it was there.
    pub fn remove(&mut self, key: K) -> bool {
        self.0.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn name(member: usize) -> MemberName {
        format!("relay-{member}").parse().unwrap()
    }

    /// Has members with these wishes connect in turn until none has anything to gain. Returns how many each has.
    fn settle(wishes: &[usize], max: usize) -> BTreeMap<String, usize> {
        let (mut unused, now) = (Unused::default(), Instant::now());
        let mut key = 0;
        loop {
            let before = key;
            for (member, wish) in wishes.iter().enumerate() {
                while unused.0.of(&name(member)) < *wish {
                    match unused.room(&name(member), max) {
                        Room::Free => {}
                        Room::Evict(oldest) => assert!(unused.remove(oldest)),
                        Room::Full => break,
                    }
                    unused.insert(key, name(member), now);
                    key += 1;
                    assert!(unused.len() <= max);
                    assert!(key < 100_000, "the members displace each other without end");
                }
            }
            if key == before {
                let names = (0..wishes.len()).map(name);
                return names.map(|n| (n.to_string(), unused.0.of(&n))).collect();
            }
        }
    }

    #[test]
    fn one_member_that_takes_everything_gives_the_others_their_share() {
        let shares = settle(&[1000, 4, 4], 100);
        assert_eq!(shares.into_values().collect::<Vec<_>>(), [92, 4, 4]);
    }

    #[test]
    fn with_too_few_places_all_members_have_nearly_as_many_and_none_is_displaced_any_more() {
        let shares: Vec<_> = settle(&[4; 300], 1024).into_values().collect();
        assert_eq!(shares.iter().sum::<usize>(), 1024);
        assert!(shares.iter().all(|n| (3..=4).contains(n)), "{shares:?}");
        let shares: Vec<_> = settle(&[4; 10], 8).into_values().collect();
        assert_eq!(shares.iter().filter(|n| **n == 1).count(), 8);
    }

    #[test]
    fn the_oldest_of_the_member_with_the_most_makes_room() {
        let (mut unused, now) = (Unused::default(), Instant::now());
        unused.insert(1, name(1), now);
        for key in [2, 3, 4] {
            unused.insert(key, name(2), now);
        }
        assert_eq!(unused.greatest(), Some(&name(2)));
        assert_eq!(unused.room(&name(3), 4), Room::Evict(2));
        assert_eq!(unused.room(&name(2), 4), Room::Full);
    }

    #[test]
    fn a_member_that_connects_without_end_displaces_only_its_own_connections() {
        let (mut unused, now) = (Unused::default(), Instant::now());
        unused.insert(0, name(1), now);
        for key in 1..100_u32 {
            unused.insert(key, name(2), now);
            let excess = unused.take_excess(4);
            assert_eq!(excess, key.checked_sub(3).filter(|oldest| *oldest > 0));
        }
        assert!(unused.remove(0));
    }
}
