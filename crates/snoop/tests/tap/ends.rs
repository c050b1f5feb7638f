//! Flows that are never touched, and how flows end.

use taut_snoop::wire::{Bypass, Flow, Mode};

use crate::conn::{Conn, Terms};
use crate::promise::ON;
use crate::rig::{ACK, CWR, ECE, FIN, PSH, RST, Rig, URG};

/// A connection whose SYN has `option` too, or `flags`.
fn opened_with(rig: &mut Rig, option: &[u8], flags: u8) -> Conn {
    let mut conn = Conn::new(Terms::default());
    let mut syn = conn.syn();
    syn.options.extend(option);
    while !syn.options.len().is_multiple_of(4) {
        syn.options.push(1);
    }
    syn.flags |= flags;
    rig.peer_sends(&syn);
    rig.at_guest();
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    let first = conn.data(100);
    rig.peer_sends(&first);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    conn
}

#[test]
fn whoever_must_not_be_touched_is_not() {
    let cases: [(&[u8], u8, Bypass); 5] = [
        (
            &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            0,
            Bypass::Md5,
        ),
        (
            &[29, 16, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            0,
            Bypass::TcpAo,
        ),
        (&[30, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0, Bypass::Mptcp),
        (&[34, 2], 0, Bypass::FastOpen),
        (&[253, 4, 0, 0], 0, Bypass::Option),
    ];
    for (option, flags, why) in cases {
        let mut rig = Rig::new(500, ON);
        let mut conn = opened_with(&mut rig, option, flags);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), [], "{why:?}");
        assert_eq!(rig.at_guest(), [data]);
        assert_eq!(rig.flow().mode, Mode::Bypass(why));
    }
}

#[test]
fn who_counts_each_mark_is_not_touched() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    // AE, CWR and ECE in the SYN (RFC 9768 3.1.1).
    let mut syn = conn.syn();
    (syn.flags, syn.ae) = (syn.flags | ECE | CWR, true);
    rig.peer_sends(&syn);
    rig.at_guest();
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::AccEcn));
}

#[test]
fn plain_ecn_in_the_syn_is_no_reason() {
    let mut rig = Rig::new(500, ON);
    let mut conn = opened_with(&mut rig, &[], ECE | CWR);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn urgent_data_and_the_end_are_the_guests() {
    for (flags, why) in [
        (URG | ACK, Bypass::Urgent),
        (FIN | ACK | PSH, Bypass::Closing),
    ] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let mut data = conn.data(1000);
        data.flags = flags;
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), []);
        assert_eq!(rig.at_guest(), [data]);
        assert_eq!(rig.flow().mode, Mode::Bypass(why));
    }
}

#[test]
fn when_the_guest_closes_nothing_more_is_promised() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut fin = conn.guest_acks(conn.peer_seq);
    fin.flags |= FIN;
    rig.guest_sends(&fin);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), [fin]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Closing));
}

#[test]
fn a_reset_of_either_end_is_the_end_and_the_ports_may_be_used_again() {
    for from_guest in [false, true] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let mut reset = match from_guest {
            true => conn.guest_acks(conn.peer_seq),
            false => conn.data(0),
        };
        reset.flags = RST | ACK;
        match from_guest {
            true => rig.guest_sends(&reset),
            false => rig.peer_sends(&reset),
        }
        rig.at_peer();
        rig.at_guest();
        let flows = rig.program.as_ref().unwrap().flows().unwrap();
        let over = |flow: &Flow| flow.mode == Mode::Bypass(Bypass::Closing);
        assert!(flows.iter().all(|(_, flow)| over(flow)), "{flows:?}");
        rig.checker = crate::checker::Checker::new(false);
        let mut again = Conn::new(Terms {
            peer_isn: 77,
            ..Terms::default()
        });
        again.open_and_prove(&mut rig);
        let data = again.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1);
    }
}

#[test]
fn a_new_handshake_over_an_old_flow_begins_anew() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    rig.checker = crate::checker::Checker::new(false);
    let mut again = Conn::new(Terms {
        peer_isn: 0x9000_0000,
        ..Terms::default()
    });
    again.open(&mut rig);
    assert_eq!(rig.flow().mode, Mode::Unproven);
    assert_eq!(rig.flow().next_seq, 0x9000_0001);
}

#[test]
fn an_option_that_nobody_knows_is_the_guests_to_judge() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut data = conn.data(1000);
    data.options.extend([253, 4, 0, 0]);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Option));
}

#[test]
fn who_sends_data_with_the_syn_is_not_touched() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    // Without an option, too (RFC 9293 3.10.7.2).
    let mut syn = conn.syn();
    syn.len = 100;
    conn.peer_seq += 100;
    rig.peer_sends(&syn);
    assert_eq!(rig.at_guest(), [syn]);
    // The guest takes the SYN alone.
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.at_peer(), [syn_ack]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::FastOpen));
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
}
