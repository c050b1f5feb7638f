//! Virtual time: events in order, tables whose keys are never reused, and random numbers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Time since the world began.
pub(crate) type Time = Duration;

/// Events that are to come, in the order of their times. Events of the same time keep the order in which they
/// were added, so that a seed always gives the same run.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
    now: Time,
}

struct Entry<E> {
    /// Nanoseconds in the upper half, and the number of the event: one comparison, because most of a run is spent
    /// in this heap.
    key: u128,
    event: E,
}

/// A table whose keys are never given twice.
pub(crate) struct Table<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    len: usize,
}

/// The key of an entry of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    slot: u32,
    generation: u32,
}

/// The random numbers of a seed.
pub(crate) struct Random(Pcg64Mcg);

// === impl Queue ===

impl<E> Queue<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            added: 0,
            now: Time::ZERO,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn at(&mut self, at: Time, event: E) {
        self.added += 1;
        let key = at.max(self.now).as_nanos() << 64 | u128::from(self.added);
        self.heap.push(Reverse(Entry { key, event }));
    }

    pub(crate) fn after(&mut self, wait: Duration, event: E) {
        self.at(self.now + wait, event);
    }

    /// Returns the next event and moves the time to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = Duration::from_nanos((entry.key >> 64) as u64);
        Some(entry.event)
    }

    /// Returns how many events there have been.
    pub(crate) fn count(&self) -> u64 {
        self.added
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

// === impl Table ===

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *generation += 1;
        *place = Some(value);
        Key {
            slot,
            generation: *generation,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, value) = &self.slots[key.slot as usize];
        value.as_ref().filter(|_| *generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = &mut self.slots[key.slot as usize];
        value.as_mut().filter(|_| *generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, value) = &mut self.slots[key.slot as usize];
        let value = value.take_if(|_| *generation == key.generation)?;
        self.free.push(key.slot);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let all = self.slots.iter().enumerate();
        all.filter_map(|(slot, (generation, value))| {
            let key = Key {
                slot: slot as u32,
                generation: *generation,
            };
            value.as_ref().map(|value| (key, value))
        })
    }
}

// === impl Random ===

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `n`, which must not be 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns whether something of this probability happens.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a time between two.
    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + (most - least).mul_f64(self.unit())
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
