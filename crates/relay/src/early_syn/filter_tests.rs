//! The clsact filter, for kernels without tcx; loopback of a private namespace is enough.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use taut_sys::bpf::tc::Filter;
use taut_sys::netns::Netns;

use super::*;

fn output(program: &str, netns: &Netns, arguments: &str) -> String {
    let mut command = Command::new(program);
    command.args(["-n", netns.name()]);
    let output = command.args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}");
    String::from_utf8(output.stdout).unwrap()
}

fn filtered(addr: SocketAddr) -> EarlySyn {
    let watch = Watch {
        listeners: vec![(addr, 1)],
        intercepted: Vec::new(),
    };
    let mut early_syn = EarlySyn::load(Devices::AllUp, &watch, 100).unwrap();
    let program = early_syn.object.program("early_syn").unwrap();
    let point = AttachPoint::Ingress;
    let filter = Filter::attach(program.as_fd(), 1, point, FILTER_PRIORITY).unwrap();
    let lo = Device {
        name: "lo".into(),
        ifindex: 1,
    };
    early_syn.hooks.push((lo, Attached::Filter(filter)));
    early_syn
}

#[test]
fn a_filter_works_like_a_link_replaces_a_dead_one_and_is_removed_when_dropped() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a network namespace and must run as root; `make test` does"
    );
    let netns = Netns::create(&format!("taut-syn-{}-filter", std::process::id())).unwrap();
    output("ip", &netns, "link set lo up");
    let filters = || {
        let shown = output("tc", &netns, "filter show dev lo ingress");
        shown.lines().filter(|l| l.contains(" handle ")).count()
    };
    let seen = netns.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // Leaves the filter attached, as a killed process does.
        std::mem::forget(filtered(addr));
        let replaced = filtered(addr);
        let mut early_syn = filtered(addr);
        // The process that has been replaced leaves the filter of this one alone.
        drop(replaced);
        let two = filters();
        let client = TcpStream::connect(addr).unwrap();
        let mut events = Vec::new();
        early_syn.take(&mut events);
        let from = client.local_addr().unwrap();
        (
            two,
            events.iter().map(|e| e.client == from).collect::<Vec<_>>(),
        )
        // Dropped here.
    });
    let after = filters();
    Netns::delete(netns.name()).unwrap();
    assert_eq!(seen.unwrap(), (1, vec![true]));
    assert_eq!(after, 0);
}
