//! While the guest is awake, an ACK covers several full segments, if the sender does not wait for
//! it.

use std::time::Duration;

use taut_snoop::wire::{Config, Mode};

use crate::checker::tsecr;
use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, ECE, RST, Rig, Segment, rest, ticks};

/// Segments covered by each of the first ACKs: no more than the sender's window, which grows by one
/// after each (RFC 5681 3.1).
const FIRST: [u32; 4] = [1, 1, 2, 3];
/// Segments covered by each later ACK: STRETCH_MAX.
const STRETCH: u32 = 4;
const FULL: usize = 1448;
const NOTHING: [u32; 0] = [];
/// Whenever it was heard.
const AWAKE: Config = Config {
    awake_ticks: u32::MAX,
    ..ON
};

/// Returns a segment of a sender that has more to send.
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

/// Sends full segments, of which only the last is acknowledged, with the others.
fn one_for(rig: &mut Rig, conn: &mut Conn, segments: u32) {
    for _ in 1..segments {
        let held = more(conn, FULL);
        assert_eq!(acks_of(rig, &held), NOTHING);
    }
    let data = more(conn, FULL);
    assert_eq!(acks_of(rig, &data), [conn.peer_seq]);
}

/// After a gap: one more segment for every eight ACKs.
fn carefully(rig: &mut Rig, conn: &mut Conn, already: usize) {
    let stretches = [1, 2, 3].map(|segments| [segments; 8]);
    for segments in stretches.iter().flatten().skip(already) {
        one_for(rig, conn, *segments);
    }
    one_for(rig, conn, STRETCH);
}

/// A connection with a window that no test here fills.
fn wide(rig: &mut Rig) -> Conn {
    let mut conn = Conn::new(Terms {
        window: 900_000,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    conn
}

/// A segment is lost before the tap, and retransmitted.
fn fill_a_gap(rig: &mut Rig, conn: &mut Conn) {
    let lost = more(conn, FULL);
    let beyond = more(conn, FULL);
    assert_eq!(acks_of(rig, &beyond), NOTHING, "the guest's to answer");
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    let again = conn.again(&lost);
    assert_eq!(acks_of(rig, &again), [lost.seq + FULL as u32]);
    // The guest has the data from before the gap was filled, too.
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
}

/// A connection after its first segments.
fn under_way(rig: &mut Rig) -> Conn {
    let mut conn = Conn::new(Terms {
        window: 200_000,
        // Windows are multiples of this, as a full segment is.
        scale: Some(3),
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    for segments in FIRST {
        one_for(rig, &mut conn, segments);
    }
    conn
}

#[test]
fn stretch_acks_grow_from_one_to_the_next() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, AWAKE);
        rig.v6 = v6;
        let mut conn = under_way(&mut rig);
        let edge = conn.guest_ack + (conn.terms.window);
        let (mut segments, bytes) = (FIRST.iter().sum::<u32>(), FULL as u32);
        for _ in 0..4 {
            let early_acked = rig.flow().exposure();
            let clock = conn.peer_clock + 1;
            for _ in 1..STRETCH {
                let held = more(&mut conn, FULL);
                rig.peer_sends(&held);
                assert_eq!(rig.at_peer(), []);
                assert_eq!(rig.at_guest(), [held]);
                assert_eq!(rig.flow().exposure(), early_acked);
            }
            let data = more(&mut conn, FULL);
            rig.peer_sends(&data);
            segments += STRETCH;
            assert_eq!(rig.flow().exposure(), early_acked + STRETCH * bytes);
            let seen = rig.at_peer();
            assert_eq!(seen.len(), 1);
            // RFC 7323 4.3: the first segment's, so that the delay shows.
            assert_eq!(tsecr(&seen[0].options), Some(clock));
            let now = std::mem::replace(&mut conn.peer_clock, clock);
            assert_eq!(seen, [conn.early(conn.peer_seq, edge)]);
            conn.peer_clock = now;
            rig.at_guest();
        }
        let acks = FIRST.len() as u64 + 4;
        assert_eq!(rig.exits("held"), u64::from(segments) - acks);
        assert_eq!(rig.flow().acked_segments, u64::from(segments));
        assert_eq!(rig.flow().acked_bytes, u64::from(segments * bytes));
        rig.checker.settle();
    }
}

#[test]
fn a_segment_that_the_sender_may_wait_for_is_acknowledged_at_once() {
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
    // With the held segments.
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let last = conn.data(10);
    assert_eq!(acks_of(&mut rig, &last), [conn.peer_seq]);
    one_for(&mut rig, &mut conn, STRETCH);
    rig.checker.settle();
}

/// A sender with a congestion window of full segments, and a silent guest.
struct Sender {
    window: f64,
    /// Slow start; otherwise congestion avoidance (RFC 5681 3.1).
    starts: bool,
    in_flight: u32,
}

impl Sender {
    /// Sends this many segments.
    fn send(&mut self, rig: &mut Rig, conn: &mut Conn, segments: u32) {
        for _ in 0..segments {
            assert!(
                f64::from(self.in_flight + 1) <= self.window,
                "it waits with {} in flight, and a window of {}",
                self.in_flight,
                self.window
            );
            self.in_flight += 1;
            let data = more(conn, FULL);
            for _ in acks_of(rig, &data) {
                self.in_flight = 0;
                self.window += if self.starts { 1.0 } else { 1.0 / self.window };
            }
        }
    }
}

#[test]
fn a_sender_with_a_small_window_never_waits_for_held_segments() {
    for after_a_gap in [false, true] {
        let mut rig = Rig::new(500, AWAKE);
        let mut conn = wide(&mut rig);
        let mut sender = Sender {
            window: 1.0,
            starts: true,
            in_flight: 0,
        };
        if after_a_gap {
            sender.window = 2.0;
            sender.starts = false;
            fill_a_gap(&mut rig, &mut conn);
        }
        sender.send(&mut rig, &mut conn, 300);
        assert!(rig.exits("held") > 200, "{}", rig.exits("held"));
    }
}

#[test]
fn segments_that_do_not_fill_a_window_do_not_stretch_acks() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = wide(&mut rig);
    for _ in 0..40 {
        let small = conn.data(100);
        assert_eq!(acks_of(&mut rig, &small), [conn.peer_seq]);
        let full = conn.data(FULL);
        assert_eq!(acks_of(&mut rig, &full), [conn.peer_seq]);
        let unpushed = more(&mut conn, 100);
        assert_eq!(acks_of(&mut rig, &unpushed), [conn.peer_seq]);
    }
    let mut sender = Sender {
        window: 1.0,
        starts: true,
        in_flight: 0,
    };
    sender.send(&mut rig, &mut conn, 100);
}

/// Its limit of three segments in flight has a cause that the programs cannot know.
#[test]
fn a_sender_that_was_seen_to_wait_does_not_wait_again() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = wide(&mut rig);
    for segments in FIRST {
        one_for(&mut rig, &mut conn, segments);
    }
    for _ in 0..3 {
        let held = more(&mut conn, FULL);
        assert_eq!(acks_of(&mut rig, &held), NOTHING);
    }
    // It waits for the guest for more than half of the awake time. (Longer does no harm.)
    rig.configure(Config {
        awake_ticks: 1,
        ..ON
    });
    rest(Duration::from_millis(10));
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    rig.configure(AWAKE);
    for _ in 0..20 {
        one_for(&mut rig, &mut conn, 3);
    }
}

#[test]
fn a_pause_is_like_a_gap() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = wide(&mut rig);
    for segments in FIRST {
        one_for(&mut rig, &mut conn, segments);
    }
    one_for(&mut rig, &mut conn, STRETCH);
    for _ in 0..2 {
        // Eight times the awake time. (Longer does no harm.)
        rig.configure(Config {
            awake_ticks: 1,
            ..ON
        });
        rest(Duration::from_millis(30));
        one_for(&mut rig, &mut conn, 1);
        rig.configure(AWAKE);
        carefully(&mut rig, &mut conn, 1);
    }
}

#[test]
fn every_segment_that_fills_a_long_gap_is_acknowledged() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let lost: Vec<_> = (0..20).map(|_| more(&mut conn, FULL)).collect();
    let beyond = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &beyond), NOTHING);
    for lost in lost {
        let again = conn.again(&lost);
        let end = again.seq + FULL as u32;
        assert_eq!(acks_of(&mut rig, &again), [end]);
    }
}

#[test]
fn a_new_connection_on_the_same_ports_begins_like_any_other() {
    // It has had no data, which counts as longer ago than eight times this: since the start of the machine.
    let mut rig = Rig::new(
        500,
        Config {
            awake_ticks: ticks() / 16,
            ..ON
        },
    );
    let mut conn = under_way(&mut rig);
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let reset = Segment {
        flags: RST,
        ..conn.data(0)
    };
    rig.peer_sends(&reset);
    rig.at_guest();
    let mut again = Conn::new(Terms {
        peer_isn: conn.peer_seq.wrapping_add(1_000_000),
        window: 200_000,
        scale: Some(3),
        ..Terms::default()
    });
    again.open_and_prove(&mut rig);
    for segments in FIRST {
        one_for(&mut rig, &mut again, segments);
    }
    let segments = FIRST.iter().sum::<u32>();
    assert_eq!(rig.flow().acked_segments, u64::from(segments));
}

#[test]
fn stretch_acks_work_across_a_wrap_and_without_timestamps() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = Conn::new(Terms {
        // The numbers wrap within the held segments and their ACK.
        peer_isn: 0u32.wrapping_sub(100 + 9 * FULL as u32),
        timestamps: false,
        window: 200_000,
        scale: Some(3),
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    for segments in FIRST {
        one_for(&mut rig, &mut conn, segments);
    }
    for _ in 0..5 {
        one_for(&mut rig, &mut conn, STRETCH);
    }
    rig.checker.settle();
}

#[test]
fn after_a_gap_the_next_are_acknowledged_one_by_one() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    fill_a_gap(&mut rig, &mut conn);
    carefully(&mut rig, &mut conn, 1);
    rig.checker.settle();
}

#[test]
fn a_sender_without_window_for_as_many_more_is_acknowledged_at_once() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    // All but a segment and eight of the largest, in frames of many.
    let edge = conn.guest_ack + (conn.terms.window);
    let left = edge - conn.peer_seq - FULL as u32 - STRETCH * u32::from(conn.terms.mss);
    for len in [left / 4, left / 4, left / 4, left - left / 4 * 3] {
        let data = more(&mut conn, len as usize);
        assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    }
    let held = rig.exits("held");
    let data = more(&mut conn, FULL);
    assert_eq!(
        acks_of(&mut rig, &data),
        NOTHING,
        "there is window for eight"
    );
    let data = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    let data = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    assert_eq!(rig.exits("held"), held + 1);
}

#[test]
fn the_guests_own_ack_covers_held_segments() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let told = conn.peer_seq;
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    // No news for the sender: its application has read nothing.
    let edge = conn.guest_ack + (conn.terms.window);
    for known in [told - 5 * FULL as u32, told] {
        conn.terms.window = edge - known;
        let known = conn.guest_acks(known);
        rig.guest_sends(&known);
        assert_eq!(rig.at_peer(), []);
    }
    let own = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&own);
    assert_eq!(rig.at_peer(), [own]);
    assert_eq!(rig.flow().exposure(), 0);
    // Segments that the guest acknowledged are not held.
    one_for(&mut rig, &mut conn, STRETCH);
    rig.checker.settle();
}

#[test]
fn the_guest_may_acknowledge_some_held_segments() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let acked = rig.flow().acked_segments;
    let first = conn.peer_seq;
    for _ in 0..3 {
        let held = more(&mut conn, FULL);
        assert_eq!(acks_of(&mut rig, &held), NOTHING);
    }
    // It has the first two, with this timestamp.
    let now = conn.peer_clock;
    conn.peer_clock -= 1;
    let mut own = conn.guest_acks(first + 2 * FULL as u32);
    // Otherwise it would acknowledge all of them here.
    own.flags |= ECE;
    rig.guest_sends(&own);
    assert_eq!(rig.at_peer(), [own]);
    let told = conn.peer_clock;
    conn.peer_clock = now;
    assert_eq!(rig.flow().exposure(), 0);
    assert_eq!(rig.flow().owed(), FULL as u32);
    // It still counts as three.
    let data = more(&mut conn, FULL);
    rig.peer_sends(&data);
    let seen = rig.at_peer();
    rig.at_guest();
    assert_eq!(seen[0].ack, conn.peer_seq);
    assert_eq!(tsecr(&seen[0].options), Some(told));
    assert_eq!(rig.flow().acked_segments, acked + 4);
    rig.checker.settle();
}

#[test]
fn every_segment_is_acknowledged_while_the_guest_is_silent() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    rig.configure(ON);
    let before = rig.exits("held");
    for _ in 0..4 {
        let data = more(&mut conn, FULL);
        assert_eq!(acks_of(&mut rig, &data), [conn.peer_seq]);
    }
    rig.configure(AWAKE);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    // Otherwise each segment would follow a pause.
    carefully(&mut rig, &mut conn, 1);
    assert!(rig.exits("held") > before);
}

#[test]
fn held_segments_are_owed_and_not_exposed() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    // If the ring were emptied now and the tap turned on again, the next early ACK would include
    // it.
    assert_eq!((rig.flow().exposure(), rig.flow().owed()), (0, FULL as u32));
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    assert_eq!((rig.flow().exposure(), rig.flow().owed()), (0, 0));
}

#[test]
fn a_guest_segment_that_acknowledges_held_segments_is_counted() {
    let mut rig = Rig::new(500, AWAKE);
    let mut conn = under_way(&mut rig);
    let held = more(&mut conn, FULL);
    assert_eq!(acks_of(&mut rig, &held), NOTHING);
    let answer = conn.guest_data(100);
    rig.guest_sends(&answer);
    assert_eq!(rig.at_peer().last().unwrap().ack, conn.peer_seq);
    let flow = rig.flow();
    let segments = u64::from(FIRST.iter().sum::<u32>()) + 1;
    assert_eq!(flow.acked_segments, segments);
    assert_eq!(flow.acked_bytes, segments * FULL as u64);
}
