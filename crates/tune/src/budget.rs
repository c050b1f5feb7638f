//! Divides a budget of memory among all buffers. Pure.
//!
//! With a budget, the kernel tunes no active buffer: each is locked at its grant until the grant
//! changes. A grant is the maximum that a buffer may hold, so the sum of the grants bounds the
//! memory in use.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::allocate::{Want, allocate};
use crate::demand::{Demand, Direction, Reason, WindowCap};
use crate::hysteresis::settle;
use crate::plan::{Change, maximum_for};

/// The smallest budget: the minimum grants of a few connections would exceed a smaller one.
pub const MIN_BUDGET: u64 = 1 << 20;
/// The divisor for the reserved part of a budget. It is not granted: connections that begin or
/// become active between two scans use it.
const RESERVED_PART: u64 = 8;
/// The maximum that a send buffer holds beyond its size: the kernel checks the size before it
/// accepts a segment, which has up to 64 KiB plus overhead.
const SEND_EXCESS: u64 = 66 << 10;
/// The minimum size of a buffer that lets data through, however many buffers there are. A send
/// buffer takes [`SEND_EXCESS`] in addition.
const FLOOR: u64 = 16 << 10;
/// The number of segments that a receive buffer must hold. With fewer, the window would close
/// before a segment fits, and each segment would wait for a timer.
const FLOOR_SEGMENTS: u64 = 3;
/// The size to which a larger idle buffer is shrunk. Few connections notice it when they become
/// active.
const IDLE_SIZE: u64 = 128 << 10;
/// The minimum number of connections that may begin before the next scan and share the rest of a
/// budget.
const MIN_STARTS: u64 = 64;
/// The assumed number of new connections is this multiple of those that began since the last scan,
/// if larger than [`MIN_STARTS`].
const STARTS_FACTOR: u64 = 2;

/// The ID of the root of the hierarchy of cgroup v2, in which all sockets are on a machine without it.
const ROOT_CGROUP: u64 = 1;

/// The bounds of the memory that all buffers hold together, in bytes as the kernel accounts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The bound of all connections.
    pub total: u64,
    /// The bound of the connections of each control group.
    pub per_cgroup: Option<u64>,
    /// The bound of the connections with each remote address.
    pub per_destination: Option<u64>,
}

/// The claim of one direction of a connection on a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// The socket's cookie.
    pub cookie: u64,
    /// Which of its buffers.
    pub direction: Direction,
    /// The state and the needs of the buffer.
    pub demand: Demand,
    /// Whether the buffer must not, or cannot, be resized. Its bytes still count.
    pub is_left_alone: bool,
    /// The control group of the socket.
    pub cgroup: Option<u64>,
    /// The remote address.
    pub destination: IpAddr,
}

/// A budget, and the grants of the last scan.
#[derive(Debug)]
pub struct Budget {
    bounds: Bounds,
    grants: HashMap<(u64, Direction), u64>,
}

/// The result of dividing a budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// The buffers to resize.
    pub changes: Vec<Change>,
    /// The maximum number of bytes that all buffers may hold.
    pub granted: u64,
    /// The bytes by which memory that cannot be taken away exceeds the budget, or one of its pools.
    pub excess: u64,
}

/// The pools of one kind, by the common key of their members.
struct Pools<K> {
    bound: Option<u64>,
    indices: HashMap<K, usize>,
}

/// Returns the size to which an idle buffer is shrunk: at least its contents plus the data that the
/// offered window allows the peer to send.
pub(crate) fn idle_size(demand: &Demand) -> u64 {
    IDLE_SIZE
        .max(demand.committed)
        .max(FLOOR_SEGMENTS * demand.segment)
}

// === impl Claim ===

impl Claim {
    fn key(&self) -> (u64, Direction) {
        (self.cookie, self.direction)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.demand.reason == Reason::Idle
    }

    /// Returns the minimum size of the buffer that lets data through.
    fn floor(&self) -> u64 {
        match self.direction {
            // The kernel accepts one segment of any size.
            Direction::Send => FLOOR,
            Direction::Receive => FLOOR.max(FLOOR_SEGMENTS * self.demand.segment),
        }
    }

    /// Returns the bytes that the buffer may hold beyond its size.
    fn excess(&self) -> u64 {
        match self.direction {
            Direction::Send => SEND_EXCESS,
            Direction::Receive => 0,
        }
    }

    fn want(&self) -> Want {
        let Demand { size, queued, .. } = self.demand;
        let exactly = |bytes| Want {
            min: bytes,
            max: bytes,
            ..Want::default()
        };
        if self.is_idle() {
            return exactly(queued);
        }
        if self.is_left_alone {
            return exactly(queued.max(size));
        }
        let floor = self.floor() + self.excess();
        let min = match self.direction {
            // A send buffer may shrink below its contents: the application waits until the excess
            // is sent.
            Direction::Send => floor,
            // A receive buffer below its contents would drop data.
            Direction::Receive => floor.max(queued),
        };
        Want {
            min,
            max: min.max(self.demand.useful.saturating_add(self.excess())),
            ..Want::default()
        }
    }

    /// Returns the change that gives the buffer this grant, unless it has that size already.
    fn change(&self, grant: u64) -> Option<Change> {
        let Demand { size, is_fixed, .. } = self.demand;
        let to = match self.is_idle() {
            true if size > idle_size(&self.demand) => idle_size(&self.demand),
            true => return None,
            false => grant.saturating_sub(self.excess()).max(self.floor()),
        };
        // The kernel doubles the socket option, in 31 bits.
        let to = to.min(u64::from(u32::MAX / 4)) & !1;
        let is_done = size == to && is_fixed != Some(false);
        (!is_done).then_some(Change::Resize {
            cookie: self.cookie,
            direction: self.direction,
            demand: self.demand,
            to,
        })
    }
}

/// Returns the bytes by which grants exceed the bounds of their pools, summed over the pools.
fn excess_of_pools(wants: &[Want], bounds: &[u64], grants: &[u64]) -> u64 {
    let mut granted = vec![0u64; bounds.len()];
    for (want, grant) in wants.iter().zip(grants) {
        for pool in want.pools.into_iter().flatten() {
            granted[pool] = granted[pool].saturating_add(*grant);
        }
    }
    let excess = granted.iter().zip(bounds);
    excess
        .map(|(granted, bound)| granted.saturating_sub(*bound))
        .fold(0, u64::saturating_add)
}

// === impl Pools ===

impl<K: std::hash::Hash + Eq> Pools<K> {
    fn new(bound: Option<u64>) -> Self {
        Self {
            bound,
            indices: HashMap::new(),
        }
    }

    /// Returns the index of the key's pool in `bounds`. Appends the bound of a new pool.
    fn index(&mut self, key: K, bounds: &mut Vec<u64>) -> Option<usize> {
        let bound = self.bound?;
        Some(*self.indices.entry(key).or_insert_with(|| {
            bounds.push(bound);
            bounds.len() - 1
        }))
    }
}

// === impl Budget ===

impl Budget {
    /// Returns a budget without grants.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            grants: HashMap::new(),
        }
    }

    /// Returns the bytes that may be granted.
    fn usable(&self) -> u64 {
        self.bounds.total - self.bounds.total / RESERVED_PART
    }

    /// Divides the budget among all claims.
    pub fn share(&mut self, claims: &[Claim]) -> Shared {
        let mut bounds = Vec::new();
        let mut cgroups = Pools::new(self.bounds.per_cgroup);
        let mut destinations = Pools::new(self.bounds.per_destination);
        let mut wants: Vec<Want> = Vec::with_capacity(claims.len());
        for claim in claims {
            let cgroup = claim.cgroup.and_then(|id| cgroups.index(id, &mut bounds));
            let destination = destinations.index(claim.destination, &mut bounds);
            wants.push(Want {
                pools: [cgroup, destination],
                ..claim.want()
            });
        }
        let fair = allocate(&wants, &bounds, self.usable());
        // A send buffer above its share shrinks only as fast as its data drains. Until then the
        // other buffers get that much less.
        for ((claim, want), share) in claims.iter().zip(&mut wants).zip(&fair.grants) {
            want.min = want.min.max(claim.demand.queued);
            want.max = match want.min > *share {
                true => want.min,
                false => want.max,
            };
        }
        let now = allocate(&wants, &bounds, self.usable());
        let excess = excess_of_pools(&wants, &bounds, &now.grants);
        let mut shared = Shared {
            granted: now.granted,
            excess: now.excess.max(excess),
            ..Shared::default()
        };
        let mut grants = HashMap::with_capacity(claims.len());
        for (index, claim) in claims.iter().enumerate() {
            // The smaller of the fair share and the currently available share.
            let share = now.grants[index].min(fair.grants[index]);
            if claim.is_left_alone {
                continue;
            }
            if claim.is_idle() {
                shared.changes.extend(claim.change(share));
                continue;
            }
            let min = wants[index].min;
            let grant = settle(self.grants.get(&claim.key()).copied(), share, min);
            grants.insert(claim.key(), grant);
            shared.changes.extend(claim.change(grant));
        }
        self.grants = grants;
        // Buffers that shrink make room for those that grow.
        shared.changes.sort_by_key(Change::grows);
        shared
    }

    /// Returns whether the bound of each control group bounds all connections together, because the
    /// kernel knows no other group of them than the root.
    pub(crate) fn has_one_cgroup(&self, claims: &[Claim]) -> bool {
        let first = claims.first().map(|claim| claim.cookie);
        self.bounds.per_cgroup.is_some()
            && claims.iter().any(|claim| Some(claim.cookie) != first)
            && claims
                .iter()
                .all(|claim| matches!(claim.cgroup, None | Some(ROOT_CGROUP)))
    }

    /// Returns the maximum for send buffers of new connections, which the kernel tunes until a
    /// connection was scanned twice.
    ///
    /// `granted`: the bytes granted to existing connections. `begun`: the number of connections
    /// that began since the last scan.
    pub fn start_maximum(&self, granted: u64, begun: usize) -> u64 {
        let rest = self.bounds.total.saturating_sub(granted);
        let starts = MIN_STARTS.max((begun as u64).saturating_mul(STARTS_FACTOR));
        (rest / starts)
            .saturating_sub(SEND_EXCESS)
            .clamp(FLOOR, maximum_for(WindowCap::default(), u64::MAX))
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
        let steady = Reason::Steady {
            window: most / 2,
            round_trip: Duration::from_millis(10),
        };
        Claim {
            cookie,
            direction,
            demand: Demand {
                size: 64 << 10,
                queued: 0,
                committed: 0,
                segment: 0,
                wanted: most,
                useful: most,
                is_fixed: Some(false),
                is_tunable: true,
                is_limiting: false,
                widest: None,
                is_at_widest: false,
                reason: match most {
                    0 => Reason::Idle,
                    _ => steady,
                },
            },
            is_left_alone: false,
            cgroup: None,
            destination: Ipv4Addr::LOCALHOST.into(),
        }
    }

    #[test]
    fn a_bound_of_each_cgroup_that_bounds_all_is_noticed() {
        let per_cgroup = Budget::new(Bounds {
            per_cgroup: Some(1 << 20),
            ..BOUNDS
        });
        let of = |cookie, cgroup| Claim {
            cgroup,
            ..claim(cookie, Direction::Send, 0)
        };
        let root = [of(1, Some(1)), of(2, Some(1)), of(3, None)];
        assert!(per_cgroup.has_one_cgroup(&root));
        assert!(!Budget::new(BOUNDS).has_one_cgroup(&root));
        // One connection alone says nothing.
        assert!(!per_cgroup.has_one_cgroup(&root[..1]));
        assert!(!per_cgroup.has_one_cgroup(&[of(1, Some(1)), of(2, Some(77))]));
    }

    fn set(shared: &Shared) -> Vec<(u64, u64)> {
        let set = shared.changes.iter().filter_map(|change| match change {
            Change::Resize { cookie, to, .. } => Some((*cookie, *to)),
            _ => None,
        });
        let mut set: Vec<_> = set.collect();
        set.sort_unstable();
        set
    }

    #[test]
    fn small_demands_are_met_and_the_others_share_equally() {
        let mut budget = Budget::new(BOUNDS);
        let send = |cookie, most| claim(cookie, Direction::Send, most);
        let shared = budget.share(&[send(1, 100_000), send(2, 1 << 30), send(3, 1 << 30)]);
        let left = (7 << 20) - (100_000 + SEND_EXCESS);
        let each = (left / 2 - SEND_EXCESS) & !1;
        assert_eq!(set(&shared), [(1, 100_000), (2, each), (3, each)]);
        assert!(shared.granted <= 7 << 20 && shared.excess == 0);
    }

    #[test]
    fn an_idle_connection_is_charged_what_is_queued_and_gives_the_rest_back() {
        let mut budget = Budget::new(BOUNDS);
        let mut giant = claim(1, Direction::Send, 0);
        giant.demand.size = 4 << 20;
        giant.demand.queued = 1 << 20;
        let mut small = claim(2, Direction::Receive, 0);
        small.demand.size = IDLE_SIZE;
        let shared = budget.share(&[giant, small]);
        assert_eq!(set(&shared), [(1, IDLE_SIZE)]);
        assert_eq!(shared.granted, 1 << 20);
        // Unread data stays, and there is room for the data that the peer may send at once.
        giant.direction = Direction::Receive;
        giant.demand.committed = 3 << 20;
        assert_eq!(set(&budget.share(&[giant])), [(1, 3 << 20)]);
    }

    #[test]
    fn large_segments_fit() {
        let mut budget = Budget::new(BOUNDS);
        let mut of = claim(1, Direction::Receive, 8 << 10);
        of.demand.segment = 98_000;
        assert_eq!(set(&budget.share(&[of])), [(1, 294_000)]);
        of.demand.segment = 2172;
        assert_eq!(set(&budget.share(&[of])), [(1, FLOOR)]);
        // An idle receive buffer has room for the same number of segments.
        let mut idle = claim(2, Direction::Receive, 0);
        (idle.demand.size, idle.demand.segment) = (1 << 20, 98_000);
        assert_eq!(set(&budget.share(&[idle])), [(2, 294_000)]);
    }

    #[test]
    fn an_exceeded_part_is_reported() {
        let bounds = Bounds {
            per_destination: Some(1 << 20),
            ..BOUNDS
        };
        let mut budget = Budget::new(bounds);
        let claims: Vec<Claim> = (0..20)
            .map(|cookie| claim(cookie, Direction::Send, 1 << 20))
            .collect();
        assert_eq!(budget.share(&claims[..10]).excess, 0);
        let excess = 20 * (FLOOR + SEND_EXCESS) - (1 << 20);
        assert_eq!(budget.share(&claims).excess, excess);
    }

    #[test]
    fn bytes_still_in_a_buffer_are_granted_to_no_other() {
        let mut budget = Budget::new(BOUNDS);
        let mut bloated = claim(1, Direction::Send, 1 << 30);
        (bloated.demand.size, bloated.demand.queued) = (6 << 20, 6 << 20);
        let other = claim(2, Direction::Send, 1 << 30);
        let half = 7 << 19;
        let shared = budget.share(&[bloated, other]);
        assert_eq!(
            set(&shared),
            [(1, half - SEND_EXCESS), (2, (1 << 20) - SEND_EXCESS)]
        );
        // The send buffer has drained.
        bloated.demand.size = half - SEND_EXCESS;
        bloated.demand.queued = half - SEND_EXCESS;
        bloated.demand.is_fixed = Some(true);
        assert_eq!(
            set(&budget.share(&[bloated, other])),
            [(2, half - SEND_EXCESS)]
        );
    }

    #[test]
    fn a_connection_left_alone_counts_and_is_not_resized() {
        let mut budget = Budget::new(BOUNDS);
        let mut alone = claim(1, Direction::Receive, 1 << 20);
        alone.demand.size = 3 << 20;
        alone.is_left_alone = true;
        let other = claim(2, Direction::Receive, 1 << 30);
        assert_eq!(set(&budget.share(&[alone, other])), [(2, 4 << 20)]);
    }

    #[test]
    fn each_pool_has_its_bound() {
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
    fn no_buffer_is_resized_twice() {
        let mut budget = Budget::new(BOUNDS);
        let mut claims: Vec<Claim> = (0..20)
            .map(|cookie| claim(cookie, Direction::Send, 1 << 20))
            .collect();
        let to = set(&budget.share(&claims));
        for (claim, (_, to)) in claims.iter_mut().zip(to) {
            (claim.demand.size, claim.demand.is_fixed) = (to, Some(true));
        }
        assert_eq!(budget.share(&claims).changes, []);
        // This also holds if it is unknown whether the buffer is fixed.
        claims[0].demand.is_fixed = None;
        assert_eq!(budget.share(&claims).changes, []);
    }

    #[test]
    fn a_new_connection_may_have_a_part_of_the_rest() {
        let budget = Budget::new(BOUNDS);
        assert_eq!(budget.start_maximum(0, 0), (8 << 20) / 64 - SEND_EXCESS);
        assert_eq!(budget.start_maximum(8 << 20, 0), FLOOR);
        assert_eq!(budget.start_maximum(0, 1000), FLOOR);
        let large = Budget::new(Bounds {
            total: u64::MAX,
            ..BOUNDS
        });
        assert_eq!(large.start_maximum(0, 0), 60_000_000);
        assert_eq!(large.start_maximum(0, usize::MAX), FLOOR);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let one = (any::<bool>(), 0u64..4 << 20, 0u64..1 << 20, any::<bool>());
        prop::collection::vec(one, 1..80).prop_map(|all| {
            let each = all.into_iter().enumerate();
            each.map(|(index, (sends, most, queued, is_idle))| {
                let direction = match sends {
                    true => Direction::Send,
                    false => Direction::Receive,
                };
                let mut claim = claim(index as u64, direction, if is_idle { 0 } else { most });
                claim.demand.queued = queued;
                claim
            })
            .collect()
        })
    }

    /// 10,000 connections of 7 cgroups and 200 destinations, one in three idle, which want three times the
    /// budget, in three rounds.
    #[test]
    #[ignore = "run under callgrind by scripts/instructions"]
    fn a_budget_is_shared_among_10_000_connections_for_instruction_count() {
        const CONNECTIONS: u64 = 10_000;
        let claims = (0..CONNECTIONS).map(|cookie| {
            let most = cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let most = if cookie.is_multiple_of(3) { 0 } else { most };
            let mut claim = claim(cookie, Direction::Send, most);
            claim.demand.queued = most / 8;
            claim.cgroup = Some(cookie % 7);
            claim.destination = Ipv4Addr::from_bits((cookie / 50) as u32).into();
            claim
        });
        let claims: Vec<_> = claims.collect();
        let total = claims.iter().map(|claim| claim.demand.wanted).sum::<u64>() / 3;
        let mut budget = Budget::new(Bounds {
            total,
            per_cgroup: Some(total / 5),
            per_destination: Some(total / 100),
        });
        for _ in 0..3 {
            let shared = budget.share(&claims);
            assert!(
                shared.granted > total / 2 && shared.excess == 0,
                "{shared:?}"
            );
        }
    }

    proptest! {
        /// Once resized, buffers hold at most the usable budget plus the memory that cannot be
        /// taken away.
        #[test]
        fn a_budget_is_never_granted_twice(claims in claims(), total in MIN_BUDGET..64 << 20) {
            let mut budget = Budget::new(Bounds { total, ..BOUNDS });
            let shared = budget.share(&claims);
            let to: HashMap<_, _> = shared.changes.iter().filter_map(|change| match change {
                Change::Resize { cookie, to, .. } => Some((*cookie, *to)),
                _ => None,
            }).collect();
            let held: u64 = claims.iter().map(|claim| match to.get(&claim.cookie) {
                _ if claim.is_idle() => claim.demand.queued,
                Some(to) => claim.demand.queued.max(to + claim.excess()),
                None => claim.demand.queued.max(claim.demand.size),
            }).sum();
            prop_assert!(held <= budget.usable() + shared.excess, "{held} of {total}: {shared:?}");
        }

        /// Buffers that shrink come first.
        #[test]
        fn buffers_shrink_before_others_grow(claims in claims(), total in MIN_BUDGET..64 << 20) {
            let mut budget = Budget::new(Bounds { total, ..BOUNDS });
            let shared = budget.share(&claims);
            prop_assert!(shared.changes.is_sorted_by_key(Change::grows));
        }
    }
}
