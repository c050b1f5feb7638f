//! Flows in BYPASS, and how flows end.

use taut_snoop::wire::{Bypass, Flow, Mode};

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, CWR, ECE, FIN, PSH, RST, Rig, Segment, URG};

/// A connection whose SYN has an extra option, and whose SYN-ACK has another.
fn opened_with(rig: &mut Rig, offer: &[u8], answer: &[u8]) -> Conn {
    let mut conn = Conn::new(Terms::default());
    let with = |mut segment: Segment, option: &[u8]| {
        segment.options.extend(option);
        while !segment.options.len().is_multiple_of(4) {
            segment.options.push(1);
        }
        segment
    };
    let syn = with(conn.syn(), offer);
    rig.peer_sends(&syn);
    rig.at_guest();
    let syn_ack = with(conn.syn_ack(), answer);
    rig.guest_sends(&syn_ack);
    prove(rig, &mut conn);
    conn
}

fn prove(rig: &mut Rig, conn: &mut Conn) {
    let first = conn.data(100);
    rig.peer_sends(&first);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
}

const MD5: &[u8] = &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const TCP_AO: &[u8] = &[29, 16, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const MP_CAPABLE: &[u8] = &[30, 12, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
const COOKIE: &[u8] = &[34, 6, 1, 2, 3, 4];
const COOKIE_REQUEST: &[u8] = &[34, 2];
const UNKNOWN: &[u8] = &[253, 4, 0, 0];

#[test]
fn flows_with_options_that_forbid_it_are_bypassed() {
    let cases: [(&[u8], &[u8], Bypass); 6] = [
        (MD5, &[], Bypass::Md5),
        (&[], MD5, Bypass::Md5),
        (TCP_AO, &[], Bypass::TcpAo),
        (TCP_AO, TCP_AO, Bypass::TcpAo),
        (MP_CAPABLE, MP_CAPABLE, Bypass::Mptcp),
        (UNKNOWN, UNKNOWN, Bypass::Option),
    ];
    for (offer, answer, why) in cases {
        let mut rig = Rig::new(500, ON);
        let mut conn = opened_with(&mut rig, offer, answer);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), [], "{why:?}");
        assert_eq!(rig.at_guest(), [data]);
        assert_eq!(rig.flow().mode, Mode::Bypass(why));
    }
}

/// Many clients offer options that few servers accept.
#[test]
fn an_option_that_the_guest_declines_does_not_bypass_the_flow() {
    for (offer, answer) in [
        (MP_CAPABLE, &[][..]),
        (UNKNOWN, &[]),
        (COOKIE_REQUEST, &[]),
        // For the next connection.
        (COOKIE_REQUEST, COOKIE),
    ] {
        let mut rig = Rig::new(500, ON);
        let mut conn = opened_with(&mut rig, offer, answer);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1, "{offer:?}");
    }
}

/// AE, CWR and ECE are in the SYN, and their state in the SYN-ACK is the answer (RFC 9768 3.1.1,
/// table 2).
#[test]
fn a_flow_that_counts_each_mark_is_bypassed() {
    for flags in 0..8 {
        let (ae, cwr, ece) = (flags & 4 != 0, flags & 2 != 0, flags & 1 != 0);
        let accepted = !matches!(flags, 0b000 | 0b001 | 0b111);
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        let mut syn = conn.syn();
        (syn.flags, syn.ae) = (syn.flags | ECE | CWR, true);
        rig.peer_sends(&syn);
        rig.at_guest();
        let mut syn_ack = conn.syn_ack();
        syn_ack.ae = ae;
        syn_ack.flags |= if cwr { CWR } else { 0 } | if ece { ECE } else { 0 };
        rig.guest_sends(&syn_ack);
        let mode = match accepted {
            true => Mode::Bypass(Bypass::Accecn),
            false => Mode::Unproven,
        };
        assert_eq!(rig.flow().mode, mode, "{flags:03b}");
    }
}

#[test]
fn classic_ecn_in_the_syn_does_not_bypass_the_flow() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    let mut syn = conn.syn();
    syn.flags |= ECE | CWR;
    rig.peer_sends(&syn);
    rig.at_guest();
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    prove(&mut rig, &mut conn);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn urgent_data_and_a_fin_are_left_to_the_guest() {
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
fn after_the_guests_fin_there_are_no_early_acks() {
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
fn a_reset_of_either_end_ends_the_flow_and_its_ports_may_be_reused() {
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
fn a_new_handshake_restarts_an_old_flow() {
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
fn a_segment_with_an_unknown_option_is_left_to_the_guest() {
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
fn only_data_in_the_syn_that_the_guest_takes_bypasses_the_flow() {
    for taken in [true, false] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        // Without an option, too (RFC 9293 3.10.7.2).
        let mut syn = conn.syn();
        syn.len = 100;
        rig.peer_sends(&syn);
        assert_eq!(rig.at_guest(), [syn]);
        if taken {
            conn.peer_seq += 100;
            conn.guest_ack += 100;
        }
        let syn_ack = conn.syn_ack();
        rig.guest_sends(&syn_ack);
        assert_eq!(rig.at_peer(), [syn_ack]);
        let mode = match taken {
            true => Mode::Bypass(Bypass::FastOpen),
            false => Mode::Unproven,
        };
        assert_eq!(rig.flow().mode, mode);
        prove(&mut rig, &mut conn);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), usize::from(!taken));
    }
}

/// A flow whose two FINs are acknowledged leaves the table.
#[test]
fn a_flow_that_both_ends_have_closed_is_removed() {
    for (first, with_data) in [(true, false), (false, false), (true, true)] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        for from_guest in [first, !first] {
            assert_eq!(flows(&rig), 1);
            let mut fin = match from_guest {
                true => conn.guest_data(0),
                false => conn.data(usize::from(with_data)),
            };
            fin.flags = FIN | ACK;
            match from_guest {
                true => {
                    rig.guest_sends(&fin);
                    conn.guest_seq += 1;
                    let ack = conn.pure_ack();
                    rig.peer_sends(&ack);
                }
                false => {
                    rig.peer_sends(&fin);
                    conn.peer_seq += 1;
                    let ack = conn.guest_acks(conn.peer_seq);
                    rig.guest_sends(&ack);
                }
            }
            rig.at_guest();
            rig.at_peer();
        }
        assert_eq!(flows(&rig), 0, "the guest closes first: {first}");
    }
}

fn flows(rig: &Rig) -> usize {
    rig.program.as_ref().unwrap().flows().unwrap().len()
}

/// SYNs take no room from connections, however many come.
#[test]
fn unanswered_syns_take_no_room_in_the_table() {
    let mut rig = Rig::new(500, ON);
    for port in 1000..1200 {
        let syn = Conn::new(Terms {
            port,
            ..Terms::default()
        })
        .syn();
        rig.peer_sends(&syn);
        rig.at_guest();
    }
    assert_eq!(flows(&rig), 0);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}
