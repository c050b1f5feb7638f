//! The units by which clients are counted, and a table of them that all workers share.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many times as much as a source an IPv6 /48 may have: a site has up to 65,536 networks of /64 (RFC
/// 6177 section 2), but a mobile operator may have a customer in each.
pub(crate) const SITE: u32 = 4;

/// The number of shards: with 64, workers rarely contend for a lock.
const SHARDS: usize = 64;

/// The capacity up to which a shard never shrinks.
const SMALL: usize = 64;

/// The unit that is treated as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(u32),
    /// The upper half of the address, because a host with one address of a /64 can use all of its
    /// addresses (RFC 7934).
    V6(u64),
    /// The upper 48 bits of the address.
    Site(u64),
}

/// A value for each source. It takes the lock of one shard for one operation of a hash table, never
/// across a system call.
#[derive(Debug)]
pub(super) struct Shards<V> {
    shards: [Shard<V>; SHARDS],
    /// Randomly keyed, so that clients cannot choose addresses that collide.
    hasher: RandomState,
}

/// Aligned so that shards do not share cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<V>(Mutex<HashMap<Source, V>>);

// === impl Source ===

impl Source {
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.into()),
            // A NAT64 maps all IPv4 clients into one /64, and each is a source of its own (RFC 6052
            // 2.1).
            IpAddr::V6(v6) => match v6.segments() {
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                    Self::V4(u32::from(high) << 16 | u32::from(low))
                }
                [a, b, c, d, ..] => Self::V6(
                    [a, b, c, d]
                        .into_iter()
                        .fold(0, |bits, s| bits << 16 | u64::from(s)),
                ),
            },
        }
    }

    /// Returns the /48 of an IPv6 source.
    pub(crate) fn site(self) -> Option<Self> {
        match self {
            Self::V6(bits) => Some(Self::Site(bits >> 16)),
            Self::V4(_) | Self::Site(_) => None,
        }
    }
}

// === impl Shards ===

impl<V> Shards<V> {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard(Mutex::new(HashMap::new()))),
            hasher: RandomState::new(),
        }
    }

    /// Returns the table that has `source`.
    pub(super) fn of(&self, source: Source) -> MutexGuard<'_, HashMap<Source, V>> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is below the number of shards"
        )]
        let i = (self.hasher.hash_one(source) % SHARDS as u64) as usize;
        lock(&self.shards[i].0)
    }

    /// Returns all tables, one after the other.
    pub(super) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, HashMap<Source, V>>> {
        self.shards.iter().map(|shard| lock(&shard.0))
    }
}

/// Returns memory of a table that is nearly empty: after a flood of sources, it must not stay large.
pub(super) fn shrink<V>(table: &mut HashMap<Source, V>) {
    if table.capacity() > SMALL && table.len() < table.capacity() / 4 {
        let room = (table.len() * 2).max(SMALL / 2);
        table.shrink_to(room);
    }
}

/// Locks a shard. A poisoned lock is usable: no operation leaves a table half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) const ROOM: usize = SHARDS * SMALL * 2;
