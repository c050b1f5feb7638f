//! On namespaces of the tests' own.

use super::*;
use crate::actuate::Actuators;
use crate::profile::testing::{Host, REDIRECTS, actuators, room, tighten, undone};

/// What was found, in words.
fn words(found: &[Found]) -> Vec<String> {
    let words = |found: &Found| crate::render::change(&found.change);
    found.iter().map(words).collect()
}

#[test]
fn what_is_too_lax_is_set_and_undone() {
    let host = Host::new("all");
    let (before, defaults) = (host.settings(), host.defaults());
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    let found = tighten(&host, &mut space, &mut actuators);
    let mut words = words(&found);
    words.sort();
    assert_eq!(
        words,
        [
            "net.ipv4.conf.all.accept_redirects: 1 -> 0",
            "net.ipv4.conf.all.accept_source_route: 1 -> 0",
            "net.ipv4.conf.lo.accept_redirects: 1 -> 0",
            "net.ipv4.conf.va.accept_redirects: 1 -> 0",
            "net.ipv4.conf.vb.accept_redirects: 1 -> 0",
            "net.ipv4.tcp_keepalive_time: 7200 -> 1800",
            "net.ipv4.tcp_syncookies: 0 -> 1",
            "net.ipv6.conf.all.accept_source_route: 0 -> -1",
            "net.ipv6.conf.lo.accept_redirects: 1 -> 0",
            "net.ipv6.conf.va.accept_redirects: 1 -> 0",
            "net.ipv6.conf.vb.accept_redirects: 1 -> 0",
        ]
    );
    let now = host.settings();
    let differ = before.iter().filter(|(path, is)| now[*path] != **is);
    assert_eq!(differ.count(), words.len());
    assert_eq!(host.defaults(), defaults);
    // Once.
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn what_is_only_looked_at_is_not_set() {
    let host = Host::new("advise");
    let before = host.settings();
    let mut space = Space::default();
    let look = |space: &mut Space| {
        visit(
            &host.namespace(),
            Profile::Security,
            space,
            None,
            &mut room(),
        )
        .unwrap()
    };
    let found = look(&mut space);
    assert_eq!(found.len(), 11);
    assert!(found.iter().all(|found| found.made.is_none()));
    assert_eq!(host.settings(), before);
    assert_eq!(look(&mut space).len(), 0);
}

#[test]
fn what_cannot_be_written_down_is_not_set() {
    let host = Host::new("full");
    let before = host.settings();
    let mut journal = Journal::full();
    let found = visit(
        &host.namespace(),
        Profile::Security,
        &mut Space::default(),
        Some(&mut journal),
        &mut room(),
    );
    let found = found.unwrap();
    assert_eq!(found.len(), 11);
    for found in found {
        let Some(Err(error)) = found.made else {
            panic!("{:?}", found.change);
        };
        assert!(error.to_string().contains("nothing is changed"), "{error}");
    }
    assert_eq!(host.settings(), before);
}

#[test]
fn what_is_strict_already_is_neither_set_nor_written_down() {
    let host = Host::new("strict");
    for (name, value) in [
        ("ipv4/tcp_syncookies", "2"),
        ("ipv4/tcp_keepalive_time", "60"),
        (REDIRECTS, "0"),
    ] {
        host.set(name, value);
    }
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    let found = tighten(&host, &mut Space::default(), &mut actuators);
    assert_eq!(found.len(), 8, "{:?}", words(&found));
    assert_eq!(actuators.journal().entries().count(), 8);
    assert_eq!(host.get("ipv4/tcp_syncookies"), "2");
    assert_eq!(host.get("ipv4/tcp_keepalive_time"), "60");
    assert_eq!(actuators.undo(), undone(8, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn what_a_killed_process_has_set_is_undone_by_the_next() {
    let host = Host::new("killed");
    let before = host.settings();
    let (mut first, dir) = actuators();
    tighten(&host, &mut Space::default(), &mut first);
    drop(first);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let mut next = Actuators::new(journal);
    assert_eq!(next.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn what_was_written_down_and_not_set_is_as_it_was() {
    let host = Host::new("between");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    // As if its writer had ended between the two.
    host.set("ipv4/tcp_keepalive_time", "7200");
    host.set(REDIRECTS, "1");
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn what_somebody_else_has_changed_since_is_left_to_him() {
    let host = Host::new("others");
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    tighten(&host, &mut space, &mut actuators);
    let his = [
        ("ipv4/tcp_keepalive_time", "900"),
        ("ipv4/tcp_syncookies", "2"),
        (REDIRECTS, "2"),
        ("ipv6/conf/vb/accept_redirects", "3"),
    ];
    for (name, value) in his {
        host.set(name, value);
    }
    // Nor does a later look take it from him.
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(actuators.undo(), undone(7, 0, 4));
    for (name, value) in his {
        assert_eq!(host.get(name), value, "{name}");
    }
}

#[test]
fn what_somebody_sets_after_a_look_is_his_even_if_the_look_is_forgotten() {
    let host = Host::new("forgotten");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    host.set(REDIRECTS, "2");
    // As of a namespace that was not seen for a while.
    let found = tighten(&host, &mut Space::default(), &mut actuators);
    assert_eq!(words(&found), [""; 0]);
    assert_eq!(actuators.undo(), undone(10, 0, 1));
    assert_eq!(host.get(REDIRECTS), "2");
}

#[test]
fn a_host_that_becomes_a_router_meanwhile_believes_no_more_redirects_after_undoing() {
    let host = Host::new("router");
    let all = "ipv4/conf/all/accept_redirects";
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    // By which the kernel sets the other one to what it is already.
    host.set("ipv4/ip_forward", "1");
    assert_eq!(actuators.undo(), undone(10, 0, 1));
    assert_eq!(host.get(all), "0");
    // One that was a router before goes back to what it was.
    host.set(all, "1");
    tighten(&host, &mut Space::default(), &mut actuators);
    assert_eq!(host.get(all), "0");
    assert_eq!(actuators.undo().others, 0);
    assert_eq!(host.get(all), "1");
}

#[test]
fn an_interface_that_has_gone_meanwhile_is_gone() {
    let host = Host::new("gone");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    tighten(&host, &mut space, &mut actuators);
    host.ip("link del va");
    // Not yet seen to be gone.
    assert_eq!(actuators.undo(), undone(7, 4, 0));
    let after = host.settings();
    assert!(after.len() < before.len());
    for (path, is) in after {
        assert_eq!(before[&path], is, "{path}");
    }
}

#[test]
fn an_interface_that_is_seen_to_be_gone_leaves_the_journal() {
    let host = Host::new("left");
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    tighten(&host, &mut space, &mut actuators);
    assert_eq!(space.interfaces(), 3);
    let index = host.index("va");
    host.ip("link del va");
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(space.interfaces(), 1);
    assert_eq!(actuators.journal().entries().count(), 7);
    // Another gets its index and its name: it is looked at anew, and goes back to what it was.
    host.ip(&format!("link add va index {index} type veth peer name vb"));
    host.set(REDIRECTS, "3");
    let found = words(&tighten(&host, &mut space, &mut actuators));
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.contains(&"net.ipv4.conf.va.accept_redirects: 3 -> 0".to_owned()));
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.get(REDIRECTS), "3");
}

#[test]
fn an_interface_is_known_by_its_index_whatever_it_is_called() {
    let host = Host::new("renamed");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut Space::default(), &mut actuators);
    host.ip("link set va name vx");
    host.ip("link add va type veth peer name vy");
    // To undo by name would take these for what was set.
    host.set(REDIRECTS, "0");
    host.set("ipv6/conf/va/accept_redirects", "0");
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    for family in ["ipv4", "ipv6"] {
        let get = |name: &str| host.get(&format!("{family}/conf/{name}/accept_redirects"));
        assert_eq!((get("vx"), get("va")), ("1".to_owned(), "0".to_owned()));
    }
}

#[test]
fn an_interface_that_comes_later_is_set_when_it_is_seen() {
    let host = Host::new("later");
    let defaults = host.defaults();
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    tighten(&host, &mut space, &mut actuators);
    host.ip("link add vx type veth peer name vy");
    let before: Vec<String> = ["ipv4", "ipv6"]
        .map(|family| host.get(&format!("{family}/conf/vx/accept_redirects")))
        .into();
    assert_eq!(before, ["1", "1"]);
    let found = tighten(&host, &mut space, &mut actuators);
    assert_eq!(found.len(), 4, "{:?}", words(&found));
    assert_eq!(host.get("ipv4/conf/vx/accept_redirects"), "0");
    assert_eq!(host.get("ipv6/conf/vx/accept_redirects"), "0");
    assert_eq!(host.defaults(), defaults);
    assert_eq!(actuators.undo(), undone(15, 0, 0));
    assert_eq!(host.get("ipv4/conf/vx/accept_redirects"), "1");
}

#[test]
fn settings_that_an_interface_gets_later_are_set_then() {
    let host = Host::new("mtu");
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    // Too little for IPv6.
    host.ip("link set va mtu 1000");
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 10);
    host.ip("link set va mtu 1500");
    let found = tighten(&host, &mut space, &mut actuators);
    assert_eq!(words(&found), ["net.ipv6.conf.va.accept_redirects: 1 -> 0"]);
    // What the kernel takes away it makes anew.
    host.ip("link set va mtu 1000");
    assert_eq!(actuators.undo(), undone(10, 1, 0));
}

#[test]
fn settings_that_the_kernel_makes_anew_are_looked_at_anew() {
    let host = Host::new("anew");
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 11);
    // Too little for IPv6: its settings go.
    host.ip("link set va mtu 1000");
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(actuators.journal().entries().count(), 10);
    host.ip("link set va mtu 1500");
    let setting = "ipv6/conf/va/accept_redirects";
    assert_eq!(host.get(setting), "1");
    let found = tighten(&host, &mut space, &mut actuators);
    assert_eq!(words(&found), ["net.ipv6.conf.va.accept_redirects: 1 -> 0"]);
    // Too little for IPv4; what a loopback has of IPv6 stays, and is not looked at anew.
    host.ip("link set lo mtu 60");
    host.set("ipv6/conf/lo/accept_redirects", "1");
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(actuators.journal().entries().count(), 10);
    host.ip("link set lo mtu 65536");
    let found = tighten(&host, &mut space, &mut actuators);
    assert_eq!(words(&found), ["net.ipv4.conf.lo.accept_redirects: 1 -> 0"]);
    // Of what stays nothing is looked at anew: somebody has set it since.
    host.set(REDIRECTS, "1");
    host.ip("link set va name vx");
    assert_eq!(tighten(&host, &mut space, &mut actuators).len(), 0);
    assert_eq!(actuators.journal().entries().count(), 11);
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.get("ipv6/conf/vx/accept_redirects"), "1");
}

#[test]
fn a_name_that_is_fit_for_no_terminal_is_told_as_one_that_is() {
    let host = Host::new("odd");
    host.ip("link set va name \u{1b}[2Jx.1");
    let (mut actuators, _dir) = actuators();
    let found = words(&tighten(&host, &mut Space::default(), &mut actuators));
    assert!(
        found.contains(&"net.ipv4.conf.\u{fffd}[2Jx/1.accept_redirects: 1 -> 0".to_owned()),
        "{found:?}"
    );
    assert_eq!(actuators.undo(), undone(11, 0, 0));
}

#[test]
fn no_more_is_set_than_there_is_room_for() {
    let host = Host::new("room");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    let mut look = |space: &mut Space, mut room: Room| {
        let journal = Some(actuators.journal_mut());
        let namespace = host.namespace();
        let found = visit(&namespace, Profile::Security, space, journal, &mut room).unwrap();
        (found.len(), room.is_short, room.interfaces)
    };
    let none = Room {
        entries: 0,
        ..room()
    };
    // Nor is it looked for interfaces, for none of which there would be any.
    assert_eq!(look(&mut space, none), (0, true, 100));
    assert_eq!(space.interfaces(), 0);
    assert_eq!(host.settings(), before);
    let little = Room {
        interfaces: 1,
        ..room()
    };
    let mut other = Space::default();
    assert_eq!(look(&mut other, little), (7, true, 0));
    assert_eq!(other.interfaces(), 1);
    // What there was no room for is set when there is.
    assert_eq!(look(&mut other, room()), (4, false, 98));
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn another_namespace_in_the_place_of_one_is_looked_at_anew() {
    let host = Host::new("cookie");
    let mut space = Space {
        cookie: 1,
        interfaces: HashSet::from([1, 500, 501]),
        looked: HashSet::from([Setting::SynCookies, Setting::InterfaceRedirects(1)]),
    };
    let mut room = room();
    let found = visit(
        &host.namespace(),
        Profile::Security,
        &mut space,
        None,
        &mut room,
    );
    assert_eq!(found.unwrap().len(), 11);
    assert_eq!(room.interfaces, 100);
}

#[test]
fn a_namespace_that_has_gone_is_neither_looked_at_nor_undone() {
    let (gone, stays) = (Host::new("vanishes"), Host::new("stays"));
    let before = stays.settings();
    let (mut actuators, _dir) = actuators();
    let mut space = Space::default();
    tighten(&gone, &mut space, &mut actuators);
    tighten(&stays, &mut Space::default(), &mut actuators);
    let namespace = gone.namespace();
    drop(gone);
    let found = visit(&namespace, Profile::Security, &mut space, None, &mut room());
    assert_eq!(found.unwrap().len(), 0);
    assert_eq!(actuators.settings(None), [0, 22]);
    actuators.forget_gone_namespaces();
    assert_eq!(actuators.settings(None), [0, 11]);
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(stays.settings(), before);
}

#[test]
fn a_journal_that_somebody_has_made_up_has_nothing_written_but_settings() {
    let host = Host::new("forged");
    let before = host.settings();
    let (mut real, dir) = actuators();
    tighten(&host, &mut Space::default(), &mut real);
    assert_eq!(real.undo(), undone(11, 0, 0));
    drop(real);
    let cookie = host.0.run(netns::cookie).unwrap().unwrap();
    let path = dir.path().join("journal");
    let mut text = fs::read_to_string(&path).unwrap();
    let index = host.index("va");
    for thing in [
        format!("[{cookie},\"ipv4/ip_forward\"]"),
        format!("[{cookie},\"../kernel/core_pattern\"]"),
        format!("[{cookie},{{\"interface-redirects\":\"default\"}}]"),
        format!("[{cookie},{{\"interface-redirects\":-1}}]"),
    ] {
        text += &format!(
            "{{\"changes\":{{\"thing\":{{\"setting\":{thing}}},\"before\":{{\"text\":\"7\"}},\"after\":{{\"text\":\"1\"}}}}}}\n"
        );
    }
    // What is no number is written nowhere.
    text += &format!(
        "{{\"changes\":{{\"thing\":{{\"setting\":[{cookie},{{\"interface-redirects\":{index}}}]}},\"before\":{{\"text\":\"7 \
         8\"}},\"after\":{{\"text\":\"1\"}}}}}}\n"
    );
    fs::write(&path, text).unwrap();
    let mut actuators = Actuators::new(Journal::free(&path).unwrap());
    assert_eq!(actuators.undo().failed, 1);
    assert_eq!(host.settings(), before);
}
