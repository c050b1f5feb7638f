//! Chooses which of a member's addresses is used: the first, or a later one while it fails. Pure.

use std::collections::HashMap;
use std::net::SocketAddr;

use taut_mesh::rows::MemberId;

/// The addresses of members that have failed. A success begins with the first address again, as
/// sessions do.
#[derive(Default)]
pub(super) struct FailedAddresses {
    /// The failures of a member since its last success. Each moves on to the next address.
    failures: HashMap<MemberId, usize>,
}

// === impl FailedAddresses ===

impl FailedAddresses {
    /// Returns the address of `all` that is used next.
    pub(super) fn next(&self, id: MemberId, all: &[SocketAddr]) -> Option<SocketAddr> {
        let failures = self.failures.get(&id).copied().unwrap_or(0);
        all.get(failures % all.len().max(1)).copied()
    }

    /// Records that the address `to` has failed. Returns whether all addresses have, one after the
    /// other.
    pub(super) fn failed(&mut self, id: MemberId, to: SocketAddr, all: &[SocketAddr]) -> bool {
        let is_next = self.next(id, all) == Some(to);
        let failures = self.failures.entry(id).or_default();
        // Two attempts at the same address count once.
        if is_next {
            *failures += 1;
        }
        *failures >= all.len()
    }

    /// Records that an address works.
    pub(super) fn worked(&mut self, id: MemberId) {
        self.failures.remove(&id);
    }

    /// Forgets those that are no longer members.
    pub(super) fn adopt(&mut self, is_member: impl Fn(MemberId) -> bool) {
        self.failures.retain(|id, _| is_member(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_tried_before_a_member_counts_as_down() {
        let id = MemberId::of(&"far".parse().unwrap());
        let all = [1, 2, 3].map(|n| SocketAddr::from(([192, 0, 2, n], 7440)));
        let mut failed = FailedAddresses::default();
        assert_eq!(failed.next(id, &all), Some(all[0]));
        assert!(!failed.failed(id, all[0], &all));
        assert!(!failed.failed(id, all[0], &all), "it was under way");
        assert_eq!(failed.next(id, &all), Some(all[1]));
        assert!(!failed.failed(id, all[1], &all));
        assert!(failed.failed(id, all[2], &all));
        assert_eq!(failed.next(id, &all), Some(all[0]));
        assert!(failed.failed(id, all[0], &all), "it still is down");
        failed.worked(id);
        assert_eq!(failed.next(id, &all), Some(all[0]));
        assert!(!failed.failed(id, all[0], &all));
        assert_eq!(failed.next(id, &[]), None);
    }
}
