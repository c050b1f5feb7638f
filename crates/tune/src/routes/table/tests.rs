//! Tests the routes of the tests' own network namespaces.

use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::IpNet;

use super::*;
use crate::actuate::Actuators;
use crate::journal::{Entry, Value};
use crate::routes::apply::{self, target};
use crate::routes::message::Obstacle;
use crate::routes::testing::{RouteHost, TWENTY, list};
use crate::testing::actuators;
use crate::undo::UndoSummary;

fn set(actuators: &mut Actuators, table: &mut RouteTable, route: &Route) -> RouteOutcome {
    apply::set(actuators.journal_mut(), table, route, TWENTY, TWENTY).unwrap()
}

#[test]
fn a_route_is_set_and_set_back() {
    let host = RouteHost::new("set");
    host.ip("route add default via 10.9.0.2 metric 5 mtu 1400");
    let before = host.routes();
    let (mut actuators, _dir) = actuators();
    let mut table = host.table();
    let routes = list(&mut table);
    assert_eq!(
        set(&mut actuators, &mut table, &routes[0]),
        RouteOutcome::Set
    );
    assert!(host.routes().contains("mtu 1400 initcwnd 20"));
    let restored = UndoSummary {
        restored: 1,
        ..UndoSummary::default()
    };
    assert_eq!(actuators.undo(), restored);
    assert_eq!(host.routes(), before);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn a_route_that_another_program_changes_after_the_list_stays() {
    let host = RouteHost::new("meanwhile");
    host.ip("route add default via 10.9.0.2");
    let (mut actuators, dir) = actuators();
    let mut table = host.table();
    let listed = list(&mut table);
    host.ip("route replace default via 10.9.0.3 mtu 1300");
    let theirs = host.routes();
    assert_eq!(
        set(&mut actuators, &mut table, &listed[0]),
        RouteOutcome::ChangedMeanwhile
    );
    // Only the first line was ever written.
    let journal = std::fs::read_to_string(dir.path().join("journal")).unwrap();
    assert_eq!(journal.lines().count(), 1, "{journal}");
    assert_eq!(host.routes(), theirs);
    assert_eq!(actuators.journal().entries().count(), 0);
    // The next list has the other program's route.
    let listed = list(&mut table);
    assert_eq!(
        set(&mut actuators, &mut table, &listed[0]),
        RouteOutcome::Set
    );
    assert!(host.routes().contains("via 10.9.0.3 dev v0"));
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(host.routes(), theirs);
}

#[test]
fn a_route_that_another_program_changes_at_the_last_moment_is_put_back() {
    let host = RouteHost::new("last");
    host.ip("route add default via 10.9.0.2");
    let mut table = host.table();
    let listed = list(&mut table);
    table.read_notifications(None).unwrap();
    host.ip("route replace default via 10.9.0.3 mtu 1300 initcwnd 7");
    let theirs = host.routes();
    assert_eq!(
        table.replace(&listed[0], TWENTY).unwrap(),
        RouteOutcome::ChangedMeanwhile
    );
    assert_eq!(host.routes(), theirs);
}

#[test]
fn a_route_that_may_not_be_restored_is_reported() {
    let host = RouteHost::new("back");
    host.ip("-6 route add default dev v0 metric 7");
    let mut table = host.table();
    let listed = list(&mut table);
    table.read_notifications(None).unwrap();
    host.ip("-6 route replace default dev v0 metric 7 expires 900");
    let made = table.replace(&listed[0], TWENTY);
    assert!(
        matches!(made, Err(RouteError::NotRestored { .. })),
        "{made:?}"
    );
}

#[test]
fn a_removed_route_is_not_added_again() {
    let host = RouteHost::new("gone");
    for line in [
        "route add default via 10.9.0.2",
        "-6 route add default dev v0 metric 7",
    ] {
        host.ip(line);
    }
    let (mut actuators, _dir) = actuators();
    let mut table = host.table();
    let listed = list(&mut table);
    host.ip("route delete default");
    host.ip("-6 route delete default");
    let without = (host.routes(), host.ip("-6 -d route show table all"));
    assert_eq!(listed.len(), 2);
    for route in &listed {
        assert_eq!(table.replace(route, TWENTY).unwrap(), RouteOutcome::Gone);
    }
    host.ip("route add default via 10.9.0.2");
    let listed = list(&mut table);
    assert_eq!(
        set(&mut actuators, &mut table, &listed[0]),
        RouteOutcome::Set
    );
    host.ip("route delete default");
    assert_eq!(actuators.undo().gone, 1);
    let now = (host.routes(), host.ip("-6 -d route show table all"));
    assert_eq!(now, without);
}

#[test]
fn a_route_that_has_become_ambiguous_is_not_undone_and_stays_in_the_journal() {
    let host = RouteHost::new("beside");
    host.ip("route add default via 10.9.0.2");
    let (mut actuators, _dir) = actuators();
    let mut table = host.table();
    let listed = list(&mut table);
    assert_eq!(
        set(&mut actuators, &mut table, &listed[0]),
        RouteOutcome::Set
    );
    host.ip("route prepend default via 10.9.0.3");
    let both = host.routes();
    assert_eq!(actuators.undo().failed, 1);
    assert_eq!(host.routes(), both);
    host.ip("route delete default via 10.9.0.3");
    assert_eq!(actuators.undo().restored, 1);
    assert!(!host.routes().contains("initcwnd"));
}

#[test]
fn a_change_that_the_kernel_acknowledges_but_does_not_make_fails() {
    let host = RouteHost::new("object");
    host.ip("nexthop add id 7 via 10.9.0.2 dev v0");
    host.ip("route add default nhid 7 initcwnd 20");
    let mut table = host.table();
    let listed = list(&mut table);
    // This is why such routes are left alone.
    assert_eq!(listed[0].obstacle(), Some(Obstacle::NexthopObject));
    let made = table.replace(&listed[0], Metrics::default());
    assert!(
        matches!(made, Err(RouteError::NotApplied { .. })),
        "{made:?}"
    );
}

#[test]
fn no_journal_changes_more_of_a_route_than_its_two_metrics() {
    let host = RouteHost::new("journal");
    host.ip("route add default via 10.9.0.2 initcwnd 20");
    let before = host.routes();
    let mut table = host.table();
    let key = list(&mut table)[0].key;
    let none = Metrics::default();
    let (mut actuators, _dir) = actuators();
    let mut undone = |key, before, after| {
        let target = target(table.cookie, key);
        let entry = Entry::new(target, before, after);
        actuators.journal_mut().note(entry).unwrap();
        actuators.undo()
    };
    let route = Value::Route;
    // An invalid destination, routes that do not exist, and a value of another kind.
    for nowhere in [
        RouteKey { length: 99, ..key },
        RouteKey { length: 9, ..key },
        RouteKey { priority: 3, ..key },
        RouteKey { tos: 3, ..key },
    ] {
        assert_eq!(undone(nowhere, route(none), route(TWENTY)).gone, 1);
    }
    let text = Value::Text("default via 10.9.0.9".to_owned());
    assert_eq!(undone(key, text, route(TWENTY)).failed, 1);
    assert_eq!(host.routes(), before);
}

/// Returns this many IPv6 destinations below a prefix, and the commands that add routes to them.
fn many(below: &str, count: usize) -> (Vec<IpNet>, Vec<String>) {
    let nets = (0..count).map(|at| format!("{below}:{at:x}::/64"));
    let lines = nets.clone().map(|net| format!("route add {net} dev v0"));
    (
        nets.map(|net| net.parse().unwrap()).collect(),
        lines.collect(),
    )
}

#[test]
fn a_route_that_a_list_misses_is_not_taken_to_be_gone() {
    const COUNT: usize = 300;
    let host = RouteHost::new("misses");
    let (nets, lines) = many("2001:db8", COUNT);
    let (_, others) = many("2001:db7", 2000);
    host.batch(&[lines, others.clone()].concat());
    let before = host.ip("-6 -d route show");
    let (mut actuators, _dir) = actuators();
    let mut table = host.table_of(&nets);
    let listed = table.list(LIST_TRIES, &|| true).unwrap();
    assert_eq!(listed.len(), COUNT);
    for route in &listed {
        assert_eq!(set(&mut actuators, &mut table, route), RouteOutcome::Set);
    }
    let churn = others.iter().flat_map(|line| {
        let delete = line.replace("add", "delete");
        [delete, line.clone()]
    });
    let churn: Vec<String> = churn.collect();
    let ends = &AtomicBool::new(false);
    let mut restored = 0;
    std::thread::scope(|scope| {
        let (host, churn) = (&host, &churn);
        scope.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                host.batch(churn);
            }
        });
        // The other thread ends even if an assertion fails here.
        let tries = || {
            let mut unsteady = 0;
            while unsteady < 50 {
                match table.list(1, &|| true) {
                    Ok(listed) => assert_eq!(listed.len(), COUNT),
                    Err(RouteError::Unsteady { .. }) => unsteady += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            for _ in 0..3 {
                let undone = actuators.undo();
                assert_eq!((undone.gone, undone.foreign), (0, 0), "{undone:?}");
                restored += undone.restored;
                assert_eq!(undone.failed, COUNT - restored);
            }
        };
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tries));
        ends.store(true, Ordering::Relaxed);
        if let Err(panic) = tried {
            std::panic::resume_unwind(panic);
        }
    });
    restored += actuators.undo().restored;
    assert_eq!(restored, COUNT);
    let now = host.ip("-6 -d route show");
    assert_eq!(now, before);
}

#[test]
fn a_route_that_the_kernel_refuses_is_not_in_the_journal() {
    let host = RouteHost::new("refused");
    host.ip("link add w0 type veth peer name w1");
    host.ip("link set w0 up");
    host.ip("link set w1 up");
    host.ip("address add 10.8.0.1/24 dev w0");
    host.ip("route add default nexthop via 10.9.0.2 dev v0 nexthop via 10.8.0.2 dev w0");
    host.ip("link set w0 down");
    let (mut actuators, _dir) = actuators();
    let mut table = host.table();
    let listed = list(&mut table);
    let made = apply::set(
        actuators.journal_mut(),
        &mut table,
        &listed[0],
        TWENTY,
        TWENTY,
    );
    assert!(matches!(made, Err(RouteError::Replace { .. })), "{made:?}");
    assert_eq!(actuators.journal().entries().count(), 0);
    host.ip("route replace default via 10.9.0.2 initcwnd 20 mtu 1400");
    let theirs = host.routes();
    assert_eq!(actuators.undo(), UndoSummary::default());
    assert_eq!(host.routes(), theirs);
}

#[test]
fn a_namespace_with_too_many_routes_is_left_alone() {
    let host = RouteHost::new("many");
    let lines = (0..=MAX_ROUTES).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    let lines: Vec<String> = lines.collect();
    host.batch(&lines);
    let mut table = host.table();
    let listed = table.list(LIST_TRIES, &|| true);
    assert!(matches!(listed, Err(RouteError::TooMany { .. })));
    host.ip("route delete default metric 7");
    assert_eq!(list(&mut table).len(), MAX_ROUTES);
    let listed = table.list(LIST_TRIES, &|| false);
    assert!(matches!(listed, Err(RouteError::List { .. })));
}
