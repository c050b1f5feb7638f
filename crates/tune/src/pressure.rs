//! Selects idle buffers to shrink when TCP memory runs short. Pure, except for reading the memory
//! in use.
//!
//! The kernel is under memory pressure above the second value of `tcp_mem`: buffers no longer grow,
//! and senders wait, whichever connection took the memory. Before that happens, idle buffers with
//! unused room are shrunk, the largest first.

use std::cmp::Reverse;
use std::fs;
use std::io;

use crate::budget::{Claim, idle_size};
use crate::demand::Direction;
use crate::plan::Change;

/// Memory is short while more than this many eighths of the second value of `tcp_mem` are in use.
const SHORT_EIGHTHS: u64 = 7;
/// Memory is no longer short when fewer than this many eighths are in use.
const RELIEVED_EIGHTHS: u64 = 6;
/// The maximum number of buffers to shrink in one scan.
pub const MAX_AT_ONCE: usize = 1_000;

/// The memory of TCP in all network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The bytes in use.
    pub in_use: u64,
    /// The number of bytes at which the kernel comes under pressure.
    pub pressure: u64,
}

/// Returns the bytes of memory that this machine has.
pub fn of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

// === impl Memory ===

impl Memory {
    /// Reads the present state.
    ///
    /// # Errors
    /// A file cannot be read, or has an unknown format.
    pub fn read() -> io::Result<Self> {
        let sockets = fs::read_to_string("/proc/self/net/sockstat")?;
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem")?;
        let page = rustix::param::page_size() as u64;
        Self::parse(&sockets, &bounds, page).ok_or_else(|| {
            io::Error::other("/proc/net/sockstat or net.ipv4.tcp_mem has an unknown format")
        })
    }

    fn parse(sockets: &str, bounds: &str, page: u64) -> Option<Self> {
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

    /// Returns the bytes to free, if memory is short.
    pub fn excess(&self) -> Option<u64> {
        let is_short = self.in_use > self.pressure / 8 * SHORT_EIGHTHS;
        is_short.then(|| self.in_use - self.pressure / 8 * RELIEVED_EIGHTHS)
    }

    /// Whether memory is clearly no longer short.
    pub fn is_relieved(&self) -> bool {
        self.in_use < self.pressure / 8 * RELIEVED_EIGHTHS
    }
}

/// Returns the changes that shrink idle buffers until they free `excess` bytes. Takes the largest
/// buffers first and shrinks none below its contents.
pub fn relieve(claims: &[Claim], excess: u64) -> Vec<Change> {
    let mut idle: Vec<(u64, &Claim)> = claims
        .iter()
        .filter(|claim| claim.is_idle() && !claim.is_left_alone)
        .map(|claim| (claim.demand.size.saturating_sub(shrunk(claim)), claim))
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
    let needed = idle.into_iter().take(MAX_AT_ONCE).take_while(|(gives, _)| {
        let is_needed = left > 0;
        left = left.saturating_sub(*gives);
        is_needed
    });
    needed
        .map(|(_, claim)| Change::Shrink {
            cookie: claim.cookie,
            direction: claim.direction,
            demand: claim.demand,
            to: shrunk(claim),
        })
        .collect()
}

/// Returns the size to shrink to. It is even, because the kernel doubles the socket option.
fn shrunk(claim: &Claim) -> u64 {
    idle_size(&claim.demand).next_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::demand::{Demand, Reason};

    fn claim(cookie: u64, size: u64, queued: u64, is_idle: bool) -> Claim {
        Claim {
            cookie,
            direction: Direction::Send,
            demand: Demand {
                size,
                queued,
                committed: queued,
                segment: 0,
                wanted: 0,
                useful: 0,
                is_fixed: Some(false),
                is_tunable: true,
                is_limiting: false,
                widest: None,
                is_at_widest: false,
                reason: match is_idle {
                    true => Reason::Idle,
                    false => Reason::Steady {
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
    fn the_kernels_files_are_parsed() {
        let sockets =
            "sockets: used 9\nTCP: inuse 4 orphan 0 tw 2 alloc 7 mem 5\nUDP: inuse 1 mem 3\n";
        let memory = Memory::parse(sockets, "10\t20\t30\n", 4096).unwrap();
        assert_eq!((memory.in_use, memory.pressure), (5 * 4096, 20 * 4096));
        assert_eq!(Memory::parse(sockets, "10", 4096), None);
        assert_eq!(Memory::parse("TCP: inuse 4 mem", "1 2 3", 4096), None);
        Memory::read().unwrap();
    }

    #[test]
    fn memory_is_short_below_the_kernels_pressure_and_relieved_well_below_that() {
        let memory = |in_use| Memory {
            in_use,
            pressure: 800,
        };
        assert_eq!(memory(700).excess(), None);
        assert_eq!(memory(701).excess(), Some(101));
        assert!(!memory(600).is_relieved());
        assert!(memory(599).is_relieved());
    }

    #[test]
    fn the_largest_idle_buffers_shrink_first_and_keep_their_contents() {
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
        fn no_buffer_shrinks_below_its_contents_and_no_more_shrink_than_are_needed(
            buffers in proptest::collection::vec((0u64..1 << 30, 0u64..1 << 30, any::<bool>()), 0..40),
            excess in 0u64..1 << 32,
        ) {
            let claims: Vec<Claim> = buffers
                .iter()
                .zip(1..)
                .map(|((size, queued, is_idle), cookie)| claim(cookie, *size, *queued, *is_idle))
                .collect();
            let changes = relieve(&claims, excess);
            let mut given = 0;
            for (cookie, to) in changed(&changes) {
                prop_assert!(given < excess);
                let demand = claims[usize::try_from(cookie).unwrap() - 1].demand;
                prop_assert!(to >= demand.queued && to < demand.size);
                prop_assert!(demand.reason == Reason::Idle);
                given += demand.size - to;
            }
        }
    }
}
