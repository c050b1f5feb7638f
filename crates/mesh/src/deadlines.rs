//! The next deadline of each connection in a slab; a slot has one entry or none.

use std::collections::BTreeSet;
use std::time::Instant;

/// Deadlines of slots, ordered by time. `K` stands for a slot.
#[derive(Debug)]
pub struct Deadlines<K>(BTreeSet<(Instant, K)>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Moves the deadline of `slot` from `old` to `new`.
    pub fn set(&mut self, slot: K, old: Option<Instant>, new: Option<Instant>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.0.remove(&(old, slot));
        }
        if let Some(new) = new {
            self.0.insert((new, slot));
        }
    }

    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(at, _)| at)
    }

    /// Returns the slots whose deadline has passed. They stay until [`Deadlines::set`] moves them.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = K> {
        self.0
            .iter()
            .take_while(move |&&(at, _)| at <= now)
            .map(|&(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_come_in_order_and_move() {
        let t = |s| Instant::now() + Duration::from_secs(s);
        let (t1, t2, t3) = (t(1), t(2), t(3));
        let mut deadlines = Deadlines::default();
        deadlines.set(7, None, Some(t2));
        deadlines.set(8, None, Some(t1));
        assert_eq!(deadlines.next(), Some(t1));
        assert_eq!(deadlines.due(t2).collect::<Vec<_>>(), [8, 7]);
        deadlines.set(8, Some(t1), Some(t3));
        assert_eq!(deadlines.due(t2).collect::<Vec<_>>(), [7]);
        deadlines.set(7, Some(t2), None);
        deadlines.set(8, Some(t3), None);
        assert_eq!(deadlines.next(), None);
    }
}
