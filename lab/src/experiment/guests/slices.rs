//! The slices of a shared core, planned as a hypervisor's scheduler would plan them.
//!
//! As in vsnoop-paper V-C, Xen's credit scheduler gives every runnable guest 30 ms. The driver
//! domain runs in between, here for 10 ms before each guest.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// The member that may run in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum Turn {
    /// The driver domain.
    Driver,
    /// The guest of this number.
    Guest(usize),
}

/// How a core is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) struct Shape {
    /// The number of guests on this core.
    pub(in crate::experiment) guests: usize,
    /// The length of a guest's slice.
    pub(in crate::experiment) guest: Duration,
    /// The length of the driver domain's slice before each guest; `None` if it is on another core.
    pub(in crate::experiment) driver: Option<Duration>,
}

impl Shape {
    /// Returns the paper's sharing with this number of guests.
    pub(in crate::experiment) fn of(guests: usize, driver_here: bool) -> Self {
        Self {
            guests,
            guest: Duration::from_millis(30),
            driver: driver_here.then_some(Duration::from_millis(10)),
        }
    }

    /// Returns the time from the start of one slice of a guest to that of its next.
    pub(in crate::experiment) fn cycle(&self) -> Duration {
        let both = self.guest + self.driver.unwrap_or_default();
        both * u32::try_from(self.guests).unwrap_or(1)
    }
}

/// A slice of the core's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) struct Slice {
    pub(in crate::experiment) turn: Turn,
    pub(in crate::experiment) length: Duration,
}

/// The largest error of a slice's length, as a share of the length: a tenth from the shortest to
/// the longest. Without it, successive transfers could stay in phase with the slices.
const JITTER: f64 = 0.05;

/// An endless sequence of slices. The guests' order is random but fixed, like a scheduler's queue.
#[derive(Clone, Debug)]
pub(in crate::experiment) struct Slices {
    shape: Shape,
    order: Vec<usize>,
    next: usize,
    driver_was: bool,
    random: Pcg64Mcg,
}

// === impl Slices ===

impl Slices {
    pub(in crate::experiment) fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..shape.guests).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
        }
        Self {
            shape,
            order,
            next: 0,
            driver_was: false,
            random,
        }
    }

    /// Returns whether the driver domain is on this core.
    pub(in crate::experiment) fn has_driver(&self) -> bool {
        self.shape.driver.is_some()
    }

    /// Returns the next slice. Without guests, every slice is the driver domain's.
    pub(in crate::experiment) fn take(&mut self) -> Slice {
        if let Some(driver) = self.shape.driver
            && !self.driver_was
        {
            self.driver_was = true;
            return self.slice(Turn::Driver, driver);
        }
        self.driver_was = false;
        let turn = match self.order.get(self.next) {
            Some(guest) => Turn::Guest(*guest),
            None => Turn::Driver,
        };
        self.next = (self.next + 1) % self.order.len().max(1);
        self.slice(turn, self.shape.guest)
    }

    fn slice(&mut self, turn: Turn, length: Duration) -> Slice {
        let drawn = self.random.next_u64() as f64 / u64::MAX as f64;
        Slice {
            turn,
            length: length.mul_f64(1.0 + JITTER * (2.0 * drawn - 1.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn turns(shape: Shape, seed: u64, n: usize) -> Vec<Turn> {
        let mut slices = Slices::new(shape, seed);
        (0..n).map(|_| slices.take().turn).collect()
    }

    #[test]
    fn the_driver_comes_before_every_guest() {
        for turns in turns(Shape::of(3, true), 1, 60).chunks(2) {
            assert_eq!(turns[0], Turn::Driver);
            assert_ne!(turns[1], Turn::Driver);
        }
    }

    #[test]
    fn a_driver_on_a_core_of_its_own_has_no_slice() {
        assert!(!turns(Shape::of(3, false), 1, 60).contains(&Turn::Driver));
    }

    #[test]
    fn a_cycle_of_three_guests_is_the_papers() {
        assert_eq!(Shape::of(3, true).cycle(), Duration::from_millis(120));
        assert_eq!(Shape::of(3, false).cycle(), Duration::from_millis(90));
    }

    #[test]
    fn the_seed_makes_the_order() {
        let orders: Vec<_> = (0..20)
            .map(|seed| turns(Shape::of(5, false), seed, 5))
            .collect();
        assert!(orders.iter().any(|order| *order != orders[0]));
        assert_eq!(orders[3], turns(Shape::of(5, false), 3, 5));
    }

    proptest! {
        #[test]
        fn every_guest_comes_once_a_cycle_and_slices_keep_their_lengths(
            guests in 1_usize..8, driver: bool, seed: u64,
        ) {
            let shape = Shape::of(guests, driver);
            let mut slices = Slices::new(shape, seed);
            let each = if driver { 2 } else { 1 };
            for _ in 0..5 {
                let mut seen = vec![0; guests];
                for _ in 0..guests * each {
                    let slice = slices.take();
                    let planned = match slice.turn {
                        Turn::Driver => Duration::from_millis(10),
                        Turn::Guest(guest) => {
                            seen[guest] += 1;
                            Duration::from_millis(30)
                        }
                    };
                    prop_assert!(slice.length >= planned.mul_f64(0.949));
                    prop_assert!(slice.length <= planned.mul_f64(1.051));
                }
                prop_assert!(seen.iter().all(|count| *count == 1));
            }
        }
    }
}
