//! Unusual handshakes: both ends at once, over an old connection, refused.

use std::slice::from_ref;

use taut_snoop::wire::{Bypass, Mode};

use crate::checker::Checker;
use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, FIN, RST, Rig, SYN, Segment};

/// The guest acknowledges the next segment itself, and the host the one after.
fn confirms_and_is_served(rig: &mut Rig, conn: &mut Conn) {
    let first = conn.data(100);
    rig.peer_sends(&first);
    assert_eq!(rig.at_peer(), [], "before the guest's proof");
    assert_eq!(rig.at_guest(), [first]);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    is_served(rig, conn);
}

/// The next segment gets the ACK that the guest would send.
fn is_served(rig: &mut Rig, conn: &mut Conn) {
    let scale = conn.terms.scale.unwrap_or(0);
    let edge = conn
        .guest_ack
        .wrapping_add(conn.terms.window >> scale << scale);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), [conn.early(conn.peer_seq, edge)]);
    assert_eq!(rig.flow().mode, Mode::Active);
    assert_eq!(rig.at_guest(), [data]);
    rig.checker.settle();
}

/// The peer's segment is left to the guest.
fn is_not_served(rig: &mut Rig, conn: &mut Conn) {
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.at_guest(), [data]);
}

fn flows(rig: &Rig) -> usize {
    rig.program.as_ref().unwrap().flows().unwrap().len()
}

fn reset(of: Segment, seq: u32) -> Segment {
    Segment {
        seq,
        ack: 0,
        flags: RST,
        window: 0,
        options: Vec::new(),
        len: 0,
        ..of
    }
}

/// RFC 9293 3.5, figure 8.
#[test]
fn both_ends_may_open_at_once() {
    for guest_answers_first in [false, true] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        let mut guest_syn = conn.syn_ack();
        (guest_syn.flags, guest_syn.ack) = (SYN, 0);
        let peer_syn = conn.syn();
        rig.guest_sends(&guest_syn);
        rig.peer_sends(&peer_syn);
        assert_eq!(rig.at_peer(), from_ref(&guest_syn));
        assert_eq!(rig.at_guest(), from_ref(&peer_syn));
        // Each answers with its own SYN again, now with an ACK.
        let flags = SYN | ACK;
        let guest_answer = Segment {
            flags,
            ack: conn.peer_seq,
            ..guest_syn
        };
        let peer_answer = Segment {
            flags,
            ack: conn.guest_seq,
            ..peer_syn
        };
        if guest_answers_first {
            rig.guest_sends(&guest_answer);
            assert_eq!(rig.at_peer(), from_ref(&guest_answer));
        }
        rig.peer_sends(&peer_answer);
        assert_eq!(rig.at_guest(), [peer_answer]);
        if !guest_answers_first {
            rig.guest_sends(&guest_answer);
            assert_eq!(rig.at_peer(), [guest_answer]);
        }
        assert_eq!(rig.flow().mode, Mode::Unproven);
        assert_eq!(rig.flow().next_seq, conn.peer_seq);
        confirms_and_is_served(&mut rig, &mut conn);
    }
}

/// RFC 9293 3.5.1, figure 9: the peer lost the connection, and the guest did not.
#[test]
fn a_peer_that_lost_the_connection_can_open_another() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    is_served(&mut rig, &mut conn);
    let terms = Terms {
        peer_isn: 400,
        guest_isn: 77_000_000,
        ..Terms::default()
    };
    let mut again = Conn::new(terms);
    let syn = again.syn();
    rig.peer_sends(&syn);
    assert_eq!(rig.at_guest(), from_ref(&syn));
    // The guest sends a challenge ACK (RFC 5961 4.2); by the ring's order it has all
    // early-acknowledged data.
    let challenge = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&challenge);
    assert_eq!(rig.at_peer(), from_ref(&challenge));
    let kill = reset(syn.clone(), challenge.ack);
    rig.peer_sends(&kill);
    assert_eq!(rig.at_guest(), [kill]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Closing));
    assert_eq!(rig.flow().exposure(), 0);
    is_not_served(&mut rig, &mut conn);
    rig.checker = Checker::new(false);
    // Retransmitted after a timeout, it is accepted.
    rig.peer_sends(&syn);
    assert_eq!(rig.at_guest(), [syn]);
    let syn_ack = again.syn_ack();
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.at_peer(), [syn_ack]);
    confirms_and_is_served(&mut rig, &mut again);
}

/// RFC 9293 3.5.1, figure 10: the guest lost the connection.
#[test]
fn a_guest_that_lost_the_connection_can_reset_it() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1, "nobody can know it yet");
    assert_eq!(rig.at_guest(), from_ref(&data));
    let mut refusal = reset(data, conn.guest_seq);
    refusal.ports = (refusal.ports.1, refusal.ports.0);
    rig.guest_sends(&refusal);
    assert_eq!(rig.at_peer(), [refusal]);
    assert_eq!(flows(&rig), 0);
    is_not_served(&mut rig, &mut conn);
    rig.checker = Checker::new(false);
    let mut again = Conn::new(Terms {
        peer_isn: 3,
        ..Terms::default()
    });
    again.open(&mut rig);
    confirms_and_is_served(&mut rig, &mut again);
}

#[test]
fn a_connection_that_the_guest_refuses_leaves_nothing_behind() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        let mut conn = Conn::new(Terms::default());
        let syn = conn.syn();
        rig.peer_sends(&syn);
        assert_eq!(rig.at_guest(), from_ref(&syn));
        // RFC 9293 3.10.7.1.
        let mut refusal = reset(syn, 0);
        refusal.ports = (refusal.ports.1, refusal.ports.0);
        (refusal.flags, refusal.ack) = (RST | ACK, conn.peer_seq);
        rig.guest_sends(&refusal);
        assert_eq!(rig.at_peer(), [refusal]);
        assert_eq!(flows(&rig), 0);
        // A peer that continues gets no early ACK.
        is_not_served(&mut rig, &mut conn);
        assert_eq!(flows(&rig), 0);
        rig.checker = Checker::new(false);
        let mut again = Conn::new(Terms::default());
        again.open(&mut rig);
        confirms_and_is_served(&mut rig, &mut again);
    }
}

/// Both ends have closed; the guest, or the peer, is in TIME-WAIT.
fn closed(rig: &mut Rig, terms: Terms) -> Conn {
    let mut conn = Conn::new(terms);
    conn.open_and_prove(rig);
    is_served(rig, &mut conn);
    let mut fin = conn.data(0);
    fin.flags = FIN | ACK;
    rig.peer_sends(&fin);
    assert_eq!(rig.at_guest(), [fin]);
    let mut last = conn.guest_acks(conn.peer_seq.wrapping_add(1));
    last.flags |= FIN;
    conn.guest_seq = conn.guest_seq.wrapping_add(1);
    conn.peer_seq = conn.peer_seq.wrapping_add(1);
    rig.guest_sends(&last);
    assert_eq!(rig.at_peer(), [last]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Closing));
    conn
}

#[test]
fn reused_ports_may_start_with_lower_sequence_numbers() {
    for timestamps in [false, true] {
        // Lower by a little, and by nearly half of the sequence space.
        for back in [10_000, 0x7000_0000] {
            let mut rig = Rig::new(500, ON);
            let terms = Terms {
                timestamps,
                ..Terms::default()
            };
            let mut old = closed(&mut rig, terms);
            rig.checker = Checker::new(false);
            let mut again = Conn::new(Terms {
                peer_isn: terms.peer_isn.wrapping_sub(back),
                guest_isn: terms.guest_isn.wrapping_sub(back),
                ..terms
            });
            again.peer_clock = old.peer_clock + 10;
            let syn = again.syn();
            rig.peer_sends(&syn);
            assert_eq!(rig.at_guest(), [syn]);
            // A late segment of the old connection, before the guest has decided.
            is_not_served(&mut rig, &mut old);
            let syn_ack = again.syn_ack();
            rig.guest_sends(&syn_ack);
            assert_eq!(rig.at_peer(), [syn_ack]);
            assert_eq!(rig.flow().next_seq, again.peer_seq);
            confirms_and_is_served(&mut rig, &mut again);
            assert_eq!(rig.flow().acked_segments, 1, "the old ones are not its own");
        }
    }
}

/// RFC 1337: the guest is in TIME-WAIT, and does not accept the new SYN.
#[test]
fn a_guests_answers_for_an_old_connection_pass() {
    let mut rig = Rig::new(500, ON);
    let terms = Terms {
        timestamps: false,
        ..Terms::default()
    };
    let mut old = closed(&mut rig, terms);
    let mut again = Conn::new(Terms {
        peer_isn: terms.peer_isn - 5000,
        guest_isn: 5,
        ..terms
    });
    let syn = again.syn();
    rig.peer_sends(&syn);
    assert_eq!(rig.at_guest(), from_ref(&syn));
    let answer = old.guest_acks(old.peer_seq);
    rig.guest_sends(&answer);
    assert_eq!(rig.at_peer(), from_ref(&answer));
    let kill = reset(syn.clone(), answer.ack);
    rig.peer_sends(&kill);
    assert_eq!(rig.at_guest(), [kill]);
    rig.checker = Checker::new(false);
    rig.peer_sends(&syn);
    assert_eq!(rig.at_guest(), [syn]);
    let syn_ack = again.syn_ack();
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.at_peer(), [syn_ack]);
    confirms_and_is_served(&mut rig, &mut again);
}
