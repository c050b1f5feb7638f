//! Counts of a rare event by member, for conditions that name one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use taut_mesh::members::MemberName;

/// The number of events of each member. Neither side ever waits: if both meet, the event is not counted or the
/// counts are not returned, which a condition is the later for.
#[derive(Debug, Default)]
pub(crate) struct ByMember(Mutex<BTreeMap<MemberName, u64>>);

impl ByMember {
    pub(crate) fn add(&self, member: &MemberName) {
        let Ok(mut counts) = self.0.try_lock() else {
            return;
        };
        match counts.get_mut(member) {
            Some(count) => *count += 1,
            None => drop(counts.insert(member.clone(), 1)),
        }
    }

    /// Adds the counts to `sums`.
    pub(crate) fn add_to(&self, sums: &mut BTreeMap<MemberName, u64>) {
        let Ok(counts) = self.0.try_lock() else {
            return;
        };
        for (member, count) in &*counts {
            *sums.entry(member.clone()).or_default() += count;
        }
    }
}
