//! One process at a time tunes a network namespace.
//!
//! Two would undo each other's changes, and the second would record the first one's values as the
//! original ones. So a process holds a lock of the namespace that it was started for, and one more
//! there if it tunes all others, too. It holds none in the others, because an open socket keeps a
//! namespace alive: there it only looks whether another process has the lock.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use taut_observe::namespaces::Namespace;
use taut_sys::netns::NetnsId;
use taut_sys::netns_lock::{Exclusive, NetnsLock};

/// The lock of the namespaces that this process may change.
#[derive(Debug)]
pub(crate) struct TuningLock {
    /// Whether this process tunes all namespaces that it finds.
    is_of_all: bool,
    /// The namespace that this process was started for: the first one that it finds.
    first: Option<NetnsId>,
    /// The lock of the first namespace.
    of_first: Option<NetnsLock>,
    /// The lock of all others, which is in the first one.
    of_others: Option<NetnsLock>,
    /// The namespaces that another process tunes, by name.
    foreign: HashSet<Arc<str>>,
    /// Whether a failure to take a lock was reported.
    has_reported: bool,
}

/// What has changed since the last scan.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LockChanges {
    /// The namespaces that another process tunes since.
    pub(crate) lost: Vec<Arc<str>>,
    /// The namespaces that no other process tunes any more.
    pub(crate) won: Vec<NetnsId>,
}

// === impl TuningLock ===

impl TuningLock {
    pub(crate) fn new(is_of_all: bool) -> Self {
        Self {
            is_of_all,
            first: None,
            of_first: None,
            of_others: None,
            foreign: HashSet::new(),
            has_reported: false,
        }
    }

    /// Takes the locks that are free, and finds the namespaces that others tune. The first namespace
    /// is the one that this process was started for.
    pub(crate) fn scan(&mut self, namespaces: &[Namespace]) -> LockChanges {
        if let Some(first) = namespaces.first() {
            if self.first != Some(first.id) {
                // A namespace that is no longer found is not kept alive.
                (self.of_first, self.of_others) = (None, None);
                self.first = Some(first.id);
            }
            if let Err(error) = self.take(first)
                && !std::mem::replace(&mut self.has_reported, true)
            {
                tracing::warn!(
                    %error,
                    "nothing is changed: the lock of this network namespace cannot be taken (it needs CAP_NET_BIND_SERVICE)"
                );
            }
        }
        let mut changes = LockChanges::default();
        let before = std::mem::take(&mut self.foreign);
        for namespace in namespaces {
            let is_foreign = match self.first == Some(namespace.id) {
                true => self.of_first.is_none(),
                false => self.of_others.is_none() || is_taken(namespace, Exclusive::Tuning),
            };
            match (before.contains(&namespace.name), is_foreign) {
                (false, true) => changes.lost.push(Arc::clone(&namespace.name)),
                (true, false) => changes.won.push(namespace.id),
                _ => {}
            }
            if is_foreign {
                self.foreign.insert(Arc::clone(&namespace.name));
            }
        }
        changes
    }

    /// Returns whether another process tunes the namespace with this name, as of the last scan.
    pub(crate) fn is_foreign(&self, namespace: &str) -> bool {
        self.foreign.contains(namespace)
    }

    /// Returns whether another process tunes this namespace now. For undoing, which also happens
    /// before the first scan.
    pub(crate) fn is_foreign_now(&self, namespace: &Namespace) -> bool {
        let is_first = self.first == Some(namespace.id);
        if is_first && self.of_first.is_some() {
            return false;
        }
        // A process that tunes all namespaces was started in this process's own one, and holds no
        // lock in others.
        is_taken(namespace, Exclusive::Tuning)
            || self.of_others.is_none()
                && NetnsLock::is_taken(Exclusive::TuningOfAll).unwrap_or_default()
    }

    /// Takes the locks in the first namespace that are free.
    fn take(&mut self, first: &Namespace) -> io::Result<()> {
        let take = |what| match first.run(|| NetnsLock::take(what)) {
            Ok(Some(taken)) => taken,
            // The namespace has ended.
            Ok(None) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        };
        if self.is_of_all && self.of_others.is_none() {
            self.of_others = take(Exclusive::TuningOfAll)?;
        }
        if self.of_first.is_none() {
            self.of_first = take(Exclusive::Tuning)?;
            // Looked for after taking the own lock, as the process that has it looks for this one
            // after taking that: at least one of the two sees the other.
            let others_all = || NetnsLock::is_taken(Exclusive::TuningOfAll);
            if self.of_first.is_some() && self.of_others.is_none() && others_all()? {
                self.of_first = None;
            }
        }
        Ok(())
    }
}

/// Returns whether a process has the lock in a namespace. One that has ended, or cannot be entered,
/// cannot be changed either.
fn is_taken(namespace: &Namespace, what: Exclusive) -> bool {
    matches!(
        namespace.run(|| NetnsLock::is_taken(what)),
        Ok(Some(Ok(true)))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestNetns;

    fn names(changes: &LockChanges) -> Vec<&str> {
        changes.lost.iter().map(|name| &**name).collect()
    }

    #[test]
    fn the_second_process_waits_until_the_first_has_ended() {
        let host = TestNetns::new("lock-two");
        let here = [host.namespace()];
        host.run(|| {
            let (mut first, mut second) = (TuningLock::new(false), TuningLock::new(false));
            assert_eq!(first.scan(&here), LockChanges::default());
            assert_eq!(names(&second.scan(&here)), [host.name()]);
            // It is said once.
            assert_eq!(second.scan(&here), LockChanges::default());
            assert!(second.is_foreign(host.name()) && second.is_foreign_now(&here[0]));
            drop(first);
            assert_eq!(second.scan(&here).won, [here[0].id]);
            assert!(!second.is_foreign(host.name()) && !second.is_foreign_now(&here[0]));
        })
        .unwrap();
    }

    #[test]
    fn a_tuner_of_all_namespaces_leaves_those_of_others_alone_and_keeps_the_rest() {
        let [host, web, mail] = ["lock-host", "lock-web", "lock-mail"].map(TestNetns::new);
        let all = [host.namespace(), web.namespace(), mail.namespace()];
        host.run(|| {
            let mut of_host = TuningLock::new(false);
            assert_eq!(of_host.scan(&all[..1]), LockChanges::default());
            let mut of_web = TuningLock::new(false);
            assert_eq!(of_web.scan(&all[1..2]), LockChanges::default());
            let mut of_all = TuningLock::new(true);
            assert_eq!(names(&of_all.scan(&all)), [host.name(), web.name()]);
            // Those that were there first go on.
            assert_eq!(of_host.scan(&all[..1]), LockChanges::default());
            assert_eq!(of_web.scan(&all[1..2]), LockChanges::default());
            drop((of_host, of_web));
            assert_eq!(of_all.scan(&all).won, [all[0].id, all[1].id]);
            for is_of_all in [false, true] {
                let mut late = TuningLock::new(is_of_all);
                assert_eq!(names(&late.scan(&all[..1])), [host.name()]);
            }
            let mut late = TuningLock::new(false);
            assert_eq!(names(&late.scan(&all[2..])), [mail.name()]);
            assert!(late.is_foreign_now(&all[2]));
        })
        .unwrap();
    }

    #[test]
    fn a_namespace_that_is_no_longer_found_is_let_go() {
        let [goes, comes] = ["lock-goes", "lock-comes"].map(TestNetns::new);
        let (first, next) = ([goes.namespace()], [comes.namespace()]);
        goes.run(|| {
            let (mut moves, mut waits) = (TuningLock::new(false), TuningLock::new(false));
            moves.scan(&first);
            assert_eq!(names(&waits.scan(&first)), [goes.name()]);
            moves.scan(&next);
            assert_eq!(waits.scan(&first).won, [first[0].id]);
        })
        .unwrap();
    }
}
