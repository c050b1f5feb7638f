use proptest::prelude::*;

use super::super::shape::Discipline;
use super::*;
use crate::units::BitsPerSecond;

const MS: u64 = 1_000_000;

fn at(nanos: u64) -> Moment {
    Moment(nanos)
}

fn segments(count: usize, each: u32) -> Segments {
    Segments {
        count,
        each,
        last: each,
        flow: 0,
        is_ect: false,
    }
}

/// Returns everything that is delivered, with the time of each delivery.
fn drain(path: &mut Path<(u32, Range<usize>)>) -> Vec<(u64, u32, Range<usize>)> {
    let mut out = Vec::new();
    while let Some(due) = path.next_due() {
        if let Some(before) = due.0.checked_sub(1) {
            assert!(path.poll_delivery(Moment(before)).is_none(), "early");
        }
        // With CoDel, a segment may only leave its queue then.
        if let Some(train) = path.poll_delivery(due) {
            let (frame, run) = train.payload;
            out.push((due.0, frame, run));
        }
    }
    out
}

fn offer(path: &mut Path<(u32, Range<usize>)>, now: u64, frame: u32, segments: Segments) {
    path.handle_frame(at(now), segments, |run| (frame, run));
}

fn ms(delay: u64) -> Shape {
    Shape::delay(Duration::from_millis(delay))
}

#[test]
fn an_unlimited_path_only_delays() {
    let mut path = Path::new(ms(10), 1500, 1, 0);
    offer(&mut path, 5, 0, segments(40, 1514));
    assert_eq!(drain(&mut path), [(10 * MS + 5, 0, 0..40)]);
}

#[test]
fn a_segment_arrives_when_it_has_been_serialised_and_has_travelled() {
    // 1250 bytes at 10 Mbit/s take 1 ms.
    let mut path = Path::new(ms(10).rate(BitsPerSecond::mega(10)), 1500, 1, 0);
    offer(&mut path, 0, 0, segments(1, 1250));
    offer(&mut path, 0, 1, segments(1, 1250));
    // The wire is idle again by then.
    offer(&mut path, 5 * MS, 2, segments(1, 1250));
    assert_eq!(
        drain(&mut path),
        [(11 * MS, 0, 0..1), (12 * MS, 1, 0..1), (16 * MS, 2, 0..1)]
    );
}

#[test]
fn fractions_of_a_nanosecond_add_up() {
    // 100 bytes take 114 285.71 ns: 7 of them 800 000.
    let mut path = Path::new(ms(0).rate(BitsPerSecond::mega(7)), 1500, 1, 0);
    offer(&mut path, 0, 0, segments(7000, 100));
    assert_eq!(
        drain(&mut path).last().map(|(due, ..)| *due),
        Some(800 * MS)
    );
}

#[test]
fn a_queue_takes_its_last_byte_and_none_more_at_any_rate() {
    // Rates at which a nanosecond is no whole number of bytes.
    for rate in [7_000_003, 3_333_333_333, 10_487_224_158] {
        let shape = ms(0).rate(BitsPerSecond(rate)).queue(Bytes(18_059));
        let mut path = Path::new(shape, 1500, 1, 0);
        offer(&mut path, 0, 0, segments(20, 900));
        offer(&mut path, 0, 1, segments(1, 60));
        assert_eq!(path.counters().queue_drops, 1, "60 bytes do not fit in 59");
        offer(&mut path, 0, 2, segments(1, 59));
        assert_eq!(path.counters().queue_drops, 1, "59 do");
    }
}

#[test]
fn trains_are_no_longer_than_the_quantum() {
    let trains = |rate| {
        let mut path = Path::new(ms(1).rate(rate), 1500, 1, 0);
        offer(&mut path, 0, 0, segments(20, 1514));
        drain(&mut path)
            .into_iter()
            .map(|(.., run)| run.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(trains(BitsPerSecond::giga(1)), [8, 8, 4]);
    assert_eq!(trains(BitsPerSecond::mega(100)), [1; 20]);
    assert_eq!(trains(BitsPerSecond::giga(10)), [20]);
}

#[test]
fn the_queue_holds_its_bytes_and_drops_what_exceeds_them() {
    let shape = ms(1).rate(BitsPerSecond::mega(10)).queue(Bytes(5000));
    let mut path = Path::new(shape, 1500, 1, 0);
    offer(&mut path, 0, 0, segments(10, 1250));
    assert_eq!(path.counters().queue_drops, 6);
    // By now half a segment has left, so a whole one does not fit; later it does.
    offer(&mut path, MS / 2, 1, segments(1, 1250));
    assert_eq!(path.counters().queue_drops, 7);
    offer(&mut path, MS, 2, segments(1, 1250));
    assert_eq!(path.counters().queue_drops, 7);
    assert_eq!(drain(&mut path).len(), 5);
}

#[test]
fn a_lost_segment_splits_its_train_and_still_takes_its_time_on_the_wire() {
    let shape = ms(0).rate(BitsPerSecond::giga(10)).loss(0.2);
    let mut path = Path::new(shape, 1500, 3, 0);
    offer(&mut path, 0, 0, segments(50, 1250));
    let lost = path.counters().loss_drops as usize;
    assert!(lost > 0);
    let out = drain(&mut path);
    assert_eq!(
        out.iter().map(|(.., run)| run.len()).sum::<usize>(),
        50 - lost
    );
    for (due, _, run) in &out {
        // One segment takes a microsecond, lost or not.
        assert_eq!(*due, run.end as u64 * 1000);
    }
}

#[test]
fn loss_is_drawn_for_each_segment_and_not_for_each_frame() {
    let lost = |count| {
        let mut path = Path::new(ms(1).loss(0.01), 1500, 9, 0);
        for frame in 0..(1_000_000 / count) {
            offer(&mut path, 0, frame as u32, segments(count, 1514));
            while path.poll_delivery(at(MS)).is_some() {}
        }
        path.counters().loss_drops
    };
    // The draws are the same however segments are packed into frames.
    assert_eq!(lost(1), lost(40));
    // Ten standard deviations of a binomial: 10 x sqrt(10^6 x 0.01 x 0.99).
    assert!(lost(1).abs_diff(10_000) < 995, "{}", lost(1));
}

#[test]
fn a_loss_of_1_loses_every_segment_and_a_loss_of_0_none() {
    for (loss, lost) in [(1.0, 1000), (0.0, 0)] {
        let mut path = Path::new(ms(1).loss(loss), 1500, 1, 0);
        offer(&mut path, 0, 0, segments(1000, 100));
        assert_eq!(path.counters().loss_drops, lost);
    }
}

#[test]
fn seeds_and_streams_lose_different_segments_and_the_same_seed_the_same() {
    let lost = |seed, stream| {
        let mut path = Path::new(ms(1).loss(0.5), 1500, seed, stream);
        offer(&mut path, 0, 0, segments(200, 100));
        drain(&mut path)
    };
    assert_eq!(lost(1, 0), lost(1, 0));
    assert_ne!(lost(1, 0), lost(1, 1));
    assert_ne!(lost(1, 0), lost(2, 0));
}

#[test]
fn memory_bounds_a_path_without_a_rate() {
    let mut path = Path::new(ms(1000), 1500, 1, 0);
    for frame in 0..2000 {
        offer(&mut path, 0, frame, segments(44, 1514));
    }
    let kept: u64 = drain(&mut path)
        .iter()
        .map(|(.., run)| run.len() as u64 * 1514)
        .sum();
    assert!(kept <= MIN_MEMORY && kept > MIN_MEMORY - 1514);
    assert!(path.counters().memory_drops > 0);
    assert_eq!(path.counters().queue_drops, 0);
}

#[test]
fn memory_suffices_for_segments_that_jitter_or_are_held_back() {
    let second = Duration::from_secs(1);
    for shape in [ms(0).jitter(second), ms(0).reordering(1.0, second)] {
        let mut path = Path::new(shape.rate(BitsPerSecond::giga(1)), 1500, 1, 0);
        // The wire is always busy. In a second it carries more than the least memory.
        for frame in 0..11_000 {
            offer(
                &mut path,
                u64::from(frame) * 96_896,
                frame,
                segments(8, 1514),
            );
        }
        assert!(path.in_flight_bytes > MIN_MEMORY);
        assert_eq!(path.counters().memory_drops, 0);
    }
}

#[test]
fn a_late_caller_is_counted_and_has_no_other_effect() {
    let mut path = Path::new(ms(1), 1500, 1, 0);
    for frame in 0..3 {
        offer(&mut path, 0, frame, segments(1, 100));
    }
    assert!(path.poll_delivery(at(MS)).is_some());
    assert!(path.poll_delivery(at(2 * MS)).is_some());
    assert_eq!(path.counters().late, 0);
    assert!(path.poll_delivery(at(2 * MS + 1)).is_some());
    assert_eq!(path.counters().late, 1);
    assert_eq!(path.counters().latest, Duration::from_nanos(MS + 1));
}

/// Offers frames, each `(gap, segments, bytes of each)`, and checks what is delivered.
fn check_order_and_counters(
    rate: Option<u64>,
    queue: u64,
    loss: f64,
    delay: u64,
    offers: &[(u64, usize, u32)],
) -> Result<(), TestCaseError> {
    let shape = Shape {
        delay: Duration::from_millis(delay),
        rate: rate.map(BitsPerSecond),
        loss,
        queue: Bytes(queue),
        ..Shape::default()
    };
    let mut path = Path::new(shape, 1500, 5, 0);
    let mut now = 0;
    for (frame, (gap, count, each)) in offers.iter().enumerate() {
        now += gap;
        let last = 60.min(*each);
        offer(
            &mut path,
            now,
            frame as u32,
            Segments {
                last,
                ..segments(*count, *each)
            },
        );
        // The queue never exceeds its limit.
        prop_assert!(rate.is_none() || path.waiting(at(now)) <= u128::from(queue));
    }
    let out = drain(&mut path);
    let arrived: u64 = out.iter().map(|(.., run)| run.len() as u64).sum();
    let counters = *path.counters();
    prop_assert_eq!(
        arrived + counters.queue_drops + counters.loss_drops + counters.memory_drops,
        counters.segments
    );
    prop_assert_eq!(path.in_flight_bytes, 0);
    for pair in out.windows(2) {
        let ((due_a, frame_a, run_a), (due_b, frame_b, run_b)) = (&pair[0], &pair[1]);
        prop_assert!(due_a <= due_b);
        prop_assert!((frame_a, run_a.end) <= (frame_b, run_b.start) || frame_a < frame_b);
    }
    let bytes: u64 = out
        .iter()
        .map(|(_, frame, run)| {
            let (_, count, each) = offers[*frame as usize];
            let ends = u64::from(run.end == count);
            let last = u64::from(60.min(each));
            (run.len() as u64 - ends) * u64::from(each) + ends * last
        })
        .sum();
    prop_assert_eq!(counters.delivered_bytes, bytes);
    // Segments are never faster than the wire.
    if let (Some(rate), Some((last_due, ..))) = (rate, out.last()) {
        let time = u128::from(bytes) * 8_000_000_000 / u128::from(rate);
        prop_assert!(u128::from(*last_due) + 1 >= time + u128::from(delay * MS));
    }
    Ok(())
}

proptest! {
    #[test]
    fn order_is_kept_and_every_segment_is_accounted_for(
        rate in prop::option::of(1_000_u64..20_000_000_000),
        queue in 1514_u64..200_000,
        loss in prop_oneof![Just(0.0), 0.0..1.0_f64],
        delay in 0_u64..300,
        offers in prop::collection::vec((0_u64..3 * MS, 1_usize..45, 60_u32..1515), 1..60),
    ) {
        check_order_and_counters(rate, queue, loss, delay, &offers)?;
    }
}

#[test]
fn one_small_frame_on_a_path_without_rate_or_delay_is_accounted_for() {
    check_order_and_counters(None, 1514, 0.0, 0, &[(0, 1, 60)]).unwrap();
}

#[test]
fn setting_the_same_seed_again_repeats_the_losses() {
    let mut path = Path::new(ms(1).loss(0.3), 1500, 5, 0);
    let lost = |path: &mut Path<_>, now: u64| {
        offer(path, now, 0, segments(40, 1000));
        drain(path)
            .into_iter()
            .flat_map(|(.., run)| run)
            .collect::<Vec<_>>()
    };
    let first = lost(&mut path, 0);
    let second = lost(&mut path, 100 * MS);
    assert_ne!(first, second);
    path.reseed(5, 0);
    assert_eq!(lost(&mut path, 200 * MS), first);
}

#[test]
fn segments_in_flight_arrive_after_a_cut_and_later_ones_are_dropped() {
    let mut path = Path::new(ms(10), 1500, 1, 0);
    offer(&mut path, 0, 0, segments(2, 1514));
    path.cut(true);
    offer(&mut path, 1, 1, segments(3, 1514));
    path.cut(false);
    offer(&mut path, 2, 2, segments(1, 1514));
    assert_eq!(
        drain(&mut path),
        [(10 * MS, 0, 0..2), (10 * MS + 2, 2, 0..1)]
    );
    assert_eq!(path.counters().cut_drops, 3);
}

/// Offers 2 % more than the rate for half a minute, and returns the path.
fn overload(discipline: Discipline, is_ect: bool) -> Path<(u32, Range<usize>)> {
    let shape = ms(10)
        .rate(BitsPerSecond::mega(10))
        .queue(Bytes(1_000_000))
        .discipline(discipline);
    let mut path = Path::new(shape, 1500, 1, 0);
    for frame in 0..30_000 {
        // 1250 bytes take 1 ms.
        let now = u64::from(frame) * MS * 98 / 100;
        let offered = Segments {
            is_ect,
            ..segments(1, 1250)
        };
        offer(&mut path, now, frame, offered);
    }
    path
}

#[test]
fn codel_keeps_a_queue_short_that_fills_with_drop_tail() {
    let wait = |discipline| {
        let mut path = overload(discipline, false);
        drain(&mut path);
        path.counters().mean_wait_since(&PathCounters::default())
    };
    assert!(wait(Discipline::DropTail) > Duration::from_millis(200));
    for discipline in [Discipline::Codel, Discipline::FqCodel] {
        assert!(wait(discipline) < Duration::from_millis(20));
        let path = overload(discipline, false);
        assert!(path.counters().aqm_drops > 0);
        assert_eq!(path.counters().marks, 0);
    }
}

#[test]
fn a_mean_wait_is_of_the_segments_that_leave_and_not_of_those_that_codel_drops() {
    let shape = ms(0)
        .rate(BitsPerSecond::mega(10))
        .discipline(Discipline::Codel);
    let mut path = Path::new(shape, 1500, 1, 0);
    // The n-th segment waits for up to n milliseconds.
    offer(&mut path, 0, 0, segments(800, 1250));
    let earlier = *path.counters();
    drain(&mut path);
    assert!(path.counters().aqm_drops > 0);
    let mean = path.counters().mean_wait_since(&earlier);
    assert!(
        mean > Duration::from_millis(200) && mean < Duration::from_millis(400),
        "{mean:?}"
    );
}

#[test]
fn codel_keeps_one_frame_of_the_links_mtu_waiting() {
    // A segment takes 8 ms. One is on the wire, and the next waits for longer than CoDel's target.
    let drops = |mtu| {
        let shape = ms(0)
            .rate(BitsPerSecond::mega(9))
            .discipline(Discipline::Codel);
        let mut path = Path::new(shape, mtu, 1, 0);
        offer(&mut path, 0, 0, segments(1, 9014));
        for frame in 0..200 {
            offer(
                &mut path,
                u64::from(frame) * 8 * MS,
                frame,
                segments(1, 9014),
            );
        }
        drain(&mut path);
        path.counters().aqm_drops
    };
    assert_eq!(drops(9000), 0);
    assert!(drops(1500) > 0);
}

#[test]
fn codel_marks_segments_that_support_it_and_drops_none() {
    let mut path = overload(Discipline::Codel, true);
    let mut marked = 0;
    while let Some(due) = path.next_due() {
        let train = path.poll_delivery(due);
        marked += u64::from(train.is_some_and(|train| train.is_marked));
    }
    assert_eq!(path.counters().aqm_drops, 0);
    assert!(path.counters().marks > 10);
    assert_eq!(path.counters().marks, marked);
}

#[test]
fn codel_leaves_a_link_alone_that_is_not_full() {
    let shape = ms(10)
        .rate(BitsPerSecond::mega(10))
        .discipline(Discipline::Codel);
    let mut path = Path::new(shape, 1500, 1, 0);
    for frame in 0..1000 {
        // A burst of 4 ms every 5 ms.
        offer(
            &mut path,
            u64::from(frame) * 5 * MS,
            frame,
            segments(4, 1250),
        );
    }
    assert_eq!(drain(&mut path).len(), 4000);
    assert_eq!(path.counters().aqm_drops, 0);
}

#[test]
fn fq_codel_gives_each_flow_its_share() {
    let shape = ms(0)
        .rate(BitsPerSecond::mega(10))
        .queue(Bytes(1_000_000))
        .discipline(Discipline::FqCodel);
    let mut path = Path::new(shape, 1500, 1, 0);
    let flow = |flow| Segments {
        flow,
        ..segments(100, 1250)
    };
    offer(&mut path, 0, 1, flow(1));
    // A later flow does not wait behind the first.
    offer(
        &mut path,
        10 * MS,
        2,
        Segments {
            count: 1,
            ..flow(2)
        },
    );
    let out = drain(&mut path);
    let later = out.iter().find(|(_, frame, _)| *frame == 2);
    // One segment is on the wire, and the first flow may have a turn left.
    assert!(later.is_some_and(|(due, ..)| *due <= 13 * MS), "{later:?}");
    assert_eq!(out.len(), 101);
}

#[test]
fn a_full_queue_of_fq_codel_drops_from_the_longest_flow() {
    let shape = ms(0)
        .rate(BitsPerSecond::mega(10))
        .queue(Bytes(12_500))
        .discipline(Discipline::FqCodel);
    let mut path = Path::new(shape, 1500, 1, 0);
    offer(&mut path, 0, 1, segments(20, 1250));
    let short = Segments {
        flow: 1,
        ..segments(2, 1250)
    };
    offer(&mut path, 0, 2, short);
    assert_eq!(path.counters().queue_drops, 11);
    let out = drain(&mut path);
    assert_eq!(out.iter().filter(|(_, frame, _)| *frame == 2).count(), 2);
    assert_eq!(out.len(), 11);
}

#[test]
fn a_late_caller_changes_neither_drops_nor_deliveries_of_codel() {
    let run = |polls: bool| {
        let shape = ms(5)
            .rate(BitsPerSecond::mega(10))
            .discipline(Discipline::Codel);
        let mut path = Path::new(shape, 1500, 1, 0);
        let mut out = Vec::new();
        for frame in 0..2000_u32 {
            let now = at(u64::from(frame) * MS / 2);
            path.handle_frame(now, segments(1, 1250), |run| (frame, run));
            while let Some(due) = path.next_due().filter(|due| polls && *due <= now) {
                out.extend(path.poll_delivery(due).map(|train| (due, train)));
            }
        }
        while let Some(due) = path.next_due() {
            out.extend(path.poll_delivery(due).map(|train| (due, train)));
        }
        (out, path.counters().aqm_drops)
    };
    let (out, drops) = run(true);
    assert!(drops > 0);
    assert_eq!((out, drops), run(false));
}

#[test]
fn jitter_delays_by_at_most_its_bound_and_keeps_the_order() {
    let mut path = Path::new(ms(10).jitter(Duration::from_millis(4)), 1500, 1, 0);
    for frame in 0..1000 {
        offer(
            &mut path,
            u64::from(frame) * 10 * MS,
            frame,
            segments(1, 1250),
        );
    }
    let out = drain(&mut path);
    let extra = |(due, frame, _): &(u64, u32, _)| due - u64::from(*frame) * 10 * MS - 10 * MS;
    let (least, most) = (out.iter().map(extra).min(), out.iter().map(extra).max());
    assert!(least < Some(MS / 10) && most <= Some(4 * MS) && most > Some(39 * MS / 10));
    // Ten times as many segments at a time: all wait for the one with the longest delay.
    for frame in 0..1000 {
        let now = 20_000 * MS + u64::from(frame) * MS / 10;
        offer(&mut path, now, frame, segments(1, 1250));
    }
    let order = drain(&mut path);
    let order: Vec<(u64, u32)> = order.iter().map(|(due, frame, _)| (*due, *frame)).collect();
    assert!(order.is_sorted_by_key(|(due, _)| *due) && order.is_sorted_by_key(|(_, frame)| *frame));
    assert_eq!(order.len(), 1000);
}

#[test]
fn segments_that_are_held_back_are_overtaken() {
    let shape = ms(10)
        .rate(BitsPerSecond::mega(10))
        .reordering(0.1, Duration::from_millis(3));
    let mut path = Path::new(shape, 1500, 1, 0);
    offer(&mut path, 0, 0, segments(700, 1250));
    let held = path.counters().held;
    assert!((40..100).contains(&held), "{held}");
    let out = drain(&mut path);
    let late = out
        .iter()
        .filter(|(due, _, run)| *due == (run.end as u64 + 13) * MS)
        .count();
    assert_eq!(late as u64, held);
    let on_time = out
        .iter()
        .filter(|(due, _, run)| *due == (run.end as u64 + 10) * MS);
    assert_eq!(on_time.count() + late, 700);
    assert!(!out.iter().map(|(.., run)| run.start).is_sorted());
}

#[test]
fn jitter_and_reordering_do_not_change_which_segments_are_lost() {
    let lost = |shape: Shape| {
        let mut path = Path::new(shape.loss(0.1), 1500, 1, 0);
        for frame in 0..500 {
            offer(
                &mut path,
                u64::from(frame) * 100 * MS,
                frame,
                segments(1, 1250),
            );
        }
        let mut arrived: Vec<u32> = drain(&mut path)
            .iter()
            .map(|(_, frame, _)| *frame)
            .collect();
        arrived.sort_unstable();
        arrived
    };
    let hold = Duration::from_millis(2);
    assert_eq!(lost(ms(1)), lost(ms(1).jitter(hold).reordering(0.3, hold)));
}

proptest! {
    #[test]
    fn every_segment_is_accounted_for_and_no_segment_is_faster_than_the_path_with_codel(
        is_fair in any::<bool>(),
        rate in 100_000_u64..1_000_000_000,
        queue in 1514_u64..200_000,
        jitter in 0_u64..20,
        reordering in 0.0..0.5,
        loss in 0.0..0.5,
        offers in prop::collection::vec(
            (0_u64..50_000_000, 1_usize..45, 60_u32..1514, 0_u32..5, any::<bool>()),
            1..60,
        ),
    ) {
        let discipline = if is_fair { Discipline::FqCodel } else { Discipline::Codel };
        let shape = ms(10)
            .rate(BitsPerSecond(rate))
            .queue(Bytes(queue))
            .loss(loss)
            .jitter(Duration::from_millis(jitter))
            .reordering(reordering, Duration::from_millis(7))
            .discipline(discipline);
        let mut path = Path::new(shape, 1500, 5, 0);
        let (mut now, mut arrivals, mut flows) = (0, Vec::new(), Vec::new());
        for (frame, (gap, count, each, flow, is_ect)) in offers.iter().enumerate() {
            now += gap;
            arrivals.push(now);
            flows.push(*flow);
            let offered = Segments { flow: *flow, is_ect: *is_ect, ..segments(*count, *each) };
            offer(&mut path, now, frame as u32, offered);
        }
        let out = drain(&mut path);
        let counters = *path.counters();
        let drops = counters.queue_drops + counters.aqm_drops + counters.loss_drops;
        prop_assert_eq!(out.len() as u64 + drops, counters.segments);
        prop_assert_eq!(counters.memory_drops, 0);
        prop_assert_eq!(path.in_flight_bytes, 0);
        for (due, frame, _) in &out {
            prop_assert!(*due >= arrivals[*frame as usize] + 10 * MS);
        }
        // Without reordering, the segments of a flow keep their order.
        if counters.held == 0 {
            for flow in flows.iter().copied() {
                let of: Vec<_> = out
                    .iter()
                    .filter(|(_, frame, _)| flows[*frame as usize] == flow)
                    .map(|(_, frame, run)| (*frame, run.start))
                    .collect();
                prop_assert!(of.is_sorted());
            }
        }
    }
}

#[test]
fn a_policer_passes_its_burst_and_then_its_rate_and_delays_nothing() {
    let shape = ms(10).policer(BitsPerSecond::mega(10), Bytes(12_500));
    let mut path = Path::new(shape, 1500, 1, 0);
    // A burst of ten segments passes, and then one in each millisecond.
    offer(&mut path, 0, 0, segments(20, 1250));
    assert_eq!(path.counters().policer_drops, 10);
    for frame in 1..=100 {
        offer(
            &mut path,
            u64::from(frame) * MS / 2,
            frame,
            segments(1, 1250),
        );
    }
    assert_eq!(path.counters().policer_drops, 60);
    for (due, frame, _) in drain(&mut path) {
        assert_eq!(due, u64::from(frame) * MS / 2 + 10 * MS);
    }
    // The bucket is full again after a pause, and holds no more than its burst.
    offer(&mut path, 1000 * MS, 101, segments(20, 1250));
    assert_eq!(path.counters().policer_drops, 70);
}
