//! On routes of namespaces of their own.

use std::process::Command;

use taut_observe::namespaces;
use taut_sys::netns::Netns;

use super::*;
use crate::actuate::Undone;
use crate::journal::Journal;
use crate::route::{Chosen, Obstacle};

/// A namespace with a link over which routes can go. It goes with this.
struct Host {
    name: String,
    namespace: Namespace,
}

impl Host {
    fn new(name: &str) -> Self {
        let name = format!("taut-tune-{}-{name}", std::process::id());
        Netns::create(&name)
            .expect("this test makes network namespaces and must run as root; `make test` does");
        let host = Self {
            namespace: namespaces::named(&name).unwrap(),
            name,
        };
        for line in [
            "link add v0 type veth peer name v1",
            "link set v0 addrgenmode none",
            "link set v1 addrgenmode none",
            "link set v0 up",
            "link set v1 up",
            "address add 10.9.0.1/24 dev v0",
        ] {
            host.ip(line);
        }
        host
    }

    fn ip(&self, line: &str) -> String {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(line.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "ip {line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn routes(&self) -> String {
        self.ip("-d route show table all")
    }

    fn space(&self) -> Space {
        Space::open(&self.namespace).unwrap().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(&self.name);
    }
}

fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal), dir)
}

fn defaults(space: &mut Space) -> Vec<Route> {
    let defaults = Chosen::defaults();
    space.list(|name| defaults.takes(name)).unwrap()
}

const TWENTY: Metrics = Metrics {
    initcwnd: Some(20),
    initrwnd: None,
};

fn set(actuators: &mut Actuators, space: &mut Space, route: &Route) -> Made {
    actuators.route(space, route, TWENTY, TWENTY).unwrap()
}

#[test]
fn a_route_is_set_and_set_back() {
    let host = Host::new("set");
    host.ip("route add default via 10.9.0.2 metric 5 mtu 1400");
    let before = host.routes();
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    let routes = defaults(&mut space);
    assert_eq!(set(&mut actuators, &mut space, &routes[0]), Made::Set);
    assert!(host.routes().contains("mtu 1400 initcwnd 20"));
    let restored = Undone {
        restored: 1,
        ..Undone::default()
    };
    assert_eq!(actuators.undo(), restored);
    assert_eq!(host.routes(), before);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn what_somebody_changes_after_it_was_listed_stays() {
    let host = Host::new("meanwhile");
    host.ip("route add default via 10.9.0.2");
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    let listed = defaults(&mut space);
    host.ip("route replace default via 10.9.0.3 mtu 1300");
    let theirs = host.routes();
    assert_eq!(set(&mut actuators, &mut space, &listed[0]), Made::Meanwhile);
    assert_eq!(host.routes(), theirs);
    assert_eq!(actuators.journal().entries().count(), 0);
    // Listed again, it is what they have made it.
    let listed = defaults(&mut space);
    assert_eq!(set(&mut actuators, &mut space, &listed[0]), Made::Set);
    assert!(host.routes().contains("via 10.9.0.3 dev v0"));
    assert_eq!(actuators.undo().restored, 1);
    assert_eq!(host.routes(), theirs);
}

#[test]
fn what_somebody_changes_at_the_last_moment_is_put_back() {
    let host = Host::new("last");
    host.ip("route add default via 10.9.0.2");
    let mut space = host.space();
    let listed = defaults(&mut space);
    space.hear().unwrap();
    host.ip("route replace default via 10.9.0.3 mtu 1300 initcwnd 7");
    let theirs = host.routes();
    assert_eq!(space.replace(&listed[0], TWENTY).unwrap(), Made::Meanwhile);
    assert_eq!(host.routes(), theirs);
}

#[test]
fn a_route_that_is_gone_is_not_made_again() {
    let host = Host::new("gone");
    for line in [
        "route add default via 10.9.0.2",
        "-6 route add default dev v0 metric 7",
    ] {
        host.ip(line);
    }
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    let listed = defaults(&mut space);
    host.ip("route delete default");
    host.ip("-6 route delete default");
    let without = (host.routes(), host.ip("-6 -d route show table all"));
    assert_eq!(listed.len(), 2);
    for route in &listed {
        assert_eq!(space.replace(route, TWENTY).unwrap(), Made::Gone);
    }
    host.ip("route add default via 10.9.0.2");
    let listed = defaults(&mut space);
    assert_eq!(set(&mut actuators, &mut space, &listed[0]), Made::Set);
    host.ip("route delete default");
    assert_eq!(actuators.undo().gone, 1);
    let now = (host.routes(), host.ip("-6 -d route show table all"));
    assert_eq!(now, without);
}

#[test]
fn a_route_that_got_another_beside_it_is_not_undone_and_stays_in_the_journal() {
    let host = Host::new("beside");
    host.ip("route add default via 10.9.0.2");
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    let listed = defaults(&mut space);
    assert_eq!(set(&mut actuators, &mut space, &listed[0]), Made::Set);
    host.ip("route prepend default via 10.9.0.3");
    let both = host.routes();
    assert_eq!(actuators.undo().failed, 1);
    assert_eq!(host.routes(), both);
    host.ip("route delete default via 10.9.0.3");
    assert_eq!(actuators.undo().restored, 1);
    assert!(!host.routes().contains("initcwnd"));
}

#[test]
fn what_the_kernel_says_it_has_made_and_has_not_is_no_success() {
    let host = Host::new("object");
    host.ip("nexthop add id 7 via 10.9.0.2 dev v0");
    host.ip("route add default nhid 7 initcwnd 20");
    let mut space = host.space();
    let listed = defaults(&mut space);
    // Which is why such routes are left alone.
    assert_eq!(listed[0].obstacle(), Some(Obstacle::Object));
    let made = space.replace(&listed[0], Metrics::default());
    assert!(
        matches!(made, Err(ActuateError::NotTaken { .. })),
        "{made:?}"
    );
}

#[test]
fn no_journal_makes_more_of_a_route_than_its_two_metrics() {
    let host = Host::new("journal");
    host.ip("route add default via 10.9.0.2 initcwnd 20");
    let before = host.routes();
    let mut space = host.space();
    let name = defaults(&mut space)[0].name;
    let none = Metrics::default();
    let (mut actuators, _dir) = actuators();
    let mut undone = |name, before, after| {
        let thing = thing(space.cookie, name);
        actuators.note(thing, before, after).unwrap();
        actuators.undo()
    };
    let route = Value::Route;
    // A destination that cannot be, one that is not there, and a value of something else.
    for nowhere in [
        Name { length: 99, ..name },
        Name { length: 9, ..name },
        Name {
            priority: 3,
            ..name
        },
        Name { tos: 3, ..name },
    ] {
        assert_eq!(undone(nowhere, route(none), route(TWENTY)).gone, 1);
    }
    let text = Value::Text("default via 10.9.0.9".to_owned());
    assert_eq!(undone(name, text, route(TWENTY)).failed, 1);
    assert_eq!(host.routes(), before);
}
