//! Segments from the guest: which are dropped, raised, or passed.

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ECE, Rig};

/// Five early-acknowledged segments of 1000 bytes.
fn early_acked(rig: &mut Rig, terms: Terms) -> Conn {
    let mut conn = Conn::new(terms);
    conn.open_and_prove(rig);
    for _ in 0..5 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
    }
    assert_eq!(rig.at_peer().len(), 5);
    assert_eq!(rig.at_guest().len(), 5);
    conn
}

#[test]
fn an_ack_without_news_is_dropped() {
    let mut rig = Rig::new(500, ON);
    let mut conn = early_acked(&mut rig, Terms::default());
    let start = conn.guest_ack;
    let edge = start + conn.terms.window;
    for done in [2000, 4000, 5000] {
        // Its application does not read: its right edge stays.
        conn.terms.window = edge - start - done;
        let ack = conn.guest_acks(start + done);
        rig.guest_sends(&ack);
    }
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().suppressed, 3);
    // The repetition answers something, such as a keepalive.
    let again = conn.guest_acks(start + 5000);
    rig.guest_sends(&again);
    assert_eq!(rig.at_peer(), [again]);
}

/// Passed on, it would be a duplicate ACK (RFC 5681 2).
#[test]
fn the_guests_last_ack_passes_if_it_widens_the_window() {
    let mut rig = Rig::new(500, ON);
    let mut conn = early_acked(&mut rig, Terms::default());
    let last = conn.guest_acks(conn.guest_ack + 5000);
    rig.guest_sends(&last);
    assert_eq!(rig.at_peer(), [last]);
}

#[test]
fn a_window_update_passes_with_the_acknowledged_edge() {
    let mut rig = Rig::new(500, ON);
    let mut conn = early_acked(&mut rig, Terms::default());
    let start = conn.guest_ack;
    // The acknowledged data was read: the window is as wide as before.
    let update = conn.guest_acks(start + 2000);
    rig.guest_sends(&update);
    let seen = rig.at_peer();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].ack, start + 5000);
    let edge = start + 2000 + conn.terms.window;
    assert_eq!(u32::from(seen[0].window), (edge - start - 5000) >> 7);
    assert_eq!(seen[0].options, update.options);
}

#[test]
fn a_window_that_was_closed_is_opened() {
    let mut rig = Rig::new(500, ON);
    let terms = Terms {
        scale: None,
        window: 5000,
        mss: 1000,
        ..Terms::default()
    };
    let mut conn = early_acked(&mut rig, terms);
    // The peer knows a zero window. The guest has read 1000 of the 5000.
    let update = conn.guest_acks(conn.guest_ack + 1000);
    rig.guest_sends(&update);
    let seen = rig.at_peer();
    assert_eq!((seen[0].ack, seen[0].window), (conn.peer_seq, 1000));
}

#[test]
fn data_passes_with_a_raised_number_and_any_checksum_state() {
    for v6 in [false, true] {
        for checksum in [crate::rig::Checksum::Full, crate::rig::Checksum::Partial] {
            let mut rig = Rig::new(500, ON);
            rig.v6 = v6;
            let mut conn = early_acked(&mut rig, Terms::default());
            rig.checksum = checksum;
            for len in [10, 1448, 20_000] {
                let mut data = conn.guest_data(len);
                rig.guest_sends(&data);
                data.ack = conn.peer_seq;
                let seen = rig.at_peer();
                assert_eq!(seen.len(), 1, "{checksum:?}, {len}");
                assert_eq!(
                    (seen[0].seq, seen[0].ack, seen[0].len),
                    (data.seq, data.ack, len)
                );
            }
        }
    }
}

#[test]
fn an_ack_with_sack_or_congestion_marks_passes_unchanged() {
    let mut rig = Rig::new(500, ON);
    let mut conn = early_acked(&mut rig, Terms::default());
    let start = conn.guest_ack;
    conn.terms.window -= 1000;
    // D-SACK: below what it acknowledges (RFC 2883).
    let mut dsack = conn.guest_acks(start + 1000);
    dsack.options.extend([1, 1, 5, 10]);
    dsack.options.extend(start.to_be_bytes());
    dsack.options.extend((start + 500).to_be_bytes());
    rig.guest_sends(&dsack);
    conn.terms.window -= 1000;
    let mut echo = conn.guest_acks(start + 2000);
    echo.flags |= ECE;
    rig.guest_sends(&echo);
    assert_eq!(rig.at_peer(), [dsack, echo]);
}

#[test]
fn early_acks_carry_the_guests_sequence_number_and_timestamp() {
    let mut rig = Rig::new(500, ON);
    let mut conn = early_acked(&mut rig, Terms::default());
    let data = conn.guest_data(700);
    rig.guest_sends(&data);
    rig.at_peer();
    let more = conn.data(1000);
    rig.peer_sends(&more);
    let seen = rig.at_peer();
    assert_eq!(seen[0].seq, conn.guest_seq);
    assert_eq!(
        crate::checker::tsval(&seen[0].options),
        Some(conn.guest_clock)
    );
}

#[test]
fn the_guests_acks_are_understood_across_a_wrap() {
    // From a number before 2^32 to one after it, in any of the five segments.
    for before in [1, 101, 1101, 2101, 3101, 4101, 5101] {
        let mut rig = Rig::new(500, ON);
        let mut conn = early_acked(
            &mut rig,
            Terms {
                peer_isn: 0u32.wrapping_sub(before + 1),
                guest_isn: u32::MAX - 1,
                ..Terms::default()
            },
        );
        let start = conn.guest_ack;
        let edge = start.wrapping_add(conn.terms.window);
        let at = |n: u32| start.wrapping_add(n * 1000);
        // Dropped: no news.
        conn.terms.window = edge.wrapping_sub(at(1));
        let ack = conn.guest_acks(at(1));
        rig.guest_sends(&ack);
        assert_eq!(rig.at_peer(), [], "{before}");
        // Raised: data, and a right edge that moved.
        let data = conn.guest_data(10);
        rig.guest_sends(&data);
        assert_eq!(rig.at_peer()[0].ack, conn.peer_seq, "{before}");
        conn.terms.window += 2000;
        let update = conn.guest_acks(at(2));
        rig.guest_sends(&update);
        let seen = rig.at_peer();
        assert_eq!(seen[0].ack, conn.peer_seq, "{before}");
        let told = seen[0].ack.wrapping_add(u32::from(seen[0].window) << 7);
        let guests = at(2).wrapping_add(u32::from(update.window) << 7);
        assert!(guests.wrapping_sub(told) < 1 << 7, "{before}");
        // Unchanged: it is the last.
        let last = conn.guest_acks(at(5));
        rig.guest_sends(&last);
        assert_eq!(rig.at_peer(), [last], "{before}");
        assert_eq!(rig.flow().exposure(), 0);
    }
}
