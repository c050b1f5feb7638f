//! Max-min fair shares of a budget (water-filling): who wants little gets it, and what is left is the same for all
//! who want more.
//!
//! Water rises at one level in all vessels. A [`Want`] holds at least its `least`, whatever the level, and stops at its `most`.
//! When a pool (the budget, or the share of a cgroup or of a destination) is full, all of its members stop where they are, and
//! the others go on (progressive filling: Bertsekas and Gallager, Data Networks, 6.5.2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What one direction of a connection wants, in bytes as the kernel accounts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// It is granted so much whatever the budget is: what is queued there cannot be taken away.
    pub least: u64,
    /// And never more than this. At least `least`.
    pub most: u64,
    /// Pools whose members share a bound, beside the budget: indices of [`allocate`]'s `pools`.
    pub pools: [Option<usize>; POOLS],
}

/// Pools that one can be in, beside the budget: its cgroup's and its destination's.
pub const POOLS: usize = 2;

/// How a budget was shared out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// For each [`Want`], in their order.
    pub grants: Vec<u64>,
    /// All of them.
    pub granted: u64,
    /// The level at which the budget was used up; `None`: everyone got the most that he wants or may have.
    pub level: Option<u64>,
    /// Bytes by which what cannot be taken away is more than the budget; zero if it is not.
    pub over: u64,
}

/// A bound of all its members together.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    bound: u64,
    /// What those hold who do not rise: not yet, or not any more.
    still: u64,
    /// How many rise.
    rising: u64,
    /// The level at which it is looked at whether it is full: never later than it will be.
    foreseen: Option<u64>,
    full: bool,
}

/// What comes next; at one level in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// The level comes to what somebody holds, who rises with it.
    Rises,
    /// It comes to all that somebody wants.
    Stops,
    /// A pool may be full.
    Fills,
}

/// The state of a [`Want`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Above the level.
    Waits,
    /// With the level.
    Rises,
    /// It has what it gets.
    Holds(u64),
}

struct Filling<'a> {
    wants: &'a [Want],
    states: Vec<State>,
    /// Those of the caller, and the budget at last.
    pools: Vec<Pool>,
    /// Of each pool, who is in it; of the budget, nobody: everyone is.
    members: Vec<Vec<usize>>,
    /// Levels at which pools are looked at. Some were foreseen before another was.
    fills: BinaryHeap<Reverse<(u64, usize)>>,
}

/// Shares `budget` out among `wants`, of whom those of a pool get no more than its bound together, as long as that is
/// no less than the sum of their `least`. Both in bytes. An index of a pool that is not there is none.
///
/// O(n log n) for n wants.
pub fn allocate(wants: &[Want], pools: &[u64], budget: u64) -> Shares {
    Filling::of(wants, pools, budget).fill()
}

// === impl Want ===

impl Want {
    /// Its pools, and the budget, whose index is `budget`.
    fn pools(self, budget: usize) -> impl Iterator<Item = usize> {
        let own = self.pools.into_iter().flatten();
        // Twice in one is once in it.
        let twice = self.pools[0] == self.pools[1];
        own.skip(usize::from(twice))
            .filter(move |pool| *pool < budget)
            .chain([budget])
    }

    /// `most`, if it is more than `least`.
    fn most(self) -> u64 {
        self.most.max(self.least)
    }
}

// === impl Pool ===

impl Pool {
    /// The level at which it is full, if nothing changes before; `None`: it never is.
    fn fills(&self) -> Option<u64> {
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
            fills: BinaryHeap::with_capacity(pools.len() + 1),
        };
        for (index, want) in wants.iter().enumerate() {
            for pool in want.pools(pools.len()) {
                let still = &mut filling.pools[pool].still;
                *still = still.saturating_add(want.least);
                if let Some(members) = filling.members.get_mut(pool) {
                    members.push(index);
                }
            }
        }
        filling
    }

    /// All of them, by a level of theirs.
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
            // What cannot be taken away is all that there is, or more.
            if still >= bound {
                self.freeze(pool, 0);
            }
        }
        if self.pools[budget].full {
            level_of_budget = Some(0);
        }
        let mut rises = self.sorted(|want| want.least).peekable();
        let mut stops = self.sorted(|want| want.most()).peekable();
        loop {
            let next = [
                rises.peek().map(|next| (next.0, Next::Rises)),
                stops.peek().map(|next| (next.0, Next::Stops)),
                self.fills
                    .peek()
                    .map(|Reverse((level, _))| (*level, Next::Fills)),
            ];
            let Some((level, what)) = next.into_iter().flatten().min() else {
                break;
            };
            match what {
                Next::Rises => {
                    let waits = |(_, index): &(u64, usize)| self.states[*index] == State::Waits;
                    if let Some((_, index)) = rises.next().filter(waits) {
                        self.rises(index, level);
                    }
                }
                Next::Stops => {
                    let rises = |(_, index): &(u64, usize)| self.states[*index] == State::Rises;
                    if let Some((_, index)) = stops.next().filter(rises) {
                        self.holds(index, self.wants[index].most(), level);
                    }
                }
                Next::Fills => {
                    let pool = self.fills.pop().map(|Reverse((_, pool))| pool);
                    let Some(pool) = pool.filter(|pool| self.fills_now(*pool, level)) else {
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

    fn rises(&mut self, index: usize, level: u64) {
        let want = self.wants[index];
        self.states[index] = State::Rises;
        for pool in want.pools(self.pools.len() - 1) {
            let of = &mut self.pools[pool];
            of.still = of.still.saturating_sub(want.least);
            of.rising += 1;
            self.foresee(pool, level);
        }
    }

    fn holds(&mut self, index: usize, grant: u64, level: u64) {
        let rose = self.states[index] == State::Rises;
        self.states[index] = State::Holds(grant);
        if !rose {
            // Its `least` is counted already.
            return;
        }
        for pool in self.wants[index].pools(self.pools.len() - 1) {
            let of = &mut self.pools[pool];
            of.still = of.still.saturating_add(grant);
            of.rising -= 1;
            self.foresee(pool, level);
        }
    }

    /// When a pool will be full from now on, if that is sooner than was foreseen. If it is later that is seen then.
    fn foresee(&mut self, pool: usize, level: u64) {
        let of = &mut self.pools[pool];
        if let (false, Some(fills)) = (of.full, of.fills()) {
            // Levels are whole bytes: what is left over may be a little less than nothing at this one.
            let fills = fills.max(level);
            if of.foreseen.is_none_or(|foreseen| fills < foreseen) {
                of.foreseen = Some(fills);
                self.fills.push(Reverse((fills, pool)));
            }
        }
    }

    /// Whether it is full at this level, at which it was to be looked at.
    fn fills_now(&mut self, pool: usize, level: u64) -> bool {
        let of = &mut self.pools[pool];
        // Another time was foreseen since.
        if of.full || of.foreseen != Some(level) {
            return false;
        }
        of.foreseen = None;
        match of.fills() {
            Some(fills) if fills <= level => true,
            _ => {
                self.foresee(pool, level);
                false
            }
        }
    }

    /// Nobody in a pool gets more than at this level.
    fn freeze(&mut self, pool: usize, level: u64) {
        self.pools[pool].full = true;
        let members: Vec<usize> = match self.members.get_mut(pool) {
            Some(members) => std::mem::take(members),
            None => (0..self.wants.len()).collect(),
        };
        for index in members {
            match self.states[index] {
                State::Waits => self.holds(index, self.wants[index].least, level),
                State::Rises => self.holds(index, level, level),
                State::Holds(_) => {}
            }
        }
    }

    fn shares(self, level: Option<u64>) -> Shares {
        let grant = |(state, want): (&State, &Want)| match state {
            State::Holds(grant) => *grant,
            // Every vessel has an end.
            State::Waits | State::Rises => want.least,
        };
        let grants: Vec<u64> = self.states.iter().zip(self.wants).map(grant).collect();
        let granted = grants
            .iter()
            .fold(0u64, |sum, grant| sum.saturating_add(*grant));
        let budget = self.pools.last().map_or(0, |pool| pool.bound);
        let is_short = grants
            .iter()
            .zip(self.wants)
            .any(|(grant, want)| *grant < want.most());
        Shares {
            granted,
            // It may be used up to the last byte, and be enough.
            level: level.filter(|_| is_short),
            over: granted.saturating_sub(budget),
            grants,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn want(least: u64, most: u64) -> Want {
        Want {
            least,
            most,
            pools: [None; POOLS],
        }
    }

    #[test]
    fn with_room_for_all_everyone_gets_the_most() {
        let shares = allocate(&[want(1, 10), want(5, 20)], &[], 30);
        assert_eq!(shares.grants, [10, 20]);
        assert_eq!((shares.granted, shares.level, shares.over), (30, None, 0));
    }

    #[test]
    fn who_wants_little_gets_it_and_the_others_the_same() {
        let wants = [want(0, 10), want(0, 1000), want(0, 1000), want(0, 20)];
        let shares = allocate(&wants, &[], 230);
        assert_eq!(shares.grants, [10, 100, 100, 20]);
        assert_eq!(shares.level, Some(100));
    }

    #[test]
    fn what_is_queued_is_granted_and_the_others_share_the_rest() {
        let shares = allocate(&[want(80, 100), want(0, 100), want(0, 100)], &[], 100);
        assert_eq!(shares.grants, [80, 10, 10]);
        // It is more than all, and nobody else gets anything.
        let shares = allocate(&[want(80, 100), want(40, 100), want(0, 100)], &[], 100);
        assert_eq!((&*shares.grants, shares.over), (&[80, 40, 0][..], 20));
        assert_eq!(shares.level, Some(0));
    }

    #[test]
    fn a_pool_that_is_full_leaves_more_to_the_others() {
        let of = |pool| Want {
            pools: [Some(pool), None],
            ..want(0, 1000)
        };
        let wants = [of(0), of(0), of(1), want(0, 1000)];
        let shares = allocate(&wants, &[20, 500], 300);
        assert_eq!(shares.grants, [10, 10, 140, 140]);
    }

    #[test]
    fn who_is_in_two_pools_stops_when_either_is_full() {
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
        let most = want(u64::MAX, u64::MAX);
        let shares = allocate(&[most, most, want(0, u64::MAX)], &[], u64::MAX);
        assert_eq!(shares.grants, [u64::MAX, u64::MAX, 0]);
        assert_eq!(allocate(&[], &[5], 0), Shares::default());
        // `most` below `least`, a pool that is not there, and the same twice.
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
            (0u64..200, 0u64..2000, pool(), pool()).prop_map(|(least, more, one, other)| Want {
                least: if more % 3 == 0 { 0 } else { least },
                most: least + more,
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

        /// No pool has more than its bound, unless for what cannot be taken away; and who has less than he wants is in a pool
        /// that is full and in which nobody has more, unless for the same. That is what max-min fair is.
        #[test]
        fn shares_are_bounded_and_max_min_fair((wants, pools, budget) in wants()) {
            let shares = allocate(&wants, &pools, budget);
            let bounds: Vec<u64> = pools.iter().copied().chain([budget]).collect();
            let mut full = Vec::new();
            for (pool, bound) in bounds.iter().enumerate() {
                let members = || wants.iter().zip(&shares.grants).filter(|(want, _)| is_in(want, pool, pools.len()));
                let granted: u64 = members().map(|(_, grant)| grant).sum();
                let least: u64 = members().map(|(want, _)| want.least).sum();
                prop_assert!(granted <= (*bound).max(least), "{pool}: {granted} of {bound}");
                // To a byte each.
                full.push(granted + members().count() as u64 > *bound);
            }
            for (want, grant) in wants.iter().zip(&shares.grants) {
                prop_assert!((want.least..=want.most).contains(grant));
                if *grant == want.most {
                    continue;
                }
                let held = (0..bounds.len()).any(|pool| {
                    let mut members = wants.iter().zip(&shares.grants).filter(|(other, _)| is_in(other, pool, pools.len()));
                    is_in(want, pool, pools.len()) && full[pool]
                        && members.all(|(other, theirs)| theirs <= grant || *theirs == other.least)
                });
                prop_assert!(held, "{want:?} has {grant} of {shares:?}");
            }
        }

        /// Whatever the order.
        #[test]
        fn nobodys_place_matters((wants, pools, budget) in wants()) {
            let mut shares = allocate(&wants, &pools, budget).grants;
            let turned: Vec<Want> = wants.iter().rev().copied().collect();
            shares.reverse();
            prop_assert_eq!(shares, allocate(&turned, &pools, budget).grants);
        }

        /// More of a budget is less for nobody, where there are no pools beside it.
        #[test]
        fn a_larger_budget_is_less_for_nobody((mut wants, _, budget) in wants(), more in 0u64..1000) {
            for want in &mut wants {
                want.pools = [None; POOLS];
            }
            let (less, more) = (allocate(&wants, &[], budget), allocate(&wants, &[], budget + more));
            prop_assert!(less.grants.iter().zip(&more.grants).all(|(less, more)| less <= more));
        }
    }
}
