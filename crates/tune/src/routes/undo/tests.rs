//! Tests the routes of the tests' own network namespaces.

use super::*;
use crate::actuate::undo::undo_maximum;
use crate::demand::Direction;
use crate::routes::apply::{self, target};
use crate::routes::metrics::Metrics;
use crate::routes::testing::{RouteHost, TWENTY, list};
use crate::testing::actuators;
use crate::undo::UndoSummary;

#[test]
fn routes_are_undone_together_and_those_without_time_stay_in_the_journal() {
    const COUNT: usize = 1000;
    let host = RouteHost::new("together");
    let lines = (0..COUNT).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    host.batch(&lines.collect::<Vec<_>>());
    let before = host.routes();
    let (mut actuators, _dir) = actuators();
    let mut table = host.table();
    for route in &list(&mut table) {
        let set = apply::set(actuators.journal_mut(), &mut table, route, TWENTY, TWENTY);
        assert_eq!(set.unwrap(), RouteOutcome::Set);
    }
    let entries = actuators.journal().entries().cloned();
    let entries = entries.map(|entry| match entry.target {
        Target::Route { key, .. } => (key, entry),
        _ => panic!("{entry:?}"),
    });
    let entries = entries.collect::<Vec<_>>();
    let index = NamespaceIndex::of([(table.cookie(), host.namespace.clone())]);
    // The deadline is checked for each datagram of a dump, and for each route.
    let asked = std::cell::Cell::new(0);
    let until = |most: usize| {
        asked.set(0);
        let goes_on = || asked.replace(asked.get() + 1) < most;
        let results = undo_in(&index, table.cookie(), &entries, &goes_on);
        let is_left = |result: &&Result<UndoOutcome, RouteError>| {
            matches!(result, Err(RouteError::NotUndone { .. }))
        };
        assert_eq!(results.len(), COUNT);
        results.iter().filter(is_left).count()
    };
    assert_eq!(until(0), COUNT);
    let left = until(COUNT / 2);
    assert!(left > COUNT / 2 && left < COUNT, "{left}");
    assert_eq!(until(2 * COUNT), 0);
    assert!(asked.get() < COUNT + COUNT / 2);
    assert_eq!(host.routes(), before);
}

#[test]
fn nothing_is_undone_in_a_namespace_that_took_the_inode_of_another() {
    let mut host = RouteHost::new("place");
    let line = "route add default via 10.9.0.2 initcwnd 20";
    let mut actuators = actuators();
    // The kernel reuses inodes sooner or later.
    let mut gone = HashMap::new();
    for _ in 0..1000 {
        let last = (host.table().cookie(), host.namespace.clone());
        gone.insert(host.namespace.id, last);
        drop(host);
        host = RouteHost::new("place");
        let Some((cookie, was)) = gone.remove(&host.namespace.id) else {
            continue;
        };
        host.ip(line);
        let before = host.routes();
        let key = list(&mut host.table())[0].key;
        let (before_change, after) = (Value::Route(Metrics::default()), Value::Route(TWENTY));
        let entry = Entry::new(target(cookie, key), before_change, after);
        let index = NamespaceIndex::of([(cookie, was.clone())]);
        let undone = undo(&index, vec![entry]);
        assert!(
            matches!(undone[..], [(_, Ok(UndoOutcome::Gone))]),
            "{undone:?}"
        );
        assert_eq!(host.routes(), before);
        // A maximum of an ended namespace also counts as gone.
        let maximum = || {
            crate::sysctl::read(&was, "net/ipv4/tcp_wmem")
                .unwrap()
                .unwrap()
        };
        let (of, text) = maximum();
        assert_ne!(of, cookie);
        let entry = Entry::new(
            Target::SendMaximum(cookie),
            Value::Text("4096\t16384\t77777".to_owned()),
            Value::Text(text.clone()),
        );
        let undone = undo_maximum(&index, cookie, Direction::Send, &entry);
        assert_eq!(undone.unwrap(), UndoOutcome::Gone);
        let written = crate::sysctl::write(&was, cookie, "net/ipv4/tcp_wmem", "4096\t16384\t77777");
        assert!(!written.unwrap());
        assert_eq!(maximum().1, text);
        assert_eq!(actuators.0.undo(), UndoSummary::default());
        return;
    }
    panic!("no namespace has got the inode of another");
}
