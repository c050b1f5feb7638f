//! On routes of namespaces of their own.

use std::cell::Cell;
use std::io::Write as _;
use std::process::{Command, Stdio};

use taut_observe::namespaces;
use taut_sys::netns::{self, Netns};

use super::*;
use crate::journal::{Entry, Journal, Thing, Value};

/// A namespace with a link over which routes can go. It goes with this.
struct Host {
    namespace: Namespace,
    netns: Netns,
}

impl Host {
    fn new(name: &str, lines: &[String]) -> Self {
        let name = format!("taut-tune-{}-{name}", std::process::id());
        let netns = Netns::create(&name)
            .expect("this test makes network namespaces and must run as root; `make test` does");
        let host = Self {
            namespace: namespaces::named(&name).unwrap(),
            netns,
        };
        host.batch(&[
            "link add v0 type veth peer name v1".to_owned(),
            "link set v0 up".to_owned(),
            "link set v1 up".to_owned(),
            "address add 10.9.0.1/24 dev v0".to_owned(),
        ]);
        host.batch(lines);
        host
    }

    fn batch(&self, lines: &[String]) {
        let mut command = Command::new("ip");
        command.args(["-n", self.netns.name(), "-batch", "-"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let text = lines.join("\n") + "\n";
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }

    fn cookie(&self) -> u64 {
        self.netns.run(netns::cookie).unwrap().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(self.netns.name());
    }
}

/// Default routes.
fn defaults(count: usize) -> Vec<String> {
    let lines = (0..count).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    lines.collect()
}

fn twenty() -> Routes {
    let asked = Metrics {
        initcwnd: Some(20),
        initrwnd: None,
    };
    Routes::new(Vec::new(), asked)
}

fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal), dir)
}

fn look(
    routes: &mut Routes,
    look: u64,
    hosts: &[&Host],
    actuators: &mut Actuators,
    ends: &dyn Fn() -> bool,
) -> Seen {
    let namespaces: Vec<_> = hosts.iter().map(|host| host.namespace.clone()).collect();
    let cookies = hosts.iter().map(|host| (host.namespace.id, host.cookie()));
    routes.look(look, &namespaces, &cookies.collect(), Some(actuators), ends)
}

#[test]
fn an_end_is_heard_between_routes_and_the_rest_is_set_soon() {
    const COUNT: usize = 500;
    let mut lines = defaults(COUNT);
    // It is listed last, and is there.
    lines.push("route add 10.20.0.0/16 via 10.9.0.2 initcwnd 20".to_owned());
    let host = Host::new("ends", &lines);
    let (mut actuators, _dir) = actuators();
    let chosen = ["default", "10.20.0.0/16"].map(|text| text.parse().unwrap());
    let mut routes = Routes::new(chosen.into(), twenty().asked);
    let asked = Cell::new(0);
    let ends = || asked.replace(asked.get() + 1) >= 50;
    let seen = look(&mut routes, 1, &[&host], &mut actuators, &ends);
    assert!(!seen.told.is_empty() && seen.told.len() < 50);
    assert!(seen.troubles.is_empty());
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    let rest = COUNT - seen.told.len();
    assert_eq!(actuators.journal().entries().count(), seen.told.len());
    let seen = look(&mut routes, 2, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.told.len(), 0);
    let seen = look(&mut routes, 1 + SOON, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.told.len(), rest);
    assert_eq!(actuators.undo().restored, COUNT);
}

#[test]
fn of_routes_that_are_not_known_it_is_said_once_and_nothing_is_said_to_be_missing() {
    let host = Host::new("unknown", &defaults(ROUTES + 1));
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let seen = look(&mut routes, 1, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.told.len(), 0);
    assert_eq!(seen.troubles.len(), 1);
    assert!(seen.troubles[0].contains("more than 4096 of them"));
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    let seen = look(&mut routes, 1 + SOON, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.troubles.len(), 0);
    assert_eq!(routes.unmatched(), Vec::<String>::new());
    host.batch(&["route flush default".to_owned()]);
    look(&mut routes, 1 + 2 * SOON, &[&host], &mut actuators, &|| {
        false
    });
    assert_eq!(routes.unmatched(), ["default"]);
    assert_eq!(routes.unmatched(), Vec::<String>::new());
}

#[test]
fn a_namespace_that_has_the_inode_of_another_is_looked_at() {
    let host = Host::new("inode", &defaults(1));
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let gone = Known {
        is_listed: true,
        ..Known::new(host.cookie() + 1, 1000)
    };
    routes.known.insert(host.namespace.id, gone);
    let seen = look(&mut routes, 2, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.told.len(), 1);
    // Once.
    let seen = look(&mut routes, 3, &[&host], &mut actuators, &|| false);
    assert_eq!(seen.told.len(), 0);
}

#[test]
fn others_leave_room_in_the_journal_for_the_first() {
    let (first, other) = (
        Host::new("first", &defaults(2)),
        Host::new("other", &defaults(2)),
    );
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let name = Name {
        destination: std::net::Ipv4Addr::UNSPECIFIED.into(),
        length: 0,
        tos: 0,
        priority: 0,
    };
    for at in 0..ROUTES_OF_ALL {
        let priority = u32::try_from(at).unwrap();
        let netns = u64::MAX;
        let name = Name { priority, ..name };
        let entry = Entry {
            thing: Thing::Route { netns, name },
            before: Value::Route(Metrics::default()),
            after: Value::Route(routes.asked),
            earlier: None,
            largest: 0,
        };
        actuators.journal_mut().note(entry).unwrap();
    }
    let hosts = [&first, &other];
    let seen = look(&mut routes, 1, &hosts, &mut actuators, &|| false);
    assert_eq!(seen.told.len(), 2);
    assert!(
        seen.told
            .iter()
            .all(|told| *told.netns == *first.namespace.name)
    );
    assert_eq!(seen.troubles.len(), 1);
    assert!(seen.troubles[0].contains(&*other.namespace.name));
    // They have room again.
    assert_eq!(actuators.undo().restored, 2);
    let seen = look(&mut routes, 1 + AGAIN, &hosts, &mut actuators, &|| false);
    assert_eq!((seen.told.len(), seen.troubles.len()), (4, 0));
}

#[test]
fn what_is_said_of_one_namespace_keeps_nothing_of_another_from_being_said() {
    let chosen: Vec<String> = (0..=SAID)
        .map(|at| format!("route add default via 10.9.0.2 initcwnd 7 metric {at}"))
        .collect();
    let hosts = [Host::new("loud", &chosen), Host::new("quiet", &chosen[..1])];
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let hosts = [&hosts[0], &hosts[1]];
    let seen = look(&mut routes, 1, &hosts, &mut actuators, &|| false);
    assert_eq!(seen.told.len(), SAID + 1);
    assert_eq!(seen.troubles.len(), 1);
    assert!(seen.troubles[0].contains("more are left as they are than are told"));
    let seen = look(&mut routes, 1 + AGAIN, &hosts, &mut actuators, &|| false);
    assert_eq!((seen.told.len(), seen.troubles.len()), (0, 0));
}

#[test]
fn who_has_waited_longest_has_his_turn_first() {
    let hosts = [
        Host::new("turn-first", &[]),
        Host::new("turn-slow", &defaults(100)),
        Host::new("turn-next", &defaults(1)),
    ];
    let (mut actuators, _dir) = actuators();
    let mut routes = twenty();
    let hosts = [&hosts[0], &hosts[1], &hosts[2]];
    let asked = Cell::new(0);
    let ends = || asked.replace(asked.get() + 1) >= 50;
    let seen = look(&mut routes, 1, &hosts, &mut actuators, &ends);
    assert!(!seen.told.is_empty() && seen.told.len() < 50);
    let seen = look(&mut routes, 1 + SOON, &hosts, &mut actuators, &|| false);
    assert_eq!(*seen.told[0].netns, *hosts[2].namespace.name);
    assert_eq!(actuators.undo().restored, 101);
}
