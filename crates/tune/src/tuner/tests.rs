//! Tests the maxima in a network namespace of the test, and which of two tuners sets them.

use std::net::{TcpListener, TcpStream};

use taut_observe::scan::{Scope, Wants};
use taut_observe::table::Retention;

use super::*;
use crate::budget::Bounds;
use crate::journal::Journal;
use crate::testing::{TestNetns, actuators};

/// Sets the third value of both settings.
fn set(host: &TestNetns, third: u64) {
    for name in ["tcp_rmem", "tcp_wmem"] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let write = || std::fs::write(path, format!("4096\t16384\t{third}"));
        host.run(write).unwrap().unwrap();
    }
}

/// Returns the third value of the setting for send buffers.
fn send_maximum(host: &TestNetns) -> u64 {
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem");
    let text = host.run(read).unwrap().unwrap();
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

fn tuner(host: &TestNetns, actuators: Actuators) -> Tuner {
    let keep = Retention {
        connections: 100,
        samples: 2,
    };
    let scope = Scope::Named(host.name().to_owned());
    let observer = Observer::new(scope, keep, Wants::default());
    let selection = Selection {
        only: Filter::all(),
        skip: Vec::new(),
    };
    Tuner::new(observer, selection, Some(actuators))
}

fn count(round: &Round, outcome: &Outcome) -> usize {
    let reports = round.reports.iter();
    reports.filter(|report| report.outcome == *outcome).count()
}

#[test]
fn a_namespace_that_has_the_inode_of_another_gets_its_maxima() {
    let host = TestNetns::new("maxima");
    let (id, cookie) = (host.id(), host.cookie());
    set(&host, 1_000_000);
    let (actuators, _dir) = actuators();
    let mut tuner = tuner(&host, actuators);
    // Simulates that another namespace had this inode before.
    tuner.cookies.insert(id, cookie + 1);
    tuner.originals.insert((id, Direction::Send), 7);
    let mut applied = || count(&tuner.round(|| false).unwrap(), &Outcome::Applied);
    assert_eq!(applied(), 2);
    // The maxima are examined once; values that are set later are left alone.
    set(&host, 2_000_000);
    assert_eq!(applied(), 0);
    assert_eq!(tuner.originals[&(id, Direction::Send)], 1_000_000);
    assert_eq!(tuner.end().foreign, 2);
}

#[test]
fn the_second_tuner_of_a_namespace_only_advises_until_the_first_has_ended() {
    let host = TestNetns::new("two");
    set(&host, 1_000_000);
    let ((one, _dir), (other, _other_dir)) = (actuators(), actuators());
    let (mut first, mut second) = (tuner(&host, one), tuner(&host, other));
    let round = first.round(|| false).unwrap();
    assert_eq!(count(&round, &Outcome::Applied), 2);
    let raised = send_maximum(&host);
    let round = second.round(|| false).unwrap();
    assert!(round.foreign.iter().map(|name| &**name).eq([host.name()]));
    assert_eq!(count(&round, &Outcome::Applied), 0);
    // It would restore what it has recorded, and has recorded nothing.
    let entries = second.actuators.as_ref().unwrap().journal().entries();
    assert_eq!(entries.count(), 0);
    set(&host, raised / 2);
    let round = second.round(|| false).unwrap();
    assert_eq!(
        (count(&round, &Outcome::Applied), round.foreign.len()),
        (0, 0)
    );
    set(&host, raised);
    assert_eq!(first.end().restored, 2);
    assert_eq!(send_maximum(&host), 1_000_000);
    let round = second.round(|| false).unwrap();
    assert_eq!(count(&round, &Outcome::Applied), 2);
    assert_eq!(second.end().restored, 2);
    assert_eq!(send_maximum(&host), 1_000_000);
}

#[test]
fn what_a_killed_tuner_has_changed_stays_in_its_journal_while_another_one_runs() {
    let host = TestNetns::new("killed");
    set(&host, 1_000_000);
    let (killed, dir) = actuators();
    let path = dir.path().join("journal");
    let mut first = tuner(&host, killed);
    first.round(|| false).unwrap();
    drop(first);
    let raised = send_maximum(&host);
    let (other, _other_dir) = actuators();
    let mut running = tuner(&host, other);
    running.round(|| false).unwrap();
    let mut next = Actuators::new(Journal::free(&path).unwrap(), false);
    assert_eq!(next.undo().failed, 2);
    assert_eq!(send_maximum(&host), raised);
    running.end();
    assert_eq!(next.undo().restored, 2);
    assert_eq!(send_maximum(&host), 1_000_000);
}

#[test]
fn a_budget_changes_no_maximum_before_the_buffers_are_known() {
    let host = TestNetns::new("begins");
    set(&host, 4 << 20);
    let (actuators, _dir) = actuators();
    let bounds = Bounds {
        total: 8 << 20,
        per_cgroup: None,
        per_destination: None,
    };
    let mut tuner = tuner(&host, actuators).with_budget(Budget::new(bounds));
    tuner.round(|| false).unwrap();
    assert_eq!(send_maximum(&host), 4 << 20);
    tuner.round(|| false).unwrap();
    assert!(send_maximum(&host) < 4 << 20);
    tuner.end();
    assert_eq!(send_maximum(&host), 4 << 20);
}

#[test]
fn what_a_setting_of_the_namespace_prevents_is_not_promised() {
    let host = TestNetns::new("moderate");
    set(&host, 1_000_000);
    let up = std::process::Command::new("ip")
        .args(["-n", host.name(), "link", "set", "lo", "up"])
        .status();
    assert!(up.unwrap().success());
    let connect = || {
        std::fs::write("/proc/sys/net/ipv4/tcp_moderate_rcvbuf", "0").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap())
    };
    let _ends = host.run(connect).unwrap();
    let (actuators, _dir) = actuators();
    let mut tuner = tuner(&host, actuators);
    let reports = tuner.round(|| false).unwrap().reports;
    let expected = |name| {
        let of = |report: &&ChangeReport| report.change.starts_with(name);
        reports.iter().find(of).unwrap().expected.as_str()
    };
    assert_eq!(
        expected("net.ipv4.tcp_rmem"),
        "none while net.ipv4.tcp_moderate_rcvbuf is 0: with 1, new connections can fill longer paths"
    );
    assert_eq!(
        expected("net.ipv4.tcp_wmem"),
        "senders can fill longer paths"
    );
    // Verdicts and changes of its connections depend on the settings of the same namespace.
    let settings = tuner.observer.settings(host.name());
    assert_eq!(settings.tunes_receive_buffers, Some(false));
    assert_eq!(settings.rmem_max, Some(1_000_000));
    tuner.end();
}
