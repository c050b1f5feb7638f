//! Tests of verdicts about the peer's window and its reader.

use super::*;

#[test]
fn a_constant_window_is_a_small_buffer_and_a_varying_one_a_slow_reader() {
    let limited = |scan: u64, info: &mut TcpInfo| info.rwnd_limited = of_half_seconds(scan, 0.95);
    // The widest window that the peer ever offered is unknown.
    assert_eq!(found(&sender(limited)).confidence, Confidence::Likely);
    let offered = |widest: u32| {
        let mut samples = sender(limited);
        for sample in &mut samples {
            sample.connection.internals = Some(Internals {
                max_window: widest,
                ..Internals::default()
            });
        }
        found(&samples)
    };
    // A reader keeps most of the buffer full at all times.
    assert_eq!(offered(3 << 20).factor, Factor::ReceiverApplication);
    let stands = offered(1 << 20);
    assert_eq!(
        (stands.factor, stands.confidence),
        (Factor::ReceiveBuffer, Confidence::Sure)
    );
    let moves = found(&sender(|scan, info| {
        limited(scan, info);
        info.snd_wnd = Some(if scan % 3 == 0 { 0 } else { 1 << 18 });
    }));
    assert_eq!(
        (moves.factor, moves.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
    // The window grows as the kernel enlarges the buffer.
    let grows = found(&sender(|scan, info| {
        limited(scan, info);
        info.snd_wnd = Some(65536 << scan.min(3));
    }));
    assert_eq!(grows.factor, Factor::ReceiveBuffer);
    let unscaled = found(&sender(|scan, info| {
        limited(scan, info);
        (info.snd_wnd, info.window_scales) = (Some(65535), None);
    }));
    assert!(unscaled.remedy().unwrap().contains("no window scaling"));
    let scaled = |scale: u8| {
        let found = found(&sender(|scan, info| {
            limited(scan, info);
            (info.snd_wnd, info.window_scales) = (Some(130_000), Some((scale, 7)));
        }));
        found.remedy().unwrap()
    };
    assert!(scaled(1).contains("new connection"), "{}", scaled(1));
    assert!(!scaled(2).contains("new connection"), "{}", scaled(2));
}

#[test]
fn a_window_that_stays_closed_is_a_slow_reader() {
    let found = found(&sender(|scan, info| {
        info.rwnd_limited = of_half_seconds(scan, 1.0);
        info.bytes_acked = Some(1);
        info.snd_wnd = Some(0);
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
}

#[test]
fn a_window_far_below_the_widest_is_a_reader_that_keeps_a_part_of_its_buffer_full() {
    let of = |widest: u32, limited: f64| {
        let mut samples = sender(|scan, info| {
            info.rwnd_limited = of_half_seconds(scan, limited);
            info.snd_wnd = Some(300_000);
        });
        for sample in &mut samples {
            sample.connection.internals = Some(Internals {
                max_window: widest,
                ..Internals::default()
            });
        }
        found(&samples).factor
    };
    assert_eq!(of(600_000, 0.1), Factor::ReceiverApplication);
    assert_eq!(of(400_000, 0.1), Factor::Link);
    // The window is never used up.
    assert_eq!(of(600_000, 0.0), Factor::Link);
}

/// Samples of a sender whose peer reads every fifth scan all data that has arrived since;
/// `receiver` is the share of the time in which the window is full.
fn late(receiver: f64) -> Vec<Sample> {
    sender(|scan, info| {
        info.rwnd_limited = of_half_seconds(scan, receiver);
        info.bytes_acked = Some(scan * 500_000);
        info.snd_wnd = Some(2_000_000 - scan as u32 % 5 * 500_000);
        info.rtt = Some(Duration::from_millis(50));
        info.rttvar = Some(Duration::from_millis(20));
    })
}

#[test]
fn a_window_that_fills_and_is_used_up_is_a_slow_reader_also_while_the_network_limits() {
    let of = |share| {
        let found = found(&late(share));
        (found.factor, found.confidence)
    };
    let slow = found(&late(0.2));
    assert_eq!(of(0.2), (Factor::ReceiverApplication, Confidence::Likely));
    assert_eq!(of(0.6), (Factor::ReceiverApplication, Confidence::Sure));
    assert!(slow.evidence()[0].text.contains("80 %"), "{slow:?}");
    // The window has room for all arriving data.
    assert_ne!(found(&late(0.0)).factor, Factor::ReceiverApplication);
}

#[test]
fn late_bursts_of_acknowledgements_are_a_slow_reader_and_later_ones_a_descheduled_peer() {
    let late_if = |longest: u64, silent: u64, unread: u32, limited: f64| {
        let mut samples = sender(|scan, info| {
            info.unacked = 40;
            info.rwnd_limited = of_half_seconds(scan, limited);
            info.rtt = Some(Duration::from_millis(longest));
            info.rttvar = Some(Duration::from_millis(longest / 2));
            info.last_ack_recv = Duration::from_millis(silent);
            info.snd_wnd = Some((1 << 20) - scan as u32 % 2 * unread);
        });
        let events = Events {
            rtts: 100,
            rtt_most: Duration::from_millis(1000),
            rtt_most_recent: Duration::from_millis(longest),
            ..Events::default()
        };
        for (scan, sample) in samples.iter_mut().enumerate() {
            let events = if scan == 0 { Events::default() } else { events };
            sample.connection.internals = Some(Internals {
                events: Some(events),
                ..Internals::default()
            });
        }
        found(&samples)
    };
    let late = |longest, silent, unread| late_if(longest, silent, unread, 0.0);
    let used_up = late_if(55, 25, 1 << 17, 0.2);
    let reader = late(55, 25, 1 << 17);
    assert_eq!(
        (reader.factor, reader.confidence),
        (Factor::ReceiverApplication, Confidence::Likely)
    );
    assert_eq!(late(90, 25, 1 << 17).factor, Factor::Descheduled);
    // The window does not become narrower: nothing waits to be read.
    assert_eq!(late(55, 25, 0).factor, Factor::Descheduled);
    // Evenly spaced acknowledgements, as from a queue.
    assert_eq!(late(55, 2, 1 << 17).factor, Factor::Descheduled);
    // The window is used up: a reader that is late has room.
    assert_eq!(used_up.factor, Factor::Descheduled);
}

/// Samples of a sender whose peer is silent for long, with the given round trip and its deviation
/// in milliseconds, on a path of 1.4 ms. The peer's window is used up for half of the time.
fn silent(rtt: u64, deviation: u64, silence: u64, set: impl Fn(u64, &mut TcpInfo)) -> Vec<Sample> {
    let mut samples = sender(|scan, info| {
        info.bytes_acked = Some(scan * 15_000_000);
        info.rwnd_limited = of_half_seconds(scan, 0.5);
        info.snd_wnd = Some(300_000 + 100_000 * (scan % 4) as u32);
        info.min_rtt = Some(Duration::from_micros(1400));
        info.rtt = Some(Duration::from_millis(rtt));
        info.rttvar = Some(Duration::from_millis(deviation));
        info.last_ack_recv = Duration::from_millis(silence);
        (info.unacked, info.snd_cwnd) = (240, 600);
        set(scan, info);
    });
    for sample in &mut samples {
        sample.connection.internals = Some(Internals {
            max_window: 800_000,
            ..Internals::default()
        });
    }
    samples
}

#[test]
fn silence_that_accounts_for_the_waiting_is_a_descheduled_peer() {
    let of = |silence| {
        let found = found(&silent(9, 2, silence, |_, _| {}));
        (found.factor, found.confidence)
    };
    // A reader that delays its acknowledgements may also be silent for that long.
    assert_eq!(of(5), (Factor::Descheduled, Confidence::Likely));
    // Segments wait while others are acknowledged: nothing is certain, because round trips are
    // long.
    assert_eq!(of(1), (Factor::ReceiverApplication, Confidence::Likely));
}

#[test]
fn a_descheduled_peer_is_certain_if_a_round_trip_is_longer_than_acknowledgements_are_delayed() {
    let mut samples = silent(9, 2, 5, |_, _| {});
    for sample in &mut samples {
        let events = Events {
            rtt_most_recent: Duration::from_millis(90),
            ..Events::default()
        };
        if let Some(internals) = &mut sample.connection.internals {
            internals.events = Some(events);
        }
    }
    let found = found(&samples);
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Descheduled, Confidence::Sure)
    );
}

#[test]
fn a_peer_that_closes_its_window_is_a_slow_reader_and_not_descheduled() {
    let found = found(&silent(60, 30, 100, |scan, info| {
        if scan % 3 != 0 {
            (info.snd_wnd, info.unacked) = (Some(0), 0);
        } else {
            info.last_ack_recv = Duration::from_millis(1);
        }
    }));
    assert_eq!(found.factor, Factor::ReceiverApplication);
}
