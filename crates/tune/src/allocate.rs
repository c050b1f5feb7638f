//! Computes max-min fair shares of a budget (water-filling): small wants are satisfied, and all
//! larger wants get equal shares. Pure.
//!
//! Think of water that rises to the same level in all vessels. A [`Want`] gets at least its `min`
//! whatever the level is, and stops rising at its `max`. When a pool (the budget, or the bound of a
//! cgroup or a destination) is full, all its members stop at the current level and the other wants
//! continue to rise (progressive filling: Bertsekas and Gallager, Data Networks, 6.5.2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The limits of a grant to one direction of a connection, in bytes as the kernel accounts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// The minimum grant, whatever the budget is: queued bytes cannot be taken away.
    pub min: u64,
    /// The maximum grant. If it is below `min`, `min` applies.
    pub max: u64,
    /// The pools of the want besides the budget, as indices into [`allocate`]'s `pools`.
    pub pools: [Option<usize>; POOLS],
}

/// The number of pools of a [`Want`] besides the budget: one for its cgroup, one for its
/// destination.
pub const POOLS: usize = 2;

/// The division of a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// The grant of each [`Want`], in their order.
    pub grants: Vec<u64>,
    /// The sum of the grants.
    pub granted: u64,
    /// The level at which the budget was used up; `None` if every want got its `max`, or as much as
    /// its other pools allow.
    pub level: Option<u64>,
    /// The bytes by which the sum of the grants exceeds the budget, because no grant is below its
    /// `min`.
    pub excess: u64,
}

/// A bound on the sum of its members' grants.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    bound: u64,
    /// The sum of the bytes of the members that do not rise yet or no longer rise.
    still: u64,
    /// The number of members that rise.
    rising: u64,
    /// The level at which to check the pool next. It cannot be full before.
    next_check: Option<u64>,
    is_full: bool,
}

/// An event of the filling. Events at the same level happen in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The level reaches the `min` of a want; from then on the want rises with the level.
    Rises,
    /// The level reaches the `max` of a want.
    Stops,
    /// A pool may be full.
    MayFill,
}

/// The state of a [`Want`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its `min` is above the level.
    Waits,
    /// It rises with the level.
    Rises,
    /// It has its final grant.
    Granted(u64),
}

struct Filling<'a> {
    wants: &'a [Want],
    states: Vec<State>,
    /// The caller's pools, and the budget as the last one.
    pools: Vec<Pool>,
    /// The members of each pool except the budget, of which every want is a member.
    members: Vec<Vec<usize>>,
    /// The scheduled checks: a level and a pool each. A check is obsolete if the pool's
    /// `next_check` differs.
    checks: BinaryHeap<Reverse<(u64, usize)>>,
}

/// Divides `budget` among `wants`, in bytes.
///
/// The grants in a pool add up to at most its bound, unless its members' `min` already exceed it.
/// Indices of pools that do not exist are ignored. Takes O(n log n) for n wants.
pub fn allocate(wants: &[Want], pools: &[u64], budget: u64) -> Shares {
    Filling::of(wants, pools, budget).fill()
}

// === impl Want ===

impl Want {
    /// Returns the indices of the want's pools, including the budget's index `budget`.
    fn pools(self, budget: usize) -> impl Iterator<Item = usize> {
        let own = self.pools.into_iter().flatten();
        let twice = self.pools[0] == self.pools[1];
        own.skip(usize::from(twice))
            .filter(move |pool| *pool < budget)
            .chain([budget])
    }

    /// Returns `max`, or `min` if that is larger.
    fn max(self) -> u64 {
        self.max.max(self.min)
    }
}

// === impl Pool ===

impl Pool {
    /// Returns the level at which the pool will be full if nothing else changes; `None` if never.
    fn full_at(&self) -> Option<u64> {
        (self.bound.saturating_sub(self.still)).checked_div(self.rising)
    }
}

// === impl Filling ===

impl<'a> Filling<'a> {
    fn of(wants: &'a [Want], pools: &[u64], budget: u64) -> Self {
        let bounds = pools.iter().copied().chain([budget]);
        let mut filling = Self {
            wants,
            states: vec![State::Waits; wants.len()],
            pools: bounds
                .map(|bound| Pool {
                    bound,
                    ..Pool::default()
                })
                .collect(),
            members: vec![Vec::new(); pools.len()],
            checks: BinaryHeap::with_capacity(pools.len() + 1),
        };
        for (index, want) in wants.iter().enumerate() {
            for pool in want.pools(pools.len()) {
                let still = &mut filling.pools[pool].still;
                *still = still.saturating_add(want.min);
                if let Some(members) = filling.members.get_mut(pool) {
                    members.push(index);
                }
            }
        }
        filling
    }

    /// Returns the indices of all wants, sorted by `level`.
    fn sorted(&self, level: impl Fn(&Want) -> u64) -> std::vec::IntoIter<(u64, usize)> {
        let levels = self.wants.iter().map(level);
        let mut sorted: Vec<_> = levels.zip(0..).collect();
        sorted.sort_unstable();
        sorted.into_iter()
    }

    fn fill(mut self) -> Shares {
        let budget = self.pools.len() - 1;
        let mut level_of_budget = None;
        for pool in 0..self.pools.len() {
            let Pool { still, bound, .. } = self.pools[pool];
            // The minimum grants alone use up the pool.
            if still >= bound {
                self.freeze(pool, 0);
            }
        }
        if self.pools[budget].is_full {
            level_of_budget = Some(0);
        }
        let mut rises = self.sorted(|want| want.min).peekable();
        let mut stops = self.sorted(|want| want.max()).peekable();
        loop {
            let next = [
                rises.peek().map(|next| (next.0, Event::Rises)),
                stops.peek().map(|next| (next.0, Event::Stops)),
                self.checks
                    .peek()
                    .map(|Reverse((level, _))| (*level, Event::MayFill)),
            ];
            let Some((level, what)) = next.into_iter().flatten().min() else {
                break;
            };
            match what {
                Event::Rises => {
                    let waits = |(_, index): &(u64, usize)| self.states[*index] == State::Waits;
                    if let Some((_, index)) = rises.next().filter(waits) {
                        self.rise(index, level);
                    }
                }
                Event::Stops => {
                    let rises = |(_, index): &(u64, usize)| self.states[*index] == State::Rises;
                    if let Some((_, index)) = stops.next().filter(rises) {
                        self.grant(index, self.wants[index].max(), level);
                    }
                }
                Event::MayFill => {
                    let pool = self.checks.pop().map(|Reverse((_, pool))| pool);
                    let Some(pool) = pool.filter(|pool| self.is_full(*pool, level)) else {
                        continue;
                    };
                    if pool == budget {
                        level_of_budget = Some(level);
                    }
                    self.freeze(pool, level);
                }
            }
        }
        self.shares(level_of_budget)
    }

    fn rise(&mut self, index: usize, level: u64) {
        let want = self.wants[index];
        self.states[index] = State::Rises;
        for pool in want.pools(self.pools.len() - 1) {
            let of = &mut self.pools[pool];
            of.still = of.still.saturating_sub(want.min);
            of.rising += 1;
            self.schedule_check(pool, level);
        }
    }

    fn grant(&mut self, index: usize, grant: u64, level: u64) {
        let rose = self.states[index] == State::Rises;
        self.states[index] = State::Granted(grant);
        if !rose {
            // Its `min` is counted already.
            return;
        }
        for pool in self.wants[index].pools(self.pools.len() - 1) {
            let of = &mut self.pools[pool];
            of.still = of.still.saturating_add(grant);
            of.rising -= 1;
            self.schedule_check(pool, level);
        }
    }

    /// Schedules a check of a pool at the level at which it will be full, unless an earlier check
    /// is scheduled. A check that comes too early schedules the next one.
    fn schedule_check(&mut self, pool: usize, level: u64) {
        let of = &mut self.pools[pool];
        if let (false, Some(full_at)) = (of.is_full, of.full_at()) {
            // Levels are whole bytes: the rest of a pool may be slightly negative at this one.
            let full_at = full_at.max(level);
            if of.next_check.is_none_or(|next| full_at < next) {
                of.next_check = Some(full_at);
                self.checks.push(Reverse((full_at, pool)));
            }
        }
    }

    /// Checks whether a pool is full at this level, for which a check was scheduled.
    fn is_full(&mut self, pool: usize, level: u64) -> bool {
        let of = &mut self.pools[pool];
        // This check is obsolete.
        if of.is_full || of.next_check != Some(level) {
            return false;
        }
        of.next_check = None;
        match of.full_at() {
            Some(full_at) if full_at <= level => true,
            _ => {
                self.schedule_check(pool, level);
                false
            }
        }
    }

    /// Grants the members of a full pool at most this level.
    fn freeze(&mut self, pool: usize, level: u64) {
        self.pools[pool].is_full = true;
        let members: Vec<usize> = match self.members.get_mut(pool) {
            Some(members) => std::mem::take(members),
            None => (0..self.wants.len()).collect(),
        };
        for index in members {
            match self.states[index] {
                State::Waits => self.grant(index, self.wants[index].min, level),
                State::Rises => self.grant(index, level, level),
                State::Granted(_) => {}
            }
        }
    }

    fn shares(self, level: Option<u64>) -> Shares {
        let grant = |(state, want): (&State, &Want)| match state {
            State::Granted(grant) => *grant,
            // Unreachable: each want stops at its `max`.
            State::Waits | State::Rises => want.min,
        };
        let grants: Vec<u64> = self.states.iter().zip(self.wants).map(grant).collect();
        let granted = grants
            .iter()
            .fold(0u64, |sum, grant| sum.saturating_add(*grant));
        let budget = self.pools.last().map_or(0, |pool| pool.bound);
        let is_short = grants
            .iter()
            .zip(self.wants)
            .any(|(grant, want)| *grant < want.max());
        Shares {
            granted,
            // The budget may be used up to the last byte and still suffice.
            level: level.filter(|_| is_short),
            excess: granted.saturating_sub(budget),
            grants,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn want(min: u64, max: u64) -> Want {
        Want {
            min,
            max,
            pools: [None; POOLS],
        }
    }

    #[test]
    fn with_room_for_all_each_gets_its_maximum() {
        let shares = allocate(&[want(1, 10), want(5, 20)], &[], 30);
        assert_eq!(shares.grants, [10, 20]);
        assert_eq!((shares.granted, shares.level, shares.excess), (30, None, 0));
    }

    #[test]
    fn small_wants_are_met_and_the_others_get_the_same() {
        let wants = [want(0, 10), want(0, 1000), want(0, 1000), want(0, 20)];
        let shares = allocate(&wants, &[], 230);
        assert_eq!(shares.grants, [10, 100, 100, 20]);
        assert_eq!(shares.level, Some(100));
    }

    #[test]
    fn the_minimum_is_granted_and_the_others_share_the_rest() {
        let shares = allocate(&[want(80, 100), want(0, 100), want(0, 100)], &[], 100);
        assert_eq!(shares.grants, [80, 10, 10]);
        // The minimum grants exceed the budget, and the third want gets nothing.
        let shares = allocate(&[want(80, 100), want(40, 100), want(0, 100)], &[], 100);
        assert_eq!((&*shares.grants, shares.excess), (&[80, 40, 0][..], 20));
        assert_eq!(shares.level, Some(0));
    }

    #[test]
    fn a_full_pool_leaves_more_to_the_others() {
        let of = |pool| Want {
            pools: [Some(pool), None],
            ..want(0, 1000)
        };
        let wants = [of(0), of(0), of(1), want(0, 1000)];
        let shares = allocate(&wants, &[20, 500], 300);
        assert_eq!(shares.grants, [10, 10, 140, 140]);
    }

    #[test]
    fn a_member_of_two_pools_stops_when_either_is_full() {
        let of = |pools| Want {
            pools,
            ..want(0, 1000)
        };
        let wants = [
            of([Some(0), Some(1)]),
            of([Some(0), None]),
            of([None, Some(1)]),
        ];
        let shares = allocate(&wants, &[100, 30], 10_000);
        assert_eq!(shares.grants, [15, 85, 15]);
        assert_eq!(shares.level, None);
    }

    #[test]
    fn nothing_overflows() {
        let all = want(u64::MAX, u64::MAX);
        let shares = allocate(&[all, all, want(0, u64::MAX)], &[], u64::MAX);
        assert_eq!(shares.grants, [u64::MAX, u64::MAX, 0]);
        assert_eq!(allocate(&[], &[5], 0), Shares::default());
        // `max` below `min`, a pool that does not exist, and one pool twice.
        let odd = Want {
            pools: [Some(7), Some(7)],
            ..want(9, 3)
        };
        assert_eq!(allocate(&[odd], &[], 100).grants, [9]);
        let twice = Want {
            pools: [Some(0), Some(0)],
            ..want(0, 100)
        };
        assert_eq!(allocate(&[twice, twice], &[50], 100).grants, [25, 25]);
    }

    fn wants() -> impl Strategy<Value = (Vec<Want>, Vec<u64>, u64)> {
        let pool = || prop::option::of(0usize..4);
        let want =
            (0u64..200, 0u64..2000, pool(), pool()).prop_map(|(min, more, one, other)| Want {
                min: if more % 3 == 0 { 0 } else { min },
                max: min + more,
                pools: [one, other],
            });
        let pools = prop::collection::vec(0u64..20_000, 4);
        (prop::collection::vec(want, 0..60), pools, 0u64..60_000)
    }

    fn is_in(want: &Want, pool: usize, budget: usize) -> bool {
        pool == budget || want.pools.contains(&Some(pool))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// No pool exceeds its bound, except by minimum grants. A want that gets less than its
        /// maximum is in a full pool whose other members get no more, except by their minimum. This
        /// is the definition of max-min fairness.
        #[test]
        fn shares_are_bounded_and_max_min_fair((wants, pools, budget) in wants()) {
            let shares = allocate(&wants, &pools, budget);
            let bounds: Vec<u64> = pools.iter().copied().chain([budget]).collect();
            let mut full = Vec::new();
            for (pool, bound) in bounds.iter().enumerate() {
                let members = || wants.iter().zip(&shares.grants).filter(|(want, _)| is_in(want, pool, pools.len()));
                let granted: u64 = members().map(|(_, grant)| grant).sum();
                let min: u64 = members().map(|(want, _)| want.min).sum();
                prop_assert!(granted <= (*bound).max(min), "{pool}: {granted} of {bound}");
                // Grants are rounded down to bytes.
                full.push(granted + members().count() as u64 > *bound);
            }
            for (want, grant) in wants.iter().zip(&shares.grants) {
                prop_assert!((want.min..=want.max).contains(grant));
                if *grant == want.max {
                    continue;
                }
                let is_bounded = (0..bounds.len()).any(|pool| {
                    let mut members = wants.iter().zip(&shares.grants).filter(|(other, _)| is_in(other, pool, pools.len()));
                    is_in(want, pool, pools.len()) && full[pool]
                        && members.all(|(other, theirs)| theirs <= grant || *theirs == other.min)
                });
                prop_assert!(is_bounded, "{want:?} has {grant} of {shares:?}");
            }
        }

        #[test]
        fn the_order_of_the_wants_does_not_matter((wants, pools, budget) in wants()) {
            let mut shares = allocate(&wants, &pools, budget).grants;
            let turned: Vec<Want> = wants.iter().rev().copied().collect();
            shares.reverse();
            prop_assert_eq!(shares, allocate(&turned, &pools, budget).grants);
        }

        /// The property holds only without pools besides the budget.
        #[test]
        fn a_larger_budget_makes_no_grant_smaller((mut wants, _, budget) in wants(), more in 0u64..1000) {
            for want in &mut wants {
                want.pools = [None; POOLS];
            }
            let (less, more) = (allocate(&wants, &[], budget), allocate(&wants, &[], budget + more));
            prop_assert!(less.grants.iter().zip(&more.grants).all(|(less, more)| less <= more));
        }
    }
}
