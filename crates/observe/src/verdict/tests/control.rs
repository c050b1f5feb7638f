//! Tests of verdicts on senders that keep a model of the path (BBR).

use taut_sys::sock_diag::{Bbr, CongestionControl};

use super::*;

/// Samples of a sender with BBR that has half of its window in flight, on a path whose bandwidth it
/// takes for `bandwidth` bytes a second.
fn bbr(bandwidth: u64, gain: f64, set: impl Fn(u64, &mut TcpInfo)) -> Vec<Sample> {
    let mut samples = sender(|scan, info| {
        info.rtt = Some(Duration::from_micros(20_400));
        (info.snd_cwnd, info.unacked, info.snd_ssthresh) = (28, 14, None);
        set(scan, info);
    });
    for sample in &mut samples {
        sample.connection.bbr = Some(Bbr {
            bandwidth,
            min_rtt_us: 20_000,
            pacing_gain: (gain * f64::from(Bbr::UNIT)) as u32,
            cwnd_gain: 2 * Bbr::UNIT,
        });
    }
    samples
}

#[test]
fn a_path_is_full_if_as_much_is_delivered_as_the_model_allows() {
    let full = found(&bbr(1_100_000, 1.0, |_, _| {}));
    assert_eq!(
        (full.factor, full.confidence),
        (Factor::Link, Confidence::Sure)
    );
    assert!(full.evidence()[0].text.contains("8.8 Mbit/s"), "{full:?}");
    assert_eq!(full.remedy(), None);
    let slower = found(&bbr(3_000_000, 1.0, |_, _| {}));
    assert_eq!(slower.factor, Factor::Unclear);
}

#[test]
fn a_model_that_a_window_limits_is_no_full_path() {
    let limited = |window: u32| {
        let samples = bbr(1_100_000, 1.0, |scan, info| {
            info.rwnd_limited = of_half_seconds(scan, 0.3);
            info.snd_wnd = Some(window);
        });
        found(&samples).factor
    };
    // 1 MB/s over a round trip of 20.4 ms are 20 kB.
    assert_eq!(limited(24_000), Factor::ReceiveBuffer);
    assert_eq!(limited(48_000), Factor::Link);
}

#[test]
fn pauses_of_the_application_do_not_hide_what_limits_the_rest() {
    // It has data for three fifths of the time, and then sends at 1 MB/s.
    let paused = |receiver: f64| {
        let samples = bbr(1_100_000, 1.0, |scan, info| {
            info.busy_time = of_half_seconds(scan, 0.6);
            info.bytes_acked = Some(scan * 300_000);
            info.rwnd_limited = of_half_seconds(scan, receiver);
            info.snd_wnd = Some(24_000);
        });
        found(&samples).factor
    };
    assert_eq!(paused(0.0), Factor::Link);
    assert_eq!(paused(0.2), Factor::ReceiveBuffer);
}

#[test]
fn random_losses_do_not_slow_a_sender_with_a_model() {
    let loses = |scan: u64, info: &mut TcpInfo| info.total_retrans = scan as u32 * 4;
    assert_eq!(found(&bbr(1_100_000, 1.0, loses)).factor, Factor::Link);
    let slowed = found(&bbr(3_000_000, 1.0, loses));
    assert_eq!(slowed.factor, Factor::Loss);
    let remedy = slowed.remedy().unwrap();
    assert!(!remedy.contains("BBR"), "{remedy}");
}

#[test]
fn many_losses_without_a_queue_are_a_policer() {
    let policed = |lost: u32, rtt: u64, in_flight: u32| {
        let found = found(&bbr(1_100_000, 1.0, |scan, info| {
            info.total_retrans = scan as u32 * lost;
            info.rtt = Some(Duration::from_millis(rtt));
            info.unacked = in_flight;
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(policed(35, 21, 14), (Factor::RateLimit, Confidence::Likely));
    assert_eq!(policed(14, 21, 14).0, Factor::Link);
    // A queue dropped them.
    assert_eq!(policed(35, 30, 14).0, Factor::Link);
    // So few segments wait for delayed acknowledgements.
    assert_eq!(policed(35, 30, 3).0, Factor::RateLimit);
}

#[test]
fn an_infinite_threshold_is_slow_start_only_while_the_bandwidth_is_searched_for() {
    let grows = |gain| {
        let samples = bbr(1_100_000, gain, |scan, info| {
            info.snd_cwnd = 28 << scan.min(6)
        });
        let found = found(&samples);
        (found.factor, found.confidence)
    };
    assert_eq!(grows(2.89), (Factor::SlowStart, Confidence::Sure));
    assert_eq!(grows(1.0), (Factor::Link, Confidence::Sure));
}

#[test]
fn what_a_paced_sender_has_not_sent_yet_may_be_the_applications_last_write() {
    let limited = |app_limited| {
        let samples = bbr(1_100_000, 1.0, |_, info| {
            info.delivery_rate_app_limited = app_limited;
        });
        found(&samples).factor
    };
    assert_eq!(limited(true), Factor::SenderApplication);
    assert_eq!(limited(false), Factor::Link);
}

#[test]
fn the_remedy_for_a_queue_does_not_recommend_what_is_in_use() {
    let queued = found(&bbr(1_100_000, 1.0, |_, info| {
        info.rtt = Some(Duration::from_millis(400));
    }));
    assert_eq!(queued.factor, Factor::Queue);
    let remedy = queued.remedy().unwrap();
    assert!(!remedy.contains("BBR"), "{remedy}");
}

/// Samples of a sender with `taut_pipe` that paces at `rate` bytes a second.
fn taut_pipe(name: &str, rate: u64, rtt: Duration) -> Vec<Sample> {
    let mut samples = sender(|_, info| {
        info.rtt = Some(rtt);
        (info.snd_cwnd, info.unacked, info.snd_ssthresh) = (40, 14, None);
        info.pacing_rate = Some(rate);
    });
    for sample in &mut samples {
        sample.connection.congestion_control = CongestionControl::parse(name.as_bytes());
    }
    samples
}

#[test]
fn a_leg_with_turbo_start_that_sends_at_its_pace_fills_its_path() {
    let rtt = Duration::from_micros(20_400);
    for name in ["taut_pipe", "taut_pipe.2s"] {
        let full = found(&taut_pipe(name, 1_100_000, rtt));
        assert_eq!(
            (full.factor, full.confidence),
            (Factor::Link, Confidence::Likely)
        );
        let text = &full.evidence()[0].text;
        assert!(
            text.contains("taut_pipe") && !text.contains("BBR"),
            "{text}"
        );
    }
    let slower = found(&taut_pipe("taut_pipe", 3_000_000, rtt));
    assert_eq!(slower.factor, Factor::Unclear);
    let other = found(&taut_pipe("cubic", 1_100_000, rtt));
    assert_eq!(other.factor, Factor::Unclear);
    // A window that is never used up hides no long queue.
    let late = found(&taut_pipe(
        "taut_pipe",
        1_100_000,
        Duration::from_millis(75),
    ));
    assert_eq!(late.factor, Factor::Queue);
}
