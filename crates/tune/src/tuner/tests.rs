//! On maxima of a namespace of its own.

use taut_observe::scan::Scope;
use taut_observe::table::Keep;
use taut_sys::netns::{self, Netns};

use super::*;
use crate::journal::Journal;

/// A namespace that goes with this.
struct Host(Netns);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

#[test]
fn a_namespace_that_has_the_inode_of_another_gets_its_maxima() {
    let name = format!("taut-tune-{}-maxima", std::process::id());
    let host = Host(Netns::create(&name).unwrap());
    let (id, cookie) = (host.0.id(), host.0.run(netns::cookie).unwrap().unwrap());
    let set = |third: &str| {
        for name in ["tcp_rmem", "tcp_wmem"] {
            let write = || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), third);
            host.0.run(write).unwrap().unwrap();
        }
    };
    set("4096\t16384\t1000000");
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::free(&dir.path().join("journal")).unwrap();
    let keep = Keep {
        connections: 100,
        samples: 2,
    };
    let observer = Observer::new(Scope::Named(name), keep, false);
    let lists = Lists {
        only: Filter::all(),
        skip: Vec::new(),
    };
    let mut tuner = Tuner::new(observer, lists, Some(Actuators::new(journal)));
    // As if another had been there, with this inode.
    tuner.known.insert(id, cookie + 1);
    tuner.originals.insert((id, Direction::Send), 7);
    let made = |told: Vec<Told>| {
        let made = told.iter().filter(|told| told.outcome == Outcome::Made);
        made.count()
    };
    assert_eq!(made(tuner.round(|| false).unwrap().told), 2);
    assert_eq!(tuner.originals[&(id, Direction::Send)], 1_000_000);
    // Once: what somebody sets after that is his.
    set("4096\t16384\t2000000");
    assert_eq!(made(tuner.round(|| false).unwrap().told), 0);
    assert_eq!(tuner.end().others, 2);
}
