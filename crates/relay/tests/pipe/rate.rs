//! The rate of a leg: where its connections start, and what they learn.

use std::time::Duration;

use taut_netlab::link::shape::Shape;
use taut_relay::turbo::congestion_control::{Count, LegStart, PipeOptions};
use taut_sys::socket::{Listener, Stream};

use crate::rig::{Relays, WINDOW, congestion, mesh, pipe, receive, send, wait_until, window};

fn start() -> u64 {
    PipeOptions::default().start.rate
}

fn pacing(stream: &Stream) -> u64 {
    stream.info().unwrap().pacing_rate.unwrap()
}

/// Connects over a leg that starts at this rate.
fn connect_at(relays: &mut Relays, rate: u64) -> (Listener, Stream, Stream) {
    let leg = LegStart {
        rate,
        window: WINDOW,
    };
    pipe().set_leg(relays.far().ip(), Some(leg)).unwrap();
    let listener = relays.listen(&mesh());
    let (near, far) = relays.connect(&listener, &mesh());
    assert_eq!(pacing(&near), rate);
    (listener, near, far)
}

#[test]
fn a_leg_without_delay_outgrows_the_rate_that_it_starts_at() {
    let mut relays = Relays::new("pipe-grows", 5, Shape::default(), Shape::default());
    // So low that any machine carries more.
    let rate = 5_000_000;
    let (listener, near, far) = connect_at(&mut relays, rate);
    std::thread::scope(|scope| {
        scope.spawn(|| receive(&far, usize::MAX));
        for _ in 0..64 {
            send(&near, 1 << 20);
            if pacing(&near) > 4 * rate {
                break;
            }
        }
        assert!(pacing(&near) > 4 * rate, "{}", pacing(&near));
        near.shutdown_write().unwrap();
    });
    assert_eq!(congestion(&near), pipe().name());
    assert!(pipe().counters().unwrap().get(Count::Raised) >= 2);
    // What was delivered is where the next connection starts.
    let known = pipe().known_rate(relays.far().ip()).unwrap().unwrap();
    assert!(known > rate, "{known}");
    let (next, _far) = relays.connect(&listener, &mesh());
    assert_eq!(pacing(&next), known);
}

#[test]
fn a_segment_after_idle_time_is_no_rate_of_the_leg() {
    let mut relays = Relays::new("pipe-segment", 10, Shape::default(), Shape::default());
    let rate = 2_000_000;
    let (_listener, near, far) = connect_at(&mut relays, rate);
    let mss = near.info().unwrap().snd_mss as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| receive(&far, usize::MAX));
        // A round has 256 segments. It ends with one of the single ones, whose acknowledgement comes at once.
        send(&near, 250 * mss);
        for _ in 0..12 {
            wait_until("idle time", || {
                let info = near.info().unwrap();
                let waiting = info.unacked + info.notsent_bytes.unwrap();
                waiting == 0 && info.last_data_sent >= Duration::from_millis(20)
            });
            send(&near, mss);
        }
        near.shutdown_write().unwrap();
    });
    let known = pipe().known_rate(relays.far().ip()).unwrap();
    assert!(known.is_none_or(|known| known < 4 * rate), "{known:?}");
}

#[test]
fn a_window_grows_with_the_rate() {
    let delay = Shape::delay(Duration::from_millis(100));
    let mut relays = Relays::new("pipe-window", 6, delay, delay);
    let far_ip = relays.far().ip();
    // Twice what is in flight in a round trip of 200 ms.
    let rate = 20_000_000;
    let (listener, near, far) = connect_at(&mut relays, rate);
    send(&near, 1 << 20);
    receive(&far, 1 << 20);
    wait_until("the window", || window(&near) >= 7_000_000);
    pipe().set_leg(far_ip, None).unwrap();
    let (near, _far) = relays.connect(&listener, &mesh());
    assert_eq!(pacing(&near), start());
}

#[test]
fn connections_that_start_together_share_the_rate_of_their_leg() {
    // So long that all have started before anything is acknowledged.
    let delay = Shape::delay(Duration::from_millis(300));
    let mut relays = Relays::new("pipe-share", 7, delay, delay);
    let listener = relays.listen(&mesh());
    let pairs: Vec<_> = (0..6).map(|_| relays.connect(&listener, &mesh())).collect();
    for (near, _) in &pairs {
        assert_eq!(pacing(near), start(), "the leg is idle");
    }
    let len = 1 << 20;
    std::thread::scope(|scope| {
        for (near, _) in &pairs {
            scope.spawn(move || send(near, len));
        }
        let far_ip = relays.far().ip();
        let active = || pipe().leg(far_ip).unwrap().map_or(0, |leg| leg.active);
        wait_until("six active connections", || active() == 6);
        wait_until("a sixth of the rate for each", || {
            let rates = pairs.iter().map(|(near, _)| pacing(near));
            rates.sum::<u64>() <= start()
        });
        for (_, far) in &pairs {
            assert_eq!(receive(far, len), len);
        }
        wait_until("the end of all", || active() == 0);
    });
    assert!(pipe().counters().unwrap().get(Count::Shared) >= 5);
    // A connection that starts alone has the whole rate again.
    let (near, far) = &pairs[0];
    send(near, 1);
    assert_eq!(pacing(near), start());
    receive(far, 1);
}

#[test]
fn a_connection_whose_peer_is_silent_leaves_the_rate_to_others() {
    let delay = Shape::delay(Duration::from_millis(20));
    let mut relays = Relays::new("pipe-silent", 8, delay, delay);
    let listener = relays.listen(&mesh());
    let (near, _far) = relays.connect(&listener, &mesh());
    let far_ip = relays.far().ip();
    relays.cut();
    send(&near, 1 << 16);
    let active = || pipe().leg(far_ip).unwrap().map_or(0, |leg| leg.active);
    wait_until("a time-out", || near.info().unwrap().backoff >= 2);
    assert_eq!(active(), 0);
}
