//! Tests the routes of the tests' own network namespaces.

use std::cell::Cell;

use super::*;
use crate::actuate::Actuators;
use crate::journal::{Entry, Target, Value};
use crate::routes::testing::{RouteHost, TWENTY};
use crate::testing::actuators;

/// Returns the commands that add this many default routes.
fn defaults(count: usize) -> Vec<String> {
    let lines = (0..count).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    lines.collect()
}

fn twenty() -> RouteTuner {
    RouteTuner::new(Vec::new(), TWENTY)
}

fn scan(
    routes: &mut RouteTuner,
    number: u64,
    hosts: &[&RouteHost],
    actuators: &mut Actuators,
    ends: &dyn Fn() -> bool,
) -> RouteScan {
    let namespaces: Vec<_> = hosts.iter().map(|host| host.namespace.clone()).collect();
    let cookies = hosts.iter().map(|host| (host.namespace.id, host.cookie()));
    let journal = Some(actuators.journal_mut());
    routes.scan(number, &namespaces, &cookies.collect(), journal, ends)
}

#[test]
fn a_scan_can_end_between_two_routes_and_the_rest_is_set_soon() {
    const COUNT: usize = 500;
    let mut lines = defaults(COUNT);
    // A route that is listed last.
    lines.push("route add 10.20.0.0/16 via 10.9.0.2 initcwnd 20".to_owned());
    let host = RouteHost::with_routes("ends", &lines);
    let (mut actuators, _dir) = actuators();
    let selectors = ["default", "10.20.0.0/16"].map(|text| text.parse().unwrap());
    let mut routes = RouteTuner::new(selectors.into(), TWENTY);
    let asked = Cell::new(0);
    let ends = || asked.replace(asked.get() + 1) >= 50;
    let result = scan(&mut routes, 1, &[&host], &mut actuators, &ends);
    assert!(!result.reports.is_empty() && result.reports.len() < 50);
    assert!(result.problems.is_empty());
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    let rest = COUNT - result.reports.len();
    assert_eq!(actuators.journal().entries().count(), result.reports.len());
    let result = scan(&mut routes, 2, &[&host], &mut actuators, &|| false);
    assert_eq!(result.reports.len(), 0);
    let result = scan(
        &mut routes,
        1 + RETRY_SCANS,
        &[&host],
        &mut actuators,
        &|| false,
    );
    assert_eq!(result.reports.len(), rest);
    assert_eq!(actuators.undo().restored, COUNT);
}

#[test]
fn routes_that_cannot_be_listed_are_reported_once_and_none_as_missing() {
    let host = RouteHost::with_routes("unknown", &defaults(MAX_ROUTES + 1));
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let result = scan(&mut routes, 1, &[&host], &mut actuators, &|| false);
    assert_eq!(result.reports.len(), 0);
    assert_eq!(result.problems.len(), 1);
    assert!(result.problems[0].contains("more than 4096 of them"));
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    let result = scan(
        &mut routes,
        1 + RETRY_SCANS,
        &[&host],
        &mut actuators,
        &|| false,
    );
    assert_eq!(result.problems.len(), 0);
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    host.batch(&["route flush default".to_owned()]);
    scan(
        &mut routes,
        1 + 2 * RETRY_SCANS,
        &[&host],
        &mut actuators,
        &|| false,
    );
    assert_eq!(routes.unmatched(), ["default"]);
    assert_eq!(routes.unmatched(), Vec::<String>::new());
}

#[test]
fn a_namespace_that_has_the_inode_of_another_is_visited() {
    let host = RouteHost::with_routes("inode", &defaults(1));
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let gone = NamespaceState {
        is_listed: true,
        ..NamespaceState::new(host.cookie() + 1, 1000)
    };
    routes.namespaces.insert(host.namespace.id, gone);
    let result = scan(&mut routes, 2, &[&host], &mut actuators, &|| false);
    assert_eq!(result.reports.len(), 1);
    // The routes are reported only once.
    let result = scan(&mut routes, 3, &[&host], &mut actuators, &|| false);
    assert_eq!(result.reports.len(), 0);
}

#[test]
fn other_namespaces_leave_room_in_the_journal_for_the_first() {
    let (first, other) = (
        RouteHost::with_routes("first", &defaults(2)),
        RouteHost::with_routes("other", &defaults(2)),
    );
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let key = RouteKey {
        destination: std::net::Ipv4Addr::UNSPECIFIED.into(),
        length: 0,
        tos: 0,
        priority: 0,
    };
    for at in 0..MAX_ROUTES_OF_OTHERS {
        let priority = u32::try_from(at).unwrap();
        let netns = u64::MAX;
        let key = RouteKey { priority, ..key };
        let entry = Entry::new(
            Target::Route { netns, key },
            Value::Route(Metrics::default()),
            Value::Route(TWENTY),
        );
        actuators.journal_mut().note(entry).unwrap();
    }
    let hosts = [&first, &other];
    let result = scan(&mut routes, 1, &hosts, &mut actuators, &|| false);
    assert_eq!(result.reports.len(), 2);
    assert!(
        result
            .reports
            .iter()
            .all(|report| *report.netns == *first.namespace.name)
    );
    assert_eq!(result.problems.len(), 1);
    assert!(result.problems[0].contains(&*other.namespace.name));
    // After the undo there is room again.
    assert_eq!(actuators.undo().restored, 2);
    let result = scan(
        &mut routes,
        1 + REPEAT_SCANS,
        &hosts,
        &mut actuators,
        &|| false,
    );
    assert_eq!((result.reports.len(), result.problems.len()), (4, 0));
}

#[test]
fn reports_of_one_namespace_do_not_suppress_those_of_another() {
    let chosen: Vec<String> = (0..=MAX_REPORTED)
        .map(|at| format!("route add default via 10.9.0.2 initcwnd 7 metric {at}"))
        .collect();
    let hosts = [
        RouteHost::with_routes("loud", &chosen),
        RouteHost::with_routes("quiet", &chosen[..1]),
    ];
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let hosts = [&hosts[0], &hosts[1]];
    let result = scan(&mut routes, 1, &hosts, &mut actuators, &|| false);
    assert_eq!(result.reports.len(), MAX_REPORTED + 1);
    assert_eq!(result.problems.len(), 1);
    assert!(result.problems[0].contains("more are left as they are than are reported"));
    let result = scan(
        &mut routes,
        1 + REPEAT_SCANS,
        &hosts,
        &mut actuators,
        &|| false,
    );
    assert_eq!((result.reports.len(), result.problems.len()), (0, 0));
}

#[test]
fn the_namespace_that_has_waited_longest_is_visited_first() {
    let hosts = [
        RouteHost::new("turn-first"),
        RouteHost::with_routes("turn-slow", &defaults(100)),
        RouteHost::with_routes("turn-next", &defaults(1)),
    ];
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let hosts = [&hosts[0], &hosts[1], &hosts[2]];
    let asked = Cell::new(0);
    let ends = || asked.replace(asked.get() + 1) >= 50;
    let result = scan(&mut routes, 1, &hosts, &mut actuators, &ends);
    assert!(!result.reports.is_empty() && result.reports.len() < 50);
    let result = scan(
        &mut routes,
        1 + RETRY_SCANS,
        &hosts,
        &mut actuators,
        &|| false,
    );
    assert_eq!(*result.reports[0].netns, *hosts[2].namespace.name);
    assert_eq!(actuators.undo().restored, 101);
}
