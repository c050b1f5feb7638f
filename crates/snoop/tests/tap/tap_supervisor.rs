//! Taps that appear, vanish, and cannot be served.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use taut_snoop::records::Records;
use taut_snoop::retransmit::{GIVE_UP, SILENT};
use taut_snoop::tap_supervisor::{Counts, LEASE, Options, REST, State, TapSupervisor};
use taut_snoop::wire::{Bypass, Config, Mode};

use crate::conn::{Conn, Terms};
use crate::rig::{RST, Rig, Segment};

/// Supervises every tap in the rig's namespace with a guest's name.
fn supervise(rig: &Rig, ring: Option<u32>) -> TapSupervisor {
    follow_by(rig, ring, &rig.folder())
}

/// Likewise, with another folder of records.
fn follow_by(rig: &Rig, ring: Option<u32>, records: &Path) -> TapSupervisor {
    let taps = vec![glob::Pattern::new("guest*").unwrap()];
    let supervisor = TapSupervisor::new(Options {
        ring,
        records: Records::at(records),
        ..Options::new(taps)
    });
    let mut supervisor = supervisor.unwrap();
    scan(rig, &mut supervisor);
    supervisor
}

fn scan(rig: &Rig, supervisor: &mut TapSupervisor) {
    rig.within(|| supervisor.scan(now())).unwrap();
}

/// The programs' clock, a minute ahead, so that leases do not expire on a busy emulated processor.
fn now() -> Duration {
    clock() + Duration::from_secs(60)
}

fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap()
}

/// A time whose lease has expired. A machine that has just booted, such as a test guest, has none
/// until it is that old.
fn long_ago() -> Duration {
    while clock() <= LEASE {
        std::thread::sleep(LEASE.saturating_sub(clock()) + Duration::from_millis(1));
    }
    Duration::ZERO
}

fn states(supervisor: &TapSupervisor) -> Vec<(String, State)> {
    let status = supervisor.status().unwrap();
    status.into_iter().map(|tap| (tap.tap, tap.state)).collect()
}

fn is_drained(supervisor: &mut TapSupervisor) -> bool {
    supervisor.drained(|_| true).unwrap().is_some()
}

fn on() -> Vec<(String, State)> {
    vec![("guest".to_owned(), State::On)]
}

#[test]
fn a_tap_is_restored_after_it_was_served() {
    let rig = Rig::bare(100);
    let before = rig.queues();
    assert!(!before.contains("noqueue"), "{before}");
    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
    assert!(rig.tc("qdisc show dev guest").contains("noqueue"));
    rig.within(|| drop(supervisor));
    assert_eq!(rig.queues(), before);
    assert_eq!(rig.filters(), (0, 0));
    assert_eq!(std::fs::read_dir(rig.folder()).unwrap().count(), 0);
}

#[test]
fn a_queueing_discipline_is_restored_with_its_options() {
    let rig = Rig::bare(100);
    rig.tc("qdisc replace dev guest root pfifo limit 77");
    let supervisor = supervise(&rig, None);
    assert!(rig.tc("qdisc show dev guest").contains("noqueue"));
    rig.within(|| drop(supervisor));
    assert!(rig.tc("qdisc show dev guest").contains("limit 77p"));
}

#[test]
fn a_restoration_that_was_interrupted_is_completed() {
    let rig = Rig::bare(100);
    let before = rig.queues();
    let supervisor = supervise(&rig, None);
    // Its first step.
    rig.tc("qdisc replace dev guest root handle 7461: pfifo");
    rig.within(|| drop(supervisor));
    assert_eq!(rig.queues(), before);
    // Also by the next process, if the one that was interrupted has ended.
    rig.tc("qdisc replace dev guest root handle 7461: pfifo");
    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
    rig.within(|| drop(supervisor));
    assert_eq!(rig.queues(), before);
}

#[test]
fn a_tap_that_never_had_a_queue_has_none_afterwards() {
    let rig = Rig::bare(100);
    rig.tc("qdisc replace dev guest root noqueue");
    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
    rig.within(|| drop(supervisor));
    assert!(rig.tc("qdisc show dev guest").contains("noqueue"));
}

#[test]
fn a_shaped_tap_is_refused() {
    let rig = Rig::bare(100);
    rig.tc("qdisc replace dev guest root tbf rate 10mbit burst 10k latency 50ms");
    assert_eq!(states(&supervise(&rig, None)), []);
    assert!(rig.tc("qdisc show dev guest").contains("tbf"));
}

#[test]
fn new_taps_are_found_and_vanished_ones_removed() {
    let rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    rig.ip("tuntap add guest2 mode tap");
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor).len(), 2);
    rig.ip("link del guest2");
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor), on());
}

#[test]
fn other_devices_are_refused_and_single_queue_taps_served() {
    let rig = Rig::bare(100);
    rig.ip("tuntap add guest-tun mode tun");
    rig.ip("link add guest-veth type veth peer name other");
    rig.ip("tuntap add guest-many mode tap multi_queue");
    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
}

#[test]
fn the_ring_grows_and_never_shrinks() {
    let rig = Rig::bare(100);
    let supervisor = supervise(&rig, Some(1000));
    assert_eq!(states(&supervisor), on());
    assert!(rig.ip("link show guest").contains("qlen 1000"));
    rig.within(|| drop(supervisor));
    // It may hold early-acknowledged frames.
    assert!(rig.ip("link show guest").contains("qlen 1000"));
    let supervisor = supervise(&rig, Some(10));
    assert_eq!(states(&supervisor), []);
    assert!(rig.ip("link show guest").contains("qlen 1000"));
}

#[test]
fn a_queue_before_the_ring_stops_early_acks() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    rig.tc("qdisc replace dev guest root pfifo limit 5");
    scan(&rig, &mut supervisor);
    assert!(matches!(&states(&supervisor)[0].1, State::Unfit(_)));
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    // The administrator put it there, and it stays.
    rig.within(|| drop(supervisor));
    assert!(rig.tc("qdisc show dev guest").contains("pfifo"));
}

#[test]
fn turned_off_a_tap_is_drained_when_its_guest_has_taken_everything() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert!(rig.within(|| supervisor.turn_off("guest")).is_some());
    assert_eq!(rig.within(|| supervisor.turn_off("nobody")), None);
    assert!(!is_drained(&mut supervisor));
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor)[0].1, State::Draining);
    let more = conn.data(1000);
    rig.peer_sends(&more);
    assert_eq!(rig.at_peer(), [], "no more early ACKs");
    rig.at_guest();
    let ack = conn.guest_acks(data.seq + 1000);
    rig.guest_sends(&ack);
    assert!(is_drained(&mut supervisor));
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor)[0].1, State::Off);
    // And on again.
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    assert!(rig.within(|| supervisor.turn_on("guest")).unwrap());
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

/// A connection of which the guest dropped an early-acknowledged segment.
fn lost(rig: &mut Rig, port: u16) -> (Conn, Segment) {
    let mut conn = Conn::new(Terms {
        port,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.empty_unread();
    (conn, data)
}

/// The guest shows it: its number stays, and its window is closed.
fn says_so(rig: &mut Rig, conn: &mut Conn) {
    let mut closed = conn.guest_acks(conn.guest_ack);
    closed.window = 0;
    rig.guest_sends(&closed);
    assert_eq!(rig.at_peer(), [closed], "it passes as it is");
}

fn counts(supervisor: &TapSupervisor) -> Counts {
    supervisor.status().unwrap()[0].counts
}

#[test]
fn data_that_the_guest_dropped_is_retransmitted() {
    for (v6, vlan) in [(false, None), (true, None), (false, Some(7))] {
        let mut rig = Rig::bare(100);
        (rig.v6, rig.vlan) = (v6, vlan);
        let mut supervisor = supervise(&rig, None);
        let (mut conn, data) = lost(&mut rig, 5000);
        assert!(supervisor.retransmit(clock()));
        assert_eq!(rig.at_guest(), [], "it may only be waiting for its CPU");
        says_so(&mut rig, &mut conn);
        assert!(supervisor.retransmit(clock()));
        assert_eq!(
            rig.at_guest(),
            [data],
            "the same number, data and timestamps"
        );
        let flow = supervisor.status().unwrap()[0].flows[0].1;
        assert_eq!(flow.mode, Mode::Bypass(Bypass::Contradicted));
        assert!(!is_drained(&mut supervisor), "it may be taken");
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        assert!(!supervisor.retransmit(clock()), "nothing is retained");
        assert!(is_drained(&mut supervisor));
        let expected = Counts {
            retransmitted: 1,
            repaired: 1,
            exposure_most: 1000,
            ..Counts::default()
        };
        assert_eq!(counts(&supervisor), expected);
    }
}

/// Linux before 6.6 silently drops data that does not fit into its buffer.
#[test]
fn data_that_a_silent_guest_dropped_is_retransmitted() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let (mut conn, data) = lost(&mut rig, 5000);
    supervisor.retransmit(clock());
    supervisor.retransmit(clock() + SILENT);
    assert_eq!(rig.at_guest(), [data]);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert!(!supervisor.retransmit(clock() + SILENT));
    assert_eq!(counts(&supervisor).retransmitted, 1);
}

/// Data beyond a hole may have come in packets that are not read here, as a client may choose.
#[test]
fn a_doubt_bypasses_its_flow_and_no_other() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let (mut conn, data) = lost(&mut rig, 5000);
    let mut odd = conn.guest_acks(data.seq);
    odd.options.extend([1, 1, 5, 10]);
    odd.options.extend(conn.peer_seq.to_be_bytes());
    odd.options.extend((conn.peer_seq + 500).to_be_bytes());
    rig.guest_sends(&odd);
    rig.at_peer();
    supervisor.retransmit(clock());
    let flow = supervisor.status().unwrap()[0].flows[0].1;
    assert_eq!(flow.mode, Mode::Bypass(Bypass::Doubt));
    assert_eq!(rig.at_guest().len(), 1);
    let mut other = Conn::new(Terms {
        port: 5001,
        ..Terms::default()
    });
    other.open_and_prove(&mut rig);
    let data = other.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn a_guest_that_is_given_up_owes_nothing() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    lost(&mut rig, 5000);
    supervisor.retransmit(clock());
    assert!(!is_drained(&mut supervisor));
    assert!(!supervisor.retransmit(clock() + GIVE_UP));
    assert!(is_drained(&mut supervisor));
    assert_eq!(counts(&supervisor).lost, 1);
}

/// Repairs three flows of this peer network.
fn three_repairs(rig: &mut Rig, supervisor: &mut TapSupervisor, network: u8) {
    rig.peer_net = network;
    for port in 5000..5003 {
        let (mut conn, _) = lost(rig, port);
        supervisor.retransmit(clock());
        says_so(rig, &mut conn);
        supervisor.retransmit(clock());
        let ack = conn.guest_acks(conn.peer_seq);
        rig.empty_unread();
        rig.guest_sends(&ack);
        rig.at_peer();
        supervisor.retransmit(clock());
    }
}

#[test]
fn one_peer_network_cannot_stop_early_acks_for_others() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    three_repairs(&mut rig, &mut supervisor, 1);
    let early = |rig: &mut Rig, network: u8| {
        rig.peer_net = network;
        let mut conn = Conn::new(Terms {
            port: 6000,
            ..Terms::default()
        });
        conn.open_and_prove(rig);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        let early = rig.at_peer().len();
        rig.at_guest();
        let mut end = conn.guest_data(0);
        end.flags |= RST;
        rig.guest_sends(&end);
        rig.at_peer();
        early
    };
    assert_eq!(early(&mut rig, 1), 0);
    assert_eq!(early(&mut rig, 2), 1);
    assert_eq!(states(&supervisor), on());
    let status = &supervisor.status().unwrap()[0];
    assert_eq!(status.distrusted[0].to_string(), "10.8.1.0/24");
    assert_eq!(status.counts.repaired, 3);
    // Ten minutes later it is trusted again.
    rig.within(|| supervisor.scan(now() + REST)).unwrap();
    assert_eq!(early(&mut rig, 1), 1);
}

#[test]
fn peers_cannot_turn_a_tap_off() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    for network in 1..=4 {
        three_repairs(&mut rig, &mut supervisor, network);
        scan(&rig, &mut supervisor);
        assert_eq!(states(&supervisor), on());
    }
    assert_eq!(supervisor.status().unwrap()[0].distrusted.len(), 4);
}

#[test]
fn a_tap_whose_copies_fill_its_part_of_the_memory_gets_no_early_acks() {
    let mut rig = Rig::bare(100);
    let mut supervisor = TapSupervisor::new(Options {
        retained: 4000,
        records: Records::at(&rig.folder()),
        // However long the guest acknowledges nothing.
        config: Config {
            exposure_ticks: u32::MAX,
            ..Config::default()
        },
        ..Options::new(vec![glob::Pattern::new("guest*").unwrap()])
    })
    .unwrap();
    scan(&rig, &mut supervisor);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut early_acks = |rig: &mut Rig, conn: &mut Conn| {
        let data = conn.data(1000);
        rig.peer_sends(&data);
        supervisor.retransmit(clock());
        rig.at_peer().len()
    };
    for expected in [1, 1, 1, 1, 0] {
        assert_eq!(early_acks(&mut rig, &mut conn), expected);
    }
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    assert_eq!(
        early_acks(&mut rig, &mut conn),
        0,
        "it learns that there is room"
    );
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    assert_eq!(early_acks(&mut rig, &mut conn), 1);
}

#[test]
fn a_tap_that_is_renamed_goes_by_its_new_name() {
    let rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let index = rig.within(|| supervisor.turn_off("guest")).unwrap();
    rig.ip("link set guest down");
    rig.ip("link set guest name guest-new");
    rig.ip("link set guest-new up");
    // Before the next scan, too.
    assert_eq!(rig.within(|| supervisor.turn_off("guest")), None);
    assert_eq!(rig.within(|| supervisor.turn_off("guest-new")), Some(index));
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor)[0].0, "guest-new");
}

#[test]
fn one_process_serves_a_tap() {
    let rig = Rig::bare(100);
    let first = supervise(&rig, None);
    assert_eq!(states(&supervise(&rig, None)), []);
    rig.within(|| drop(first));
    assert_eq!(states(&supervise(&rig, None)), on());
}

/// Programs at clsact outlive the process that attached them.
#[test]
fn programs_of_a_killed_process_expire_and_the_next_process_replaces_them() {
    let mut rig = Rig::bare(100);
    // Its record's lock would go with it, so it has a folder of its own.
    let mut killed = follow_by(&rig, None, &rig.folder().join("killed"));
    if rig.filters() == (0, 0) {
        taut_sys_testing::skip::skip(
            "this kernel has tcx, which detaches programs with their process; Linux 6.1 runs the test",
        );
        return;
    }
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    // As if the last scan were older than the lease.
    rig.within(|| killed.scan(long_ago())).unwrap();
    std::mem::forget(killed);
    assert_eq!(rig.filters(), (1, 1));
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);

    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
    assert_eq!(rig.filters(), (1, 1), "in its place, and not beside it");
    let mut conn = Conn::new(Terms {
        port: 5001,
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    // From a thread in another namespace.
    drop(supervisor);
    assert_eq!(rig.filters(), (0, 0));
}

#[test]
fn only_records_of_vanished_taps_are_removed() {
    let rig = Rig::bare(100);
    let supervisor = supervise(&rig, None);
    let devices = rig.within(taut_snoop::tap::devices).unwrap();
    let own = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().into_string().unwrap()
    };
    let mut kept: Vec<_> = std::fs::read_dir(rig.folder()).unwrap().map(own).collect();
    assert_eq!(kept.len(), 2, "its record and its lock: {kept:?}");
    let (netns, _) = kept[0].split_once('-').unwrap();
    for gone in [
        format!("{netns}-77-vnet7"),
        format!("{netns}-77-vnet7.lock"),
        format!("{netns}-78-vnet.new"),
        "1-77-vnet7".to_owned(),
        "README".to_owned(),
    ] {
        std::fs::write(rig.folder().join(gone), "").unwrap();
    }
    let records = Records::at(&rig.folder());
    rig.within(|| records.sweep(&devices));
    // A record of another namespace, and a file that is not a record.
    kept.extend(["1-77-vnet7".to_owned(), "README".to_owned()]);
    let mut left: Vec<_> = std::fs::read_dir(rig.folder()).unwrap().map(own).collect();
    kept.sort();
    left.sort();
    assert_eq!(left, kept);
    rig.within(|| drop(supervisor));
}

#[test]
fn a_filter_before_the_ring_stops_early_acks() {
    // Its effect is not examined.
    let line = "filter add dev guest egress bpf bytecode";
    let take: Vec<_> = line.split(' ').chain(["1,6 0 0 0,"]).collect();
    let rig = Rig::bare(100);
    rig.tc("qdisc add dev guest clsact");
    rig.run("tc", &take);
    assert_eq!(states(&supervise(&rig, None)), []);
    rig.tc("filter del dev guest egress");
    let mut supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
    // And if it comes later.
    rig.run("tc", &take);
    scan(&rig, &mut supervisor);
    assert!(matches!(&states(&supervisor)[0].1, State::Unfit(_)));
}

#[test]
fn programs_of_others_at_any_hook_stop_early_acks() {
    let rig = Rig::bare(100);
    let run = |program: &str, args: &[&str]| {
        let status = rig.within(|| Command::new(program).args(args).status());
        assert!(status.unwrap().success(), "{program} {args:?}");
    };
    let nft = |text: &str| run("nft", &[text]);
    let object = xdp_object(&rig.folder().with_extension("xdp"));
    let add = |which: &str| match which {
        "ingress" => {
            rig.tc("qdisc replace dev guest clsact");
            let line = "filter add dev guest ingress bpf bytecode";
            let take: Vec<_> = line.split(' ').chain(["1,6 0 0 0,"]).collect();
            rig.run("tc", &take);
        }
        "xdp" => {
            let object = object.as_deref().unwrap();
            rig.ip(&format!(
                "link set dev guest xdpgeneric obj {object} sec xdp"
            ));
        }
        family => nft(&format!(
            "add table {family} t; add chain {family} t c {{ type filter hook ingress device guest priority 0; }}"
        )),
    };
    let remove = |which: &str| match which {
        "ingress" => drop(rig.tc("qdisc del dev guest clsact")),
        "xdp" => drop(rig.ip("link set dev guest xdpgeneric off")),
        family => nft(&format!("delete table {family} t")),
    };
    for (which, words) in [
        ("ingress", "at its ingress"),
        ("xdp", "an XDP program"),
        ("netdev", "guest has chains of nftables"),
        ("inet", "guest has chains of nftables"),
    ] {
        if which == "xdp" && object.is_none() {
            taut_sys_testing::skip::skip("no clang for the XDP program");
            continue;
        }
        add(which);
        assert_eq!(states(&supervise(&rig, None)), [], "{which}");
        remove(which);
        let mut supervisor = supervise(&rig, None);
        assert_eq!(states(&supervisor), on(), "{which}");
        // And if it comes later.
        add(which);
        scan(&rig, &mut supervisor);
        let state = states(&supervisor).remove(0).1;
        assert!(
            matches!(&state, State::Unfit(why) if why.contains(words)),
            "{which}: {state:?}"
        );
        rig.within(|| drop(supervisor));
        remove(which);
    }
    if let Some(object) = object {
        std::fs::remove_file(object).unwrap();
    }
}

/// Compiles an XDP program that passes everything, below this path. Returns the object's path; `None`
/// without clang.
fn xdp_object(path: &Path) -> Option<String> {
    let source = path.with_extension("c");
    let text = "__attribute__((section(\"xdp\"), used)) int pass(void *frame) { return 2; }\n\
                char _license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    std::fs::write(&source, text).unwrap();
    let object = path.with_extension("o");
    let mut clang = Command::new("clang");
    clang
        .args(["-O2", "-g", "-target", "bpf", "-c", "-o"])
        .args([&object, &source]);
    let is_compiled = clang.status().ok()?.success();
    std::fs::remove_file(source).unwrap();
    assert!(is_compiled);
    object.to_str().map(str::to_owned)
}

#[test]
fn a_tap_is_not_turned_on_over_a_queue() {
    let rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    rig.within(|| supervisor.turn_off("guest"));
    rig.tc("qdisc replace dev guest root pfifo limit 5");
    let said = rig.within(|| supervisor.turn_on("guest")).unwrap_err();
    assert!(said.to_string().contains("root noqueue"), "{said}");
    scan(&rig, &mut supervisor);
    assert_ne!(states(&supervisor), on());
}

#[test]
fn unfinished_handshakes_are_removed_soon_and_connections_are_not() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut other = Conn::new(Terms {
        port: 5001,
        ..Terms::default()
    });
    other.open(&mut rig);
    let modes = |supervisor: &TapSupervisor| {
        let flows = supervisor.status().unwrap().remove(0).flows;
        let mut modes: Vec<_> = flows.into_iter().map(|(_, flow)| flow.mode).collect();
        modes.sort();
        modes
    };
    assert_eq!(modes(&supervisor), [Mode::Unproven, Mode::Active]);
    let now = now();
    rig.within(|| supervisor.scan(now + Duration::from_secs(20)))
        .unwrap();
    assert_eq!(modes(&supervisor), [Mode::Unproven, Mode::Active]);
    rig.within(|| supervisor.scan(now + Duration::from_secs(130)))
        .unwrap();
    assert_eq!(modes(&supervisor), [Mode::Active]);
    rig.within(|| supervisor.scan(now + Duration::from_secs(4 * 3600)))
        .unwrap();
    assert_eq!(modes(&supervisor), []);
}

#[test]
fn without_scans_early_acks_stop() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    // As if the last scan were older than the lease.
    rig.within(|| supervisor.scan(long_ago())).unwrap();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    scan(&rig, &mut supervisor);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn flows_that_fill_the_ring_share_it() {
    let mut rig = Rig::bare(40);
    let mut supervisor = supervise(&rig, None);
    let mut conns = [5000, 5001].map(|port| {
        Conn::new(Terms {
            scale: None,
            window: 10_000,
            mss: 1000,
            port,
            ..Terms::default()
        })
    });
    for conn in &mut conns {
        conn.open_and_prove(&mut rig);
    }
    // Both have much data acknowledged between two scans.
    for conn in &mut conns {
        for _ in 0..100 {
            let data = conn.data(1000);
            rig.peer_sends(&data);
            rig.at_guest();
            let ack = conn.guest_acks(conn.peer_seq);
            rig.guest_sends(&ack);
            rig.at_peer();
        }
    }
    scan(&rig, &mut supervisor);
    let told = |rig: &mut Rig, conn: &mut Conn| {
        conn.terms.window = 65_535;
        let wider = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&wider);
        rig.at_peer()[0].window
    };
    assert_eq!(
        told(&mut rig, &mut conns[0]),
        20_000,
        "half of forty segments"
    );
    // Once one of them is idle, the other gets the whole ring.
    scan(&rig, &mut supervisor);
    assert_eq!(told(&mut rig, &mut conns[1]), 40_000);
}
