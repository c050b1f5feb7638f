//! Counts the open sessions of each member of the mesh and limits them: no single one can use up a relay.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::members::MemberName;

/// Returns the limit of a member without `max_sessions_per_member`: three quarters of what the node may have.
pub fn default_limit(max_sessions: u32) -> u32 {
    max_sessions - max_sessions / 4
}

/// Open sessions by the member that they come from. All workers share one table, which is locked for one
/// operation at a time.
#[derive(Debug, Default)]
pub struct MemberQuota(Mutex<HashMap<MemberName, u32>>);

/// A session's place in the quota, released when dropped.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct MemberPermit {
    quota: Arc<MemberQuota>,
    member: MemberName,
}

// === impl MemberQuota ===

impl MemberQuota {
    /// Takes a place for a new session of `member`. Returns `None` if it has `limit` or more open.
    pub fn admit(self: &Arc<Self>, member: &MemberName, limit: u32) -> Option<MemberPermit> {
        let mut open = self.open();
        let count = open.entry(member.clone()).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(MemberPermit {
            quota: self.clone(),
            member: member.clone(),
        })
    }

    /// Locks the table. A poisoned lock is usable: no operation leaves it half changed.
    fn open(&self) -> MutexGuard<'_, HashMap<MemberName, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl MemberPermit ===

impl MemberPermit {
    /// Returns the member that the session comes from.
    pub fn member(&self) -> &MemberName {
        &self.member
    }
}

impl Drop for MemberPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.quota.open().entry(self.member.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_its_share_and_leaves_the_others_theirs() {
        let quota = Arc::new(MemberQuota::default());
        let [greedy, other] = ["greedy", "other"].map(|name| name.parse().unwrap());
        let limit = default_limit(8);
        let places: Vec<_> = (0..8).map_while(|_| quota.admit(&greedy, limit)).collect();
        assert_eq!(places.len(), 6);
        let place = quota.admit(&other, limit);
        assert_eq!(place.as_ref().map(MemberPermit::member), Some(&other));
        drop(places);
        assert!(quota.admit(&greedy, limit).is_some());
        drop(place);
        assert!(quota.open().is_empty());
    }

    #[test]
    fn the_smallest_relay_serves_members_too() {
        assert_eq!([1, 2, 4].map(default_limit), [1, 2, 3]);
    }
}
