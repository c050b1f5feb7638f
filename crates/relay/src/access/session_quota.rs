//! Counts the open sessions of each source and limits them.
//!
//! A source is an IPv4 address or an IPv6 /64, because a host with one address of a /64 can use all
//! of its addresses (RFC 6177, RFC 7934). All workers share one table.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | sessions of a source | `limit`, default [`UNLIMITED`] | [`SessionQuota::admit`] returns
//! `None`, [`SessionQuota::refused`] counts |
//! | sources | as many as there are sessions: an entry is removed with its last session | |
//! | memory | some 40 bytes a source; tables shrink when three quarters of them are empty | |
//!
//! The table is used by every accept: it takes the lock of one of 64 shards for one hash table
//! operation, never across a system call.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// No limit.
pub const UNLIMITED: u32 = u32::MAX;

/// The number of shards: with 64, workers rarely contend for a lock.
const SHARDS: usize = 64;

/// The capacity up to which a table never shrinks.
const SMALL: usize = 64;

/// Open sessions by source.
#[derive(Debug)]
pub struct SessionQuota {
    shards: [Shard; SHARDS],
    /// Randomly keyed, so that clients cannot choose addresses that collide.
    hasher: RandomState,
    limit: AtomicU32,
    refused: AtomicU64,
}

/// Aligned so that shards do not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<HashMap<Source, u32>>);

/// The unit that the quota treats as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    V4(u32),
    /// The upper half of the address.
    V6(u64),
}

/// A session's place in the quota, released when dropped.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Permit {
    sources: Arc<SessionQuota>,
    source: Source,
}

// === impl SessionQuota ===

impl SessionQuota {
    /// Returns an empty quota that allows `limit` sessions per source.
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: RandomState::new(),
            limit: AtomicU32::new(limit),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes a place for a new session of the source that `ip` belongs to. Returns `None` if the
    /// source has reached its limit.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<Permit> {
        let source = Source::of(ip);
        let limit = self.limit.load(Ordering::Relaxed);
        let admitted = {
            let mut shard = self.shard(source);
            let open = shard.get(&source).copied().unwrap_or(0);
            // At UNLIMITED, the addition would overflow.
            open < limit && {
                shard.insert(source, open + 1);
                true
            }
        };
        if !admitted {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit {
            sources: self.clone(),
            source,
        })
    }

    /// Changes the limit. Open sessions above the new limit stay open.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the limit.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the number of open sessions of the source that `ip` belongs to.
    pub fn open(&self, ip: IpAddr) -> u32 {
        let source = Source::of(ip);
        self.shard(source).get(&source).copied().unwrap_or(0)
    }

    /// Returns the number of sources that have an open session.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).len()).sum()
    }

    /// Returns whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of sessions that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn release(&self, source: Source) {
        let mut shard = self.shard(source);
        let Entry::Occupied(mut open) = shard.entry(source) else {
            return;
        };
        *open.get_mut() -= 1;
        if *open.get() == 0 {
            open.remove();
            // After a flood of sources, the table must not stay large.
            if shard.capacity() > SMALL && shard.len() < shard.capacity() / 4 {
                let room = (shard.len() * 2).max(SMALL / 2);
                shard.shrink_to(room);
            }
        }
    }

    fn shard(&self, source: Source) -> MutexGuard<'_, HashMap<Source, u32>> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is below the number of shards"
        )]
        let i = (self.hasher.hash_one(source) % SHARDS as u64) as usize;
        lock(&self.shards[i].0)
    }
}

/// Locks a shard. A poisoned lock is usable: no operation leaves a table half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Permit ===

impl Drop for Permit {
    fn drop(&mut self) {
        self.sources.release(self.source);
    }
}

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
}

#[cfg(test)]
mod tests;
