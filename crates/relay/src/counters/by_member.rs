//! Counts of a rare event by member, for conditions that name one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use taut_mesh::members::MemberName;

/// The number of events of each member. A worker never waits for a reader: if both meet, the event is not counted,
/// which a condition is the later for. A reader waits, because a total that falls is taken for a new one.
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
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (member, count) in &*counts {
            *sums.entry(member.clone()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_reader_that_meets_a_worker_waits_for_the_counts() {
        let (counts, member) = (ByMember::default(), "fra1".parse().unwrap());
        counts.add(&member);
        let worker = counts.0.lock().unwrap();
        let (begins, begun) = mpsc::channel();
        let sums = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut sums = BTreeMap::new();
                begins.send(()).unwrap();
                counts.add_to(&mut sums);
                sums
            });
            begun.recv().unwrap();
            // The event of a worker that meets another is lost; it does not wait.
            counts.add(&member);
            drop(worker);
            reader.join().unwrap()
        });
        assert_eq!(sums, BTreeMap::from([(member, 1)]));
    }
}
