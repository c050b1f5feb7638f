//! Tests of the predictions of verdicts.

use taut_sys::sock_diag::CongestionControl;

use super::*;

/// Gives samples events: the rates of their fastest trains, in segments a second.
fn with_trains(mut samples: Vec<Sample>, train: impl Fn(u64) -> u32) -> Vec<Sample> {
    for (scan, sample) in samples.iter_mut().enumerate() {
        sample.connection.internals = Some(Internals {
            max_window: 1 << 16,
            events: Some(Events {
                train_most_recent: train(scan as u64),
                trains: scan as u32,
                ..Events::default()
            }),
            ..Internals::default()
        });
    }
    samples
}

/// Samples of a sender that the peer's window limits to 1 MB/s.
fn by_window(set: impl Fn(u64, &mut TcpInfo)) -> Vec<Sample> {
    sender(|scan, info| {
        info.rwnd_limited = of_half_seconds(scan, 0.95);
        info.snd_wnd = Some(1 << 16);
        set(scan, info);
    })
}

fn gain(samples: &[Sample]) -> Option<Gain> {
    let found = found(samples);
    assert_eq!(found.factor, Factor::ReceiveBuffer, "{found:?}");
    found.gain
}

fn megabytes(gain: Option<Gain>) -> (f64, bool, Option<Factor>) {
    let gain = gain.unwrap();
    let rate = (gain.rate / 1e5).round() / 10.0;
    (rate, gain.is_lower_bound, gain.next)
}

#[test]
fn the_path_carries_what_its_bottleneck_lets_through_in_a_train() {
    // 3000 segments of 1448 bytes a second.
    let steady = gain(&with_trains(by_window(|_, _| {}), |scan| {
        3000 - scan as u32 * 10
    }));
    assert_eq!(megabytes(steady), (4.3, false, Some(Factor::Link)));
    // Trains that differ are only as dense as the sender sent them.
    let uneven = gain(&with_trains(by_window(|_, _| {}), |scan| {
        scan as u32 * scan as u32 * 100
    }));
    assert_eq!(megabytes(uneven), (5.2, true, None));
    // A rate that is no more than the connection carries says nothing.
    assert_eq!(gain(&with_trains(by_window(|_, _| {}), |_| 700)), None);
    assert_eq!(gain(&by_window(|_, _| {})), None);
}

#[test]
fn without_trains_the_fastest_delivery_is_a_lower_bound() {
    let delivered = gain(&by_window(|scan, info| {
        info.delivery_rate = Some(if scan == 3 { 2_000_000 } else { 1_000_000 });
    }));
    assert_eq!(megabytes(delivered), (2.0, true, None));
}

#[test]
fn a_sender_that_paces_spaces_its_trains_itself() {
    let paced = by_window(|_, info| info.pacing_rate = Some(4_200_000));
    let gain = gain(&with_trains(paced, |_| 3000));
    assert_eq!(megabytes(gain), (4.3, true, None));
}

#[test]
fn the_narrowest_of_the_other_limits_is_next() {
    let locked = |sndbuf: u32| {
        let mut samples = with_trains(by_window(|_, _| {}), |_| 3000);
        for sample in &mut samples {
            sample.connection.send_queue = 20_000;
            sample.connection.memory = Some(Memory {
                sndbuf,
                wmem_queued: 40_000,
                ..Memory::default()
            });
            if let Some(internals) = &mut sample.connection.internals {
                internals.sndbuf_locked = true;
            }
        }
        megabytes(gain(&samples))
    };
    // Half of 100 kB is payload; a quarter of that is free. 22.4 ms.
    assert_eq!(locked(100_000), (1.7, false, Some(Factor::SendBuffer)));
    assert_eq!(locked(1_000_000), (4.3, false, Some(Factor::Link)));
    let paced = gain(&with_trains(
        by_window(|_, info| info.max_pacing_rate = Some(2_000_000)),
        |_| 3000,
    ));
    assert_eq!(megabytes(paced), (1.9, false, Some(Factor::Pacing)));
}

#[test]
fn losses_go_on_at_their_rate() {
    let losing = |control: &str| {
        let mut samples = with_trains(
            by_window(|scan, info| info.total_retrans = scan as u32),
            |_| 3000,
        );
        for sample in &mut samples {
            sample.connection.congestion_control = CongestionControl::parse(control.as_bytes());
        }
        megabytes(gain(&samples))
    };
    // 10 of 3500 segments: Mathis' rate is 1.48 MB/s, less what time-outs take.
    assert_eq!(losing("reno"), (1.4, false, Some(Factor::Loss)));
    assert_eq!(losing("bbr"), (4.3, true, None));
}

#[test]
fn the_pauses_of_the_application_remain() {
    let pauses = gain(&with_trains(
        by_window(|scan, info| {
            info.busy_time = of_half_seconds(scan, 0.8);
            info.rwnd_limited = of_half_seconds(scan, 0.75);
        }),
        |_| 3000,
    ));
    // A megabyte takes 0.2 s of pauses and 0.23 s of the path.
    assert_eq!(megabytes(pauses), (2.3, false, Some(Factor::Link)));
}

#[test]
fn an_application_without_its_quota_sends_at_the_rate_at_which_it_ran() {
    let samples = with_trains(
        sender(|scan, info| info.busy_time = of_half_seconds(scan, 0.2)),
        |_| 3000,
    );
    let context = Context {
        cpu_quota: Some(CpuQuota {
            file: Path::new("/sys/fs/cgroup/app/cpu.max").into(),
            cpus: 0.2,
            stopped: 0.7,
        }),
        ..Context::default()
    };
    let found = verdict(&Window::of(&samples).unwrap(), &context);
    assert_eq!(found.factor, Factor::CpuQuota);
    let next = Some(Factor::SenderApplication);
    assert_eq!(megabytes(found.gain), (3.3, false, next));
}

#[test]
fn a_full_path_gains_nothing() {
    let full = found(&with_trains(sender(|_, _| {}), |_| 3000));
    assert_eq!((full.factor, full.gain), (Factor::Link, None));
}

#[test]
fn a_prediction_is_a_sentence_and_an_object() {
    let found = found(&with_trains(by_window(|_, _| {}), |_| 3000));
    let sentence = found.gain.unwrap().sentence();
    assert_eq!(
        sentence,
        "without that it would carry about 34.8 Mbit/s, and then the link limits it"
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(
        json["gain"],
        serde_json::json!({"rate": 4_344_000.0, "is_lower_bound": false, "next": "link"})
    );
}
