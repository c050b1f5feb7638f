//! Removes the entries of ended namespaces from the journal, so that the journal does not grow
//! where namespaces come and go.
//!
//! The kernel does not report whether a namespace exists: an open file may keep alive a namespace
//! without a name and without processes, and processes may enter it again. So a namespace counts as
//! ended only after a long time, or when another namespace has its inode.

use std::collections::{HashMap, HashSet};

use taut_observe::namespaces::Namespace;
use taut_sys::netns::{self, NetnsId};

use super::index::NamespaceIndex;
use crate::journal::Journal;

/// The number of complete scans that must miss a namespace before its entries are removed.
const MISSING_SCANS: u32 = 60;
/// The number of scans between two readings of all cookies. A changed cookie shows that another
/// namespace has taken the inode of an ended one.
const COOKIE_SCANS: u64 = 60;

/// The known namespaces, each with its cookie and the number of complete scans that have missed it
/// since.
#[derive(Debug, Default)]
pub(crate) struct EndedNamespaces {
    seen: HashMap<NetnsId, (u64, u32)>,
    scans: u64,
}

// === impl EndedNamespaces ===

impl EndedNamespaces {
    /// Compares a list of namespaces with earlier lists. Call this in each scan, before making
    /// changes.
    ///
    /// `is_whole`: the list contains all namespaces.
    pub(crate) fn scan(&mut self, namespaces: &[Namespace], is_whole: bool, journal: &mut Journal) {
        let mut ended = HashSet::new();
        let reads_all = self.scans.is_multiple_of(COOKIE_SCANS);
        self.scans += 1;
        for namespace in namespaces {
            let seen = self.seen.get_mut(&namespace.id);
            if let Some((_, missing)) = seen {
                *missing = 0;
                if !reads_all {
                    continue;
                }
            }
            // Nothing was changed in a namespace that cannot be entered.
            let Ok(Some(Ok(cookie))) = namespace.run(netns::cookie) else {
                continue;
            };
            let before = self.seen.insert(namespace.id, (cookie, 0));
            ended.extend(before.map(|(before, _)| before).filter(|b| *b != cookie));
        }
        if is_whole {
            let there: HashSet<NetnsId> = namespaces.iter().map(|namespace| namespace.id).collect();
            let missing = self.seen.extract_if(|id, (_, missing)| {
                *missing += u32::from(!there.contains(id));
                *missing >= MISSING_SCANS
            });
            ended.extend(missing.map(|(_, (cookie, _))| cookie));
        }
        if !ended.is_empty() {
            journal.forget_namespaces(|cookie| ended.contains(&cookie));
        }
    }
}

/// Removes the entries of all namespaces that no longer exist.
pub(crate) fn forget_ended_namespaces(journal: &mut Journal) {
    let index = NamespaceIndex::read();
    journal.forget_namespaces(|cookie| matches!(index.get(cookie), Ok(None)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, Target, Value};
    use crate::profile::settings::Setting;
    use crate::routes::message::RouteKey;
    use crate::testing::TestNetns;

    /// Returns a target of each kind that the journal can contain for a namespace.
    fn targets(netns: u64) -> [Target; 5] {
        [
            Target::SendMaximum(netns),
            Target::ReceiveMaximum(netns),
            Target::Setting(netns, Setting::SynCookies),
            Target::Setting(netns, Setting::InterfaceRedirects(1)),
            route(netns),
        ]
    }

    fn route(netns: u64) -> Target {
        let key = RouteKey {
            destination: std::net::Ipv4Addr::UNSPECIFIED.into(),
            length: 0,
            tos: 0,
            priority: 0,
        };
        Target::Route { netns, key }
    }

    fn journal(of: &[u64]) -> (Journal, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::free(&dir.path().join("journal")).unwrap();
        let buffer = Target::SendBuffer(1);
        let targets = of.iter().flat_map(|&netns| targets(netns)).chain([buffer]);
        let text = |text: &str| Value::Text(text.to_owned());
        for target in targets {
            journal
                .note(Entry::new(target, text("1"), text("0")))
                .unwrap();
        }
        (journal, dir)
    }

    /// Counts the entries of this namespace.
    fn count(journal: &Journal, netns: u64) -> usize {
        let entries = journal.entries();
        entries.filter(|e| e.target.netns() == Some(netns)).count()
    }

    #[test]
    fn the_journal_forgets_a_namespace_that_has_ended() {
        let (goes, stays) = (TestNetns::new("ended-goes"), TestNetns::new("ended-stays"));
        let (gone, kept) = (goes.cookie(), stays.cookie());
        let (mut journal, _dir) = journal(&[gone, kept]);
        let there = [stays.namespace()];
        let both = [goes.namespace(), stays.namespace()];
        drop(goes);
        let mut ended = EndedNamespaces::default();
        let id = both[0].id;
        ended.seen.insert(id, (gone, 0));
        for _ in 1..MISSING_SCANS {
            ended.scan(&there, true, &mut journal);
            // A namespace that is missing in an incomplete list may exist.
            ended.scan(&there, false, &mut journal);
        }
        assert_eq!((count(&journal, gone), count(&journal, kept)), (5, 5));
        ended.scan(&there, true, &mut journal);
        assert_eq!((count(&journal, gone), count(&journal, kept)), (0, 5));
        assert_eq!(ended.seen.len(), 1);
        assert_eq!(journal.entries().count(), 6);
    }

    #[test]
    fn a_namespace_that_is_seen_again_has_not_ended() {
        let (host, other) = (TestNetns::new("ended-again"), TestNetns::new("ended-other"));
        let cookie = host.cookie();
        let (mut journal, _dir) = journal(&[cookie]);
        let (both, one) = ([host.namespace(), other.namespace()], [other.namespace()]);
        let mut ended = EndedNamespaces::default();
        for _ in 0..3 {
            ended.scan(&both, true, &mut journal);
            for _ in 1..MISSING_SCANS {
                ended.scan(&one, true, &mut journal);
            }
        }
        assert_eq!(count(&journal, cookie), 5);
    }

    #[test]
    fn a_namespace_whose_inode_another_has_has_ended() {
        let host = TestNetns::new("ended-place");
        let (mut journal, _dir) = journal(&[u64::MAX, host.cookie()]);
        let mut ended = EndedNamespaces::default();
        // The kernel reuses the inode.
        ended.seen.insert(host.namespace().id, (u64::MAX, 0));
        ended.scan(&[host.namespace()], false, &mut journal);
        assert_eq!(count(&journal, u64::MAX), 0);
        assert_eq!(count(&journal, host.cookie()), 5);
    }

    #[test]
    fn all_namespaces_that_have_ended_are_forgotten_at_once() {
        let host = TestNetns::new("ended-full");
        let (mut journal, _dir) = journal(&[u64::MAX, host.cookie()]);
        forget_ended_namespaces(&mut journal);
        assert_eq!(count(&journal, u64::MAX), 0);
        assert_eq!(count(&journal, host.cookie()), 5);
    }
}
