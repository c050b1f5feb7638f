use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use proptest::prelude::*;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const BOUNDS: Bounds = Bounds {
    floor: 2,
    ceiling: 400,
};

/// How long a client's handshake takes.
const HANDSHAKE: Duration = Duration::from_millis(80);

/// Handshakes that ended, and how many of their clients had a connection by then.
#[derive(Default)]
struct Handshakes {
    ended: u32,
    had_one: u32,
}

/// A pool in virtual time: a taken connection is dialled again and is ready `setup` later.
struct World {
    sizer: Sizer,
    random: Pcg64Mcg,
    now: Instant,
    setup: Duration,
    ready: u32,
    under_way: BinaryHeap<Reverse<Instant>>,
    arrivals: u32,
    misses: u32,
    lowest: u32,
    highest: u32,
}

impl World {
    fn new(bounds: Bounds, setup: Duration, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            sizer: Sizer::new(bounds, now, seed),
            random: Pcg64Mcg::seed_from_u64(seed),
            now,
            setup,
            ready: 0,
            under_way: BinaryHeap::new(),
            arrivals: 0,
            misses: 0,
            lowest: u32::MAX,
            highest: 0,
        }
    }

    fn dial(&mut self) {
        let under_way = self.under_way.len() as u32;
        let wanted = self.sizer.dials_wanted(self.ready, under_way, self.now);
        for _ in 0..wanted {
            // From 0.5 to 1.5 times the set-up time.
            let setup = self.setup.mul_f64(0.5 + unit(self.random.next_u64()));
            self.under_way.push(Reverse(self.now + setup));
        }
    }

    /// Completes the dials that are ready by `end`.
    fn complete(&mut self, end: Instant) {
        while let Some(&Reverse(at)) = self.under_way.peek() {
            if at > end {
                break;
            }
            self.under_way.pop();
            self.now = at;
            self.ready += 1;
            self.sizer.dial_succeeded(self.setup);
            self.dial();
        }
        self.now = end;
    }

    fn arrive(&mut self) {
        self.arrivals += 1;
        self.sizer.arrived(self.now);
        if self.ready > 0 {
            self.ready -= 1;
        } else {
            self.misses += 1;
            self.sizer.missed(self.now);
        }
        self.dial();
        let target = self.sizer.target(self.now);
        self.lowest = self.lowest.min(target);
        self.highest = self.highest.max(target);
    }

    /// Runs Poisson arrivals at `rate` per second.
    fn run(&mut self, rate: f64, time: Duration) {
        self.dial();
        let end = self.now + time;
        loop {
            let wait = -unit(self.random.next_u64()).max(1e-12).ln() / rate;
            let next = self.now + Duration::from_secs_f64(wait);
            if next > end {
                return self.complete(end);
            }
            self.complete(next);
            self.arrive();
        }
    }

    /// Runs Poisson arrivals at `rate` per second of handshakes that end after [`HANDSHAKE`], and at
    /// `forged` per second of some that never do. A connection is wanted as each begins.
    fn run_handshakes(&mut self, rate: f64, forged: f64, time: Duration) -> Handshakes {
        let mut seen = Handshakes::default();
        let mut under_way = VecDeque::new();
        self.dial();
        let end = self.now + time;
        while self.now < end {
            let wait = -unit(self.random.next_u64()).max(1e-12).ln() / (rate + forged);
            let next = self.now + Duration::from_secs_f64(wait);
            while let Some(&(at, has_one)) = under_way.front().filter(|(at, _)| *at <= next) {
                under_way.pop_front();
                self.complete(at);
                seen.ended += 1;
                self.sizer.arrived_early(self.now);
                match has_one {
                    true => seen.had_one += 1,
                    false => self.arrive(),
                }
                self.dial();
            }
            self.complete(next);
            let has_one = self.ready > self.sizer.reserve(self.now);
            self.ready -= u32::from(has_one);
            self.dial();
            if unit(self.random.next_u64()) * (rate + forged) < rate {
                under_way.push_back((self.now + HANDSHAKE, has_one));
            }
        }
        seen
    }

    /// Resets the counters.
    fn settled(&mut self) {
        (self.arrivals, self.misses) = (0, 0);
        (self.lowest, self.highest) = (u32::MAX, 0);
    }
}

#[test]
fn few_arrivals_find_the_pool_empty_at_any_rate_and_set_up_time() {
    for (seed, rate, setup) in [
        (1, 0.2, 300),
        (2, 2.0, 20),
        (3, 2.0, 300),
        (4, 20.0, 300),
        (5, 100.0, 40),
        (6, 100.0, 500),
        (7, 500.0, 300),
    ] {
        let mut world = World::new(BOUNDS, Duration::from_millis(setup), seed);
        world.run(rate, 20 * SECOND);
        world.settled();
        world.run(rate, Duration::from_secs_f64(10_000.0 / rate));
        assert!(world.arrivals > 9_000);
        let share = f64::from(world.misses) / f64::from(world.arrivals);
        println!(
            "{rate:>5}/s x {setup:>3} ms: {:.3} % missed, target {} to {}, mean under way {:.1}",
            share * 100.0,
            world.lowest,
            world.highest,
            rate * setup as f64 / 1e3
        );
        assert!(share < 0.005, "{rate}/s, {setup} ms: {share}");
    }
}

#[test]
fn most_handshakes_end_with_a_connection_that_was_taken_as_they_began() {
    for (seed, rate, setup) in [(1, 0.5, 100), (2, 5.0, 100), (3, 20.0, 300), (4, 100.0, 40)] {
        let mut world = World::new(BOUNDS, Duration::from_millis(setup), seed);
        world.run_handshakes(rate, 0.0, 300 * SECOND);
        let seen = world.run_handshakes(rate, 0.0, Duration::from_secs_f64(5_000.0 / rate));
        let share = f64::from(seen.had_one) / f64::from(seen.ended);
        println!("{rate:>5}/s x {setup:>3} ms: {:.2} %", share * 100.0);
        assert!(seen.ended > 4_500 && share > 0.98, "{rate}/s: {share}");
    }
}

#[test]
fn handshakes_that_never_end_leave_sessions_their_connections() {
    const FORGED: f64 = 500.0;
    for (seed, rate, setup) in [(1, 2.0, 100), (2, 20.0, 300), (3, 100.0, 40)] {
        let mut world = World::new(BOUNDS, Duration::from_millis(setup), seed);
        world.run_handshakes(rate, 0.0, 60 * SECOND);
        world.settled();
        // The reserve follows the clients that find no connection to spare.
        world.run_handshakes(rate, FORGED, 20 * SECOND);
        let first = world.misses;
        world.settled();
        let seen = world.run_handshakes(rate, FORGED, Duration::from_secs_f64(5_000.0 / rate));
        let share = f64::from(world.misses) / f64::from(seen.ended);
        println!(
            "{rate:>5}/s x {setup:>3} ms: {first} missed at first, then {:.2} % of {}; {} had one",
            share * 100.0,
            seen.ended,
            seen.had_one
        );
        assert!(seen.ended > 4_500 && share < 0.01, "{rate}/s: {share}");
    }
}

#[test]
fn the_size_stays_near_the_formula_under_steady_traffic() {
    for (seed, rate, setup) in [(1, 5.0, 0.3), (2, 100.0, 0.3), (3, 300.0, 0.2)] {
        let mut world = World::new(BOUNDS, Duration::from_secs_f64(setup), seed);
        world.run(rate, 60 * SECOND);
        world.settled();
        world.run(rate, 300 * SECOND);
        let mean: f64 = rate * setup;
        let formula = (mean + 3.0 * mean.sqrt()).ceil() + 1.0;
        let (low, high) = (f64::from(world.lowest), f64::from(world.highest));
        assert!(low >= 0.9 * formula, "{low} of {formula}");
        assert!(high <= 1.4 * formula + 2.0, "{high} of {formula}");
        assert!(high <= 1.4 * low + 2.0, "from {low} to {high}");
    }
}

#[test]
fn a_burst_raises_the_size_quickly_and_its_end_lowers_it_slowly() {
    let mut world = World::new(BOUNDS, Duration::from_millis(300), 1);
    world.run(1.0, 60 * SECOND);
    let before = world.sizer.target(world.now);
    world.run(100.0, 3 * SECOND);
    let high = world.sizer.target(world.now);
    assert!(high > 30 && high > 3 * before, "{before} to {high}");
    world.run(1.0, 10 * SECOND);
    let after = world.sizer.target(world.now);
    assert!(
        f64::from(after) > 0.6 * f64::from(high),
        "{high} to {after}"
    );
    world.run(1.0, 600 * SECOND);
    assert!(world.sizer.target(world.now) <= before + 2);
}

#[test]
fn a_miss_raises_the_size_at_once() {
    let now = Instant::now();
    let mut sizer = Sizer::new(BOUNDS, now, 1);
    sizer.arrived(now);
    let before = sizer.target(now);
    sizer.missed(now);
    assert!(sizer.target(now) > before);
}

#[test]
fn misses_do_not_count_while_the_relay_is_unreachable() {
    let now = Instant::now();
    let mut sizer = Sizer::new(BOUNDS, now, 1);
    sizer.arrived(now);
    sizer.dial_failed(now);
    let before = sizer.target(now);
    for _ in 0..1000 {
        sizer.missed(now);
    }
    assert_eq!(sizer.target(now), before);
}

#[test]
fn the_floor_holds_before_and_after_traffic_and_the_ceiling_during_it() {
    let bounds = Bounds {
        floor: 3,
        ceiling: 10,
    };
    let mut world = World::new(bounds, Duration::from_millis(300), 1);
    assert_eq!(world.sizer.target(world.now), 3);
    world.run(1000.0, 5 * SECOND);
    assert_eq!(world.highest, 10);
    assert!(world.misses > 0 && world.under_way.len() <= 10);
    let mut last = world.sizer.target(world.now);
    for second in 0..300 {
        let target = world.sizer.target(world.now + second * SECOND);
        assert!(target <= last && target >= 3, "it only falls");
        last = target;
    }
    assert_eq!(world.sizer.target(world.now + 300 * SECOND), 3);
    let none = Bounds {
        floor: 0,
        ceiling: 10,
    };
    let mut world = World::new(none, Duration::from_millis(300), 1);
    assert_eq!(world.sizer.target(world.now), 0);
    world.run(1.0, 5 * SECOND);
    assert!(world.sizer.target(world.now) > 0);
    assert_eq!(world.sizer.target(world.now + 400 * SECOND), 0);
}

#[test]
fn the_missing_connections_are_dialled() {
    let now = Instant::now();
    let bounds = Bounds {
        floor: 5,
        ceiling: 9,
    };
    let sizer = Sizer::new(bounds, now, 1);
    assert_eq!(sizer.dials_wanted(0, 0, now), 5);
    assert_eq!(sizer.dials_wanted(2, 1, now), 2);
    assert_eq!(sizer.dials_wanted(3, 2, now), 0);
    assert_eq!(sizer.dials_wanted(u32::MAX, u32::MAX, now), 0);
    let ill = Bounds {
        floor: 5,
        ceiling: 1,
    };
    assert_eq!(Sizer::new(ill, now, 1).target(now), 5);
}

#[test]
fn failed_dials_are_repeated_one_at_a_time_with_growing_waits() {
    let mut now = Instant::now();
    let mut sizer = Sizer::new(BOUNDS, now, 1);
    let mut waits = Vec::new();
    for _ in 0..20 {
        sizer.dial_failed(now);
        let at = sizer.retry_at().unwrap();
        // Dials that were in progress at the same time.
        sizer.dial_failed(now);
        assert_eq!(sizer.retry_at(), Some(at));
        waits.push(at - now);
        assert_eq!(sizer.dials_wanted(0, 0, at - Duration::from_nanos(1)), 0);
        assert_eq!(sizer.dials_wanted(0, 0, at), 1);
        assert_eq!(sizer.dials_wanted(0, 1, at), 0);
        assert_eq!(sizer.dials_wanted(BOUNDS.floor, 0, at), 0);
        now = at;
    }
    for (i, wait) in waits.iter().enumerate() {
        let longest = Duration::from_millis(200 << i.min(10)).min(10 * SECOND);
        assert!(*wait <= longest && *wait >= longest / 2, "{i}: {wait:?}");
    }
    assert!(
        waits[10..].iter().any(|wait| *wait != waits[10]),
        "no jitter"
    );

    sizer.dial_succeeded(SECOND);
    assert_eq!(sizer.retry_at(), None);
    assert_eq!(sizer.dials_wanted(0, 0, now), BOUNDS.floor);
    sizer.dial_failed(now);
    assert!(sizer.retry_at().unwrap() <= now + Duration::from_millis(200));
}

#[test]
fn two_pools_have_different_waits() {
    let now = Instant::now();
    let wait = |seed| {
        let mut sizer = Sizer::new(BOUNDS, now, seed);
        sizer.dial_failed(now);
        sizer.retry_at()
    };
    assert_eq!(wait(1), wait(1));
    assert_ne!(wait(1), wait(2));
}

#[test]
fn a_longer_set_up_time_needs_more_connections() {
    let now = Instant::now();
    let size = |setup: Duration| {
        let mut sizer = Sizer::new(BOUNDS, now, 1);
        for _ in 0..50 {
            sizer.dial_succeeded(setup);
        }
        for i in 0..200 {
            sizer.arrived(now + i * Duration::from_millis(10));
        }
        sizer.target(now + 2 * SECOND)
    };
    assert!(size(SECOND) > 3 * size(SECOND / 10));
    assert_eq!(size(MAX_SETUP), size(Duration::MAX));
}

proptest! {
    #[test]
    fn the_size_is_within_bounds_whatever_is_reported(
        floor in 0_u32..10,
        above in 0_u32..100,
        reports in proptest::collection::vec((0_u8..5, 0_u64..100_000), 0..200),
    ) {
        let bounds = Bounds { floor, ceiling: floor + above };
        let start = Instant::now();
        let mut sizer = Sizer::new(bounds, start, 1);
        for (what, ms) in reports {
            // Not in order, because threads read the clock independently.
            let now = start + Duration::from_millis(ms);
            match what {
                0 => sizer.arrived(now),
                1 => sizer.missed(now),
                2 => sizer.dial_succeeded(Duration::from_millis(ms)),
                3 => sizer.arrived_early(now),
                _ => sizer.dial_failed(now),
            }
            let target = sizer.target(now);
            prop_assert!((bounds.floor..=bounds.ceiling).contains(&target));
            prop_assert!(sizer.dials_wanted(0, 0, now) <= target);
            prop_assert!(sizer.reserve(now) <= target);
        }
    }

    #[test]
    fn a_connection_comes_of_age_within_a_fifth_of_the_limit(random in any::<u64>(), secs in 0_u64..100_000) {
        let now = Instant::now();
        let max_age = Duration::from_secs(secs);
        let age = expiry(now, max_age, random) - now;
        prop_assert!(age >= max_age.mul_f64(0.799) && age <= max_age.mul_f64(1.201));
    }
}

#[test]
fn expiry_times_differ() {
    let now = Instant::now();
    let age = |random| expiry(now, 100 * SECOND, random) - now;
    assert_eq!(age(0), 80 * SECOND);
    assert!(age(u64::MAX) > 119 * SECOND && age(u64::MAX / 2) > 99 * SECOND);
    let _ = expiry(now, Duration::MAX, u64::MAX);
}

#[test]
fn a_burst_finds_as_many_connections_as_the_previous_ones_needed() {
    let mut world = World::new(BOUNDS, Duration::from_millis(300), 1);
    world.dial();
    world.complete(world.now + SECOND);
    // A browser: eight sessions at once, every ten seconds.
    for burst in 0..20 {
        if burst == 2 {
            world.settled();
        }
        for _ in 0..8 {
            world.arrive();
        }
        world.complete(world.now + 10 * SECOND);
    }
    assert!(
        world.misses <= 18 * 2,
        "{} of {}",
        world.misses,
        world.arrivals
    );
    assert!(world.highest <= 12, "{}", world.highest);
}
