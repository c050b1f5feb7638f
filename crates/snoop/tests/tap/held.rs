//! While the guest is awake every second full segment is acknowledged, where the sender does not wait.

use taut_snoop::wire::{Config, Mode};

use crate::checker::tsecr;
use crate::conn::{Conn, Terms};
use crate::promise::ON;
use crate::rig::{ACK, Rig, Segment};

/// Segments that each get an acknowledgement: QUICK_SEGMENTS.
const QUICK: u32 = 16;
const FULL: usize = 1448;
const NOTHING: [u32; 0] = [];
/// Whenever it was heard.
const AWAKE: Config = Config {
    awake_ticks: u32::MAX,
    ..ON
};

/// A segment of a sender that has more to send.
fn more(conn: &mut Conn, len: usize) -> Segment {
    Segment {
        flags: ACK,
        ..conn.data(len)
    }
}

fn acks_of(rig: &mut Rig, segment: &Segment) -> Vec<u32> {
    rig.peer_sends(segment);
    rig.at_guest();
    rig.at_peer().iter().map(|ack| ack.ack).collect()
}

/// A connection whose first segments are over.
fn under_way(rig: &mut Rig) -> Conn {
    let mut conn = Conn::new(Terms {
        window: 200_000,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    for _ in 0..QUICK {
        let data = more(&mut conn, FULL);
        assert_eq!(acks_of(rig, &data), [conn.peer_seq]);
    }
    conn
}

#[test]
fn every_second_full_segment_is_acknowledged_once_the_first_have_been() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, AWAKE);
        rig.v6 = v6;
        let mut conn = under_way(&mut rig);
        let edge = conn.guest_ack + (conn.terms.window >> 7 << 7);
        for _ in 0..4 {
            let held = more(&mut conn, FULL);
            rig.peer_sends(&held);
            assert_eq!(rig.at_peer(), []);
            assert_eq!(rig.at_guest(), [held]);
            let promised = rig.flow().promised();
            let clock = conn.peer_clock;
            let data = more(&mut conn, FULL);
            rig.peer_sends(&data);
            assert_eq!(rig.flow().promised(), promised + 2 * FULL as u32);
            let seen = rig.at_peer();
            assert_eq!(seen.len(), 1);
            // RFC 7323 4.3: of the first that is acknowledged, so that the wait shows.
            assert_eq!(tsecr(&seen[0].options), Some(clock));
            conn.peer_clock = clock;
            assert_eq!(seen, [conn.early(conn.peer_seq, edge)]);
            conn.peer_clock += 1;
            rig.at_guest();
        }
        assert_eq!(rig.exits("held"), 4);
        assert_eq!(rig.flow().acked_segments, u64::from(QUICK) + 8);
        assert_eq!(rig.flow().acked_bytes, (u64::from(QUICK) + 8) * FULL as u64);
        rig.checker.settle();
    }
}

#[test]
fn what_a_sender_may_wait_for_is_acknowledged_at_once() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    for _ in 0..2 {
        let pushed = conn.data(FULL);
        assert_eq!(acks_of(&mut rig, &pushed), [conn.peer_seq]);
        for len in [1, 1000, 2 * FULL, 30_000] {
            let data = more(&mut conn, len);
            assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq], "{len}");
        }
    }
    // And with what was held.
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let last = conn.data(10);
    assert_eq!(acks_of(&mut rig, &last), [conn.peer_seq]);
    assert_eq!(rig.exits("held"), 1);
    rig.checker.settle();
}

#[test]
fn after_a_gap_the_next_are_acknowledged_one_by_one() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let lost = more(&mut conn, FULL);
    let beyond = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &beyond), NOTHING, "the guest's to answer");
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    let again = conn.again(&lost);
    assert_eq!(acks_of(&mut rig, &again), [lost.seq + FULL as u32]);
    // The guest has what came before the gap was filled, too.
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    for _ in 1..QUICK {
        let data = more(&mut conn, FULL);
        assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    }
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    rig.checker.settle();
}

#[test]
fn a_sender_that_has_no_window_for_two_more_is_told_at_once() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    // All but three segments of the window, in frames of many.
    let left = conn.guest_ack + conn.terms.window - conn.peer_seq - 3 * FULL as u32;
    for len in [left / 4, left / 4, left / 4, left - left / 4 * 3] {
        let data = more(&mut conn, len as usize);
        assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    }
    let data = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    assert_eq!(rig.exits("held"), 0);
}

#[test]
fn the_guests_own_acknowledgement_ends_what_is_held() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let told = conn.peer_seq;
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    // Nothing that the sender does not know: its application has read nothing.
    let edge = conn.guest_ack + (conn.terms.window >> 7 << 7);
    for known in [told - 5 * FULL as u32, told] {
        conn.terms.window = edge - known;
        let known = conn.guest_acks(known);
        rig.guest_sends(&known);
        assert_eq!(rig.at_peer(), []);
    }
    let own = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&own);
    assert_eq!(rig.at_peer(), [own]);
    assert_eq!(rig.flow().promised(), 0);
    // What the guest has told of is not held with the next.
    let next = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &next), NOTHING);
    let data = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    rig.checker.settle();
}

#[test]
fn of_a_guest_that_is_not_heard_each_segment_is_acknowledged() {
    let mut rig = Rig::new(500, ON);
    let mut conn = under_way(&mut rig);
    for _ in 0..4 {
        let data = more(&mut conn, FULL);
        assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    }
    // It was heard this long ago: the clock goes on by itself.
    rig.configure(Config {
        awake_ticks: 1000,
        ..ON
    });
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    assert_eq!(rig.exits("held"), 1);
}

#[test]
fn what_is_held_is_owed_and_not_promised() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    // Were the ring emptied now and the tap turned on again, it would be promised with the next.
    assert_eq!((rig.flow().promised(), rig.flow().owed()), (0, FULL as u32));
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    assert_eq!((rig.flow().promised(), rig.flow().owed()), (0, 0));
}

#[test]
fn a_segment_of_the_guests_that_tells_of_what_is_held_is_counted() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let answer = conn.guest_data(100);
    rig.guest_sends(&answer);
    assert_eq!(rig.at_peer().last().unwrap().ack, conn.peer_seq);
    let flow = rig.flow();
    assert_eq!(flow.acked_segments, u64::from(QUICK) + 1);
    assert_eq!(flow.acked_bytes, (u64::from(QUICK) + 1) * FULL as u64);
}
