//! Tests undo in network namespaces of their own.

use super::*;
use crate::actuate::sort_for_undo;
use crate::profile::setting_file::value;
use crate::profile::testing::Host;

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
