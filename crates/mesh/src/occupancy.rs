//! Connections that share a limit: which party has the most of them, and which of these is the oldest.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// Entries of the queue below which it is never cleaned.
const SMALL: usize = 64;

/// The connections of parties of type `P`. `K` identifies a connection, and is never used twice.
#[derive(Debug)]
pub(crate) struct Occupancy<K, P> {
    held: HashMap<K, Occupant<P>>,
    /// Keys in the order of arrival. Those of connections that have left since remain for a while.
    queue: VecDeque<K>,
    by_party: HashMap<P, usize>,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Occupant<P> {
    /// The party that it belongs to.
    pub(crate) party: P,
    /// Since when.
    pub(crate) since: Instant,
}

// === impl Occupancy ===

impl<K, P> Default for Occupancy<K, P> {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            queue: VecDeque::new(),
            by_party: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, P: Clone + Eq + Hash> Occupancy<K, P> {
    /// Returns the number of connections.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether there is no connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the number of connections of a party.
    pub(crate) fn of(&self, party: &P) -> usize {
        self.by_party.get(party).copied().unwrap_or(0)
    }

    /// Returns the oldest connection of the parties that have the most; `None` if there is none.
    pub(crate) fn oldest_of_most(&self) -> Option<(K, &Occupant<P>)> {
        let most = self.by_party.values().copied().max()?;
        let known = |key: &K| Some((*key, self.held.get(key)?));
        let mut oldest_first = self.queue.iter().filter_map(known);
        oldest_first.find(|(_, occupant)| self.of(&occupant.party) == most)
    }

    /// Adds a connection of a party.
    pub(crate) fn insert(&mut self, key: K, party: P, now: Instant) {
        *self.by_party.entry(party.clone()).or_default() += 1;
        self.held.insert(key, Occupant { party, since: now });
        self.queue.push_back(key);
        // Otherwise, keys of connections that have left would accumulate behind one that stays.
        if self.queue.len() > SMALL + 2 * self.held.len() {
            let held = &self.held;
            self.queue.retain(|key| held.contains_key(key));
        }
    }

    /// Removes a connection. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: K) -> bool {
        let Some(Occupant { party, .. }) = self.held.remove(&key) else {
            return false;
        };
        if let Entry::Occupied(mut count) = self.by_party.entry(party) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_connection_is_counted_once_and_the_queue_stays_short(
            steps in prop::collection::vec((0u8..4, any::<bool>()), 1..300),
        ) {
            let (mut all, now) = (Occupancy::default(), Instant::now());
            for (key, (party, leaves)) in steps.into_iter().enumerate() {
                all.insert(key, party, now);
                if leaves && let Some((oldest, _)) = all.oldest_of_most() {
                    prop_assert!(all.remove(oldest) && !all.remove(oldest));
                }
                let counted: usize = all.by_party.values().sum();
                prop_assert_eq!(counted, all.len());
                prop_assert!(all.queue.len() <= SMALL + 2 * all.len() + 1);
            }
        }
    }
}
