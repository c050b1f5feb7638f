//! A host with a bridge and taps for guests, and a peer on the same network in a namespace of its own.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taut_sys::netns::Netns;

/// The guest's address.
pub(crate) const GUEST: &str = "10.9.0.2";
/// The guest's Ethernet address.
pub(crate) const GUEST_MAC: &str = "52:54:00:09:00:02";

pub(crate) struct World {
    pub(crate) host: Arc<Netns>,
    pub(crate) peer: Arc<Netns>,
    pub(crate) dir: tempfile::TempDir,
}

// === impl World ===

impl World {
    /// A host with these taps.
    pub(crate) fn new(taps: &[&str]) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("taut-guests-{}-{made}", std::process::id());
        let world = Self {
            host: Arc::new(Netns::create(&name).unwrap()),
            peer: Arc::new(Netns::create(&format!("{name}-peer")).unwrap()),
            dir: tempfile::tempdir().unwrap(),
        };
        world.host_ip("link add bridge type bridge mcast_snooping 0 forward_delay 0");
        world.host_ip("link set bridge up");
        world.host_ip(&format!(
            "link add wire type veth peer name eth0 netns {name}-peer"
        ));
        world.host_ip("link set wire master bridge up");
        for tap in taps {
            world.host_ip(&format!("tuntap add {tap} mode tap"));
            world.host_ip(&format!("link set {tap} master bridge up"));
        }
        ip(&world.peer, "addr add 10.9.0.1/24 dev eth0");
        ip(&world.peer, "link set eth0 up");
        // Slower than an emulated guest reads: its window stays open, and early ACKs are given throughout.
        run(
            "tc",
            &world.peer,
            "qdisc add dev eth0 root tbf rate 24mbit burst 64k limit 1m",
        );
        world
    }

    pub(crate) fn host_ip(&self, line: &str) {
        ip(&self.host, line);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = Netns::delete(self.peer.name());
        let _ = Netns::delete(self.host.name());
    }
}

pub(crate) fn ip(netns: &Netns, line: &str) {
    run("ip", netns, line);
}

fn run(program: &str, netns: &Netns, line: &str) {
    let output = Command::new(program)
        .args(["-n", netns.name()])
        .args(line.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {line}: {output:?}");
}
