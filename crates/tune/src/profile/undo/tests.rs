//! Tests undo in network namespaces of their own.

use taut_observe::namespaces;

use super::*;
use crate::actuate::sort_for_undo;
use crate::profile::setting_file::value;
use crate::profile::testing::{Host, tighten, undone};
use crate::profile::visit::VisitedNamespace;
use crate::testing::actuators;
use crate::undo::UndoSummary;

/// Undoes these entries, with the given way to wait.
fn undo_entries(
    host: &Host,
    entries: &[Entry],
    wait: impl FnMut(Duration) + Send,
) -> Vec<io::Result<UndoOutcome>> {
    let undo = || undo_all(entries, None, undo_once, wait);
    host.0.run(undo).unwrap()
}

#[test]
fn settings_that_are_gone_are_not_waited_for() {
    let host = Host::new("no-wait");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    host.ip("link set va mtu 1000");
    // Too small for IPv4; the settings of IPv6 stay on a loopback.
    host.ip("link set lo mtu 60");
    let entries: Vec<Entry> = actuators.journal().entries().cloned().collect();
    let undone = undo_entries(&host, &entries, |_| panic!("it waits"));
    let count = |is: UndoOutcome| undone.iter().flatten().filter(|undo| **undo == is).count();
    assert_eq!(
        (count(UndoOutcome::Restored), count(UndoOutcome::Gone)),
        (9, 2)
    );
}

#[test]
fn interfaces_that_are_being_renamed_are_waited_for_together() {
    let setting = |index| {
        Entry::new(
            Target::Setting(1, Setting::InterfaceRedirects(index)),
            value(1, None),
            value(0, None),
        )
    };
    let entries: Vec<Entry> = (0..1000).map(setting).collect();
    let pauses = std::cell::Cell::new(0);
    // One interface has its new name after the second pause, the others never.
    let once = |entry: &Entry| {
        let comes = *entry == setting(7) && pauses.get() == 2;
        Ok(comes.then_some(UndoOutcome::Restored))
    };
    let undone = undo_all(&entries, None, once, |_| pauses.set(pauses.get() + 1));
    assert_eq!(pauses.get(), PAUSES.len());
    for (entry, undone) in entries.iter().zip(undone) {
        match (*entry == setting(7), undone) {
            (true, undone) => assert_eq!(undone.unwrap(), UndoOutcome::Restored),
            // The entry stays in the journal.
            (false, undone) => assert_eq!(undone.unwrap_err().to_string(), NO_FILES),
        }
    }
    let never = |_: &Entry| panic!("there is no time for it");
    let late = Some(Instant::now());
    let undone = undo_all(&entries, late, never, |_| panic!("it waits"));
    assert!(undone.iter().all(Result::is_err));
}

#[test]
fn settings_without_time_stay_in_the_journal_and_are_restored_later() {
    let host = Host::new("late");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    let set = host.settings();
    let entries: Vec<Entry> = actuators.journal().entries().cloned().collect();
    let cookie = host.0.run(netns::cookie).unwrap().unwrap();
    let mut late = Deadline(Duration::ZERO);
    for undone in undo(&NamespaceIndex::read(), cookie, &entries, &mut late) {
        let error = undone.unwrap_err().to_string();
        assert!(error.contains("taut tune --undo"), "{error}");
    }
    assert_eq!(host.settings(), set);
    let mut summary = UndoSummary::default();
    actuators.undo_settings(
        &NamespaceIndex::read(),
        cookie,
        &entries,
        &mut late,
        &mut summary,
    );
    assert_eq!((summary.failed, summary.restored), (11, 0));
    assert_eq!(actuators.journal().entries().count(), 11);
    // This program's own namespace has no deadline.
    let own = namespaces::own().unwrap();
    assert!(late.end_of_visit(&own, Instant::now()).is_none());
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn the_own_namespace_is_undone_first_and_each_in_one_visit() {
    let host = Host::new("turns");
    let named = host.0.run(netns::cookie).unwrap().unwrap();
    let own = netns::cookie().unwrap();
    let targets = [
        Target::Setting(u64::MAX, Setting::SynCookies),
        Target::Setting(named, Setting::SynCookies),
        Target::SendMaximum(named),
        Target::Setting(own, Setting::KeepaliveTime),
        Target::SendBuffer(1),
        Target::Setting(named, Setting::InterfaceRedirects(1)),
        Target::ReceiveMaximum(own),
        Target::Setting(own, Setting::SynCookies),
    ];
    let entry = |&target: &&Target| Entry::new(target.clone(), value(1, None), value(0, None));
    let mut entries: Vec<Entry> = targets.iter().map(|target| entry(&target)).collect();
    sort_for_undo(&mut entries, &NamespaceIndex::read());
    let order = [6, 3, 7, 4, 2, 1, 5, 0].map(|at: usize| &targets[at]);
    let found: Vec<&Target> = entries.iter().map(|entry| &entry.target).collect();
    assert_eq!(found, order);
}
