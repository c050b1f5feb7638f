//! Tests the maxima in a network namespace of the test.

use taut_observe::scan::{Scope, Wants};
use taut_observe::table::Retention;

use super::*;
use crate::testing::{TestNetns, actuators};

#[test]
fn a_namespace_that_has_the_inode_of_another_gets_its_maxima() {
    let host = TestNetns::new("maxima");
    let name = host.name().to_owned();
    let (id, cookie) = (host.id(), host.cookie());
    let set = |third: &str| {
        for name in ["tcp_rmem", "tcp_wmem"] {
            let write = || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), third);
            host.run(write).unwrap().unwrap();
        }
    };
    set("4096\t16384\t1000000");
    let (actuators, _dir) = actuators();
    let keep = Retention {
        connections: 100,
        samples: 2,
    };
    let observer = Observer::new(Scope::Named(name), keep, Wants::default());
    let selection = Selection {
        only: Filter::all(),
        skip: Vec::new(),
    };
    let mut tuner = Tuner::new(observer, selection, Some(actuators));
    // Simulates that another namespace had this inode before.
    tuner.cookies.insert(id, cookie + 1);
    tuner.originals.insert((id, Direction::Send), 7);
    let applied = |reports: Vec<ChangeReport>| {
        let is_applied = |report: &&ChangeReport| report.outcome == Outcome::Applied;
        reports.iter().filter(is_applied).count()
    };
    assert_eq!(applied(tuner.round(|| false).unwrap().reports), 2);
    assert_eq!(tuner.originals[&(id, Direction::Send)], 1_000_000);
    // The maxima are examined once; values that are set later are left alone.
    set("4096\t16384\t2000000");
    assert_eq!(applied(tuner.round(|| false).unwrap().reports), 0);
    assert_eq!(tuner.end().foreign, 2);
}
