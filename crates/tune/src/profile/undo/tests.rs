//! On namespaces of the tests' own.

use taut_observe::namespaces;

use super::*;
use crate::actuate::Undone;
use crate::profile::setting_file::value;
use crate::profile::testing::{Host, actuators, tighten, undone};
use crate::profile::visit::Space;

/// As undoing does it, with everything else as it is given.
fn undo_entries(
    host: &Host,
    entries: &[Entry],
    wait: impl FnMut(Duration) + Send,
) -> Vec<io::Result<Undo>> {
    let undo = || together(entries, None, undo_once, wait);
    host.0.run(undo).unwrap()
}

#[test]
fn settings_that_are_gone_are_not_waited_for() {
    let host = Host::new("no-wait");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    host.ip("link set va mtu 1000");
    // Too little for IPv4; what a loopback has of IPv6 stays.
    host.ip("link set lo mtu 60");
    let entries: Vec<Entry> = actuators.journal().entries().cloned().collect();
    let undone = undo_entries(&host, &entries, |_| panic!("it waits"));
    let count = |is: Undo| undone.iter().flatten().filter(|undo| **undo == is).count();
    assert_eq!((count(Undo::Restored), count(Undo::Gone)), (9, 2));
}

#[test]
fn interfaces_that_are_being_called_otherwise_are_waited_for_together() {
    let setting = |index| Entry {
        thing: Thing::Setting(1, Setting::InterfaceRedirects(index)),
        before: value(1, None),
        after: value(0, None),
        earlier: None,
        largest: 0,
    };
    let entries: Vec<Entry> = (0..1000).map(setting).collect();
    let pauses = std::cell::Cell::new(0);
    // One has its new name after the second pause, the others never.
    let once = |entry: &Entry| {
        let comes = *entry == setting(7) && pauses.get() == 2;
        Ok(comes.then_some(Undo::Restored))
    };
    let undone = together(&entries, None, once, |_| pauses.set(pauses.get() + 1));
    assert_eq!(pauses.get(), PAUSES.len());
    for (entry, undone) in entries.iter().zip(undone) {
        match (*entry == setting(7), undone) {
            (true, undone) => assert_eq!(undone.unwrap(), Undo::Restored),
            // It stays in the journal.
            (false, undone) => assert_eq!(undone.unwrap_err().to_string(), NO_FILES),
        }
    }
    let never = |_: &Entry| panic!("there is no time for it");
    let late = Some(Instant::now());
    let undone = together(&entries, late, never, |_| panic!("it waits"));
    assert!(undone.iter().all(Result::is_err));
}

#[test]
fn what_there_is_no_time_for_stays_in_the_journal_and_is_undone_later() {
    let host = Host::new("late");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    let set = host.settings();
    let entries: Vec<Entry> = actuators.journal().entries().cloned().collect();
    let cookie = host.0.run(netns::cookie).unwrap().unwrap();
    let mut late = Deadline(Duration::ZERO);
    for undone in undo(&Spaces::now(), cookie, &entries, &mut late) {
        let error = undone.unwrap_err().to_string();
        assert!(error.contains("taut tune --undo"), "{error}");
    }
    assert_eq!(host.settings(), set);
    let mut told = Undone::default();
    actuators.undo_profile(&Spaces::now(), cookie, &entries, &mut late, &mut told);
    assert_eq!((told.failed, told.restored), (11, 0));
    assert_eq!(actuators.journal().entries().count(), 11);
    // One's own are undone, however late it is.
    let own = namespaces::own().unwrap();
    assert!(late.of(&own, Instant::now()).is_none());
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn the_own_namespace_has_its_turn_first_and_each_has_one() {
    let host = Host::new("turns");
    let named = host.0.run(netns::cookie).unwrap().unwrap();
    let own = netns::cookie().unwrap();
    let things = [
        Thing::Setting(u64::MAX, Setting::SynCookies),
        Thing::Setting(named, Setting::SynCookies),
        Thing::SendMaximum(named),
        Thing::Setting(own, Setting::KeepaliveTime),
        Thing::SendBuffer(1),
        Thing::Setting(named, Setting::InterfaceRedirects(1)),
        Thing::ReceiveMaximum(own),
        Thing::Setting(own, Setting::SynCookies),
    ];
    let entry = |&thing: &&Thing| Entry {
        thing: thing.clone(),
        before: value(1, None),
        after: value(0, None),
        earlier: None,
        largest: 0,
    };
    let mut entries: Vec<Entry> = things.iter().map(|thing| entry(&thing)).collect();
    crate::actuate::order(&mut entries, &Spaces::now());
    let order = [6, 3, 7, 4, 2, 1, 5, 0].map(|at: usize| &things[at]);
    let found: Vec<&Thing> = entries.iter().map(|entry| &entry.thing).collect();
    assert_eq!(found, order);
}
