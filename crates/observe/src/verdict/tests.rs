//! Tests the verdict for the window that each cause produces. `taut lab run verdicts` checks
//! whether real kernels produce such windows.

mod control;
mod gain;
mod host_drops;
mod lost;
mod reader;
mod receiving;

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use taut_sys::sock_diag::{Events, Internals, Memory, State};
use taut_sys::tcp_info::{CaState, TcpInfo};

use super::*;
use crate::window::Sample;
use crate::window::tests::sample;

const LOOKS: u64 = 11;

/// Samples of a sender over five seconds at 1 MB/s, with a round trip of 20 ms, limited by the
/// network only. `set` changes each sample and receives the number of the scan.
fn sender(set: impl Fn(u64, &mut TcpInfo)) -> Vec<Sample> {
    let looks = (0..LOOKS).map(|scan| {
        sample(scan * 500, |info| {
            let millis = scan * 500;
            info.busy_time = Some(Duration::from_millis(millis));
            info.rwnd_limited = Some(Duration::ZERO);
            info.sndbuf_limited = Some(Duration::ZERO);
            info.bytes_acked = Some(millis * 1000);
            info.bytes_received = Some(0);
            info.notsent_bytes = Some(50_000);
            info.data_segs_out = Some(scan as u32 * 350);
            info.dsack_dups = Some(0);
            info.snd_wnd = Some(1 << 20);
            info.window_scales = Some((7, 7));
            info.rtt = Some(Duration::from_micros(22_400));
            info.min_rtt = Some(Duration::from_millis(20));
            info.snd_cwnd = 14;
            info.unacked = 14;
            info.snd_ssthresh = Some(10);
            set(scan, info);
        })
    });
    looks.collect()
}

fn found(samples: &[Sample]) -> Verdict {
    let (window, context) = (Window::of(samples).unwrap(), Context::default());
    let verdict = verdict(&window, &context);
    let brief = (verdict.factor, verdict.confidence);
    assert_eq!(limit(&window, &context), brief);
    verdict
}

fn of_half_seconds(scan: u64, share: f64) -> Option<Duration> {
    Some(Duration::from_millis(scan * 500).mul_f64(share))
}

#[test]
fn a_path_that_is_used_fully_needs_no_repair() {
    let found = found(&sender(|_, _| {}));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Link, Confidence::Sure)
    );
    assert_eq!(found.remedy(), None);
}

#[test]
fn bursts_that_are_delivered_faster_than_the_mean_do_not_fill_the_path() {
    let delivers = |rate| found(&sender(|_, info| info.delivery_rate = Some(rate))).factor;
    assert_eq!(delivers(1_100_000), Factor::Link);
    assert_eq!(delivers(1_600_000), Factor::Unclear);
}

#[test]
fn a_full_path_is_sure_only_if_its_queue_stands() {
    let deviates = |micros| {
        let found = found(&sender(|_, info| {
            info.rttvar = Some(Duration::from_micros(micros))
        }));
        (found.factor, found.confidence)
    };
    // The mean round trip is 2.4 ms longer than the shortest.
    assert_eq!(deviates(700), (Factor::Link, Confidence::Sure));
    assert_eq!(deviates(900), (Factor::Link, Confidence::Likely));
}

#[test]
fn an_application_with_pauses_is_the_cause() {
    let found = found(&sender(|scan, info| {
        info.busy_time = of_half_seconds(scan, 0.1)
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SenderApplication, Confidence::Sure)
    );
    assert_eq!(found.weight, 0.9);
    let [(first, most), (second, rest)] = found.shares[..] else {
        panic!("two factors: {found:?}");
    };
    assert_eq!((first, second), (Factor::SenderApplication, Factor::Link));
    assert!((most - 0.9).abs() < 1e-9 && (rest - 0.1).abs() < 1e-9);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["shares"]["sender-application"], 0.9);
}

#[test]
fn samples_without_data_say_nothing_about_the_time_with_data() {
    // Half of the time nothing is in flight; in the other half the path is full.
    let found = found(&sender(|scan, info| {
        info.busy_time = of_half_seconds(scan, 0.5);
        if scan % 2 == 0 {
            (info.unacked, info.notsent_bytes) = (0, Some(0));
        }
    }));
    let shares: Vec<_> = found.shares.iter().map(|(factor, _)| *factor).collect();
    assert!(shares.contains(&Factor::SenderApplication) && shares.contains(&Factor::Link));
    for (factor, share) in found.shares {
        assert!((share - 0.5).abs() < 1e-9, "{factor:?}: {share}");
    }
}

#[test]
fn one_request_after_the_other_is_the_applications_too() {
    let asks = |unsent: u32, in_flight: u32| {
        let found = found(&sender(|_, info| {
            info.notsent_bytes = Some(unsent);
            info.unacked = in_flight;
        }));
        (found.factor, found.remedy())
    };
    let (factor, remedy) = asks(0, 2);
    assert_eq!(factor, Factor::SenderApplication);
    assert!(remedy.unwrap().contains("relay"));
    // Nagle's algorithm holds back less than a segment.
    assert_eq!(asks(1447, 2).0, Factor::SenderApplication);
    assert_eq!(asks(1448, 2).0, Factor::Unclear);
    assert_eq!(asks(0, 14).0, Factor::Link);
}

#[test]
fn the_kernel_accounts_for_a_full_send_buffer() {
    let found = found(&sender(|scan, info| {
        info.sndbuf_limited = of_half_seconds(scan, 0.9)
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SendBuffer, Confidence::Sure)
    );
}

#[test]
fn a_full_send_buffer_is_recognised_also_if_the_kernel_does_not_account_for_it() {
    let with_buffer = |queued: u32| {
        let mut samples = sender(|_, info| {
            info.delivery_rate_app_limited = true;
            info.notsent_bytes = Some(0);
            info.unacked = 10;
        });
        for sample in &mut samples {
            sample.connection.memory = Some(Memory {
                sndbuf: 30_000,
                wmem_queued: queued,
                ..Memory::default()
            });
        }
        found(&samples)
    };
    let full = with_buffer(20_000);
    assert_eq!(
        (full.factor, full.confidence),
        (Factor::SendBuffer, Confidence::Sure)
    );
    assert_eq!(with_buffer(19_999).factor, Factor::SenderApplication);
}

#[test]
fn a_program_that_has_closed_its_end_does_not_wait_for_room() {
    let mut samples = sender(|_, info| {
        (info.notsent_bytes, info.unacked) = (Some(0), 10);
    });
    for sample in &mut samples {
        sample.connection.state = State::FinWait1;
        sample.connection.memory = Some(Memory {
            sndbuf: 30_000,
            wmem_queued: 20_000,
            ..Memory::default()
        });
    }
    assert_eq!(found(&samples).factor, Factor::SenderApplication);
}

#[test]
fn a_window_that_grows_without_loss_is_slow_start() {
    let found = found(&sender(|scan, info| {
        info.snd_cwnd = 10 << scan;
        info.unacked = info.snd_cwnd;
        info.snd_ssthresh = None;
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SlowStart, Confidence::Sure)
    );
}

#[test]
fn a_long_queue_is_named_also_on_a_long_path() {
    let queue = |path: u64, rtt: u64| {
        let found = found(&sender(|_, info| {
            info.min_rtt = Some(Duration::from_millis(path));
            info.rtt = Some(Duration::from_millis(rtt));
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(queue(20, 400), (Factor::Queue, Confidence::Sure));
    assert_eq!(queue(20, 52), (Factor::Queue, Confidence::Sure));
    assert_eq!(queue(20, 48), (Factor::Link, Confidence::Sure));
    // Less than twice the path.
    assert_eq!(queue(100, 150), (Factor::Queue, Confidence::Sure));
    assert_eq!(queue(100, 135), (Factor::Link, Confidence::Sure));
    // Something else keeps the window from being used up: acknowledgements are delayed.
    let delayed = |in_flight: u32, unsent: u32| {
        let found = found(&sender(|_, info| {
            info.min_rtt = Some(Duration::from_millis(100));
            info.rtt = Some(Duration::from_millis(150));
            (info.unacked, info.notsent_bytes) = (in_flight, Some(unsent));
        }));
        found.factor
    };
    assert_ne!(delayed(9, 50_000), Factor::Queue);
    assert_ne!(delayed(14, 0), Factor::Queue);
}

#[test]
fn a_queue_that_was_there_before_the_connection_is_known_from_others_to_the_same_peer() {
    let samples = sender(|scan, info| {
        info.min_rtt = Some(Duration::from_millis(100));
        info.rtt = Some(Duration::from_millis(105));
        info.total_retrans = scan as u32;
    });
    let of = |shortest: Option<u64>| {
        let window = Window::of(&samples).unwrap();
        let window = window.on_path(shortest.map(Duration::from_millis));
        verdict(&window, &Context::default()).factor
    };
    assert_eq!(of(None), Factor::Loss);
    assert_eq!(of(Some(20)), Factor::Queue);
    // The longer round trip of another connection says nothing.
    assert_eq!(of(Some(200)), Factor::Loss);
}

#[test]
fn marks_of_congestion_are_a_full_path_also_without_a_queue_that_shows() {
    let found = found(&sender(|scan, info| {
        info.rtt = Some(Duration::from_micros(20_200));
        info.delivered = Some(scan as u32 * 350);
        info.delivered_ce = Some(scan as u32 * 2);
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Link, Confidence::Sure)
    );
    assert!(found.evidence()[0].text.contains("marked"), "{found:?}");
}

#[test]
fn a_pacing_limit_is_named_when_it_is_reached() {
    let paced = |most| found(&sender(|_, info| info.max_pacing_rate = Some(most))).factor;
    assert_eq!(paced(1_050_000), Factor::Pacing);
    assert_eq!(paced(5_000_000), Factor::Link);
}

#[test]
fn a_round_trip_that_comes_and_goes_is_a_descheduled_peer() {
    let round_trip = |rtt: u64, deviates: u64, silence: u64| {
        let found = found(&sender(|scan, info| {
            info.rtt = Some(Duration::from_millis(rtt));
            info.rttvar = Some(Duration::from_millis(deviates));
            info.min_rtt = Some(Duration::from_micros(300));
            info.rwnd_limited = of_half_seconds(scan, 0.6);
            info.last_ack_recv = Duration::from_millis(silence);
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(
        round_trip(25, 15, 16),
        (Factor::Descheduled, Confidence::Sure)
    );
    // Acknowledgements come all the time.
    assert_eq!(
        round_trip(25, 15, 2),
        (Factor::Descheduled, Confidence::Likely)
    );
    assert_eq!(round_trip(25, 2, 2).0, Factor::ReceiveBuffer);
    assert_eq!(round_trip(1, 1, 0).0, Factor::ReceiveBuffer);
}

#[test]
fn a_queue_that_was_there_before_is_no_descheduled_peer() {
    let samples = sender(|_, info| {
        info.min_rtt = Some(Duration::from_millis(200));
        info.rtt = Some(Duration::from_millis(500));
        info.rttvar = Some(Duration::from_millis(10));
        info.last_ack_recv = Duration::from_millis(80);
    });
    let window = Window::of(&samples).unwrap();
    let window = window.on_path(Some(Duration::from_millis(14)));
    assert_eq!(verdict(&window, &Context::default()).factor, Factor::Queue);
}

#[test]
fn a_fixed_send_buffer_that_is_half_full_is_full() {
    let half = |sndbuf_locked| {
        let mut samples = sender(|_, info| {
            (info.notsent_bytes, info.unacked) = (Some(0), 10);
        });
        for sample in &mut samples {
            sample.connection.memory = Some(Memory {
                sndbuf: 30_000,
                wmem_queued: 16_000,
                ..Memory::default()
            });
            sample.connection.internals = Some(Internals {
                sndbuf_locked,
                ..Internals::default()
            });
        }
        found(&samples).factor
    };
    assert_eq!(half(true), Factor::SendBuffer);
    assert_eq!(half(false), Factor::SenderApplication);
}

#[test]
fn no_data_in_either_direction_is_idle() {
    let found = found(&sender(|_, info| {
        (info.bytes_acked, info.notsent_bytes, info.unacked) = (Some(77), Some(0), 0);
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Idle, Confidence::Sure)
    );
}

#[test]
fn an_unanswered_handshake_is_timeouts() {
    let mut samples = sender(|scan, info| {
        info.busy_time = Some(Duration::ZERO);
        info.bytes_acked = Some(0);
        info.unacked = 1;
        info.retransmits = scan.min(3) as u8;
    });
    for sample in &mut samples {
        sample.connection.state = State::SynSent;
    }
    let again = found(&samples);
    assert_eq!(
        (again.factor, again.confidence),
        (Factor::Timeouts, Confidence::Sure)
    );
    // An answer may still come.
    for sample in &mut samples {
        if let Some(info) = &mut sample.connection.info {
            info.retransmits = 0;
        }
    }
    assert_eq!(found(&samples).factor, Factor::Unclear);
}

#[test]
fn the_limit_of_a_sender_with_little_to_send_is_that_of_its_verdict() {
    let contexts = [
        Context::default(),
        Context {
            descheduled: Some(0.6),
            ..Context::default()
        },
        Context {
            cpu_quota: Some(CpuQuota {
                file: std::path::Path::new("/sys/fs/cgroup/a/cpu.max").into(),
                cpus: 0.5,
                stopped: 0.7,
            }),
            ..Context::default()
        },
    ];
    let mut found = Vec::new();
    for percent in (1..100).step_by(7) {
        let busy = f64::from(percent) / 100.0;
        let samples = sender(|scan, info| {
            info.busy_time = of_half_seconds(scan, busy);
            info.rwnd_limited = of_half_seconds(scan, busy / 2.0);
            info.retransmits = 1;
        });
        let window = Window::of(&samples).unwrap();
        for context in &contexts {
            let verdict = verdict(&window, context);
            let brief = (verdict.factor, verdict.confidence);
            assert_eq!(limit(&window, context), brief, "{percent}, {context:?}");
            found.push(verdict.factor);
        }
    }
    for factor in [
        Factor::SenderApplication,
        Factor::Descheduled,
        Factor::CpuQuota,
    ] {
        assert!(found.contains(&factor), "{factor:?}");
    }
}

proptest! {
    /// Any `tcp_info` has a verdict with a weight of at most 1.
    #[test]
    fn every_window_has_a_verdict(
        looks in prop::collection::vec(prop::collection::vec(any::<u8>(), 256), 2..6),
        apart in 1u64..10_000,
        // Retransmissions and back-off take precedence over all other rules, and a random byte is
        // seldom zero.
        calm in any::<bool>(),
        state in prop::sample::select(vec![State::Established, State::SynSent, State::CloseWait]),
        recv_queue in prop::sample::select(vec![0, 1, 500, u32::MAX]),
    ) {
        let samples: Vec<_> = looks
            .iter()
            .enumerate()
            .map(|(scan, bytes)| {
                let mut sample = sample(scan as u64 * apart, |_| {});
                sample.connection.info = TcpInfo::parse(bytes);
                (sample.connection.state, sample.connection.recv_queue) = (state, recv_queue);
                if let (true, Some(info)) = (calm, &mut sample.connection.info) {
                    (info.retransmits, info.backoff, info.total_retrans) = (0, 0, 0);
                    info.max_pacing_rate = None;
                    info.busy_time = Some(Duration::from_millis(scan as u64 * apart));
                    (info.rwnd_limited, info.sndbuf_limited) = (None, None);
                }
                sample
            })
            .collect();
        let found = found(&samples);
        prop_assert!((0.0..=1.0).contains(&found.weight), "{found:?}");
        prop_assert!(found.gain.is_none_or(|gain| gain.rate.is_finite()), "{found:?}");
        prop_assert!(found.evidence().iter().all(|e| !e.text.contains("NaN") && !e.text.contains("inf")));
    }
}

#[test]
fn a_path_without_a_queue_is_not_full() {
    let found = found(&sender(|_, info| {
        info.rtt = Some(Duration::from_micros(20_200));
    }));
    assert_eq!(found.factor, Factor::Unclear);
}

#[test]
fn a_descheduled_machine_limits_whatever_else_seems_to() {
    let samples = sender(|scan, info| info.busy_time = of_half_seconds(scan, 0.3));
    let window = Window::of(&samples).unwrap();
    let with = |share| {
        let context = Context {
            descheduled: Some(share),
            ..Context::default()
        };
        verdict(&window, &context)
    };
    assert_eq!(with(0.2).factor, Factor::SenderApplication);
    let away = with(0.8);
    assert_eq!(
        (away.factor, away.confidence),
        (Factor::Descheduled, Confidence::Likely)
    );
    assert!(away.evidence()[0].text.contains("80 %"), "{away:?}");
    assert!(away.remedy().unwrap().contains("taut guest"));
}

#[test]
fn a_cpu_quota_takes_the_time_of_the_application_that_it_stops() {
    let with = |busy, stopped| {
        let samples = sender(|look, info| info.busy_time = of_half_seconds(look, busy));
        let context = Context {
            cpu_quota: Some(CpuQuota {
                file: Path::new("/sys/fs/cgroup/app/cpu.max").into(),
                cpus: 0.2,
                stopped,
            }),
            ..Context::default()
        };
        verdict(&Window::of(&samples).unwrap(), &context)
    };
    let throttled = with(0.1, 0.8);
    assert_eq!(
        (throttled.factor, throttled.confidence),
        (Factor::CpuQuota, Confidence::Sure)
    );
    let said = &throttled.evidence()[0].text;
    assert!(
        said.contains("80 %") && said.contains("0.20 CPUs"),
        "{said}"
    );
    assert!(said.contains("/sys/fs/cgroup/app/cpu.max"), "{said}");
    let shares: f64 = throttled.shares.iter().map(|(_, share)| share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{throttled:?}");
    // It mostly has nothing to send, and is stopped sometimes.
    assert_eq!(with(0.1, 0.2).factor, Factor::SenderApplication);
    // What it has sent before it was stopped keeps the path full.
    assert_eq!(with(1.0, 0.8).factor, Factor::Link);
}

#[test]
fn a_connection_that_does_not_work_is_explained_before_those_that_carry_much() {
    let verdict = |factor| Verdict {
        factor,
        confidence: Confidence::Sure,
        weight: 0.9,
        shares: vec![(factor, 0.9)],
        causes: Vec::new(),
        gain: None,
        settings: TcpSettings::default(),
        ends: None,
    };
    let mut all = [
        (Some(verdict(Factor::Link)), 9_000_000),
        (Some(verdict(Factor::SenderApplication)), 1000),
        (Some(verdict(Factor::SenderApplication)), 8000),
        (Some(verdict(Factor::Timeouts)), 0),
        (None, 7_000_000),
    ];
    all.sort_by_key(|(verdict, carried)| rank(verdict.as_ref(), *carried));
    let carried = all.map(|(_, carried)| carried);
    assert_eq!(carried, [0, 8000, 1000, 9_000_000, 7_000_000]);
}
