//! Taps that come, go, and are not what they should be.

use std::path::Path;
use std::time::Duration;

use taut_snoop::records::Records;
use taut_snoop::retransmit::{GIVE_UP, SILENT};
use taut_snoop::tap_supervisor::{Counts, LEASE, Options, REST, State, TapSupervisor};
use taut_snoop::wire::{Bypass, Mode};

use crate::conn::{Conn, Terms};
use crate::rig::{RST, Rig, Segment};

/// Everything in the rig's namespace that its names say is a guest's.
fn supervise(rig: &Rig, ring: Option<u32>) -> TapSupervisor {
    follow_by(rig, ring, &rig.folder())
}

/// The same, with its records in another folder.
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

/// The clock of the programs, a minute ahead: so much later do they find that nobody looks, also where
/// the processor is emulated and busy.
fn now() -> Duration {
    clock() + Duration::from_secs(60)
}

fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap()
}

/// A time whose lease is over. A machine that has just begun, as a guest that tests run in, has none until it is as old as that.
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

fn on() -> Vec<(String, State)> {
    vec![("guest".to_owned(), State::On)]
}

#[test]
fn a_tap_is_served_while_it_is_there_and_then_is_what_it_was() {
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
fn a_queueing_discipline_comes_back_with_its_options() {
    let rig = Rig::bare(100);
    rig.tc("qdisc replace dev guest root pfifo limit 77");
    let supervisor = supervise(&rig, None);
    assert!(rig.tc("qdisc show dev guest").contains("noqueue"));
    rig.within(|| drop(supervisor));
    assert!(rig.tc("qdisc show dev guest").contains("limit 77p"));
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
fn a_tap_that_is_shaped_is_left_alone() {
    let rig = Rig::bare(100);
    rig.tc("qdisc replace dev guest root tbf rate 10mbit burst 10k latency 50ms");
    assert_eq!(states(&supervise(&rig, None)), []);
    assert!(rig.tc("qdisc show dev guest").contains("tbf"));
}

#[test]
fn taps_that_come_later_are_found_and_those_that_go_are_forgotten() {
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
fn what_is_no_tap_of_one_queue_is_left_alone_and_the_others_are_served() {
    let rig = Rig::bare(100);
    rig.ip("tuntap add guest-tun mode tun");
    rig.ip("link add guest-veth type veth peer name other");
    rig.ip("tuntap add guest-many mode tap multi_queue");
    let supervisor = supervise(&rig, None);
    assert_eq!(states(&supervisor), on());
}

#[test]
fn the_ring_is_made_larger_and_never_smaller() {
    let rig = Rig::bare(100);
    let supervisor = supervise(&rig, Some(1000));
    assert_eq!(states(&supervisor), on());
    assert!(rig.ip("link show guest").contains("qlen 1000"));
    rig.within(|| drop(supervisor));
    // There may be something in it that was promised.
    assert!(rig.ip("link show guest").contains("qlen 1000"));
    let supervisor = supervise(&rig, Some(10));
    assert_eq!(states(&supervisor), []);
    assert!(rig.ip("link show guest").contains("qlen 1000"));
}

#[test]
fn a_queue_before_the_ring_ends_all_promises() {
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
    // It was somebody's will, and stays.
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
    assert!(supervisor.turn_off("guest"));
    assert!(!supervisor.turn_off("nobody"));
    assert!(!supervisor.is_drained("guest").unwrap());
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor)[0].1, State::Draining);
    let more = conn.data(1000);
    rig.peer_sends(&more);
    assert_eq!(rig.at_peer(), [], "nothing more is promised");
    rig.at_guest();
    let ack = conn.guest_acks(data.seq + 1000);
    rig.guest_sends(&ack);
    assert!(supervisor.is_drained("guest").unwrap());
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

/// A connection of which the guest has dropped a segment that was acknowledged early.
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

/// The guest says so: it is where it was, and has closed its window.
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
fn what_the_guest_has_dropped_is_retransmitted_to_it() {
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
        assert!(!supervisor.is_drained("guest").unwrap(), "it may be taken");
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        assert!(!supervisor.retransmit(clock()), "nothing is retained");
        assert!(supervisor.is_drained("guest").unwrap());
        let expected = Counts {
            retransmitted: 1,
            repaired: 1,
            exposure_most: 1000,
            ..Counts::default()
        };
        assert_eq!(counts(&supervisor), expected);
    }
}

/// Linux before 6.6 drops what it has no buffer for without a word.
#[test]
fn what_a_silent_guest_has_dropped_is_retransmitted_to_it() {
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

/// What lies beyond a hole may have come in packets that are not read here, as a client may choose.
#[test]
fn a_doubt_leaves_its_flow_alone_and_no_other() {
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
    assert!(!supervisor.is_drained("guest").unwrap());
    assert!(!supervisor.retransmit(clock() + GIVE_UP));
    assert!(supervisor.is_drained("guest").unwrap());
    assert_eq!(counts(&supervisor).lost, 1);
}

/// Three flows of this network of peers are repaired.
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
fn one_network_of_peers_cannot_take_early_acknowledgement_from_the_others() {
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
    // Ten minutes later it is one like any other.
    rig.within(|| supervisor.scan(now() + REST)).unwrap();
    assert_eq!(early(&mut rig, 1), 1);
}

#[test]
fn a_guest_that_lacks_something_for_three_networks_is_left_alone_for_a_while() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    for network in 1..=3 {
        assert_eq!(states(&supervisor), on());
        three_repairs(&mut rig, &mut supervisor, network);
    }
    assert!(matches!(&states(&supervisor)[0].1, State::Unfit(_)));
    rig.within(|| supervisor.scan(now() + REST + Duration::from_secs(1)))
        .unwrap();
    scan(&rig, &mut supervisor);
    assert_eq!(states(&supervisor), on());
    // Turned off by somebody meanwhile, it stays off.
    three_repairs(&mut rig, &mut supervisor, 4);
    supervisor.turn_off("guest");
    rig.within(|| supervisor.scan(now() + 3 * REST)).unwrap();
    assert_eq!(states(&supervisor)[0].1, State::Off);
    assert!(rig.within(|| supervisor.turn_on("guest")).unwrap());
    assert_eq!(states(&supervisor), on());
}

#[test]
fn one_process_serves_a_tap() {
    let rig = Rig::bare(100);
    let first = supervise(&rig, None);
    assert_eq!(states(&supervise(&rig, None)), []);
    rig.within(|| drop(first));
    assert_eq!(states(&supervise(&rig, None)), on());
}

/// Programs at clsact outlive the process that has put them there.
#[test]
fn what_a_killed_process_has_left_falls_silent_and_the_next_takes_its_place() {
    let mut rig = Rig::bare(100);
    // Its record's lock would go with it; so it has one that nobody else wants.
    let mut killed = follow_by(&rig, None, &rig.folder().join("killed"));
    if rig.filters() == (0, 0) {
        eprintln!("not tried: this kernel has tcx, which takes programs off with their process");
        return;
    }
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    // As if its last look had been so long ago that it counts no more.
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
    // From another namespace's thread.
    drop(supervisor);
    assert_eq!(rig.filters(), (0, 0));
}

#[test]
fn what_was_written_down_of_guests_that_are_gone_is_removed_and_nothing_else() {
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
        format!("{netns}-78-vnet.begun"),
        "1-77-vnet7".to_owned(),
        "README".to_owned(),
    ] {
        std::fs::write(rig.folder().join(gone), "").unwrap();
    }
    let records = Records::at(&rig.folder());
    rig.within(|| records.sweep(&devices));
    // Another namespace's, and what is nobody's record.
    kept.extend(["1-77-vnet7".to_owned(), "README".to_owned()]);
    let mut left: Vec<_> = std::fs::read_dir(rig.folder()).unwrap().map(own).collect();
    kept.sort();
    left.sort();
    assert_eq!(left, kept);
    rig.within(|| drop(supervisor));
}

#[test]
fn where_a_filter_may_take_what_has_been_acknowledged_nothing_is() {
    // What it does is not looked at.
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
fn a_tap_is_not_turned_on_over_a_queue() {
    let rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    supervisor.turn_off("guest");
    rig.tc("qdisc replace dev guest root pfifo limit 5");
    let said = rig.within(|| supervisor.turn_on("guest")).unwrap_err();
    assert!(said.to_string().contains("root noqueue"), "{said}");
    scan(&rig, &mut supervisor);
    assert_ne!(states(&supervisor), on());
}

#[test]
fn handshakes_that_are_not_finished_are_forgotten_soon_and_connections_are_not() {
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
fn when_nobody_watches_nothing_is_promised() {
    let mut rig = Rig::bare(100);
    let mut supervisor = supervise(&rig, None);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    // As if the last look had been so long ago that it counts no more.
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
    // Both have much acknowledged between two looks.
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
    // And once one of them rests, the other has it all.
    scan(&rig, &mut supervisor);
    assert_eq!(told(&mut rig, &mut conns[1]), 40_000);
}
