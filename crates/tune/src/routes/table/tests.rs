//! On routes of namespaces of their own.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::IpNet;
use taut_observe::namespaces;
use taut_sys::netns::Netns;

use super::*;
use crate::actuate::Undone;
use crate::journal::Journal;
use crate::routes::message::Obstacle;
use crate::routes::selection::Chosen;

/// A namespace with a link over which routes can go. It goes with this.
struct Host {
    name: String,
    namespace: Namespace,
}

impl Host {
    fn new(name: &str) -> Self {
        Self::of(format!("taut-tune-{}-{name}", std::process::id()))
    }

    fn of(name: String) -> Self {
        Netns::create(&name)
            .expect("this test makes network namespaces and must run as root; `make test` does");
        let host = Self {
            namespace: namespaces::named(&name).unwrap(),
            name,
        };
        host.batch(&[
            "link add v0 type veth peer name v1",
            "link set v0 addrgenmode none",
            "link set v1 addrgenmode none",
            "link set v0 up",
            "link set v1 up",
            "address add 10.9.0.1/24 dev v0",
        ]);
        host
    }

    /// It is gone, and another of its name is there.
    fn again(mut gone: Self) -> Self {
        Self::of(std::mem::take(&mut gone.name))
    }

    fn batch(&self, lines: &[impl AsRef<str>]) {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name, "-batch", "-"]);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
        let mut stdin = child.stdin.take().unwrap();
        stdin
            .write_all((lines.join("\n") + "\n").as_bytes())
            .unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
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
        let defaults = Chosen::defaults();
        self.space_of(defaults.destinations())
    }

    fn space_of(&self, destinations: &[IpNet]) -> Space {
        let destinations = destinations.iter().copied().collect();
        Space::open(&self.namespace, destinations).unwrap().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = Netns::delete(&self.name);
        }
    }
}

fn actuators() -> (Actuators, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    (Actuators::new(journal), dir)
}

fn defaults(space: &mut Space) -> Vec<Route> {
    space.list(TRIES, &|| true).unwrap()
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
    let (mut actuators, dir) = actuators();
    let mut space = host.space();
    let listed = defaults(&mut space);
    host.ip("route replace default via 10.9.0.3 mtu 1300");
    let theirs = host.routes();
    assert_eq!(set(&mut actuators, &mut space, &listed[0]), Made::Meanwhile);
    // Nothing but its first line was ever written.
    let journal = std::fs::read_to_string(dir.path().join("journal")).unwrap();
    assert_eq!(journal.lines().count(), 1, "{journal}");
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
    space.hear(None).unwrap();
    host.ip("route replace default via 10.9.0.3 mtu 1300 initcwnd 7");
    let theirs = host.routes();
    assert_eq!(space.replace(&listed[0], TWENTY).unwrap(), Made::Meanwhile);
    assert_eq!(host.routes(), theirs);
}

#[test]
fn of_one_that_may_not_be_back_as_it_was_it_is_said() {
    let host = Host::new("back");
    host.ip("-6 route add default dev v0 metric 7");
    let mut space = host.space();
    let listed = defaults(&mut space);
    space.hear(None).unwrap();
    host.ip("-6 route replace default dev v0 metric 7 expires 900");
    let made = space.replace(&listed[0], TWENTY);
    assert!(
        matches!(made, Err(ActuateError::NotBack { .. })),
        "{made:?}"
    );
}

#[test]
fn routes_are_undone_together_and_what_there_is_no_time_for_stays_in_the_journal() {
    const COUNT: usize = 1000;
    let host = Host::new("together");
    let lines = (0..COUNT).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    host.batch(&lines.collect::<Vec<_>>());
    let before = host.routes();
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    for route in &defaults(&mut space) {
        assert_eq!(set(&mut actuators, &mut space, route), Made::Set);
    }
    let entries = actuators.journal().entries().cloned();
    let entries = entries.map(|entry| match entry.thing {
        Thing::Route { name, .. } => (name, entry),
        _ => panic!("{entry:?}"),
    });
    let entries = entries.collect::<Vec<_>>();
    let spaces = Spaces::of([(space.cookie, host.namespace.clone())]);
    // It is asked for each datagram of a list, and for each route.
    let asked = std::cell::Cell::new(0);
    let until = |most: usize| {
        asked.set(0);
        let goes_on = || asked.replace(asked.get() + 1) < most;
        let results = undo_in(&spaces, space.cookie, &entries, &goes_on);
        let is_left = |result: &&Result<Undo, ActuateError>| {
            matches!(result, Err(ActuateError::NotUndone { .. }))
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

/// Routes of IPv6 to so many destinations below this one.
fn many(below: &str, count: usize) -> (Vec<IpNet>, Vec<String>) {
    let nets = (0..count).map(|at| format!("{below}:{at:x}::/64"));
    let lines = nets.clone().map(|net| format!("route add {net} dev v0"));
    (
        nets.map(|net| net.parse().unwrap()).collect(),
        lines.collect(),
    )
}

#[test]
fn a_route_that_a_list_misses_is_not_taken_for_gone() {
    const COUNT: usize = 300;
    let host = Host::new("misses");
    let (nets, lines) = many("2001:db8", COUNT);
    let (_, others) = many("2001:db7", 2000);
    host.batch(&[lines, others.clone()].concat());
    let before = host.ip("-6 -d route show");
    let (mut actuators, _dir) = actuators();
    let mut space = host.space_of(&nets);
    let listed = space.list(TRIES, &|| true).unwrap();
    assert_eq!(listed.len(), COUNT);
    for route in &listed {
        assert_eq!(set(&mut actuators, &mut space, route), Made::Set);
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
        // Whatever fails here, it ends.
        let tries = || {
            let mut unsteady = 0;
            while unsteady < 50 {
                match space.list(1, &|| true) {
                    Ok(listed) => assert_eq!(listed.len(), COUNT),
                    Err(ActuateError::Unsteady { .. }) => unsteady += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            for _ in 0..3 {
                let undone = actuators.undo();
                assert_eq!((undone.gone, undone.others), (0, 0), "{undone:?}");
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
fn what_took_a_namespaces_place_is_not_undone() {
    let mut host = Host::new("place");
    let line = "route add default via 10.9.0.2 initcwnd 20";
    let mut actuators = actuators();
    // The kernel lets go of an inode in its own time.
    let mut gone = HashMap::new();
    for _ in 0..1000 {
        let last = (host.space().cookie, host.namespace.clone());
        gone.insert(host.namespace.id, last);
        Netns::delete(&host.name).unwrap();
        host = Host::again(host);
        let Some((cookie, was)) = gone.remove(&host.namespace.id) else {
            continue;
        };
        host.ip(line);
        let before = host.routes();
        let name = defaults(&mut host.space())[0].name;
        let entry = Entry {
            thing: thing(cookie, name),
            before: Value::Route(Metrics::default()),
            after: Value::Route(TWENTY),
            earlier: None,
            largest: 0,
        };
        let spaces = Spaces::of([(cookie, was.clone())]);
        let undone = undo_routes(&spaces, vec![entry]);
        assert!(matches!(undone[..], [(_, Ok(Undo::Gone))]), "{undone:?}");
        assert_eq!(host.routes(), before);
        // The same of a setting.
        let maximum = || {
            crate::sysctl::read(&was, "net/ipv4/tcp_wmem")
                .unwrap()
                .unwrap()
        };
        let (of, text) = maximum();
        assert_ne!(of, cookie);
        let entry = Entry {
            thing: Thing::SendMaximum(cookie),
            before: Value::Text("4096\t16384\t77777".to_owned()),
            after: Value::Text(text.clone()),
            earlier: None,
            largest: 0,
        };
        let undone =
            crate::actuate::undo::undo_setting(&spaces, cookie, "net/ipv4/tcp_wmem", &entry);
        assert_eq!(undone.unwrap(), Undo::Gone);
        let written = crate::sysctl::write(&was, cookie, "net/ipv4/tcp_wmem", "4096\t16384\t77777");
        assert!(!written.unwrap());
        assert_eq!(maximum().1, text);
        assert_eq!(actuators.0.undo(), Undone::default());
        return;
    }
    panic!("no namespace has got the inode of another");
}

#[test]
fn what_the_kernel_refuses_is_not_in_the_journal() {
    let host = Host::new("refused");
    host.ip("link add w0 type veth peer name w1");
    host.ip("link set w0 up");
    host.ip("link set w1 up");
    host.ip("address add 10.8.0.1/24 dev w0");
    host.ip("route add default nexthop via 10.9.0.2 dev v0 nexthop via 10.8.0.2 dev w0");
    host.ip("link set w0 down");
    let (mut actuators, _dir) = actuators();
    let mut space = host.space();
    let listed = defaults(&mut space);
    let made = actuators.route(&mut space, &listed[0], TWENTY, TWENTY);
    assert!(matches!(made, Err(ActuateError::Route { .. })), "{made:?}");
    assert_eq!(actuators.journal().entries().count(), 0);
    host.ip("route replace default via 10.9.0.2 initcwnd 20 mtu 1400");
    let theirs = host.routes();
    assert_eq!(actuators.undo(), Undone::default());
    assert_eq!(host.routes(), theirs);
}

#[test]
fn a_namespace_with_too_many_routes_is_left_alone() {
    let host = Host::new("many");
    let lines = (0..=ROUTES).map(|at| format!("route add default via 10.9.0.2 metric {at}"));
    let lines: Vec<String> = lines.collect();
    host.batch(&lines);
    let mut space = host.space();
    let listed = space.list(TRIES, &|| true);
    assert!(matches!(listed, Err(ActuateError::TooMany { .. })));
    host.ip("route delete default metric 7");
    assert_eq!(defaults(&mut space).len(), ROUTES);
    let listed = space.list(TRIES, &|| false);
    assert!(matches!(listed, Err(ActuateError::Routes { .. })));
}
