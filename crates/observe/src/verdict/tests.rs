//! Windows as each cause makes them. Whether real kernels make them so is shown by `taut lab run verdicts`.

use std::time::Duration;

use proptest::prelude::*;
use taut_sys::sock_diag::{Events, Inside, Memory, State};
use taut_sys::tcp_info::{CaState, TcpInfo};

use super::*;
use crate::window::Sample;
use crate::window::tests::sample;

const LOOKS: u64 = 11;

/// A sender over five seconds with 1 MB/s, a round trip of 20 ms and nothing that holds it back but the network,
/// changed by `set`, which is told the look.
fn sender(set: impl Fn(u64, &mut TcpInfo)) -> Vec<Sample> {
    let looks = (0..LOOKS).map(|look| {
        sample(look * 500, |info| {
            let millis = look * 500;
            info.busy_time = Some(Duration::from_millis(millis));
            info.rwnd_limited = Some(Duration::ZERO);
            info.sndbuf_limited = Some(Duration::ZERO);
            info.bytes_acked = Some(millis * 1000);
            info.bytes_received = Some(0);
            info.notsent_bytes = Some(50_000);
            info.data_segs_out = Some(look as u32 * 350);
            info.dsack_dups = Some(0);
            info.snd_wnd = Some(1 << 20);
            info.window_scales = Some((7, 7));
            info.rtt = Some(Duration::from_micros(22_400));
            info.min_rtt = Some(Duration::from_millis(20));
            info.snd_cwnd = 14;
            info.unacked = 14;
            info.snd_ssthresh = Some(10);
            set(look, info);
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

fn of_half_seconds(look: u64, share: f64) -> Option<Duration> {
    Some(Duration::from_millis(look * 500).mul_f64(share))
}

#[test]
fn a_path_that_is_used_fully_needs_no_repair() {
    let found = found(&sender(|_, _| {}));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Link, Confidence::Sure)
    );
    assert_eq!(found.remedy, None);
}

#[test]
fn an_application_with_pauses_is_the_cause() {
    let found = found(&sender(|look, info| {
        info.busy_time = of_half_seconds(look, 0.1)
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SenderApplication, Confidence::Sure)
    );
    assert_eq!(found.weight, 0.9);
}

#[test]
fn requests_one_after_the_other_are_the_applications_too() {
    let found = found(&sender(|_, info| {
        info.delivery_rate_app_limited = true;
        info.notsent_bytes = Some(0);
        info.unacked = 2;
    }));
    assert_eq!(found.factor, Factor::SenderApplication);
    assert!(found.remedy.unwrap().contains("relay"));
}

#[test]
fn a_full_send_buffer_is_told_by_the_kernel() {
    let found = found(&sender(|look, info| {
        info.sndbuf_limited = of_half_seconds(look, 0.9)
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SendBuffer, Confidence::Sure)
    );
}

#[test]
fn a_buffer_that_is_seen_full_is_the_cause_also_where_the_kernel_does_not_account_for_it() {
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
fn a_window_that_stands_is_a_buffers_and_one_that_moves_a_readers() {
    let limited = |look: u64, info: &mut TcpInfo| info.rwnd_limited = of_half_seconds(look, 0.95);
    let stands = found(&sender(limited));
    assert_eq!(
        (stands.factor, stands.confidence),
        (Factor::ReceiveBuffer, Confidence::Sure)
    );
    let moves = found(&sender(|look, info| {
        limited(look, info);
        info.snd_wnd = Some(if look % 3 == 0 { 0 } else { 1 << 18 });
    }));
    assert_eq!(
        (moves.factor, moves.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
    // It grows as the kernel gives more.
    let grows = found(&sender(|look, info| {
        limited(look, info);
        info.snd_wnd = Some(65536 << look.min(3));
    }));
    assert_eq!(grows.factor, Factor::ReceiveBuffer);
    let unscaled = found(&sender(|look, info| {
        limited(look, info);
        (info.snd_wnd, info.window_scales) = (Some(65535), None);
    }));
    assert!(unscaled.remedy.unwrap().contains("no window scaling"));
}

#[test]
fn a_window_that_grows_without_loss_is_slow_start() {
    let found = found(&sender(|look, info| {
        info.snd_cwnd = 10 << look;
        info.unacked = info.snd_cwnd;
        info.snd_ssthresh = None;
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::SlowStart, Confidence::Sure)
    );
}

#[test]
fn loss_without_a_queue_is_loss_and_with_one_the_link() {
    // A window like a saw, as random losses make it.
    let loses = |look: u64, info: &mut TcpInfo| {
        info.total_retrans = look as u32 * 4;
        let rate = |look: u64| 350_000 + 100_000 * (look % 4);
        info.bytes_acked = Some((0..look).map(rate).sum());
    };
    let empty = found(&sender(loses));
    assert_eq!(
        (empty.factor, empty.confidence),
        (Factor::Loss, Confidence::Sure)
    );
    let full = found(&sender(|look, info| {
        loses(look, info);
        info.rtt = Some(Duration::from_millis(38));
    }));
    assert_eq!(full.factor, Factor::Link);
}

#[test]
fn a_long_queue_is_named() {
    let found = found(&sender(|_, info| {
        info.rtt = Some(Duration::from_millis(400))
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Queue, Confidence::Sure)
    );
}

#[test]
fn a_rate_that_was_set_is_named_when_it_is_reached() {
    let paced = |most| found(&sender(|_, info| info.max_pacing_rate = Some(most))).factor;
    assert_eq!(paced(1_050_000), Factor::Pacing);
    assert_eq!(paced(5_000_000), Factor::Link);
}

#[test]
fn segments_that_shrink_after_loss_are_the_paths_mtu() {
    let found = found(&sender(|look, info| {
        info.total_retrans = look.min(4) as u32;
        info.retransmits = u8::from(look < 7);
        info.snd_mss = if look < 7 { 1448 } else { 1024 };
    }));
    assert_eq!(found.factor, Factor::PathMtu);
}

#[test]
fn repeating_into_silence_is_time_outs() {
    let found = found(&sender(|look, info| {
        info.bytes_acked = Some(1);
        info.ca_state = CaState::Loss;
        info.retransmits = look.min(6) as u8;
        info.total_retrans = look.min(6) as u32;
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Timeouts, Confidence::Sure)
    );
}

#[test]
fn where_only_full_segments_get_no_answer_the_path_is_narrower() {
    let stuck = |acked, queued| {
        let mut samples = sender(|look, info| {
            info.bytes_acked = Some(acked);
            info.bytes_received = Some(if look == 0 { 0 } else { 400 });
            info.ca_state = CaState::Loss;
            info.retransmits = look.min(6) as u8;
            info.total_retrans = look.min(6) as u32;
        });
        for sample in &mut samples {
            sample.connection.send_queue = queued;
        }
        found(&samples).factor
    };
    // Its answer's header got through.
    assert_eq!(stuck(241, 100_000), Factor::PathMtu);
    assert_eq!(stuck(1, 100_000), Factor::PathMtu);
    // Full ones did, before.
    assert_eq!(stuck(1_000_000, 100_000), Factor::Timeouts);
    // None was tried.
    assert_eq!(stuck(1, 500), Factor::Timeouts);
}

#[test]
fn losses_of_a_queue_that_is_short_are_the_links() {
    // A window like a saw, and one segment in a thousand lost where it is widest.
    let lossy = |rtt: fn(u64) -> u64| {
        let found = found(&sender(|look, info| {
            info.snd_cwnd = 14 + 2 * (look % 4) as u32;
            info.unacked = info.snd_cwnd;
            info.rtt = Some(Duration::from_micros(rtt(look)));
            info.data_segs_out = Some(look as u32 * 1000);
            info.total_retrans = look as u32;
        }));
        found.factor
    };
    // Two segments more take 2.9 ms at 1 MB/s.
    assert_eq!(lossy(|look| 20_200 + look % 4 * 2900), Factor::Link);
    // A burst that waits for itself only, on a path that is twice as fast.
    assert_eq!(lossy(|look| 20_200 + look % 4 * 1200), Factor::Loss);
    assert_eq!(lossy(|look| 20_200 + look % 3), Factor::Loss);
    // It varies, and not with the window.
    assert_eq!(
        lossy(|look| 20_200 + (look * 5 + 3) % 7 * 700),
        Factor::Loss
    );
}

#[test]
fn a_rate_that_stands_while_much_is_dropped_is_a_limiters() {
    let limited = |rate: fn(u64) -> u64| {
        let found = found(&sender(|look, info| {
            info.bytes_acked = Some((0..look).map(rate).sum());
            info.total_retrans = look as u32 * 10;
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(
        limited(|_| 500_000),
        (Factor::RateLimit, Confidence::Likely)
    );
    let saw = limited(|look| 350_000 + 100_000 * (look % 4));
    assert_eq!(saw, (Factor::Loss, Confidence::Sure));
}

#[test]
fn a_round_trip_that_comes_and_goes_is_of_one_that_is_away() {
    let round_trip = |rtt: u64, deviates: u64| {
        let found = found(&sender(|look, info| {
            info.rtt = Some(Duration::from_millis(rtt));
            info.rttvar = Some(Duration::from_millis(deviates));
            info.min_rtt = Some(Duration::from_micros(300));
            info.rwnd_limited = of_half_seconds(look, 0.6);
        }));
        (found.factor, found.confidence)
    };
    assert_eq!(round_trip(25, 15), (Factor::Descheduled, Confidence::Sure));
    assert_eq!(round_trip(25, 2).0, Factor::ReceiveBuffer);
    assert_eq!(round_trip(1, 1).0, Factor::ReceiveBuffer);
}

#[test]
fn nothing_either_way_is_idle() {
    let found = found(&sender(|_, info| {
        (info.bytes_acked, info.notsent_bytes, info.unacked) = (Some(77), Some(0), 0);
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::Idle, Confidence::Sure)
    );
}

/// A receiver over five seconds, of 1 MB/s.
fn receiver(set: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
    let looks = (0..LOOKS).map(|look| {
        let mut sample = sample(look * 500, |info| {
            info.bytes_acked = Some(1);
            info.bytes_received = Some(look * 500_000);
            info.busy_time = Some(Duration::ZERO);
            info.window_scales = Some((7, 7));
        });
        sample.connection.memory = Some(taut_sys::sock_diag::Memory {
            rmem_alloc: 0,
            rcvbuf: 131_072,
            wmem_alloc: 0,
            sndbuf: 0,
            fwd_alloc: 0,
            wmem_queued: 0,
            drops: 0,
        });
        set(look, &mut sample);
        sample
    });
    looks.collect()
}

#[test]
fn a_receiver_knows_its_own_application_and_buffer() {
    let slow = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 60_000;
        if let Some(memory) = &mut sample.connection.memory {
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(
        (slow.factor, slow.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
    let narrow = |rmem_max| {
        let samples = receiver(|_, sample| {
            if let Some(info) = &mut sample.connection.info {
                info.rcv_rtt = Some(Duration::from_millis(100));
                info.rcv_wnd = Some(100_000);
            }
        });
        let context = Context {
            rmem_max,
            ..Context::default()
        };
        verdict(&Window::of(&samples).unwrap(), &context)
    };
    let locked = narrow(Some(6 << 20));
    assert_eq!(
        (locked.factor, locked.confidence),
        (Factor::ReceiveBuffer, Confidence::Sure)
    );
    assert!(locked.remedy.unwrap().contains("SO_RCVBUF"));
    assert!(narrow(Some(131_072)).remedy.unwrap().contains("tcp_rmem"));
    let known = |rcvbuf_locked| {
        let samples = receiver(|_, sample| {
            if let Some(info) = &mut sample.connection.info {
                info.rcv_rtt = Some(Duration::from_millis(100));
                info.rcv_wnd = Some(100_000);
            }
            sample.connection.inside = Some(taut_sys::sock_diag::Inside {
                rcvbuf_locked,
                ..Default::default()
            });
        });
        found(&samples).remedy.unwrap()
    };
    assert!(known(true).starts_with("the application sets SO_RCVBUF"));
    assert!(known(false).starts_with("the kernel sizes it"));
}

#[test]
fn what_waits_to_be_read_is_not_idle() {
    let found = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 60_000;
        if let (Some(info), Some(memory)) =
            (&mut sample.connection.info, &mut sample.connection.memory)
        {
            info.bytes_received = Some(60_000);
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(found.factor, Factor::ReceiverApplication);
}

#[test]
fn the_peers_farewell_is_nothing_that_waits_to_be_read() {
    let found = found(&receiver(|_, sample| {
        sample.connection.state = State::CloseWait;
        sample.connection.recv_queue = 1;
        if let Some(info) = &mut sample.connection.info {
            info.bytes_received = Some(60_000);
        }
    }));
    assert_eq!(found.factor, Factor::Idle);
}

#[test]
fn a_little_that_nobody_reads_is_the_applications() {
    let found = found(&receiver(|_, sample| {
        sample.connection.recv_queue = 500;
        if let Some(info) = &mut sample.connection.info {
            info.bytes_received = Some(60_000);
        }
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
}

#[test]
fn what_is_out_of_order_is_not_unread() {
    let found = found(&receiver(|_, sample| {
        if let (Some(info), Some(memory)) =
            (&mut sample.connection.info, &mut sample.connection.memory)
        {
            info.rcv_wnd = Some(60_000);
            memory.rmem_alloc = 120_000;
        }
    }));
    assert_eq!(found.factor, Factor::Peer);
}

#[test]
fn a_window_that_stays_closed_is_the_readers() {
    let found = found(&sender(|look, info| {
        info.rwnd_limited = of_half_seconds(look, 1.0);
        info.bytes_acked = Some(1);
        info.snd_wnd = Some(0);
    }));
    assert_eq!(
        (found.factor, found.confidence),
        (Factor::ReceiverApplication, Confidence::Sure)
    );
}

#[test]
fn a_handshake_without_an_answer_is_time_outs() {
    let mut samples = sender(|look, info| {
        info.busy_time = Some(Duration::ZERO);
        info.bytes_acked = Some(0);
        info.unacked = 1;
        info.retransmits = look.min(3) as u8;
    });
    for sample in &mut samples {
        sample.connection.state = State::SynSent;
    }
    let again = found(&samples);
    assert_eq!(
        (again.factor, again.confidence),
        (Factor::Timeouts, Confidence::Sure)
    );
    // It may come yet.
    for sample in &mut samples {
        if let Some(info) = &mut sample.connection.info {
            info.retransmits = 0;
        }
    }
    assert_eq!(found(&samples).factor, Factor::Unclear);
}

#[test]
fn what_a_receiver_cannot_know_it_does_not_say() {
    let found = found(&receiver(|_, _| {}));
    assert_eq!(found.factor, Factor::Peer);
}

proptest! {
    /// Whatever a kernel says, a verdict is one, and weighs no more than all of the time.
    #[test]
    fn every_window_has_a_verdict(
        looks in prop::collection::vec(prop::collection::vec(any::<u8>(), 256), 2..6),
        apart in 1u64..10_000,
        // Retransmissions and back-off stand before all other rules, and a random byte is seldom zero.
        calm in any::<bool>(),
        state in prop::sample::select(vec![State::Established, State::SynSent, State::CloseWait]),
        recv_queue in prop::sample::select(vec![0, 1, 500, u32::MAX]),
    ) {
        let samples: Vec<_> = looks
            .iter()
            .enumerate()
            .map(|(look, bytes)| {
                let mut sample = sample(look as u64 * apart, |_| {});
                sample.connection.info = TcpInfo::parse(bytes);
                (sample.connection.state, sample.connection.recv_queue) = (state, recv_queue);
                if let (true, Some(info)) = (calm, &mut sample.connection.info) {
                    (info.retransmits, info.backoff, info.total_retrans) = (0, 0, 0);
                    info.max_pacing_rate = None;
                    info.busy_time = Some(Duration::from_millis(look as u64 * apart));
                    (info.rwnd_limited, info.sndbuf_limited) = (None, None);
                }
                sample
            })
            .collect();
        let found = found(&samples);
        prop_assert!((0.0..=1.0).contains(&found.weight), "{found:?}");
        prop_assert!(found.evidence.iter().all(|e| !e.text.contains("NaN") && !e.text.contains("inf")));
    }
}

/// What a sender that loses one segment of fifty sees of it: so many signals, of which each found a round trip of so
/// many milliseconds, and from one to the next so many segments went.
fn losing(signals: u32, millis: u64, between: &[u64]) -> Verdict {
    let mut samples = sender(|look, info| info.total_retrans = look as u32 * 7);
    let sum = |of: fn(u64) -> u64| between.iter().copied().map(of).sum();
    let events = Events {
        signals,
        signal_rtt_sum: Duration::from_millis(millis) * signals,
        between: between.len() as u32,
        between_sum: sum(|segments| segments),
        between_squares: sum(|segments| segments * segments),
        // The same time each.
        between_times: sum(|_| 100),
        between_time_squares: sum(|_| 100 * 100),
        between_products: sum(|segments| segments * 100),
        ..Events::default()
    };
    let last = samples.len() - 1;
    for (at, sample) in samples.iter_mut().enumerate() {
        sample.connection.inside = Some(Inside {
            events: Some(if at == last {
                events
            } else {
                Events::default()
            }),
            ..Inside::default()
        });
    }
    found(&samples)
}

#[test]
fn a_limiter_drops_several_at_a_time_and_at_the_same_rate_each_time() {
    let limiter = losing(20, 22, &[175; 19]);
    assert_eq!(
        (limiter.factor, limiter.confidence),
        (Factor::RateLimit, Confidence::Likely)
    );
    assert!(limiter.evidence[0].text.contains("20 times"), "{limiter:?}");
    // One at a time, or at another rate each time.
    assert_eq!(losing(60, 22, &[58; 59]).factor, Factor::Loss);
    assert_eq!(losing(20, 22, &[100, 250].repeat(9)).factor, Factor::Loss);
    // Of few nobody knows how even they are.
    let few = losing(3, 22, &[1750, 1750]);
    assert_eq!(
        (few.factor, few.confidence),
        (Factor::RateLimit, Confidence::Unclear)
    );
    assert_eq!(losing(2, 22, &[1750]).factor, Factor::RateLimit);
    assert_eq!(losing(30, 22, &[]).factor, Factor::Loss);
    assert_eq!(losing(0, 22, &[]).factor, Factor::Loss);
    // And from a full queue.
    assert_eq!(losing(20, 40, &[175; 19]).factor, Factor::Link);
}

#[test]
fn a_path_on_which_nothing_waits_is_not_full() {
    let found = found(&sender(|_, info| {
        info.rtt = Some(Duration::from_micros(20_200));
    }));
    assert_eq!(found.factor, Factor::Unclear);
}

#[test]
fn a_machine_that_did_not_run_limits_whatever_else_seems_to() {
    let samples = sender(|look, info| info.busy_time = of_half_seconds(look, 0.3));
    let window = Window::of(&samples).unwrap();
    let with = |away| {
        let context = Context {
            away: Some(away),
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
    assert!(away.evidence[0].text.contains("80 %"), "{away:?}");
    assert!(away.remedy.unwrap().contains("taut guest"));
}
