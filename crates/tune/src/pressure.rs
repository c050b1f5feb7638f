//! Memory of TCP that nears its bound, and who gives some of his back: pure, but for reading how much it is.
//!
//! The kernel comes under pressure at the second figure of `tcp_mem`: from then on no buffer grows, and those that send wait. It takes from everyone alike. Before
//! it comes to that, those that hold room which they do not use are made smaller, the largest first.

use std::cmp::Reverse;
use std::fs;
use std::io;

use crate::budget::{Claim, rest};
use crate::demand::Direction;
use crate::plan::Change;

/// Parts in eight of the second figure of `tcp_mem`: with more in use it is near,
const NEAR: u64 = 7;
/// with less it is past.
const PAST: u64 = 6;
/// Buffers that are made smaller in one look.
pub const AT_ONCE: usize = 1_000;

/// What TCP has of the machine's memory, in all network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that are in use.
    pub in_use: u64,
    /// Bytes from which on the kernel is under pressure.
    pub pressure: u64,
}

// === impl Memory ===

impl Memory {
    /// As it is.
    ///
    /// # Errors
    /// The system's.
    pub fn read() -> io::Result<Self> {
        let sockets = fs::read_to_string("/proc/self/net/sockstat")?;
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem")?;
        let page = rustix::param::page_size() as u64;
        Self::of(&sockets, &bounds, page).ok_or_else(|| {
            io::Error::other("/proc/net/sockstat or net.ipv4.tcp_mem is not as it is known")
        })
    }

    fn of(sockets: &str, bounds: &str, page: u64) -> Option<Self> {
        let tcp = sockets.lines().find_map(|line| line.strip_prefix("TCP:"))?;
        let mut words = tcp.split_whitespace();
        words.find(|word| *word == "mem")?;
        let in_use: u64 = words.next()?.parse().ok()?;
        let pressure: u64 = bounds.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self {
            in_use: in_use.saturating_mul(page),
            pressure: pressure.saturating_mul(page),
        })
    }

    /// By how much it is too much, if it is.
    pub fn excess(&self) -> Option<u64> {
        let is_near = self.in_use > self.pressure / 8 * NEAR;
        is_near.then(|| self.in_use - self.pressure / 8 * PAST)
    }

    /// Whether there is room again.
    pub fn is_past(&self) -> bool {
        self.in_use < self.pressure / 8 * PAST
    }
}

/// Which of them are made smaller, so that they give up this much: those that rest, the largest first, and none below what is queued in it.
pub fn relieve(claims: &[Claim], excess: u64) -> Vec<Change> {
    let mut idle: Vec<(u64, &Claim)> = claims
        .iter()
        .filter(|claim| claim.rests() && !claim.is_left_alone)
        .map(|claim| (claim.demand.has.saturating_sub(smaller(claim)), claim))
        .filter(|(gives, _)| *gives > 0)
        .collect();
    idle.sort_by_key(|(gives, claim)| {
        (
            Reverse(*gives),
            claim.cookie,
            claim.direction == Direction::Receive,
        )
    });
    let mut left = excess;
    let needed = idle.into_iter().take(AT_ONCE).take_while(|(gives, _)| {
        let is_needed = left > 0;
        left = left.saturating_sub(*gives);
        is_needed
    });
    needed
        .map(|(_, claim)| Change::Shrink {
            cookie: claim.cookie,
            direction: claim.direction,
            demand: claim.demand,
            to: smaller(claim),
        })
        .collect()
}

/// The kernel doubles what it is told: even.
fn smaller(claim: &Claim) -> u64 {
    rest(&claim.demand).next_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::demand::{Because, Demand};

    fn claim(cookie: u64, has: u64, queued: u64, rests: bool) -> Claim {
        Claim {
            cookie,
            direction: Direction::Send,
            demand: Demand {
                has,
                queued,
                promised: queued,
                segment: 0,
                wants: 0,
                most: 0,
                is_fixed: Some(false),
                is_held: false,
                because: match rests {
                    true => Because::Idle,
                    false => Because::Shown {
                        window: 1,
                        round_trip: std::time::Duration::from_millis(1),
                    },
                },
            },
            is_left_alone: false,
            cgroup: None,
            destination: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn changed(changes: &[Change]) -> Vec<(u64, u64)> {
        let of = |change: &Change| match change {
            Change::Shrink { cookie, to, .. } => (*cookie, *to),
            other => panic!("{other:?}"),
        };
        changes.iter().map(of).collect()
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        let sockets =
            "sockets: used 9\nTCP: inuse 4 orphan 0 tw 2 alloc 7 mem 5\nUDP: inuse 1 mem 3\n";
        let memory = Memory::of(sockets, "10\t20\t30\n", 4096).unwrap();
        assert_eq!((memory.in_use, memory.pressure), (5 * 4096, 20 * 4096));
        assert_eq!(Memory::of(sockets, "10", 4096), None);
        assert_eq!(Memory::of("TCP: inuse 4 mem", "1 2 3", 4096), None);
        Memory::read().unwrap();
    }

    #[test]
    fn pressure_is_near_before_the_kernel_feels_it_and_past_a_good_way_below() {
        let memory = |in_use| Memory {
            in_use,
            pressure: 800,
        };
        assert_eq!(memory(700).excess(), None);
        assert_eq!(memory(701).excess(), Some(101));
        assert!(!memory(600).is_past());
        assert!(memory(599).is_past());
    }

    #[test]
    fn the_largest_idle_give_first_and_not_what_is_queued() {
        let claims = [
            claim(1, 1 << 20, 0, true),
            claim(2, 8 << 20, 3 << 20, true),
            claim(3, 16 << 20, 0, false),
            Claim {
                is_left_alone: true,
                ..claim(4, 32 << 20, 0, true)
            },
            claim(5, 4 << 20, 0, true),
            claim(6, 64 << 10, 0, true),
        ];
        assert_eq!(changed(&relieve(&claims, 1)), [(2, 3 << 20)]);
        assert_eq!(
            changed(&relieve(&claims, u64::MAX)),
            [(2, 3 << 20), (5, 128 << 10), (1, 128 << 10)]
        );
        assert_eq!(relieve(&claims, 0), []);
    }

    proptest! {
        #[test]
        fn nobody_loses_what_is_queued_and_no_more_give_than_are_needed(
            buffers in proptest::collection::vec((0u64..1 << 30, 0u64..1 << 30, any::<bool>()), 0..40),
            excess in 0u64..1 << 32,
        ) {
            let claims: Vec<Claim> = buffers
                .iter()
                .zip(1..)
                .map(|((has, queued, rests), cookie)| claim(cookie, *has, *queued, *rests))
                .collect();
            let changes = relieve(&claims, excess);
            let mut given = 0;
            for (cookie, to) in changed(&changes) {
                prop_assert!(given < excess);
                let demand = claims[usize::try_from(cookie).unwrap() - 1].demand;
                prop_assert!(to >= demand.queued && to < demand.has);
                prop_assert!(demand.because == Because::Idle);
                given += demand.has - to;
            }
        }
    }
}
