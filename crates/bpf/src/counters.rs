//! Counters: a per-CPU array with one element for each value of a C enum.

use std::marker::PhantomData;

use crate::{Error, PerCpu};

/// An enum that a C header declares; generated.
pub trait CEnum: Copy + Sized + 'static {
    /// Its values, in the header's order.
    const ALL: &'static [Self];
    /// Their names in the same order: what is left of the C name in lower case without the part
    /// that all have in common.
    const LABELS: &'static [&'static str];

    /// The value in C.
    fn raw(self) -> u32;

    /// The enum of a value in C.
    fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|each| each.raw() == raw)
    }
}

/// A per-CPU array of `__u64`, indexed by the enum `E`.
#[derive(Debug)]
pub struct CounterMap<E> {
    map: PerCpu<u64>,
    counts: PhantomData<E>,
}

/// What was counted up to now on all CPUs, for each value of the enum `E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters<E> {
    sums: Box<[u64]>,
    counts: PhantomData<E>,
}

// === impl CounterMap ===

impl<E: CEnum> CounterMap<E> {
    /// The counters in this map.
    pub fn new(map: PerCpu<u64>) -> Self {
        Self {
            map,
            counts: PhantomData,
        }
    }

    /// Reads all counters.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn read(&self) -> Result<Counters<E>, Error> {
        let sum = |each: &E| Ok(self.map.get(each.raw())?.iter().sum());
        Ok(Counters {
            sums: E::ALL.iter().map(sum).collect::<Result<_, _>>()?,
            counts: PhantomData,
        })
    }
}

// === impl Counters ===

impl<E: CEnum> Counters<E> {
    /// One counter.
    pub fn get(&self, counter: E) -> u64 {
        let found = E::ALL.iter().zip(&self.sums);
        let mut found = found.filter(|(each, _)| each.raw() == counter.raw());
        found.next().map_or(0, |(_, sum)| *sum)
    }

    /// The counter of this label; 0 if there is none.
    pub fn of(&self, label: &str) -> u64 {
        self.iter()
            .find(|(each, _)| *each == label)
            .map_or(0, |(_, sum)| sum)
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.sums.iter().zip(&earlier.sums);
        Self {
            sums: pairs.map(|(now, then)| now.saturating_sub(*then)).collect(),
            counts: PhantomData,
        }
    }

    /// Each counter with its label.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<'_, E> {
        E::LABELS.iter().copied().zip(self.sums.iter().copied())
    }
}

impl<E: CEnum> Default for Counters<E> {
    fn default() -> Self {
        Self {
            sums: vec![0; E::ALL.len()].into(),
            counts: PhantomData,
        }
    }
}

impl<E: CEnum> FromIterator<(E, u64)> for Counters<E> {
    fn from_iter<I: IntoIterator<Item = (E, u64)>>(counts: I) -> Self {
        let mut counters = Self::default();
        for (counter, count) in counts {
            let mut sums = E::ALL.iter().zip(&mut counters.sums);
            if let Some((_, sum)) = sums.find(|(each, _)| each.raw() == counter.raw()) {
                *sum += count;
            }
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Exit {
        Passed = 0,
        Dropped = 5,
    }

    impl CEnum for Exit {
        const ALL: &'static [Self] = &[Self::Passed, Self::Dropped];
        const LABELS: &'static [&'static str] = &["passed", "dropped"];

        fn raw(self) -> u32 {
            self as u32
        }
    }

    #[test]
    fn counters_are_found_by_value_and_by_label() {
        let before: Counters<Exit> = [(Exit::Dropped, 3)].into_iter().collect();
        assert_eq!(before.get(Exit::Dropped), 3);
        assert_eq!((before.of("dropped"), before.of("lost")), (3, 0));
        let now: Counters<Exit> = [(Exit::Passed, 1), (Exit::Dropped, 7)]
            .into_iter()
            .collect();
        assert!(
            now.since(&before)
                .iter()
                .eq([("passed", 1), ("dropped", 4)])
        );
        assert_eq!(Exit::from_raw(5), Some(Exit::Dropped));
        assert_eq!(Exit::from_raw(1), None);
    }
}
