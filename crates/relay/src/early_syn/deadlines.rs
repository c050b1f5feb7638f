//! Keys, each with an instant, in the order of these.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// A table whose entries run out. Adversaries choose the keys: the hash is a keyed one.
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

    /// Sets the deadline of `key`, whether it is there or not.
    pub(super) fn set(&mut self, key: K, at: Instant) {
        if let Some(before) = self.of.insert(key, at) {
            self.in_order.remove(&(before, key));
        }
        self.in_order.insert((at, key));
    }

    /// Takes `key` out, and says whether it was there.
    pub(super) fn remove(&mut self, key: &K) -> bool {
        match self.of.remove(key) {
            Some(at) => self.in_order.remove(&(at, *key)),
            None => false,
        }
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|&(at, _)| at)
    }

    /// Takes out the entry with the earliest deadline.
    pub(super) fn pop(&mut self) -> Option<K> {
        let (_, key) = self.in_order.pop_first()?;
        self.of.remove(&key);
        Some(key)
    }

    /// Takes out an entry whose deadline has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        (self.next()? <= now).then(|| self.pop()).flatten()
    }
}
