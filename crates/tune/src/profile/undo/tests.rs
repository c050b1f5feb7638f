//! Tests undo in network namespaces of their own.

use super::*;
use crate::actuate::sort_for_undo;
use crate::profile::setting_file::value;
use crate::profile::testing::{Host, tighten, undone};
use crate::profile::visit::VisitedNamespace;
use crate::testing::actuators;

#[test]
fn settings_without_time_stay_in_the_journal_and_are_restored_later() {
    let host = Host::new("late");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    let entries: Vec<Entry> = actuators.journal().entries().cloned().collect();
    let cookie = host.0.run(netns::cookie).unwrap().unwrap();
    let index = NamespaceIndex::read();
    let mut left = Duration::ZERO;
    for undone in undo(&index, cookie, &entries, &mut left) {
        let error = undone.unwrap_err().to_string();
        assert!(error.contains("taut tune --undo"), "{error}");
    }
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
