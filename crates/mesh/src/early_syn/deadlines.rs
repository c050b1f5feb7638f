//! A table whose entries expire, ordered by deadline.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// A table whose entries expire. Attackers choose the keys, so the hash is keyed.
#[derive(Debug)]
pub(super) struct Deadlines<K> {
    of: HashMap<K, Instant>,
    in_order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            in_order: BTreeSet::new(),
        }
    }
}

// === impl Deadlines ===

impl<K: Copy + Eq + Hash + Ord> Deadlines<K> {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<Instant> {
        self.of.get(key).copied()
    }

    /// Sets the deadline of `key`, and adds the key if it is missing.
    pub(super) fn set(&mut self, key: K, at: Instant) {
        if let Some(before) = self.of.insert(key, at) {
            self.in_order.remove(&(before, key));
        }
        self.in_order.insert((at, key));
    }

    /// Removes `key` and returns whether it was present.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        match self.of.remove(key) {
            Some(at) => self.in_order.remove(&(at, *key)),
            None => false,
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|&(at, _)| at)
    }

    /// Removes the entry with the earliest deadline.
    pub(super) fn pop(&mut self) -> Option<K> {
        let (_, key) = self.in_order.pop_first()?;
        self.of.remove(&key);
        Some(key)
    }

    /// Removes and returns an entry whose deadline has passed.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        (self.next()? <= now).then(|| self.pop()).flatten()
    }
}
