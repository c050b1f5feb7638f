//! Early ACKs are given for the guest itself only, not for hosts behind it.

use taut_snoop::program::Program;
use taut_snoop::wire::{Bypass, Config, Mode};

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, Rig};

fn from_guest(rig: &Rig, exit: &str) -> u64 {
    program(rig).from_guest().unwrap().of(exit)
}

fn program(rig: &Rig) -> &Program {
    rig.program.as_ref().unwrap()
}

/// Whether a segment of a new connection is acknowledged early.
fn is_early(rig: &mut Rig, port: u16) -> bool {
    let mut conn = Conn::new(Terms {
        port,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    let early = !rig.at_peer().is_empty();
    assert_eq!(rig.at_guest(), [data]);
    early
}

#[test]
fn a_segment_with_an_initial_ttl_is_the_guests_own() {
    for v6 in [false, true] {
        for ttl in [64, 128, 255] {
            let mut rig = Rig::new(500, ON);
            (rig.v6, rig.guest_ttl) = (v6, ttl);
            assert!(is_early(&mut rig, 5000), "TTL {ttl}");
            assert_eq!(from_guest(&rig, "forwarded"), 0);
        }
    }
}

#[test]
fn endpoints_behind_the_guest_get_no_early_acks() {
    for v6 in [false, true] {
        for ttl in [1, 63, 65, 127, 254] {
            let mut rig = Rig::new(500, ON);
            (rig.v6, rig.guest_ttl) = (v6, ttl);
            assert!(!is_early(&mut rig, 5000), "TTL {ttl}");
            assert!(from_guest(&rig, "forwarded") > 0);
            assert_eq!(program(&rig).flows().unwrap(), [], "they take no place");
        }
    }
}

#[test]
fn a_guest_with_a_ttl_of_its_own_can_be_named() {
    let mut rig = Rig::new(
        500,
        Config {
            guest_ttl: 100,
            ..ON
        },
    );
    rig.guest_ttl = 100;
    assert!(is_early(&mut rig, 5000));
    rig.guest_ttl = 99;
    assert!(!is_early(&mut rig, 5001));
}

#[test]
fn a_changing_ttl_bypasses_the_flow() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    rig.guest_ttl = 128;
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Forwarded));
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
}

/// Earlier early-acknowledged data is tracked to its end.
#[test]
fn the_exposure_of_a_forwarded_flow_is_still_tracked() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    rig.guest_ttl = 63;
    let ack = conn.guest_acks(data.seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.flow().exposure(), 1000);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.flow().exposure(), 0);
}

#[test]
fn a_tap_with_several_source_addresses_gets_no_early_acks() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    let own = std::mem::replace(&mut rig.guest_mac, [2, 0, 0, 0, 0, 9]);
    assert!(!is_early(&mut rig, 5001));
    assert!(from_guest(&rig, "other_mac") > 0);
    // Nor for the first address any more: which of them is the guest is unknown.
    rig.guest_mac = own;
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert!(rig.at_peer().iter().all(|ack| ack.ack == data.seq));
}

#[test]
fn a_guest_with_a_known_address_is_distinguished_from_hosts_behind_it() {
    let config = Config {
        guest_mac: Some([2, 0, 0, 0, 0, 1]),
        ..ON
    };
    let mut rig = Rig::new(500, config);
    let own = std::mem::replace(&mut rig.guest_mac, [2, 0, 0, 0, 0, 9]);
    assert!(!is_early(&mut rig, 5001));
    rig.guest_mac = own;
    assert!(is_early(&mut rig, 5000));
}

#[test]
fn only_guests_in_named_networks_get_early_acks() {
    let config = Config {
        by_address: true,
        ..ON
    };
    for (net, v6, early) in [
        ("10.8.0.0/16", false, true),
        ("10.9.0.0/16", false, false),
        ("10.8.0.1", false, true),
        ("::/0", false, true),
        ("0.0.0.0/0", true, false),
        ("fd08::/64", true, true),
        ("fd09::/64", true, false),
    ] {
        let mut rig = Rig::new(500, config);
        rig.v6 = v6;
        program(&rig).allow(&[net.parse().unwrap()]).unwrap();
        assert_eq!(is_early(&mut rig, 5000), early, "{net}");
        assert_eq!(from_guest(&rig, "other_address") > 0, !early);
    }
}

/// An early ACK is written before data of the guest, and reaches the bridge after it.
#[test]
fn an_early_ack_has_the_guests_newest_sequence_number() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let reply = conn.guest_data(500);
    rig.guest_sends(&reply);
    assert_eq!(rig.at_peer(), [reply]);
    let mut data = conn.data(1000);
    data.ack = conn.guest_seq - 500;
    rig.peer_sends(&data);
    let [ack] = &rig.at_peer()[..] else {
        panic!("one acknowledgement for one segment")
    };
    assert_eq!((ack.seq, ack.flags), (conn.guest_seq, ACK));
}
