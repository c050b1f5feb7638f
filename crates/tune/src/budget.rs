//! A budget of memory, shared out among all buffers: pure.
//!
//! With one the kernel sizes nothing that is in use: each buffer through which something goes is set to its grant, and stays so until the grant is
//! another. A grant is what a buffer may come to hold, so that what is granted bounds what is held.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::allocate::{Want, allocate};
use crate::demand::{Because, Cap, Demand, Direction};
use crate::hysteresis::settle;
use crate::plan::{Change, ready};

/// A smaller budget is refused: a few connections would hold it by what they cannot do without.
pub const LEAST: u64 = 1 << 20;
/// This part of a budget is granted to nobody: what wakes up or begins between two looks takes of it.
const KEPT: u64 = 8;
/// What a send buffer holds beyond its bound at most: the kernel looks at the bound before it takes a segment, of up to 64 KiB and what goes with it.
const BEYOND: u64 = 66 << 10;
/// What a buffer needs to let anything through, however many there are (and [`BEYOND`] that, of a send buffer).
const FLOOR: u64 = 16 << 10;
/// Or so many segments: with less the window would close before a segment fits, and each would wait for a timer.
const SEGMENTS: u64 = 3;
/// A buffer through which nothing goes, and which is larger, is made so small: it is one that few notice when they begin anew.
const REST: u64 = 128 << 10;
/// What is left is divided among so many that may begin before the next look, at least,
const BEGIN: u64 = 64;
/// or so many times as many as began before this one.
const AS_MANY: u64 = 2;

/// What all buffers may hold together, in bytes as the kernel accounts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All.
    pub total: u64,
    /// Those of one control group.
    pub per_cgroup: Option<u64>,
    /// Those of connections with one address.
    pub per_destination: Option<u64>,
}

/// One direction of a connection, as a budget sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// Which of its buffers.
    pub direction: Direction,
    /// What it has and wants.
    pub demand: Demand,
    /// It is not to be set, or cannot be: what it has counts.
    pub is_left_alone: bool,
    /// Its control group.
    pub cgroup: Option<u64>,
    /// The other end's address.
    pub destination: IpAddr,
}

/// A budget, and who has how much of it.
#[derive(Debug)]
pub struct Budget {
    bounds: Bounds,
    /// Of each buffer that was granted something.
    grants: HashMap<(u64, Direction), u64>,
}

/// A budget, shared out once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// Buffers that are to be set.
    pub changes: Vec<Change>,
    /// What all may come to hold.
    pub granted: u64,
    /// By how much what cannot be taken away is more than the budget, or than a part of it.
    pub over: u64,
}

/// Numbers of pools, by what they are pools of.
struct Pools<K> {
    bound: Option<u64>,
    known: HashMap<K, usize>,
}

/// So small a buffer through which nothing goes is made, if it is larger; not smaller than what is in it, nor than what the peer may send at once.
pub(crate) fn rest(demand: &Demand) -> u64 {
    REST.max(demand.promised).max(SEGMENTS * demand.segment)
}

// === impl Claim ===

impl Claim {
    fn key(&self) -> (u64, Direction) {
        (self.cookie, self.direction)
    }

    pub(crate) fn rests(&self) -> bool {
        self.demand.because == Because::Idle
    }

    /// The least that lets anything through.
    fn floor(&self) -> u64 {
        match self.direction {
            // One segment is taken whatever its size.
            Direction::Send => FLOOR,
            Direction::Receive => FLOOR.max(SEGMENTS * self.demand.segment),
        }
    }

    /// What it may hold beyond the size of its buffer.
    fn beyond(&self) -> u64 {
        match self.direction {
            Direction::Send => BEYOND,
            Direction::Receive => 0,
        }
    }

    fn want(&self) -> Want {
        let Demand { has, queued, .. } = self.demand;
        let exactly = |bytes| Want {
            least: bytes,
            most: bytes,
            ..Want::default()
        };
        if self.rests() {
            return exactly(queued);
        }
        if self.is_left_alone {
            return exactly(queued.max(has));
        }
        let floor = self.floor() + self.beyond();
        let least = match self.direction {
            // A sender whose buffer is made smaller than what is in it waits until it has gone.
            Direction::Send => floor,
            // What has come and has no room would be dropped.
            Direction::Receive => floor.max(queued),
        };
        Want {
            least,
            most: least.max(self.demand.most.saturating_add(self.beyond())),
            ..Want::default()
        }
    }

    /// The change that gives its buffer this grant, if it is another.
    fn change(&self, grant: u64) -> Option<Change> {
        let Demand { has, is_fixed, .. } = self.demand;
        let to = match self.rests() {
            true if has > rest(&self.demand) => rest(&self.demand),
            true => return None,
            false => grant.saturating_sub(self.beyond()).max(self.floor()),
        };
        // The kernel doubles what it is told, in 31 bits.
        let to = to.min(u64::from(u32::MAX / 4)) & !1;
        let is_so = has == to && is_fixed != Some(false);
        (!is_so).then_some(Change::Size {
            cookie: self.cookie,
            direction: self.direction,
            demand: self.demand,
            to,
        })
    }
}

/// By how much grants are more than the bounds of their pools, together.
fn over_pools(wants: &[Want], bounds: &[u64], grants: &[u64]) -> u64 {
    let mut held = vec![0u64; bounds.len()];
    for (want, grant) in wants.iter().zip(grants) {
        for pool in want.pools.into_iter().flatten() {
            held[pool] = held[pool].saturating_add(*grant);
        }
    }
    let over = held.iter().zip(bounds);
    over.map(|(held, bound)| held.saturating_sub(*bound))
        .fold(0, u64::saturating_add)
}

// === impl Pools ===

impl<K: std::hash::Hash + Eq> Pools<K> {
    fn of(bound: Option<u64>) -> Self {
        Self {
            bound,
            known: HashMap::new(),
        }
    }

    /// The number of this one's pool; a new one is added to `bounds`.
    fn number(&mut self, key: K, bounds: &mut Vec<u64>) -> Option<usize> {
        let bound = self.bound?;
        Some(*self.known.entry(key).or_insert_with(|| {
            bounds.push(bound);
            bounds.len() - 1
        }))
    }
}

// === impl Budget ===

impl Budget {
    /// Of which nobody has anything yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            grants: HashMap::new(),
        }
    }

    /// What may be granted.
    fn usable(&self) -> u64 {
        self.bounds.total - self.bounds.total / KEPT
    }

    /// Shares it out among all that there are.
    pub fn share(&mut self, claims: &[Claim]) -> Shared {
        let mut bounds = Vec::new();
        let mut cgroups = Pools::of(self.bounds.per_cgroup);
        let mut destinations = Pools::of(self.bounds.per_destination);
        let mut wants: Vec<Want> = Vec::with_capacity(claims.len());
        for claim in claims {
            let cgroup = claim.cgroup.and_then(|id| cgroups.number(id, &mut bounds));
            let destination = destinations.number(claim.destination, &mut bounds);
            wants.push(Want {
                pools: [cgroup, destination],
                ..claim.want()
            });
        }
        let fair = allocate(&wants, &bounds, self.usable());
        // What is in a send buffer beyond its share goes in its own time: until then the others have that less.
        for ((claim, want), share) in claims.iter().zip(&mut wants).zip(&fair.grants) {
            want.least = want.least.max(claim.demand.queued);
            want.most = match want.least > *share {
                true => want.least,
                false => want.most,
            };
        }
        let now = allocate(&wants, &bounds, self.usable());
        let over = over_pools(&wants, &bounds, &now.grants);
        let mut shared = Shared {
            granted: now.granted,
            over: now.over.max(over),
            ..Shared::default()
        };
        let mut grants = HashMap::with_capacity(claims.len());
        for (index, claim) in claims.iter().enumerate() {
            // Not more than what is left, nor than what is its own.
            let share = now.grants[index].min(fair.grants[index]);
            if claim.is_left_alone {
                continue;
            }
            if claim.rests() {
                shared.changes.extend(claim.change(share));
                continue;
            }
            let least = wants[index].least;
            let grant = settle(self.grants.get(&claim.key()).copied(), share, least);
            grants.insert(claim.key(), grant);
            shared.changes.extend(claim.change(grant));
        }
        self.grants = grants;
        // What is made smaller makes the room that others take.
        shared.changes.sort_by_key(Change::widens);
        shared
    }

    /// The most that the kernel is to give a send buffer that it sizes: one of a connection that has begun, and that nobody has looked at. `granted`: to those
    /// that there are; `begun`: how many began since the last look.
    pub fn start(&self, granted: u64, begun: usize) -> u64 {
        let left = self.bounds.total.saturating_sub(granted);
        let begin = BEGIN.max((begun as u64).saturating_mul(AS_MANY));
        (left / begin)
            .saturating_sub(BEYOND)
            .clamp(FLOOR, ready(Cap::default()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        total: 8 << 20,
        per_cgroup: None,
        per_destination: None,
    };

    fn claim(cookie: u64, direction: Direction, most: u64) -> Claim {
        let shown = Because::Shown {
            window: most / 2,
            round_trip: Duration::from_millis(10),
        };
        Claim {
            cookie,
            direction,
            demand: Demand {
                has: 64 << 10,
                queued: 0,
                promised: 0,
                segment: 0,
                wants: most,
                most,
                is_fixed: Some(false),
                is_held: false,
                because: match most {
                    0 => Because::Idle,
                    _ => shown,
                },
            },
            is_left_alone: false,
            cgroup: None,
            destination: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn set(shared: &Shared) -> Vec<(u64, u64)> {
        let set = shared.changes.iter().filter_map(|change| match change {
            Change::Size { cookie, to, .. } => Some((*cookie, *to)),
            _ => None,
        });
        let mut set: Vec<_> = set.collect();
        set.sort_unstable();
        set
    }

    #[test]
    fn who_wants_little_gets_it_and_the_others_share_alike() {
        let mut budget = Budget::new(BOUNDS);
        let send = |cookie, most| claim(cookie, Direction::Send, most);
        let shared = budget.share(&[send(1, 100_000), send(2, 1 << 30), send(3, 1 << 30)]);
        let left = (7 << 20) - (100_000 + BEYOND);
        let each = (left / 2 - BEYOND) & !1;
        assert_eq!(set(&shared), [(1, 100_000), (2, each), (3, each)]);
        assert!(shared.granted <= 7 << 20 && shared.over == 0);
    }

    #[test]
    fn who_rests_is_charged_what_is_queued_and_gives_back_what_he_had() {
        let mut budget = Budget::new(BOUNDS);
        let mut giant = claim(1, Direction::Send, 0);
        giant.demand.has = 4 << 20;
        giant.demand.queued = 1 << 20;
        let mut small = claim(2, Direction::Receive, 0);
        small.demand.has = REST;
        let shared = budget.share(&[giant, small]);
        assert_eq!(set(&shared), [(1, REST)]);
        assert_eq!(shared.granted, 1 << 20);
        // What has come and was not read stays, and what may come at once has room.
        giant.direction = Direction::Receive;
        giant.demand.promised = 3 << 20;
        assert_eq!(set(&budget.share(&[giant])), [(1, 3 << 20)]);
    }

    #[test]
    fn large_segments_have_room() {
        let mut budget = Budget::new(BOUNDS);
        let mut of = claim(1, Direction::Receive, 8 << 10);
        of.demand.segment = 98_000;
        assert_eq!(set(&budget.share(&[of])), [(1, 294_000)]);
        of.demand.segment = 2172;
        assert_eq!(set(&budget.share(&[of])), [(1, FLOOR)]);
        // At rest, too.
        let mut rests = claim(2, Direction::Receive, 0);
        (rests.demand.has, rests.demand.segment) = (1 << 20, 98_000);
        assert_eq!(set(&budget.share(&[rests])), [(2, 294_000)]);
    }

    #[test]
    fn a_part_that_is_passed_is_said() {
        let bounds = Bounds {
            per_destination: Some(1 << 20),
            ..BOUNDS
        };
        let mut budget = Budget::new(bounds);
        let claims: Vec<Claim> = (0..20)
            .map(|cookie| claim(cookie, Direction::Send, 1 << 20))
            .collect();
        assert_eq!(budget.share(&claims[..10]).over, 0);
        let over = 20 * (FLOOR + BEYOND) - (1 << 20);
        assert_eq!(budget.share(&claims).over, over);
    }

    #[test]
    fn what_is_still_in_a_buffer_is_granted_to_nobody_else() {
        let mut budget = Budget::new(BOUNDS);
        let mut bloated = claim(1, Direction::Send, 1 << 30);
        (bloated.demand.has, bloated.demand.queued) = (6 << 20, 6 << 20);
        let other = claim(2, Direction::Send, 1 << 30);
        let half = 7 << 19;
        let shared = budget.share(&[bloated, other]);
        assert_eq!(set(&shared), [(1, half - BEYOND), (2, (1 << 20) - BEYOND)]);
        // It has gone.
        bloated.demand.has = half - BEYOND;
        bloated.demand.queued = half - BEYOND;
        bloated.demand.is_fixed = Some(true);
        assert_eq!(set(&budget.share(&[bloated, other])), [(2, half - BEYOND)]);
    }

    #[test]
    fn who_is_left_alone_counts_and_is_not_set() {
        let mut budget = Budget::new(BOUNDS);
        let mut alone = claim(1, Direction::Receive, 1 << 20);
        alone.demand.has = 3 << 20;
        alone.is_left_alone = true;
        let other = claim(2, Direction::Receive, 1 << 30);
        assert_eq!(set(&budget.share(&[alone, other])), [(2, 4 << 20)]);
    }

    #[test]
    fn pools_are_bounds_of_their_own() {
        let bounds = Bounds {
            per_cgroup: Some(1 << 20),
            per_destination: Some(2 << 20),
            ..BOUNDS
        };
        let mut budget = Budget::new(bounds);
        let receive = |cookie| claim(cookie, Direction::Receive, 1 << 30);
        let of = |cookie| Claim {
            cgroup: Some(7),
            ..receive(cookie)
        };
        let there = Claim {
            destination: Ipv4Addr::BROADCAST.into(),
            ..receive(4)
        };
        let shared = budget.share(&[of(1), of(2), receive(3), there]);
        let expected = [(1, 1 << 19), (2, 1 << 19), (3, 1 << 20), (4, 2 << 20)];
        assert_eq!(set(&shared), expected);
    }

    #[test]
    fn nothing_is_set_twice() {
        let mut budget = Budget::new(BOUNDS);
        let mut claims: Vec<Claim> = (0..20)
            .map(|cookie| claim(cookie, Direction::Send, 1 << 20))
            .collect();
        let to = set(&budget.share(&claims));
        for (claim, (_, to)) in claims.iter_mut().zip(to) {
            (claim.demand.has, claim.demand.is_fixed) = (to, Some(true));
        }
        assert_eq!(budget.share(&claims).changes, []);
        // Nor where nobody can say who has fixed it.
        claims[0].demand.is_fixed = None;
        assert_eq!(budget.share(&claims).changes, []);
    }

    #[test]
    fn who_begins_may_have_a_part_of_what_is_left() {
        let budget = Budget::new(BOUNDS);
        assert_eq!(budget.start(0, 0), (8 << 20) / 64 - BEYOND);
        assert_eq!(budget.start(8 << 20, 0), FLOOR);
        assert_eq!(budget.start(0, 1000), FLOOR);
        let large = Budget::new(Bounds {
            total: u64::MAX,
            ..BOUNDS
        });
        assert_eq!(large.start(0, 0), 60_000_000);
        assert_eq!(large.start(0, usize::MAX), FLOOR);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let one = (any::<bool>(), 0u64..4 << 20, 0u64..1 << 20, any::<bool>());
        prop::collection::vec(one, 1..80).prop_map(|all| {
            let each = all.into_iter().enumerate();
            each.map(|(index, (sends, most, queued, rests))| {
                let direction = match sends {
                    true => Direction::Send,
                    false => Direction::Receive,
                };
                let mut claim = claim(index as u64, direction, if rests { 0 } else { most });
                claim.demand.queued = queued;
                claim
            })
            .collect()
        })
    }

    proptest! {
        /// What buffers may hold once they are set is no more than what may be granted, but for what cannot be taken away.
        #[test]
        fn a_budget_is_never_promised_twice(claims in claims(), total in LEAST..64 << 20) {
            let mut budget = Budget::new(Bounds { total, ..BOUNDS });
            let shared = budget.share(&claims);
            let to: HashMap<_, _> = shared.changes.iter().filter_map(|change| match change {
                Change::Size { cookie, to, .. } => Some((*cookie, *to)),
                _ => None,
            }).collect();
            let holds: u64 = claims.iter().map(|claim| match to.get(&claim.cookie) {
                _ if claim.rests() => claim.demand.queued,
                Some(to) => claim.demand.queued.max(to + claim.beyond()),
                None => claim.demand.queued.max(claim.demand.has),
            }).sum();
            prop_assert!(holds <= budget.usable() + shared.over, "{holds} of {total}: {shared:?}");
        }

        /// What is set to make room comes first.
        #[test]
        fn room_is_made_before_it_is_taken(claims in claims(), total in LEAST..64 << 20) {
            let mut budget = Budget::new(Bounds { total, ..BOUNDS });
            let shared = budget.share(&claims);
            prop_assert!(shared.changes.is_sorted_by_key(Change::widens));
        }
    }
}
