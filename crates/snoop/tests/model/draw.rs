//! Pseudo-random choices, all of them from one seed.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// A source of choices that depend only on the seed.
pub(crate) struct Draw(Pcg64Mcg);

// === impl Draw ===

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a number below `bound`. (Its bias is below 2^-20 for the bounds used here.)
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a number from `least` to `most`.
    pub(crate) fn within(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(most - least + 1)
    }

    /// Returns true once in `often` times.
    pub(crate) fn once_in(&mut self, often: u32) -> bool {
        self.below(often) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// Returns one of several, by weight.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(u32, T)]) -> T {
        let total = from.iter().map(|(weight, _)| weight).sum();
        let mut drawn = self.below(total);
        for (weight, what) in from {
            if drawn < *weight {
                return *what;
            }
            drawn -= weight;
        }
        unreachable!("what is drawn is less than the sum of the weights")
    }

    /// Returns a number of any size, with uniformly distributed bit lengths, sometimes near a wrap
    /// or a change of sign.
    pub(crate) fn number(&mut self) -> u32 {
        match self.below(4) {
            0 => self.word(),
            1 => 0_u32.wrapping_sub(self.below(4000)),
            2 => 0x8000_0000_u32.wrapping_sub(self.below(4000)),
            _ => self.word() >> self.below(32),
        }
    }
}
