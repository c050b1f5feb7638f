//! How the host goes offline for a flow, and comes back.

use taut_snoop::wire::{Bypass, Config, Mode};

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, CWR, FIN, Rig, Segment};

/// SACK, with one block (RFC 2018).
fn sack(conn: &Conn, from: u32, to: u32) -> Vec<u8> {
    let mut options = conn.options(true);
    options.extend([1, 1, 5, 10]);
    options.extend(from.to_be_bytes());
    options.extend(to.to_be_bytes());
    options
}

/// The next segment in order is acknowledged.
fn is_online(rig: &mut Rig, conn: &mut Conn) {
    let data = conn.data(1000);
    rig.peer_sends(&data);
    let acks = rig.at_peer();
    assert_eq!(acks.len(), 1, "{acks:?}");
    assert_eq!(acks[0].ack, conn.peer_seq);
    assert_eq!(rig.flow().mode, Mode::Active);
    rig.at_guest();
    rig.checker.settle();
}

#[test]
fn a_hole_is_left_to_the_guest_until_it_is_filled() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let lost = conn.data(1448);
    for _ in 0..3 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
    }
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    // The guest's duplicate ACKs pass unchanged.
    let after = lost.seq + 1448;
    let mut duplicate = conn.guest_acks(lost.seq);
    duplicate.options = sack(&conn, after, after + 1448);
    rig.guest_sends(&duplicate);
    rig.guest_sends(&duplicate);
    assert_eq!(rig.at_peer(), [duplicate.clone(), duplicate]);
    // The retransmission fills the hole: it is in order, and the guest acknowledges all of it.
    rig.peer_sends(&conn.again(&lost));
    let acks = rig.at_peer();
    assert_eq!(
        acks[0].ack, after,
        "the hole's end, and not what the guest has beyond it"
    );
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    is_online(&mut rig, &mut conn);
}

#[test]
fn the_guest_answers_retransmissions_keepalives_and_window_probes() {
    let mut rig = Rig::new(500, ON);
    let terms = Terms {
        scale: None,
        window: 3000,
        ..Terms::default()
    };
    let mut conn = Conn::new(terms);
    conn.open_and_prove(&mut rig);
    let first = conn.data(1500);
    rig.peer_sends(&first);
    assert_eq!(rig.at_peer().len(), 1);
    // Its ACK was lost.
    rig.peer_sends(&first);
    assert_eq!(rig.at_peer(), []);
    is_online(&mut rig, &mut conn);
    let fill = conn.data(500);
    rig.peer_sends(&fill);
    assert_eq!(rig.at_peer()[0].window, 0);
    let mut keepalive = conn.data(0);
    keepalive.seq -= 1;
    keepalive.flags = ACK;
    rig.peer_sends(&keepalive);
    let mut probe = keepalive.clone();
    (probe.seq, probe.len) = (conn.peer_seq, 1);
    rig.peer_sends(&probe);
    assert_eq!(rig.at_peer(), []);
    let seen = rig.at_guest();
    assert_eq!(seen[seen.len() - 2..], [keepalive, probe]);
}

#[test]
fn the_guest_answers_segments_with_congestion_marks() {
    let config = taut_snoop::wire::Config { ecn: true, ..ON };
    let mut rig = Rig::new(500, config);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut data = conn.data(1000);
    data.ecn = 2;
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1, "ECT is no mark");
    let mut data = conn.data(1000);
    data.ecn = 3;
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.exits("ce"), 1);
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let mut data = conn.data(1000);
    data.flags |= CWR;
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
}

#[test]
fn ecn_capable_flows_are_bypassed_without_the_option() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut data = conn.data(1000);
    data.ecn = 2;
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Ect));
}

#[test]
fn a_segment_with_missing_or_unexpected_timestamps_is_left_to_the_guest() {
    for agreed in [false, true] {
        let mut rig = Rig::new(500, ON);
        let terms = Terms {
            timestamps: agreed,
            ..Terms::default()
        };
        let mut conn = Conn::new(terms);
        conn.open_and_prove(&mut rig);
        conn.terms.timestamps = !agreed;
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), []);
        assert_eq!(rig.exits("options"), 1);
    }
}

#[test]
fn turned_off_there_are_no_early_acks_and_earlier_ones_stay_valid() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(rig.flow().exposure(), 1448);
    rig.configure(taut_snoop::wire::Config { on: false, ..ON });
    let more = conn.data(1448);
    rig.peer_sends(&more);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.at_guest().len(), 2);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    assert_eq!(rig.flow().exposure(), 0);
    rig.configure(ON);
    is_online(&mut rig, &mut conn);
}

#[test]
fn when_the_programs_are_gone_the_flow_goes_on() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    for _ in 0..3 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
    }
    assert_eq!(rig.at_peer().len(), 3);
    rig.detach();
    assert_eq!(rig.at_guest().len(), 3);
    // The guest's ACK is merely an old one to the peer.
    let ack = conn.guest_acks(conn.peer_seq.wrapping_sub(1448));
    rig.guest_sends(&ack);
    let last = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&last);
    assert_eq!(rig.at_peer(), [ack, last]);
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.at_guest(), [data]);
}

#[test]
fn a_guest_that_lacks_early_acknowledged_data_is_detected() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let lost: Segment = conn.data(1448);
    rig.peer_sends(&lost);
    let next = conn.data(1448);
    rig.peer_sends(&next);
    assert_eq!(rig.at_peer().len(), 2);
    rig.at_guest();
    // It has the second only.
    let mut broken = conn.guest_acks(lost.seq);
    broken.options = sack(&conn, next.seq, next.seq + 1448);
    rig.guest_sends(&broken);
    assert_eq!(rig.at_peer(), [broken]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Doubt));
    let told = rig.program.as_ref().unwrap().doubts();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].lacks, told[0].reach), (2 * 1448, 2 * 1448));
    assert_eq!(told[0].key.guest.port(), 80);
}

/// A process that starts during a handshake has not seen the data that its beginning invited.
#[test]
fn data_before_a_repeated_syn_ack_is_no_doubt() {
    for start_early in [false, true] {
        let mut rig = Rig::new(500, Config { start_early, ..ON });
        let mut conn = Conn::new(Terms::default());
        let syn = conn.syn();
        rig.peer_sends(&syn);
        rig.at_guest();
        rig.detach();
        let syn_ack = conn.syn_ack();
        rig.guest_sends(&syn_ack);
        // The guest is descheduled. Of the data meanwhile the second segment is lost.
        let segments: Vec<_> = (0..4).map(|_| conn.data(1448)).collect();
        for n in [0, 2, 3] {
            rig.peer_sends(&segments[n]);
        }
        rig.attach_anew(Config { start_early, ..ON });
        rig.guest_sends(&syn_ack);
        rig.at_peer();
        // It runs again, and has reached the first of them.
        let one = conn.guest_acks(segments[1].seq);
        rig.guest_sends(&one);
        assert_eq!(rig.at_peer(), [one]);
        let again = conn.again(&segments[1]);
        rig.peer_sends(&again);
        assert_eq!(rig.at_peer().len(), 1, "it is early_acked");
        let mut hole = conn.guest_acks(segments[1].seq);
        hole.options = sack(&conn, segments[2].seq, conn.peer_seq);
        rig.guest_sends(&hole);
        assert_eq!(rig.at_peer(), [hole]);
        assert_eq!(rig.flow().mode, Mode::Active, "{start_early}");
    }
}

/// A FIN has a sequence number of its own, which the guest selectively acknowledges.
#[test]
fn a_fin_beyond_a_hole_is_no_doubt() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let hole = conn.data(1448);
    let mut end = conn.data(393);
    // The programs do not count it as a FIN, because it acknowledges data that the guest has not
    // sent.
    (end.flags, end.ack) = (ACK | FIN, end.ack.wrapping_add(1));
    rig.peer_sends(&end);
    rig.peer_sends(&conn.again(&hole));
    assert_eq!(rig.at_peer().len(), 1, "it is early_acked");
    let mut told = conn.guest_acks(hole.seq);
    told.options = sack(&conn, end.seq, end.seq + 394);
    rig.guest_sends(&told);
    assert_eq!(rig.at_peer(), [told]);
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn a_fin_while_the_tap_is_off_closes_the_flow() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    rig.configure(Config { on: false, ..ON });
    let hole = conn.data(1448);
    let mut end = conn.data(393);
    end.flags = ACK | FIN;
    rig.peer_sends(&end);
    rig.configure(ON);
    rig.peer_sends(&hole);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Closing));
}

/// The guest has `beyond` and reports the hole before it, while the segment that fills it is in the
/// ring and acknowledged early.
fn tells_of_a_hole_that_has_been_filled(rig: &mut Rig, conn: &mut Conn, hole: &Segment, end: u32) {
    let edge = conn.guest_ack.wrapping_add(conn.terms.window);
    rig.peer_sends(&conn.again(hole));
    let early = rig.at_peer();
    assert_eq!(early.len(), 1, "{hole:?}");
    assert!(edge.wrapping_sub(early[0].ack) <= conn.terms.window);
    let mut old = conn.guest_acks(hole.seq);
    old.options = sack(conn, hole.seq + 1448, end);
    rig.guest_sends(&old);
    assert_eq!(rig.at_peer(), [old]);
    assert_eq!(rig.flow().mode, Mode::Active, "no doubt");
    rig.at_guest();
    let all = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&all);
    assert_eq!(rig.at_peer(), [all]);
    rig.checker.settle();
    is_online(rig, conn);
}

#[test]
fn sack_before_the_guest_reaches_the_filled_hole_is_no_doubt() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    // Lost on its way to the host; two come after it, and then it is retransmitted.
    let hole = conn.data(1448);
    for _ in 0..2 {
        let beyond = conn.data(1448);
        rig.peer_sends(&beyond);
    }
    assert_eq!(rig.at_peer(), []);
    let end = conn.peer_seq;
    tells_of_a_hole_that_has_been_filled(&mut rig, &mut conn, &hole, end);
}

#[test]
fn sack_of_data_from_before_the_programs_or_while_off_is_no_doubt() {
    for off in [false, true] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms {
            scale: None,
            ..Terms::default()
        });
        conn.open_and_prove(&mut rig);
        match off {
            true => rig.configure(taut_snoop::wire::Config { on: false, ..ON }),
            false => rig.detach(),
        }
        let hole = conn.data(1448);
        let beyond = conn.data(1448);
        rig.peer_sends(&beyond);
        match off {
            true => rig.configure(ON),
            false => rig.attach_anew(ON),
        }
        // Data from the guest confirms the connection.
        let word = conn.guest_data(1);
        rig.guest_sends(&word);
        rig.at_peer();
        let end = conn.peer_seq;
        tells_of_a_hole_that_has_been_filled(&mut rig, &mut conn, &hole, end);
    }
}

#[test]
fn a_guest_that_lacks_the_filled_hole_is_detected_by_later_data() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let hole = conn.data(1448);
    let beyond = conn.data(1448);
    rig.peer_sends(&beyond);
    rig.peer_sends(&conn.again(&hole));
    assert_eq!(rig.at_peer().len(), 1);
    let lost = conn.guest_acks(beyond.seq);
    rig.guest_sends(&lost);
    let all = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&all);
    let lost = conn.data(1448);
    rig.peer_sends(&lost);
    let next = conn.data(1448);
    rig.peer_sends(&next);
    rig.at_peer();
    rig.at_guest();
    let mut broken = conn.guest_acks(lost.seq);
    broken.options = sack(&conn, next.seq, next.seq + 1448);
    rig.guest_sends(&broken);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Doubt));
}

#[test]
fn a_segment_that_paws_rejects_is_not_acknowledged() {
    // Data made it too old, or a pure ACK.
    for by_data in [true, false] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let mut late = conn.data(1000);
        let mut newer = if by_data { late.clone() } else { conn.data(0) };
        conn.peer_clock += 50;
        newer.options = conn.options(false);
        if by_data {
            // The peer retransmitted it, although the first was only delayed; then more came.
            rig.peer_sends(&newer);
            assert_eq!(rig.at_peer().len(), 1);
            late.seq = late.seq.wrapping_add(1000);
        } else {
            newer.flags = ACK;
            rig.peer_sends(&newer);
        }
        rig.peer_sends(&late);
        assert_eq!(rig.at_peer(), [], "by data: {by_data}");
        assert_eq!(rig.exits("options"), 1);
        assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
        rig.at_guest();
    }
}

#[test]
fn turned_off_the_guests_acks_pass_and_the_exposure_does_not_grow() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let early_acked = conn.data(1000);
    rig.peer_sends(&early_acked);
    assert_eq!(rig.at_peer().len(), 1);
    rig.configure(taut_snoop::wire::Config { on: false, ..ON });
    for _ in 0..3 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
    }
    rig.at_guest();
    let owed = rig.flow().exposure();
    assert_eq!(owed, 1000);
    // One after the other, each with a wider window: no number is raised beyond early-acknowledged
    // data.
    for taken in 1..=4 {
        conn.terms.window += 1000;
        let ack = conn.guest_acks(early_acked.seq + taken * 1000);
        rig.guest_sends(&ack);
        assert_eq!(rig.at_peer(), [ack]);
        assert_eq!(rig.flow().exposure(), 0);
    }
}

#[test]
fn a_segment_that_overlaps_early_acknowledged_data_is_left_to_the_guest() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let early_acked = conn.data(1000);
    rig.peer_sends(&early_acked);
    assert_eq!(rig.at_peer().len(), 1);
    // Cut differently: half of it is old, half of it is new.
    let mut overlap = conn.data(500);
    (overlap.seq, overlap.len) = (early_acked.seq + 500, 1000);
    rig.peer_sends(&overlap);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.exits("out_of_order"), 1);
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    assert_eq!(rig.flow().exposure(), 1000, "and no more than that");
    assert_eq!(rig.at_guest().len(), 2);
    let all = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&all);
    assert_eq!(rig.at_peer(), [all]);
    is_online(&mut rig, &mut conn);
}

#[test]
fn whatever_comes_no_ack_goes_back_or_is_repeated() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms {
        peer_isn: u32::MAX - 5000,
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    let start = conn.peer_seq;
    let segments: Vec<_> = (0..10).map(|_| conn.data(1000)).collect();
    let mut told = Vec::new();
    // In order, out of order, repeated: as on a multipath network.
    for n in [0, 2, 1, 2, 3, 3, 0, 4, 8, 5, 6, 7, 7, 8, 9, 1, 9] {
        rig.peer_sends(&conn.again(&segments[n]));
        told.extend(rig.at_peer().iter().map(|ack| ack.ack.wrapping_sub(start)));
    }
    // (A segment that was out of order is acknowledged early once it is repeated in order.)
    let all: Vec<_> = (1..=10).map(|n| n * 1000).collect();
    assert_eq!(told, all);
    rig.at_guest();
    rig.checker.settle();
}
