//! How a connection reacts to loss, and to a queue.

use std::time::Duration;

use taut_netlab::link::shape::Shape;
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_relay::turbo::congestion_control::{Count, LegStart, PipeOptions};
use taut_sys::socket::{Stream, has_congestion_control};

use crate::rig::{Relays, WINDOW, congestion, mesh, pipe, receive, send, window};

const DELAY: Duration = Duration::from_millis(5);

/// So slow that the link, which is a program, has no queue of its own.
const SLOW: LegStart = LegStart {
    rate: 12_500_000,
    window: WINDOW,
};

/// The time limit of every test here.
const MOST: usize = 256 << 20;

/// Sends 64 KiB at a time until `enough` returns true, then the end of the stream, and waits for
/// the far end to see it.
fn send_until(near: &Stream, far: &Stream, mut enough: impl FnMut(usize) -> bool) {
    const STEP: usize = 1 << 16;
    std::thread::scope(|scope| {
        scope.spawn(|| receive(far, usize::MAX));
        let sent = (1..=MOST / STEP).find(|n| {
            send(near, STEP);
            enough(n * STEP)
        });
        near.shutdown_write().unwrap();
        assert!(sent.is_some(), "it did not happen within {MOST} bytes");
    });
}

#[test]
fn rare_loss_is_repaired_and_does_not_reduce_the_window() {
    let lossy = Shape::delay(DELAY).loss(0.001);
    let mut relays = Relays::new("pipe-rare", 1, lossy, Shape::delay(DELAY));
    pipe().set_leg(relays.far().ip(), Some(SLOW)).unwrap();
    let listener = relays.listen(&mesh());
    let (near, far) = relays.connect(&listener, &mesh());
    let mut least = u32::MAX;
    send_until(&near, &far, |sent| {
        least = least.min(window(&near));
        sent >= 24 << 20
    });
    let info = near.info().unwrap();
    assert!(info.total_retrans > 0, "nothing was lost");
    assert!(least >= WINDOW - info.snd_mss, "{least}");
    assert_eq!(congestion(&near), pipe().name());
    let known = pipe().known_rate(relays.far().ip()).unwrap();
    assert!(known.is_none_or(|rate| rate >= SLOW.rate), "{known:?}");
}

#[test]
fn persistent_loss_hands_the_connection_to_the_kernels_own_control() {
    let lossy = Shape::delay(DELAY).loss(0.05);
    let mut relays = Relays::new("pipe-lossy", 2, lossy, Shape::delay(DELAY));
    pipe().set_leg(relays.far().ip(), Some(SLOW)).unwrap();
    let listener = relays.listen(&mesh());
    let (near, far) = relays.connect(&listener, &mesh());
    assert_eq!(congestion(&near), pipe().name());
    send_until(&near, &far, |_| congestion(&near) != pipe().name());
    let expected = PipeOptions::default()
        .fallback
        .into_iter()
        .find(|name| has_congestion_control(name));
    assert_eq!(Some(congestion(&near)), expected);
    let counters = pipe().counters().unwrap();
    assert!(counters.get(Count::FellBack) >= 1);
    assert!(counters.get(Count::LossyRounds) >= 3);
    assert!(counters.get(Count::Lost) > 0);
    // The next connection to that peer must not learn it the same way.
    // (What it knows depends on how evenly this machine runs: trials of the decision have figures.)
    let known = pipe().known_rate(relays.far().ip()).unwrap().unwrap();
    let (near, _far) = relays.connect(&listener, &mesh());
    assert_eq!(near.info().unwrap().pacing_rate, Some(known));
    // Where it has begun at this rate because it begins there, that counts as nothing known.
    let started = pipe().counters().unwrap().get(Count::StartedKnown);
    assert!(started >= 1 || known == SLOW.rate);
}

#[test]
fn a_loss_with_a_queue_makes_a_connection_share_the_link_until_no_queue_stands() {
    // Half of what the leg starts at, and a queue of 16 ms.
    let narrow = Shape::delay(DELAY)
        .rate(BitsPerSecond::mega(50))
        .queue(Bytes::kilo(100));
    let mut relays = Relays::new("pipe-full", 9, narrow, Shape::delay(DELAY));
    pipe().set_leg(relays.far().ip(), Some(SLOW)).unwrap();
    let listener = relays.listen(&mesh());
    let (near, far) = relays.connect(&listener, &mesh());
    assert!(window(&near) >= WINDOW - near.info().unwrap().snd_mss);
    let mut shares = false;
    send_until(&near, &far, |_| {
        let window = window(&near);
        // Only a connection that shares the link has less than the window that it began with.
        shares |= window < WINDOW / 2;
        shares && window > WINDOW / 2
    });
    assert_eq!(congestion(&near), pipe().name());
    let counters = pipe().counters().unwrap();
    assert!(counters.get(Count::Competed) >= 1);
    assert!(counters.get(Count::Alone) >= 1);
}

#[test]
fn a_standing_queue_lowers_the_rate_to_that_of_the_link() {
    let link = BitsPerSecond::mega(50);
    let narrow = Shape::delay(DELAY).rate(link).queue(Bytes::mega(8));
    let mut relays = Relays::new("pipe-queue", 3, narrow, Shape::delay(DELAY)).over_ipv6();
    let listener = relays.listen(&mesh());
    let (near, far) = relays.connect(&listener, &mesh());
    let far_ip = relays.far().ip();
    send_until(&near, &far, |_| {
        pipe().known_rate(far_ip).unwrap().is_some()
    });
    assert_eq!(
        congestion(&near),
        pipe().name(),
        "nothing is lost, so nothing is handed over"
    );
    assert!(pipe().counters().unwrap().get(Count::Capped) >= 1);
    let known = pipe().known_rate(far_ip).unwrap().unwrap();
    let carried = link.0 / 8;
    assert!(
        known <= carried,
        "{known} bytes a second on a link of {carried}"
    );
    assert!(
        known >= carried / 4,
        "{known} bytes a second on a link of {carried}"
    );

    // The next connection begins at that rate, finds no queue, and tries for more.
    let (near, far) = relays.connect(&listener, &mesh());
    assert_eq!(near.info().unwrap().pacing_rate, Some(known));
    send_until(&near, &far, |_| {
        pipe().counters().unwrap().get(Count::Raised) >= 1
    });
    assert_eq!(congestion(&near), pipe().name());
}
