//! The changes of a row from one version to the next, so that not every change costs a whole row.

use std::collections::{BTreeSet, VecDeque};

use super::key::{Key, MemberId};
use super::row::Row;

/// The number of changed entries that are remembered of a row, in all versions.
const MAX: usize = 64;

/// The number of versions that are remembered of a row.
const VERSIONS: usize = 8;

/// The entries that differ between two versions of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) members: BTreeSet<MemberId>,
    pub(super) outside: BTreeSet<Key>,
}

/// The last changes of a row.
#[derive(Debug, Default)]
pub(super) struct History {
    /// For each former version, the oldest first: what changed in the version after it.
    steps: VecDeque<(u64, Changed)>,
}

// === impl Changed ===

impl Changed {
    /// Returns the entries that differ, in one of two rows or in both.
    fn between(before: &Row, after: &Row) -> Self {
        let mut changed = Self::default();
        let differ = |id| before.member(id) != after.member(id);
        let ids = before.members.iter().chain(&after.members).map(|e| e.id);
        changed.members.extend(ids.filter(|id| differ(*id)));
        let differ = |key| before.outside(key) != after.outside(key);
        let keys = before.outside.iter().chain(&after.outside).map(|e| e.key);
        changed.outside.extend(keys.filter(|key| differ(*key)));
        changed
    }

    fn len(&self) -> usize {
        self.members.len() + self.outside.len()
    }
}

// === impl History ===

impl History {
    /// Records that the row `after` replaces `before`.
    pub(super) fn add(&mut self, before: &Row, after: &Row) {
        self.steps
            .push_back((before.version, Changed::between(before, after)));
        let len =
            |steps: &VecDeque<(u64, Changed)>| steps.iter().map(|(_, c)| c.len()).sum::<usize>();
        while self.steps.len() > VERSIONS || len(&self.steps) > MAX {
            self.steps.pop_front();
        }
    }

    /// Returns what has changed since a version, or `None` if that is not remembered.
    pub(super) fn since(&self, version: u64) -> Option<Changed> {
        let first = self.steps.iter().position(|(from, _)| *from == version)?;
        let mut all = Changed::default();
        for (_, changed) in self.steps.iter().skip(first) {
            all.members.extend(&changed.members);
            all.outside.extend(&changed.outside);
        }
        Some(all)
    }

    /// Returns the memory that the changes occupy, in bytes.
    pub(super) fn memory(&self) -> usize {
        // A set of few entries is one node of eleven.
        let of = |changed: &Changed| 12 * changed.len() + 128;
        self.steps.iter().map(|(_, c)| of(c)).sum()
    }
}
