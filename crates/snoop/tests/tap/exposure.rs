//! The guest's own ACKs override assumptions, and exposure is limited.

use taut_snoop::wire::{Bypass, Config, Mode};

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{Rig, Segment};

/// A connection with five early-acknowledged segments, none of which the guest has read.
fn five_early(rig: &mut Rig) -> Conn {
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(rig);
    for _ in 0..5 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
    }
    assert_eq!(rig.at_peer().len(), 5);
    conn
}

fn contradicts(rig: &mut Rig, conn: &mut Conn, said: &Segment) {
    rig.guest_sends(said);
    assert_eq!(
        rig.at_peer(),
        std::slice::from_ref(said),
        "it passes, and as the guest has said it"
    );
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Contradicted));
    assert_eq!(from_guest(rig, "contradicted"), 1);
    let program = rig.program.as_ref().unwrap();
    let doubts = program.doubts();
    assert_eq!(doubts.len(), 1);
    assert!(doubts[0].contradicted);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), [], "nothing more is acknowledged early");
}

fn from_guest(rig: &Rig, exit: &str) -> u64 {
    let program = rig.program.as_ref().unwrap();
    program.from_guest().unwrap().of(exit)
}

/// As Linux does after it dropped data for lack of buffer.
#[test]
fn a_window_that_closes_behind_the_acknowledged_edge_is_a_contradiction() {
    for taken in [0, 1000, 4000] {
        let mut rig = Rig::new(500, ON);
        let mut conn = five_early(&mut rig);
        let mut closed = conn.guest_acks(conn.guest_ack + taken);
        closed.window = 0;
        contradicts(&mut rig, &mut conn, &closed);
    }
}

#[test]
fn a_window_that_shrinks_is_a_contradiction() {
    let mut rig = Rig::new(500, ON);
    let mut conn = five_early(&mut rig);
    // Still beyond the acknowledged edge, but less than was advertised.
    let mut shrunk = conn.guest_acks(conn.guest_ack + 1000);
    shrunk.window -= (1000 >> 7) + 2;
    contradicts(&mut rig, &mut conn, &shrunk);
}

/// Windows are in units of the scale (RFC 7323 2.3).
#[test]
fn a_window_that_is_rounded_down_is_no_contradiction() {
    let mut rig = Rig::new(500, ON);
    let mut conn = five_early(&mut rig);
    let mut ack = conn.guest_acks(conn.guest_ack + 1001);
    ack.window -= (1001 >> 7) + 1;
    rig.guest_sends(&ack);
    assert_eq!(rig.flow().mode, Mode::Active);
    assert_eq!(from_guest(&rig, "suppressed"), 1);
}

#[test]
fn a_window_that_is_used_up_is_no_contradiction() {
    let mut rig = Rig::new(500, ON);
    let mut conn = five_early(&mut rig);
    let edge = conn.guest_ack + conn.terms.window;
    // It takes one after the other, and its application reads none.
    for n in 1..=5 {
        let ack = conn.guest_ack + 1000;
        conn.terms.window = edge - ack;
        let ack = conn.guest_acks(ack);
        rig.guest_sends(&ack);
        assert_eq!(rig.flow().mode, Mode::Active, "{n}");
    }
    assert_eq!(from_guest(&rig, "contradicted"), 0);
}

/// Segments of the guest may overtake one another on their way to the tap.
#[test]
fn an_old_acknowledgement_is_no_contradiction() {
    let mut rig = Rig::new(500, ON);
    let mut conn = five_early(&mut rig);
    let old = conn.guest_acks(conn.guest_ack);
    let new = conn.guest_acks(conn.guest_ack + 2000);
    rig.guest_sends(&new);
    rig.guest_sends(&old);
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn early_acks_stay_within_the_exposure() {
    let mut rig = Rig::new(
        500,
        Config {
            exposure: 3500,
            ..ON
        },
    );
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut early = 0;
    for _ in 0..5 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
        early += rig.at_peer().len();
    }
    assert_eq!(early, 3);
    assert_eq!(rig.exits("exposure"), 1, "the last one is out of order");
    assert_eq!(
        (rig.flow().exposure(), rig.flow().exposed_most),
        (3000, 3000)
    );
    // The guest has taken all.
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    rig.checker.settle();
}

#[test]
fn early_acks_stop_for_a_guest_without_progress() {
    let mut rig = Rig::new(
        500,
        Config {
            exposure_ticks: 0,
            ..ON
        },
    );
    let mut conn = Conn::new(Terms {
        window: 8 << 20,
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    // The clock advances by a few milliseconds, and the window is wide enough for that.
    let mut data = conn.data(1000);
    rig.peer_sends(&data);
    while rig.at_peer().len() == 1 {
        rig.empty_unread();
        data = conn.data(1000);
        rig.peer_sends(&data);
    }
    rig.empty_unread();
    assert_eq!(rig.exits("overdue"), 1);
    assert_eq!(rig.flow().mode, Mode::NoBuf);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn without_room_for_a_copy_there_is_no_early_ack() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms {
        window: 1 << 30,
        scale: Some(14),
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    rig.keeps_copies = true;
    while rig.exits("not_kept") == 0 {
        let data = conn.data(60_000);
        rig.peer_sends(&data);
        let early = rig.at_peer().len();
        rig.at_guest();
        assert_eq!(early as u64, 1 - rig.exits("not_kept"));
    }
    rig.keeps_copies = false;
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1, "there is room again");
    rig.at_guest();
    rig.checker.settle();
}

#[test]
fn every_early_acknowledged_segment_has_a_copy() {
    for (len, segment) in [(1, 1), (1448, 1448), (8900, 1448), (60_000, 1448)] {
        for v6 in [false, true] {
            let mut rig = Rig::new(500, ON);
            rig.v6 = v6;
            let mut conn = Conn::new(Terms {
                window: 1 << 20,
                ..Terms::default()
            });
            conn.open_and_prove(&mut rig);
            rig.keeps_copies = true;
            rig.copies.as_ref().unwrap().take();
            let data = conn.data(len);
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer().len(), 1);
            let frame = rig.frame(false, &data);
            let copies = rig.copies.as_ref().unwrap().take();
            assert_eq!(copies.len(), 1);
            let copy = &copies[0];
            assert_eq!((copy.seq, copy.len), (data.seq, len as u32));
            assert_eq!(copy.segment as usize, segment);
            assert_eq!(copy.key.peer.port(), 5000);
            // Behind the device's own header; the device may have to complete the checksum.
            let data_at = copy.l4_at + copy.header;
            assert!(copy.frame[data_at..] == frame[10 + data_at..]);
        }
    }
}

/// An ACK reports data that the receiver has beyond a hole (RFC 2018 4).
#[test]
fn an_early_ack_carries_the_guests_sack_block() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let (first, second) = (conn.data(1000), conn.data(1000));
    let third = conn.data(1000);
    rig.peer_sends(&third);
    rig.at_guest();
    let mut ack = conn.guest_acks(first.seq);
    ack.options.extend([1, 1, 5, 10]);
    ack.options.extend(third.seq.to_be_bytes());
    ack.options.extend((third.seq + 1000).to_be_bytes());
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack.clone()]);
    let first = conn.again(&first);
    rig.peer_sends(&first);
    let seen = rig.at_peer();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].ack, second.seq);
    assert_eq!(seen[0].options[12..], ack.options[12..]);
    // Once the hole is filled, the acknowledgment number covers it.
    let second = conn.again(&second);
    rig.peer_sends(&second);
    let seen = rig.at_peer();
    assert_eq!(seen[0].ack, third.seq);
    assert_eq!(seen[0].options.len(), 12);
}
