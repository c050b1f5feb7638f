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
    let late = |longest: u64, silent: u64, unread: u32| {
        let mut samples = sender(|scan, info| {
            info.unacked = 40;
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
}
