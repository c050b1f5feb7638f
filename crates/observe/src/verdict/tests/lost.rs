//! Tests of verdicts about lost segments.

use super::*;

#[test]
fn loss_is_loss_without_a_queue_and_a_full_link_with_one() {
    // A sawtooth window, as random losses produce it.
    let loses = |scan: u64, info: &mut TcpInfo| {
        info.total_retrans = scan as u32 * 4;
        let rate = |scan: u64| 350_000 + 100_000 * (scan % 4);
        info.bytes_acked = Some((0..scan).map(rate).sum());
    };
    let empty = found(&sender(loses));
    // Without events it may be a policer.
    assert_eq!(
        (empty.factor, empty.confidence),
        (Factor::Loss, Confidence::Likely)
    );
    let full = found(&sender(|scan, info| {
        loses(scan, info);
        info.rtt = Some(Duration::from_millis(38));
    }));
    assert_eq!(full.factor, Factor::Link);
}

#[test]
fn segments_that_shrink_after_loss_are_the_paths_mtu() {
    let found = found(&sender(|scan, info| {
        info.total_retrans = scan.min(4) as u32;
        info.retransmits = u8::from(scan < 7);
        info.snd_mss = if scan < 7 { 1448 } else { 1024 };
    }));
    assert_eq!(found.factor, Factor::PathMtu);
}

#[test]
fn unanswered_retransmissions_are_timeouts() {
    let found = found(&sender(|scan, info| {
        info.bytes_acked = Some(1);
        info.ca_state = CaState::Loss;
        info.retransmits = scan.min(6) as u8;
        info.total_retrans = scan.min(6) as u32;
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Timeouts, Confidence::Sure)
    );
}

#[test]
fn probes_of_a_closed_window_are_no_timeouts() {
    let backs_off = |unacked| {
        found(&sender(|_, info| {
            (info.backoff, info.unacked) = (4, unacked);
        }))
    };
    assert_eq!(backs_off(1).factor, Factor::Timeouts);
    assert_ne!(backs_off(0).factor, Factor::Timeouts);
}

#[test]
fn unanswered_full_segments_are_a_path_mtu() {
    let stuck = |acked, queued| {
        let mut samples = sender(|scan, info| {
            info.bytes_acked = Some(acked);
            info.bytes_received = Some(if scan == 0 { 0 } else { 400 });
            info.ca_state = CaState::Loss;
            info.retransmits = scan.min(6) as u8;
            info.total_retrans = scan.min(6) as u32;
        });
        for sample in &mut samples {
            sample.connection.send_queue = queued;
        }
        found(&samples).factor
    };
    // The header of the peer's answer got through.
    assert_eq!(stuck(241, 100_000), Factor::PathMtu);
    assert_eq!(stuck(1, 100_000), Factor::PathMtu);
    // Full segments got through before.
    assert_eq!(stuck(1_000_000, 100_000), Factor::Timeouts);
    // No full segment was sent.
    assert_eq!(stuck(1, 500), Factor::Timeouts);
}

#[test]
fn the_kernels_search_for_the_path_mtu_is_not_recommended_where_it_is_on() {
    let remedy = |probes_mtu| {
        let mut samples = sender(|scan, info| {
            info.bytes_acked = Some(1);
            info.bytes_received = Some(if scan == 0 { 0 } else { 400 });
            info.retransmits = scan.min(6) as u8;
        });
        for sample in &mut samples {
            sample.connection.send_queue = 100_000;
        }
        let context = Context {
            settings: TcpSettings {
                probes_mtu,
                ..TcpSettings::default()
            },
            ..Context::default()
        };
        let found = verdict(&Window::of(&samples).unwrap(), &context);
        assert_eq!(found.factor, Factor::PathMtu);
        found.remedy().unwrap().into_owned()
    };
    for off in [None, Some(false)] {
        assert!(remedy(off).contains("net.ipv4.tcp_mtu_probing=1"));
    }
    let on = remedy(Some(true));
    assert!(
        !on.contains("tcp_mtu_probing") && on.contains("ICMP"),
        "{on}"
    );
}

#[test]
fn losses_at_a_short_queue_are_a_full_link() {
    // A sawtooth window that loses one segment in a thousand at its widest point.
    let lossy = |rtt: fn(u64) -> u64| {
        let found = found(&sender(|scan, info| {
            info.snd_cwnd = 14 + 2 * (scan % 4) as u32;
            info.unacked = info.snd_cwnd;
            info.rtt = Some(Duration::from_micros(rtt(scan)));
            info.data_segs_out = Some(scan as u32 * 1000);
            info.total_retrans = scan as u32;
        }));
        found.factor
    };
    // Two additional segments take 2.9 ms at 1 MB/s.
    assert_eq!(lossy(|scan| 20_200 + scan % 4 * 2900), Factor::Link);
    // A burst that only waits for itself, on a path that is twice as fast.
    assert_eq!(lossy(|scan| 20_200 + scan % 4 * 1200), Factor::Loss);
    assert_eq!(lossy(|scan| 20_200 + scan % 3), Factor::Loss);
    // The round trip varies independently of the window.
    assert_eq!(
        lossy(|scan| 20_200 + (scan * 5 + 3) % 7 * 700),
        Factor::Loss
    );
}

#[test]
fn a_steady_rate_with_many_drops_is_a_rate_limit() {
    let limited = |rate: fn(u64) -> u64| {
        let found = found(&sender(|scan, info| {
            info.bytes_acked = Some((0..scan).map(rate).sum());
            info.total_retrans = scan as u32 * 8;
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(
        limited(|_| 500_000),
        (Factor::RateLimit, Confidence::Likely)
    );
    let saw = limited(|scan| 350_000 + 100_000 * (scan % 4));
    assert_eq!(saw, (Factor::Loss, Confidence::Likely));
}

/// Returns the verdict on a sender that loses one segment in fifty, with the given number of
/// signals, a round trip of `millis` before each, and the given segments between signals.
fn losing(signals: u32, millis: u64, between: &[u64]) -> Verdict {
    losing_at(signals, millis, between, &[])
}

/// The same with the given congestion windows at the signals.
fn losing_at(signals: u32, millis: u64, between: &[u64], windows: &[u64]) -> Verdict {
    losing_of(
        sender(|scan, info| info.total_retrans = scan as u32 * 7),
        (signals, millis),
        between,
        windows,
    )
}

/// The same for the given samples.
fn losing_of(
    mut samples: Vec<Sample>,
    (signals, millis): (u32, u64),
    between: &[u64],
    windows: &[u64],
) -> Verdict {
    let sum = |of: fn(u64) -> u64| between.iter().copied().map(of).sum();
    let events = Events {
        signals,
        signal_rtt_sum: Duration::from_millis(millis) * signals,
        between: between.len() as u32,
        between_sum: sum(|segments| segments),
        between_squares: sum(|segments| segments * segments),
        signal_cwnd_sum: windows.iter().sum(),
        signal_cwnd_squares: windows.iter().map(|window| window * window).sum(),
        // All intervals take the same time.
        between_times: sum(|_| 100),
        between_time_squares: sum(|_| 100 * 100),
        between_products: sum(|segments| segments * 100),
        ..Events::default()
    };
    let last = samples.len() - 1;
    for (at, sample) in samples.iter_mut().enumerate() {
        sample.connection.internals = Some(Internals {
            events: Some(if at == last {
                events
            } else {
                Events::default()
            }),
            ..Internals::default()
        });
    }
    found(&samples)
}

#[test]
fn a_limiter_drops_several_segments_at_an_even_rate() {
    let limiter = losing(20, 22, &[175; 19]);
    assert_eq!(
        (limiter.factor, limiter.confidence),
        (Factor::RateLimit, Confidence::Likely)
    );
    assert!(
        limiter.evidence()[0].text.contains("20 times"),
        "{limiter:?}"
    );
    // Single losses may also come from a sender with a constant rate, whatever the cause.
    let even = losing(60, 22, &[58; 59]);
    assert_eq!(
        (even.factor, even.confidence),
        (Factor::RateLimit, Confidence::Unclear)
    );
    assert_eq!(losing(60, 22, &[40, 76].repeat(29)).factor, Factor::Loss);
    assert_eq!(losing(20, 22, &[100, 250].repeat(9)).factor, Factor::Loss);
    // Few signals say little about evenness.
    let few = losing(3, 22, &[1750, 1750]);
    assert_eq!(
        (few.factor, few.confidence),
        (Factor::RateLimit, Confidence::Unclear)
    );
    assert_eq!(losing(2, 22, &[1750]).factor, Factor::RateLimit);
    // So do signals with few segments between them.
    assert_eq!(losing(400, 22, &[5, 12].repeat(199)).factor, Factor::Loss);
    assert_eq!(losing(30, 22, &[]).factor, Factor::Loss);
    assert_eq!(losing(0, 22, &[]).factor, Factor::Loss);
    // A full queue caused the losses.
    assert_eq!(losing(20, 40, &[175; 19]).factor, Factor::Link);
}

#[test]
fn losses_at_the_same_window_and_a_queue_of_codel_are_a_full_link() {
    let of = |millis, windows| losing_at(4, millis, &[1000, 1900, 600], windows).factor;
    assert_eq!(of(25, &[58, 57, 59, 58]), Factor::Link);
    // Random losses come at any window, also if jitter lengthens the round trips.
    assert_eq!(of(25, &[40, 58, 76, 58]), Factor::Loss);
    // No queue: a window that an application or a burst allows.
    assert_eq!(of(23, &[58, 57, 59, 58]), Factor::Loss);
}

#[test]
fn round_trips_that_deviate_show_no_queue_of_a_policer() {
    let policed = |deviation: u64| {
        let samples = sender(|scan, info| {
            info.total_retrans = scan as u32 * 7;
            info.rtt = Some(Duration::from_millis(25));
            info.rttvar = Some(Duration::from_millis(deviation));
        });
        let windows = [58, 57, 59, 58].repeat(5);
        losing_of(samples, (20, 25), &[175; 19], &windows).factor
    };
    assert_eq!(policed(1), Factor::Link);
    assert_eq!(policed(2), Factor::RateLimit);
}

#[test]
fn a_loss_is_sure_only_if_segments_are_lost_one_at_a_time_and_at_any_interval() {
    let lost = |each: u32, between: &[u64]| {
        let samples = sender(|scan, info| info.total_retrans = scan as u32 * each);
        let found = losing_of(samples, (10, 22), between, &[40, 58, 76, 58]);
        (found.factor, found.confidence)
    };
    let uneven = [40, 300].repeat(4);
    assert_eq!(lost(1, &uneven), (Factor::Loss, Confidence::Sure));
    // Deviates by 20 %.
    let even = [280, 420].repeat(4);
    assert_eq!(lost(1, &even), (Factor::Loss, Confidence::Likely));
    assert_eq!(lost(3, &uneven), (Factor::Loss, Confidence::Unclear));
    assert_eq!(lost(1, &[]), (Factor::Loss, Confidence::Unclear));
}

#[test]
fn without_events_scans_tell_whether_segments_are_lost_one_at_a_time() {
    let lost = |at_a_time: u32| {
        let found = found(&sender(|scan, info| {
            info.total_retrans = scan as u32 / 5 * at_a_time;
            info.bytes_acked = Some((0..scan).map(|n| 350_000 + 100_000 * (n % 4)).sum());
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(lost(2), (Factor::Loss, Confidence::Likely));
    assert_eq!(lost(9), (Factor::Loss, Confidence::Unclear));
}

#[test]
fn a_rate_that_random_losses_would_not_allow_makes_no_likely_loss() {
    let found = found(&sender(|scan, info| {
        info.total_retrans = scan as u32;
        info.bytes_acked = Some((0..scan).map(|n| 4_000_000 + 2_000_000 * (n % 4)).sum());
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Loss, Confidence::Unclear)
    );
}
