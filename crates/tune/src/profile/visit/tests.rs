//! Tests visits in network namespaces of their own.

use super::*;
use crate::actuate::Actuators;
use crate::namespaces::ended::forget_ended_namespaces;
use crate::profile::testing::{Host, REDIRECTS, room, tighten, undone};
use crate::profile::watch::count_settings;
use crate::testing::actuators;

/// Describes the changes.
fn changes(found: &[LaxSetting]) -> Vec<String> {
    let change = |lax: &LaxSetting| crate::render::change(&lax.change);
    found.iter().map(change).collect()
}

#[test]
fn lax_settings_are_tightened_and_restored() {
    let host = Host::new("all");
    let (before, defaults) = (host.settings(), host.defaults());
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    let found = tighten(&host, &mut visited, &mut actuators);
    let mut changes = changes(&found);
    changes.sort();
    assert_eq!(
        changes,
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
    assert_eq!(differ.count(), changes.len());
    assert_eq!(host.defaults(), defaults);
    // Each setting is examined once.
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 0);
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
    assert_eq!(actuators.journal().entries().count(), 0);
}

#[test]
fn advice_changes_nothing() {
    let host = Host::new("advise");
    let before = host.settings();
    let mut visited = VisitedNamespace::default();
    let examine = |visited: &mut VisitedNamespace| {
        visit(
            &host.namespace(),
            Profile::Security,
            visited,
            None,
            &mut room(),
        )
        .unwrap()
    };
    let found = examine(&mut visited);
    assert_eq!(found.len(), 11);
    assert!(found.iter().all(|found| found.result.is_none()));
    assert_eq!(host.settings(), before);
    assert_eq!(examine(&mut visited).len(), 0);
}

#[test]
fn nothing_is_changed_that_the_journal_cannot_have() {
    let host = Host::new("full");
    let before = host.settings();
    let mut journal = Journal::full();
    let found = visit(
        &host.namespace(),
        Profile::Security,
        &mut VisitedNamespace::default(),
        Some(&mut journal),
        &mut room(),
    );
    let found = found.unwrap();
    assert_eq!(found.len(), 11);
    for found in found {
        let Some(Err(error)) = found.result else {
            panic!("{:?}", found.change);
        };
        assert!(error.to_string().contains("nothing is changed"), "{error}");
    }
    assert_eq!(host.settings(), before);
}

#[test]
fn strict_settings_are_neither_changed_nor_journalled() {
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
    let found = tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    assert_eq!(found.len(), 8, "{:?}", changes(&found));
    assert_eq!(actuators.journal().entries().count(), 8);
    assert_eq!(host.get("ipv4/tcp_syncookies"), "2");
    assert_eq!(host.get("ipv4/tcp_keepalive_time"), "60");
    assert_eq!(actuators.undo(), undone(8, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn the_changes_of_a_killed_process_are_undone_by_the_next() {
    let host = Host::new("killed");
    let before = host.settings();
    let (mut first, dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut first);
    drop(first);
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let mut next = Actuators::new(journal, false);
    assert_eq!(next.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn a_setting_that_was_journalled_and_not_changed_counts_as_restored() {
    let host = Host::new("between");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    // Simulates that the writer ended between the entry and the change.
    host.set("ipv4/tcp_keepalive_time", "7200");
    host.set(REDIRECTS, "1");
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn a_setting_that_others_have_changed_since_is_left_alone() {
    let host = Host::new("others");
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    tighten(&host, &mut visited, &mut actuators);
    let theirs = [
        ("ipv4/tcp_keepalive_time", "900"),
        ("ipv4/tcp_syncookies", "2"),
        (REDIRECTS, "2"),
        ("ipv6/conf/vb/accept_redirects", "3"),
    ];
    for (name, value) in theirs {
        host.set(name, value);
    }
    // A later visit does not change it either.
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 0);
    assert_eq!(actuators.undo(), undone(7, 0, 4));
    for (name, value) in theirs {
        assert_eq!(host.get(name), value, "{name}");
    }
}

#[test]
fn a_setting_that_others_change_is_left_alone_even_if_the_visit_is_forgotten() {
    let host = Host::new("forgotten");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    host.set(REDIRECTS, "2");
    // Simulates a namespace that was missing for a while.
    let found = tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    assert_eq!(changes(&found), [""; 0]);
    assert_eq!(actuators.undo(), undone(10, 0, 1));
    assert_eq!(host.get(REDIRECTS), "2");
}

#[test]
fn a_host_that_has_become_a_router_accepts_no_redirects_after_undoing() {
    let host = Host::new("router");
    let all = "ipv4/conf/all/accept_redirects";
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    // The kernel then sets the other setting, to its present value.
    host.set("ipv4/ip_forward", "1");
    assert_eq!(actuators.undo(), undone(10, 0, 1));
    assert_eq!(host.get(all), "0");
    // A host that was a router before gets its setting back.
    host.set(all, "1");
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    assert_eq!(host.get(all), "0");
    assert_eq!(actuators.undo().foreign, 0);
    assert_eq!(host.get(all), "1");
}

#[test]
fn a_removed_interface_counts_as_gone() {
    let host = Host::new("gone");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    tighten(&host, &mut visited, &mut actuators);
    host.ip("link del va");
    // No visit has noticed the missing interface yet.
    assert_eq!(actuators.undo(), undone(7, 4, 0));
    let after = host.settings();
    assert!(after.len() < before.len());
    for (path, is) in after {
        assert_eq!(before[&path], is, "{path}");
    }
}

#[test]
fn the_journal_forgets_a_removed_interface() {
    let host = Host::new("left");
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    tighten(&host, &mut visited, &mut actuators);
    assert_eq!(visited.interfaces(), 3);
    let index = host.index("va");
    host.ip("link del va");
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 0);
    assert_eq!(visited.interfaces(), 1);
    assert_eq!(actuators.journal().entries().count(), 7);
    // Another interface gets its index and name: it is examined again, and restored.
    host.ip(&format!("link add va index {index} type veth peer name vb"));
    host.set(REDIRECTS, "3");
    let found = changes(&tighten(&host, &mut visited, &mut actuators));
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found.contains(&"net.ipv4.conf.va.accept_redirects: 3 -> 0".to_owned()));
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.get(REDIRECTS), "3");
}

#[test]
fn an_interface_is_identified_by_its_index_not_by_its_name() {
    let host = Host::new("renamed");
    let (mut actuators, _dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut actuators);
    host.ip("link set va name vx");
    host.ip("link add va type veth peer name vy");
    // Undoing by name would take these for the changed settings.
    host.set(REDIRECTS, "0");
    host.set("ipv6/conf/va/accept_redirects", "0");
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    for family in ["ipv4", "ipv6"] {
        let get = |name: &str| host.get(&format!("{family}/conf/{name}/accept_redirects"));
        assert_eq!((get("vx"), get("va")), ("1".to_owned(), "0".to_owned()));
    }
}

#[test]
fn a_later_interface_is_changed_by_the_next_visit() {
    let host = Host::new("later");
    let defaults = host.defaults();
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    tighten(&host, &mut visited, &mut actuators);
    host.ip("link add vx type veth peer name vy");
    let before: Vec<String> = ["ipv4", "ipv6"]
        .map(|family| host.get(&format!("{family}/conf/vx/accept_redirects")))
        .into();
    assert_eq!(before, ["1", "1"]);
    let found = tighten(&host, &mut visited, &mut actuators);
    assert_eq!(found.len(), 4, "{:?}", changes(&found));
    assert_eq!(host.get("ipv4/conf/vx/accept_redirects"), "0");
    assert_eq!(host.get("ipv6/conf/vx/accept_redirects"), "0");
    assert_eq!(host.defaults(), defaults);
    assert_eq!(actuators.undo(), undone(15, 0, 0));
    assert_eq!(host.get("ipv4/conf/vx/accept_redirects"), "1");
}

#[test]
fn settings_that_an_interface_gets_later_are_changed_then() {
    let host = Host::new("mtu");
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    // Too small for IPv6.
    host.ip("link set va mtu 1000");
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 10);
    host.ip("link set va mtu 1500");
    let found = tighten(&host, &mut visited, &mut actuators);
    assert_eq!(
        changes(&found),
        ["net.ipv6.conf.va.accept_redirects: 1 -> 0"]
    );
    // The kernel removes the settings, and will make new ones.
    host.ip("link set va mtu 1000");
    assert_eq!(actuators.undo(), undone(10, 1, 0));
}

#[test]
fn settings_that_the_kernel_makes_again_are_examined_again() {
    let host = Host::new("again");
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 11);
    // Too small for IPv6: the kernel removes its settings.
    host.ip("link set va mtu 1000");
    assert_eq!(tighten(&host, &mut visited, &mut actuators).len(), 0);
    assert_eq!(actuators.journal().entries().count(), 10);
    host.ip("link set va mtu 1500");
    let found = tighten(&host, &mut visited, &mut actuators);
    assert_eq!(
        changes(&found),
        ["net.ipv6.conf.va.accept_redirects: 1 -> 0"]
    );
    assert_eq!(actuators.undo(), undone(11, 0, 0));
}

#[test]
fn a_name_with_control_characters_is_sanitized() {
    let host = Host::new("odd");
    host.ip("link set va name \u{1b}[2Jx.1");
    let (mut actuators, _dir) = actuators();
    let found = changes(&tighten(
        &host,
        &mut VisitedNamespace::default(),
        &mut actuators,
    ));
    assert!(
        found.contains(&"net.ipv4.conf.\u{fffd}[2Jx/1.accept_redirects: 1 -> 0".to_owned()),
        "{found:?}"
    );
    assert_eq!(actuators.undo(), undone(11, 0, 0));
}

#[test]
fn no_more_is_changed_than_there_is_room_for() {
    let host = Host::new("room");
    let before = host.settings();
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    let mut examine = |visited: &mut VisitedNamespace, mut room: Room| {
        let journal = Some(actuators.journal_mut());
        let namespace = host.namespace();
        let found = visit(&namespace, Profile::Security, visited, journal, &mut room).unwrap();
        (found.len(), room.is_short, room.interfaces)
    };
    let none = Room {
        entries: 0,
        ..room()
    };
    // Interfaces without room are not listed.
    assert_eq!(examine(&mut visited, none), (0, true, 100));
    assert_eq!(visited.interfaces(), 0);
    assert_eq!(host.settings(), before);
    let little = Room {
        interfaces: 1,
        ..room()
    };
    let mut other = VisitedNamespace::default();
    assert_eq!(examine(&mut other, little), (7, true, 0));
    assert_eq!(other.interfaces(), 1);
    // The rest is changed when there is room.
    assert_eq!(examine(&mut other, room()), (4, false, 98));
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(host.settings(), before);
}

#[test]
fn a_namespace_that_took_the_inode_of_another_is_examined() {
    let host = Host::new("cookie");
    let mut visited = VisitedNamespace {
        cookie: 1,
        interfaces: HashSet::from([1, 500, 501]),
        examined: HashSet::from([Setting::SynCookies, Setting::InterfaceRedirects(1)]),
    };
    let mut room = room();
    let found = visit(
        &host.namespace(),
        Profile::Security,
        &mut visited,
        None,
        &mut room,
    );
    assert_eq!(found.unwrap().len(), 11);
    assert_eq!(room.interfaces, 100);
}

#[test]
fn a_namespace_that_has_ended_is_neither_examined_nor_undone() {
    let (gone, stays) = (Host::new("vanishes"), Host::new("stays"));
    let before = stays.settings();
    let (mut actuators, _dir) = actuators();
    let mut visited = VisitedNamespace::default();
    tighten(&gone, &mut visited, &mut actuators);
    tighten(&stays, &mut VisitedNamespace::default(), &mut actuators);
    let namespace = gone.namespace();
    drop(gone);
    let found = visit(
        &namespace,
        Profile::Security,
        &mut visited,
        None,
        &mut room(),
    );
    assert_eq!(found.unwrap().len(), 0);
    assert_eq!(count_settings(actuators.journal(), None), [0, 22]);
    forget_ended_namespaces(actuators.journal_mut());
    assert_eq!(count_settings(actuators.journal(), None), [0, 11]);
    assert_eq!(actuators.undo(), undone(11, 0, 0));
    assert_eq!(stays.settings(), before);
}

#[test]
fn a_forged_journal_changes_nothing_but_settings() {
    let host = Host::new("forged");
    let before = host.settings();
    let (mut real, dir) = actuators();
    tighten(&host, &mut VisitedNamespace::default(), &mut real);
    assert_eq!(real.undo(), undone(11, 0, 0));
    drop(real);
    let cookie = host.0.run(netns::cookie).unwrap().unwrap();
    let path = dir.path().join("journal");
    let mut text = fs::read_to_string(&path).unwrap();
    let index = host.index("va");
    for target in [
        format!("[{cookie},\"ipv4/ip_forward\"]"),
        format!("[{cookie},\"../kernel/core_pattern\"]"),
        format!("[{cookie},{{\"interface-redirects\":\"default\"}}]"),
        format!("[{cookie},{{\"interface-redirects\":-1}}]"),
    ] {
        text += &format!(
            "{{\"changes\":{{\"thing\":{{\"setting\":{target}}},\"before\":{{\"text\":\"7\"}},\"after\":{{\"text\":\"1\"}}}}}}\n"
        );
    }
    // A value that is not a number is not written.
    text += &format!(
        "{{\"changes\":{{\"thing\":{{\"setting\":[{cookie},{{\"interface-redirects\":{index}}}]}},\"before\":{{\"text\":\"7 \
         8\"}},\"after\":{{\"text\":\"1\"}}}}}}\n"
    );
    fs::write(&path, text).unwrap();
    let mut actuators = Actuators::new(Journal::free(&path).unwrap(), false);
    assert_eq!(actuators.undo().failed, 1);
    assert_eq!(host.settings(), before);
}
