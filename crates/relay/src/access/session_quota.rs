//! Counts the open sessions of each source and limits them.
//!
//! A source is an IPv4 address or an IPv6 /64; a /48 may have four times as many sessions. A
//! connection counts from the time when it is accepted, before it has a session. All workers share one
//! table.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | sessions of a source | `limit` | [`SessionQuota::admit`] returns `None`, [`SessionQuota::refused`] counts |
//! | sources | at most two for each session: an entry is removed with its last session | |
//! | memory | some 40 bytes a source; tables shrink when three quarters of them are empty | |

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::source::{SITE, Shards, Source, shrink};

/// No limit.
pub const UNLIMITED: u32 = u32::MAX;

/// The part of `max_sessions` that one source may have by default: no single one can use up a relay.
const DEFAULT_PART: u32 = 8;
/// The default limit of a small relay.
const DEFAULT_LEAST: u32 = 100;

/// Returns the limit of a source without `max_sessions_per_source`.
pub fn default_limit(max_sessions: u32) -> u32 {
    (max_sessions / DEFAULT_PART).max(DEFAULT_LEAST)
}

/// Open sessions by source.
#[derive(Debug)]
pub struct SessionQuota {
    table: Shards<u32>,
    limit: AtomicU32,
    /// The limit of addresses that may stand for many clients.
    shared_limit: AtomicU32,
    refused: AtomicU64,
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
            table: Shards::new(),
            limit: AtomicU32::new(limit),
            shared_limit: AtomicU32::new(limit),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes a place for a new session of the source that `ip` belongs to. Returns `None` if the
    /// source has reached its limit.
    pub fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<Permit> {
        match ip.to_canonical().is_loopback() {
            true => self.admit_shared(ip),
            false => self.admit_up_to(ip, self.limit()),
        }
    }

    /// Like [`SessionQuota::admit`], for an address that may stand for many clients: that of a client
    /// of another relay, whose network may have the same addresses as others, or of this machine.
    pub fn admit_shared(self: &Arc<Self>, ip: IpAddr) -> Option<Permit> {
        self.admit_up_to(ip, self.shared_limit.load(Ordering::Relaxed))
    }

    fn admit_up_to(self: &Arc<Self>, ip: IpAddr, limit: u32) -> Option<Permit> {
        let source = Source::of(ip);
        let admitted = self.take(source, limit) && {
            let site = source.site();
            let has_room = site.is_none_or(|site| self.take(site, limit.saturating_mul(SITE)));
            if !has_room {
                self.release(source);
            }
            has_room
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

    /// Changes the limit, and that of addresses that may stand for many clients. Open sessions above
    /// the new limits stay open.
    pub fn set_limits(&self, limit: u32, shared: u32) {
        self.limit.store(limit, Ordering::Relaxed);
        self.shared_limit.store(shared, Ordering::Relaxed);
    }

    /// Returns the limit.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the number of open sessions of the source that `ip` belongs to.
    pub fn open(&self, ip: IpAddr) -> u32 {
        self.open_of(Source::of(ip))
    }

    /// Returns the number of open sessions of a source, and of its connections that have none yet.
    pub(crate) fn open_of(&self, source: Source) -> u32 {
        self.table.of(source).get(&source).copied().unwrap_or(0)
    }

    /// Returns the number of sources, and IPv6 /48s, that have an open session.
    pub fn len(&self) -> usize {
        self.table.all().map(|table| table.len()).sum()
    }

    /// Returns whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of sessions that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes a place of `source`, if fewer than `limit` are taken.
    fn take(&self, source: Source, limit: u32) -> bool {
        let mut table = self.table.of(source);
        let open = table.get(&source).copied().unwrap_or(0);
        // At UNLIMITED, the addition would overflow.
        open < limit && {
            table.insert(source, open + 1);
            true
        }
    }

    fn release(&self, source: Source) {
        let mut table = self.table.of(source);
        let Entry::Occupied(mut open) = table.entry(source) else {
            return;
        };
        *open.get_mut() -= 1;
        if *open.get() == 0 {
            open.remove();
            shrink(&mut table);
        }
    }
}

// === impl Permit ===

impl Permit {
    /// Returns its source.
    pub(crate) fn source(&self) -> Source {
        self.source
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.sources.release(self.source);
        if let Some(site) = self.source.site() {
            self.sources.release(site);
        }
    }
}

#[cfg(test)]
mod tests;
