//! Connections that wait for the rest of their first bytes, each for the same time.

use std::collections::VecDeque;
use std::time::Instant;

use slab::Slab;

use super::slots::slot;
use crate::event::token::{Generation, Slot};

/// Connections by slot, in the order of their deadlines.
pub(super) struct WaitList<T> {
    entries: Slab<(Generation, T)>,
    generation: Generation,
    /// Connections ordered by deadline. Entries of connections that have left remain until they are
    /// reached.
    deadlines: VecDeque<(Instant, Slot, Generation)>,
}

// === impl WaitList ===

impl<T> Default for WaitList<T> {
    fn default() -> Self {
        Self {
            entries: Slab::new(),
            generation: Generation::default(),
            deadlines: VecDeque::new(),
        }
    }
}

impl<T> WaitList<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Adds a connection. `until` must not be earlier than that of any connection before it.
    pub(super) fn insert(&mut self, entry: T, until: Instant) -> (Slot, Generation) {
        self.generation = self.generation.next();
        let generation = self.generation;
        let slot = slot(self.entries.insert((generation, entry)));
        self.deadlines.push_back((until, slot, generation));
        (slot, generation)
    }

    pub(super) fn get_mut(&mut self, slot: Slot, generation: Generation) -> Option<&mut T> {
        let (known, entry) = self.entries.get_mut(slot.0 as usize)?;
        (*known == generation).then_some(entry)
    }

    pub(super) fn remove(&mut self, slot: Slot, generation: Generation) -> Option<T> {
        self.get_mut(slot, generation)?;
        let (_, entry) = self.entries.try_remove(slot.0 as usize)?;
        Some(entry)
    }

    /// Removes the next connection whose deadline has passed.
    pub(super) fn remove_due(&mut self, now: Instant) -> Option<T> {
        while let Some(&(at, slot, generation)) = self.deadlines.front() {
            let there = self.get_mut(slot, generation).is_some();
            if there && at > now {
                return None;
            }
            self.deadlines.pop_front();
            if there {
                return self.remove(slot, generation);
            }
        }
        None
    }

    /// Removes the connection that has waited longest.
    pub(super) fn remove_oldest(&mut self) -> Option<T> {
        loop {
            let (_, slot, generation) = self.deadlines.pop_front()?;
            if let Some(entry) = self.remove(slot, generation) {
                return Some(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn connections_leave_at_their_deadline_or_before_and_once() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut list = WaitList::default();
        let (slot, generation) = list.insert('a', at(1));
        list.insert('b', at(2));
        list.insert('c', at(3));
        assert_eq!(list.remove(slot, generation), Some('a'));
        assert_eq!(list.remove(slot, generation), None);
        // The slot is used again; the old generation does not reach it.
        let (again, _) = list.insert('d', at(4));
        assert_eq!(again, slot);
        assert_eq!(list.get_mut(slot, generation), None);
        assert_eq!(list.remove_due(at(1)), None);
        assert_eq!(list.next(), Some(at(2)));
        assert_eq!(list.remove_due(at(2)), Some('b'));
        assert_eq!(list.remove_due(at(2)), None);
        assert_eq!(list.remove_oldest(), Some('c'));
        assert_eq!(list.remove_due(at(9)), Some('d'));
        assert!(list.is_empty() && list.next().is_none());
        assert_eq!(list.remove_oldest(), None);
    }
}
