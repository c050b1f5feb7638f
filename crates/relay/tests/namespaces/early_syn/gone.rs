//! No program stays on a device, however the relay ends.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Instant;

use taut_relay::early_syn::{Devices, EarlySyn, Watch};
use taut_sys::bpf::tc::{AttachPoint, link_count};
use taut_sys::netns::Netns;

use super::rig::{LINK, Net, PATIENCE, RELAY};
use crate::killed::kill_when_it_says;

/// Returns the number of programs at the relay's device. (A list of the machine's links ends at one that another
/// process is about to make.)
fn links(net: &Net) -> u32 {
    let count = || link_count(net.ifindex, AttachPoint::Ingress);
    net.relay.run(count).unwrap().unwrap()
}

/// Waits until there is none: a process that lists links, as other tests do, holds each open for a
/// moment.
fn wait_until_none(net: &Net) {
    let deadline = Instant::now() + PATIENCE;
    while links(net) > 0 {
        assert!(Instant::now() < deadline, "a link has stayed");
        std::thread::yield_now();
    }
}

#[test]
fn a_drop_takes_the_program_off_the_device() {
    let net = Net::new();
    let watch = net.watch(&[(RELAY, 80).into()]);
    assert_eq!(links(&net), 1);
    drop(watch);
    wait_until_none(&net);
}

/// The environment variable that names the other process's namespace.
const HOLD: &str = "TAUT_RELAY_HOLD_EARLY_SYN";

#[test]
fn a_kill_takes_the_program_off_the_device() {
    let net = Net::new();
    let asked = (HOLD, net.relay.name().to_owned());
    let hold = "early_syn::gone::hold_it_when_asked_to";
    let there = kill_when_it_says("attached", hold, asked, || links(&net));
    assert_eq!(there, 1);
    wait_until_none(&net);
}

/// The other process of the test above.
#[test]
fn hold_it_when_asked_to() {
    let Some(name) = std::env::var_os(HOLD) else {
        return;
    };
    let netns = Netns::open(name.to_str().unwrap()).unwrap();
    let addr = SocketAddr::from((RELAY, 80));
    let devices = Devices::Named(vec![LINK.to_owned()]);
    let watch = Watch {
        listeners: vec![(addr, 0)],
        intercepted: Vec::new(),
    };
    let attach = || EarlySyn::attach(devices, &watch, 1);
    let _held = netns.run(attach).unwrap().unwrap();
    println!("attached");
    // Runs until it is killed, or the test that started it has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
