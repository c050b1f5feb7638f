#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use proptest::prelude::*;

use super::*;
use crate::wire::Mode;

const SEGMENT: u32 = 1000;
const FIRST: u32 = 0u32.wrapping_sub(1500);

fn key() -> Key {
    Key {
        guest: ([10, 0, 0, 1], 80).into(),
        peer: ([10, 0, 0, 2], 5000).into(),
        vlan: None,
    }
}

fn id() -> Id {
    (7, key())
}

/// Returns a copy of `len` bytes starting at `seq`, in segments of a thousand bytes.
fn copy(seq: u32, len: u32, at: Duration) -> Copy {
    Copy {
        key: key(),
        ifindex: 7,
        seq,
        len,
        l4_at: 34,
        header: 20,
        segment: SEGMENT,
        begun: 1,
        at,
        frame: vec![0; 54 + len as usize].into(),
    }
}

/// Returns a flow in which the guest has `vm_seq` and the sender has an ACK of `acked_seq`.
fn flow(vm_seq: u32, acked_seq: u32, heard: Duration) -> Flow {
    Flow {
        mode: Mode::Active,
        next_seq: acked_seq,
        acked_seq,
        vm_seq,
        rcv_edge: acked_seq,
        grown_edge: acked_seq,
        acked_segments: 1,
        acked_bytes: 1,
        suppressed: 0,
        lifted: 0,
        seen_ns: 0,
        exposed_most: 0,
        heard: (heard.as_nanos() >> TICK_SHIFT) as u32,
        begun: 1,
        vm_una: 0,
        peer_window: 0,
        ts_peer: 0,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Retains `count` segments that were delivered at the same time.
fn retained(count: u32, at: Duration) -> Retained {
    let mut retained = Retained::default();
    for n in 0..count {
        let seq = FIRST.wrapping_add(n * SEGMENT);
        retained.add(copy(seq, SEGMENT, at), at);
    }
    retained
}

fn end(count: u32) -> u32 {
    FIRST.wrapping_add(count * SEGMENT)
}

fn sent(due: &Due) -> Vec<u32> {
    let starts = due.segments.iter().map(|(_, range)| range.start);
    starts.collect()
}

#[test]
fn copies_that_the_guest_has_acknowledged_are_dropped() {
    let mut retained = retained(3, ms(0));
    assert_eq!(retained.bytes_of(7), 3 * 1054);
    let look = retained.look(&id(), Some(&flow(end(2), end(3), ms(1))), ms(1));
    assert_eq!(look, Due::default());
    assert_eq!(retained.bytes_of(7), 1054);
    retained.look(&id(), Some(&flow(end(3), end(3), ms(1))), ms(2));
    assert!(retained.is_empty());
    assert_eq!(retained.bytes_of(7), 0);
}

#[test]
fn a_flow_that_is_over_is_removed() {
    let mut retained = retained(3, ms(0));
    assert_eq!(retained.look(&id(), None, ms(1)), Due::default());
    assert!(retained.is_empty());
    assert_eq!(retained.bytes_of(7), 0);
}

#[test]
fn a_tap_that_is_gone_takes_its_copies_with_it() {
    let mut retained = retained(3, ms(0));
    retained.forget(8);
    assert_eq!(retained.bytes_of(7), 3 * 1054);
    retained.forget(7);
    assert!(retained.is_empty());
    assert_eq!(retained.bytes_of(7), 0);
}

#[test]
fn a_guest_that_waits_for_its_cpu_gets_no_retransmission() {
    let mut retained = retained(3, ms(0));
    // The guest is silent for nearly two seconds, and then takes one segment after the other.
    for now in (0..1990).step_by(10) {
        let look = retained.look(&id(), Some(&flow(FIRST, end(3), ms(0))), ms(now));
        assert_eq!(look, Due::default(), "after {now} ms");
    }
    for (n, now) in [(1, 1990), (2, 1991), (3, 1992)] {
        let look = retained.look(&id(), Some(&flow(end(n), end(3), ms(now))), ms(now));
        assert_eq!(look, Due::default(), "after {now} ms");
    }
    assert!(retained.is_empty());
}

#[test]
fn evidence_of_the_programs_is_acted_upon_at_once() {
    let mut retained = retained(3, ms(0));
    retained.suspect(&id());
    let look = retained.look(&id(), Some(&flow(FIRST, end(3), ms(5))), ms(5));
    assert_eq!(sent(&look), [FIRST]);
    assert_eq!(look.news, Some(News::Lacks(3 * SEGMENT)));
    // The evidence counts only once.
    retained.suspect(&id());
    let look = retained.look(&id(), Some(&flow(FIRST, end(3), ms(6))), ms(6));
    assert_eq!(look, Due::default());
}

#[test]
fn a_guest_that_takes_what_it_is_sent_is_sent_more_at_a_time() {
    let mut retained = retained(40, ms(0));
    retained.suspect(&id());
    let mut now = 5;
    let mut next = 0;
    let mut bursts = Vec::new();
    loop {
        let look = retained.look(&id(), Some(&flow(end(next), end(40), ms(now))), ms(now));
        if look.news == Some(News::Repaired) {
            break;
        }
        let starts: Vec<_> = (next..next + look.segments.len() as u32).map(end).collect();
        assert_eq!(sent(&look), starts);
        bursts.push(look.segments.len());
        next += look.segments.len() as u32;
        now += 1;
    }
    assert_eq!(bursts, [1, 2, 4, 8, 16, 9]);
    assert!(retained.is_empty());
}

#[test]
fn a_guest_that_is_heard_and_acknowledges_nothing_gets_the_data_again() {
    let mut retained = retained(3, ms(0));
    let mut times = Vec::new();
    for now in (0..8_000).step_by(10) {
        let look = retained.look(&id(), Some(&flow(FIRST, end(3), ms(now))), ms(now));
        assert_eq!(look.news, None, "it may not have come to the data");
        if !look.segments.is_empty() {
            assert_eq!(sent(&look), [FIRST]);
            times.push(now);
        }
        // After three retransmissions that it has seen and not taken.
        assert_eq!(retained.is_refused(&id(), 1), times.len() > 3, "{now}");
    }
    // The programs' clock has ticks of about a millisecond.
    assert_eq!(times.len(), 4, "{times:?}");
    for (time, least) in times.iter().zip([500, 1500, 3500, 7500]) {
        assert!((least..least + 20).contains(time), "{times:?}");
    }
}

/// The ring keeps order: what was put there before is taken, lost or refused.
#[test]
fn a_guest_that_takes_later_data_of_another_flow_is_heard() {
    let mut retained = retained(3, ms(0));
    let other = Id::from((
        7,
        Key {
            vlan: Some(1),
            ..key()
        },
    ));
    let silent = flow(FIRST, end(3), ms(0));
    let mut times = Vec::new();
    for now in (0..8_000).step_by(10) {
        let later = Copy {
            key: other.1,
            ..copy(FIRST, SEGMENT, ms(now))
        };
        retained.add(later, ms(now));
        retained.look(&other, Some(&flow(end(1), end(1), ms(now))), ms(now));
        let look = retained.look(&id(), Some(&silent), ms(now));
        if !look.segments.is_empty() {
            times.push(now);
        }
    }
    assert_eq!(times, [500, 1500, 3500, 7500]);
    assert!(retained.is_refused(&id(), 1));
    assert!(!retained.is_refused(&id(), 2), "another connection");
    assert!(!retained.is_refused(&(8, key()), 1), "another tap");
}

/// Its application does not read, or it has dropped data for want of memory: it may take the data later.
#[test]
fn a_guest_without_room_refuses_nothing() {
    for evidence in [false, true] {
        let mut retained = retained(3, ms(0));
        if evidence {
            retained.suspect(&id());
        }
        for now in (0..60_000).step_by(10) {
            let closed = Flow {
                rcv_edge: if evidence { end(3) } else { FIRST },
                ..flow(FIRST, end(3), ms(now))
            };
            retained.look(&id(), Some(&closed), ms(now));
            assert!(!retained.is_refused(&id(), 1), "{now}");
        }
    }
}

#[test]
fn what_was_lost_at_the_end_is_repaired_in_growing_bursts() {
    let mut retained = retained(40, ms(0));
    let (mut next, mut now, mut bursts) = (0, 2000, Vec::new());
    while next < 40 {
        let look = retained.look(&id(), Some(&flow(end(next), end(40), ms(0))), ms(now));
        let lacks = (next == 1).then_some(News::Lacks(39 * SEGMENT));
        assert_eq!(
            look.news, lacks,
            "known once it takes just what it was sent"
        );
        bursts.push(look.segments.len());
        next += look.segments.len() as u32;
        now += 1;
    }
    assert_eq!(bursts, [1, 2, 4, 8, 16, 9]);
}

#[test]
fn a_silent_guest_is_probed_without_a_log_line() {
    let mut retained = retained(3, ms(0));
    let mut times = Vec::new();
    for now in (0..200_000).step_by(100) {
        let look = retained.look(&id(), Some(&flow(FIRST, end(3), ms(0))), ms(now));
        assert_eq!(look.news, None);
        if !look.segments.is_empty() {
            times.push(now / 1000);
        }
    }
    assert_eq!(times, [2, 6, 14, 30, 62, 122, 182]);
}

#[test]
fn beyond_the_guests_window_only_the_first_segment_is_sent() {
    let mut retained = retained(8, ms(0));
    retained.suspect(&id());
    let closed = |vm: u32, heard| Flow {
        rcv_edge: vm,
        ..flow(vm, end(8), heard)
    };
    let look = retained.look(&id(), Some(&closed(FIRST, ms(1))), ms(1));
    assert_eq!(sent(&look), [FIRST]);
    // The guest takes that segment, and has no more room.
    let look = retained.look(&id(), Some(&closed(end(1), ms(2))), ms(2));
    assert_eq!(sent(&look), [end(1)]);
    // Now the guest has room for two more.
    let open = Flow {
        rcv_edge: end(4),
        ..flow(end(2), end(8), ms(3))
    };
    let look = retained.look(&id(), Some(&open), ms(3));
    assert_eq!(sent(&look), [end(2), end(3)]);
}

#[test]
fn a_frame_of_many_segments_is_sent_in_segments_from_where_the_guest_is() {
    let mut retained = Retained::default();
    retained.add(copy(FIRST, 2500, ms(0)), ms(0));
    retained.suspect(&id());
    let told = FIRST.wrapping_add(2500);
    let within = FIRST.wrapping_add(300);
    let look = retained.look(&id(), Some(&flow(within, told, ms(1))), ms(1));
    assert_eq!(look.segments, [(0, within..FIRST.wrapping_add(1000))]);
    let second = FIRST.wrapping_add(1000);
    let look = retained.look(&id(), Some(&flow(second, told, ms(2))), ms(2));
    let last = FIRST.wrapping_add(2000);
    assert_eq!(look.segments, [(0, second..last), (0, last..told)]);
}

#[test]
fn a_segment_without_an_early_ack_is_not_retransmitted() {
    // The third segment is in the ring, and the guest acknowledges it.
    let mut retained = retained(3, ms(0));
    retained.suspect(&id());
    let mut all = Vec::new();
    for now in 1..10 {
        let has = all.len() as u32;
        let look = retained.look(&id(), Some(&flow(end(has), end(2), ms(now))), ms(now));
        all.extend(sent(&look));
    }
    assert_eq!(all, [FIRST, end(1)]);
}

#[test]
fn a_guest_that_takes_nothing_for_a_quarter_of_an_hour_is_given_up() {
    let mut retained = retained(3, ms(0));
    let mut news = Vec::new();
    for now in (0..1_000).map(Duration::from_secs) {
        let look = retained.look(&id(), Some(&flow(FIRST, end(3), now)), now);
        news.extend(look.news);
    }
    assert_eq!(news, [News::Lost(3 * SEGMENT)]);
    assert!(retained.is_empty());
}

/// Without the drop, a client could repeat for ever what a full ring refuses.
#[test]
fn a_copy_without_an_early_ack_is_dropped() {
    let mut retained = Retained::default();
    for now in 0..1_000 {
        retained.add(copy(FIRST, SEGMENT, ms(now)), ms(now));
        retained.look(&id(), Some(&flow(FIRST, FIRST, ms(now))), ms(now));
        assert!(retained.bytes_of(7) <= 100 * 1054);
    }
}

#[test]
fn copies_of_an_earlier_connection_with_the_same_ports_are_dropped() {
    let mut retained = retained(3, ms(0));
    let other = Flow {
        begun: 2,
        ..flow(FIRST, end(3), ms(1))
    };
    retained.suspect(&id());
    assert_eq!(retained.look(&id(), Some(&other), ms(1)), Due::default());
    assert!(retained.is_empty());
    // Copies of the new connection come before those of the old one are checked.
    let mut retained = self::retained(3, ms(0));
    let new = Copy {
        begun: 2,
        ..copy(FIRST, SEGMENT, ms(1))
    };
    retained.add(new, ms(1));
    assert_eq!(retained.bytes_of(7), 1054);
}

#[test]
fn a_guest_that_has_room_again_gets_the_missing_data_at_once() {
    let mut retained = retained(3, ms(0));
    retained.suspect(&id());
    let closed = |edge, heard| Flow {
        rcv_edge: edge,
        ..flow(FIRST, end(3), heard)
    };
    retained.look(&id(), Some(&closed(FIRST, ms(1))), ms(1));
    let look = retained.look(&id(), Some(&closed(FIRST, ms(2))), ms(2));
    assert_eq!(look, Due::default());
    let look = retained.look(&id(), Some(&closed(end(3), ms(3))), ms(3));
    assert_eq!(sent(&look), [FIRST]);
}

proptest! {
    /// A guest that drops each frame with some probability eventually gets everything.
    #[test]
    fn everything_that_was_acknowledged_early_arrives(
        lens in prop::collection::vec(1u32..4000, 1..30),
        drops in prop::collection::vec(any::<bool>(), 1..6),
        first: u32,
    ) {
        let mut retained = Retained::default();
        let mut told = first;
        for len in &lens {
            retained.add(copy(told, *len, ms(0)), ms(0));
            told = told.wrapping_add(*len);
        }
        let mut vm_seq = first;
        let mut drops = drops.iter().chain([&false]).cycle();
        let mut now = Duration::ZERO;
        while vm_seq != told {
            let missing = told.wrapping_sub(vm_seq);
            prop_assert!(now < GIVE_UP * lens.len() as u32, "{missing} bytes are missing");
            let due = retained.look(&id(), Some(&flow(vm_seq, told, now)), now);
            for (number, range) in due.segments {
                let copy = retained.copy(&id(), number).unwrap();
                prop_assert!(range.end.wrapping_sub(range.start) <= SEGMENT);
                prop_assert!(!is_after(copy.seq, range.start) && !is_after(range.end, copy.end()));
                if range.start == vm_seq && !drops.next().unwrap() {
                    vm_seq = range.end;
                }
            }
            now += ms(10);
        }
        retained.look(&id(), Some(&flow(told, told, now)), now);
        prop_assert!(retained.is_empty());
        prop_assert_eq!(retained.bytes_of(7), 0);
    }
}
