//! What is done to a machine of QEMU's from outside, and what its guest does to its network device.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::json;

use super::{BEGUN, GOES_ON, PORT, TAP, TRIES, is_exposed};
use crate::snoop_guests::machine::{Machine, Start, can_run};
use crate::snoop_guests::snoop::Snoop;
use crate::snoop_guests::stream::Stream;
use crate::snoop_guests::world::{GUEST_MAC, World};

struct Rig {
    // Before the namespaces, so that nothing is in them when they go.
    machine: Machine,
    snoop: Snoop,
    world: World,
}

// === impl Rig ===

impl Rig {
    fn new() -> Self {
        Self::of(Start::Boot)
    }

    fn of(start: Start) -> Self {
        let world = World::new(&[TAP]);
        let machine = Machine::start(&world, TAP, start);
        let snoop = Snoop::start(&world);
        Self {
            machine,
            snoop,
            world,
        }
    }

    /// A stream of which early ACKs are given.
    fn stream(&mut self) -> Stream {
        let before = self.snoop.acked(TAP);
        self.machine.receive(PORT);
        let stream = Stream::start(&self.world, PORT);
        stream.moves_on(BEGUN);
        self.snoop.acks_more_than(TAP, before);
        stream
    }

    /// The stream goes on, and everything arrives.
    fn arrives_whole(&mut self, stream: Stream) {
        stream.moves_on(GOES_ON);
        let sent = stream.end();
        assert_eq!(self.machine.received(PORT), sent);
    }
}

#[test]
fn a_guest_that_is_stopped_and_continued_receives_everything() {
    if can_run() {
        stops_and_continues(Rig::new());
    }
}

fn stops_and_continues(mut rig: Rig) {
    let stream = rig.stream();
    rig.machine.monitor.execute("stop", json!({}));
    rig.snoop.is_on(TAP, false);
    rig.machine.monitor.execute("cont", json!({}));
    rig.snoop.is_on(TAP, true);
    rig.arrives_whole(stream);
    rig.snoop.stop();
}

#[test]
fn what_was_acknowledged_while_the_link_was_down_arrives_when_it_is_up() {
    if can_run() {
        goes_down_and_up(Rig::new());
    }
}

fn goes_down_and_up(mut rig: Rig) {
    let stream = rig.stream();
    let link = |up: bool| json!({"name": "nic", "up": up});
    // QEMU throws away what comes while the link is down; the guest acknowledges none of it.
    let exposed = (0..TRIES).any(|_| {
        rig.machine.monitor.execute("set_link", link(false));
        let exposed = is_exposed(&rig.snoop, &stream);
        rig.machine.monitor.execute("set_link", link(true));
        if !exposed {
            stream.moves_on(BEGUN);
        }
        exposed
    });
    assert!(exposed, "the sender always had to wait for the guest");
    rig.arrives_whole(stream);
    rig.snoop.stop();
}

/// What takes minutes with emulated guests.
mod long {
    use taut_sys_testing::skip::skip;

    use super::*;
    use crate::snoop_guests::wait_until;

    /// When vhost-net stops it puts back into the ring what it had taken out, and drops what does not fit.
    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn with_vhost_net_a_guest_that_stops_and_one_whose_link_goes_down_receive_everything() {
        if !std::fs::exists("/dev/vhost-net").unwrap() {
            skip("vhost-net: this kernel has none (there is no /dev/vhost-net)");
        } else if can_run() {
            stops_and_continues(Rig::of(Start::BootVhost));
            goes_down_and_up(Rig::of(Start::BootVhost));
        }
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_guest_that_is_saved_and_continued_receives_everything() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        let stream = rig.stream();
        // One that does not end by itself, and is cancelled.
        let slow = json!({"max-bandwidth": 1});
        let monitor = &mut rig.machine.monitor;
        monitor.execute("migrate-set-parameters", slow);
        monitor.execute("migrate", json!({"uri": "exec:cat >/dev/null"}));
        rig.snoop.is_on(TAP, false);
        let monitor = &mut rig.machine.monitor;
        monitor.execute("migrate_cancel", json!({}));
        rig.snoop.is_on(TAP, true);

        let fast = json!({"max-bandwidth": 1 << 30});
        let monitor = &mut rig.machine.monitor;
        monitor.execute("migrate-set-parameters", fast);
        rig.machine.monitor.migrate("exec:cat >/dev/null");
        rig.snoop.is_on(TAP, false);
        rig.machine.monitor.execute("cont", json!({}));
        rig.snoop.is_on(TAP, true);
        rig.arrives_whole(stream);

        let stream = rig.stream();
        let file = rig.world.dir.path().join("snapshot");
        // QEMU stops the guest meanwhile.
        rig.machine.monitor.save_snapshot(&file);
        rig.snoop.is_on(TAP, true);
        rig.arrives_whole(stream);
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_guest_that_resets_its_network_device_receives_everything() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        let stream = rig.stream();
        rig.machine
            .run("ip link set eth0 down; ip link set eth0 up");
        rig.arrives_whole(stream);

        let stream = rig.stream();
        rig.machine.run(
            "cd /sys/bus/virtio/drivers/virtio_net; d=$(echo virtio*); echo $d >unbind; echo $d >bind; cd /",
        );
        rig.machine.configure_network();
        rig.arrives_whole(stream);
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_network_device_that_is_unplugged_and_plugged_in_again_receives_everything() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        let stream = rig.stream();
        rig.machine
            .monitor
            .execute("device_del", json!({"id": "nic"}));
        rig.machine.monitor.wait_for("DEVICE_DELETED");
        rig.machine.monitor.execute(
            "device_add",
            json!({
                "driver": "virtio-net-pci", "id": "nic", "netdev": "net", "mac": GUEST_MAC,
                "event_idx": false, "romfile": ""
            }),
        );
        rig.machine
            .run("until [ -e /sys/class/net/eth0 ]; do :; done");
        rig.machine.configure_network();
        rig.arrives_whole(stream);
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_guest_that_is_reset_loses_its_connections_and_is_served_again() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        let stream = rig.stream();
        rig.machine.monitor.execute("system_reset", json!({}));
        rig.snoop.says("no early ACKs: the guest was reset");
        rig.machine.boots();
        assert_eq!(stream.breaks().kind(), ErrorKind::ConnectionReset);
        rig.snoop.is_on(TAP, true);
        let stream = rig.stream();
        rig.arrives_whole(stream);
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_machine_that_is_killed_breaks_the_connection_and_nothing_else() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        rig.machine.receive(PORT);
        let stream = Stream::with_timeout(&rig.world, PORT, Duration::from_secs(3));
        stream.moves_on(BEGUN);
        rig.machine.kill();
        assert_eq!(stream.breaks().kind(), ErrorKind::TimedOut);
        // The tap stays, and nobody reads its ring.
        rig.snoop.says(
            "no early ACKs: QEMU closed its monitor, and the guest has not sent anything since",
        );
        rig.snoop.is_on(TAP, false);
        rig.snoop.off(TAP, "1");
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn what_a_kernel_drops_for_want_of_memory_is_repaired() {
        if !can_run() {
            return;
        }
        let mut rig = Rig::new();
        let stream = rig.stream();
        let limits = rig.machine.run("cat /proc/sys/net/ipv4/tcp_mem");
        // A socket of which little is unread is always given memory, so the application stops reading. At once, before
        // what was offered to the sender is used up: by the shell itself.
        rig.machine.run("p=$(pidof sha256sum)");
        let dropped = (0..TRIES).any(|_| {
            let before = stream.repeated();
            rig.machine
                .run("kill -STOP $p; echo 1 2 3 >/proc/sys/net/ipv4/tcp_mem");
            // The emulated guest can be so slow that the sender has already used up its window, and waits for it.
            let dropped = wait_until("a retransmission, or a sender that waits", || {
                if rig.snoop.repaired(TAP) {
                    Some(true)
                } else {
                    (stream.repeated() != before).then_some(false)
                }
            });
            rig.machine.run(&format!(
                "echo {} >/proc/sys/net/ipv4/tcp_mem; kill -CONT $p",
                limits.trim()
            ));
            if !dropped {
                stream.moves_on(BEGUN);
            }
            dropped
        });
        assert!(dropped, "the sender always had to wait for the guest");
        assert_ne!(rig.machine.counter("TCPRcvQDrop"), 0);
        rig.arrives_whole(stream);
        rig.snoop.stop();
    }

    /// A stream to a guest that migrates from one tap to another meanwhile.
    fn migrates(start_snoop: fn(&World) -> Snoop, before: impl FnOnce(&Snoop)) {
        let world = World::new(&[TAP, "guest1"]);
        let machine = Machine::start(&world, TAP, Start::Boot);
        let snoop = start_snoop(&world);
        let mut rig = Rig {
            machine,
            snoop,
            world,
        };
        let mut there = Machine::start(&rig.world, "guest1", Start::Incoming);
        let stream = rig.stream();
        before(&rig.snoop);
        rig.machine.monitor.migrate(&there.incoming());
        stream.moves_on(GOES_ON);
        let sent = stream.end();
        assert_eq!(there.received(PORT), sent);
        rig.machine.kill();
        rig.snoop.stop();
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_guest_that_migrates_to_another_tap_receives_everything() {
        if can_run() {
            migrates(Snoop::start, |_| {});
        }
    }

    #[test]
    #[ignore = "minutes: make test-all runs it"]
    fn a_guest_that_migrates_after_an_operator_has_drained_its_tap_receives_everything() {
        if can_run() {
            migrates(Snoop::without_qmp, |snoop| assert!(snoop.off(TAP, "60")));
        }
    }
}
