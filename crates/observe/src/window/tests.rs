use taut_sys::sock_diag::State;

use super::*;

/// Returns a sample of an established connection; `set` changes fields from their defaults.
pub(crate) fn sample(millis: u64, set: impl FnOnce(&mut TcpInfo)) -> Sample {
    let mut info = TcpInfo::parse(&[0; 256]).unwrap();
    info.snd_mss = 1448;
    info.rcv_mss = 1448;
    info.snd_cwnd = 10;
    info.rto = Duration::from_millis(200);
    info.max_pacing_rate = None;
    set(&mut info);
    Sample {
        at: Duration::from_millis(millis),
        connection: Connection {
            local: "192.0.2.1:1000".parse().unwrap(),
            remote: "192.0.2.2:2000".parse().unwrap(),
            cookie: 1,
            is_v6: false,
            interface: 0,
            state: State::Established,
            recv_queue: 0,
            send_queue: 0,
            uid: 0,
            inode: 1,
            memory: None,
            congestion_control: None,
            bbr: None,
            cgroup: None,
            info: Some(info),
            internals: None,
        },
    }
}

#[test]
fn shares_add_up() {
    let secs = |secs| Some(Duration::from_secs(secs));
    let samples = [
        sample(0, |info| info.busy_time = secs(1)),
        sample(10_000, |info| {
            info.busy_time = secs(9);
            info.rwnd_limited = secs(4);
            info.sndbuf_limited = secs(1);
        }),
    ];
    let shares = Window::of(&samples).unwrap().shares().unwrap();
    assert_eq!(
        shares,
        Shares {
            idle: 1.0 - 0.8,
            receiver: 0.4,
            send_buffer: 0.1,
            network: 0.8 - 0.4 - 0.1
        }
    );
}

#[test]
fn rates_are_of_the_time_between_the_samples() {
    let samples = [
        sample(500, |info| {
            (info.bytes_acked, info.bytes_received) = (Some(1), Some(1))
        }),
        sample(2500, |info| {
            (info.bytes_acked, info.bytes_received) = (Some(2001), Some(4001))
        }),
    ];
    let window = Window::of(&samples).unwrap();
    assert_eq!(
        (window.sent_rate(), window.received_rate()),
        (1000.0, 2000.0)
    );
}

#[test]
fn the_busy_rate_is_of_the_time_with_data() {
    let of = |busy: Option<u64>| {
        let samples = [0, 2].map(|seconds| {
            sample(seconds * 1000, |info| {
                info.bytes_acked = Some(seconds * 1000);
                info.busy_time = busy.map(|millis| Duration::from_millis(millis * seconds));
            })
        });
        Window::of(&samples).unwrap().busy_rate()
    };
    assert_eq!(of(Some(250)), 4000.0);
    assert_eq!(of(None), 1000.0);
    assert_eq!(of(Some(5000)), 1000.0);
}

#[test]
fn counts_may_wrap_around() {
    let samples = [
        sample(0, |info| {
            (info.total_retrans, info.data_segs_out) = (u32::MAX, Some(u32::MAX - 50))
        }),
        sample(1, |info| {
            (info.total_retrans, info.data_segs_out) = (1, Some(49))
        }),
    ];
    assert_eq!(Window::of(&samples).unwrap().loss(), 0.02);
}

#[test]
fn a_spurious_retransmission_is_no_loss() {
    let samples = [
        sample(0, |info| {
            (info.data_segs_out, info.dsack_dups) = (Some(0), Some(0))
        }),
        sample(1, |info| {
            (info.data_segs_out, info.dsack_dups) = (Some(100), Some(4));
            info.total_retrans = 5;
        }),
    ];
    assert_eq!(Window::of(&samples).unwrap().loss(), 0.01);
}

#[test]
fn a_window_fills_while_its_right_edge_stands() {
    let of = |looks: &[(u64, u64, u32)]| {
        let samples = looks.iter().map(|&(at, acked, window)| {
            sample(at, |info| {
                (info.bytes_acked, info.snd_wnd) = (Some(acked), Some(window));
            })
        });
        let samples: Vec<_> = samples.collect();
        Window::of(&samples).unwrap().filled()
    };
    // 600 bytes arrived and none were read for 300 of 400 ms; then all were read.
    let looks = [
        (0, 0, 900),
        (100, 200, 700),
        (300, 600, 300),
        (400, 600, 900),
    ];
    assert!((of(&looks) - 0.75).abs() < 1e-12);
    // Data is read as it arrives; then no more arrives.
    assert_eq!(of(&[(0, 0, 900), (100, 200, 900), (200, 200, 900)]), 0.0);
}

#[test]
fn each_parts_rate_is_of_its_own_time() {
    let samples = [
        (0, 0),
        (100, 100),
        (500, 500),
        (800, 900),
        (1000, 1500),
        (1100, 1500),
    ];
    let samples = samples.map(|(at, acked)| sample(at, |info| info.bytes_acked = Some(acked)));
    let window = Window::of(&samples).unwrap();
    assert_eq!(
        window.sent_rates(Duration::from_millis(500)),
        [1000.0, 2000.0]
    );
}

#[test]
fn figures_that_grow_together_correlate() {
    let of = |pairs: &[(u32, u64)]| {
        let samples = pairs.iter().zip(0..).map(|(&(unacked, millis), at)| {
            sample(at * 100, |info| {
                info.unacked = unacked;
                info.rtt = Some(Duration::from_millis(millis));
            })
        });
        let samples: Vec<_> = samples.collect();
        let window = Window::of(&samples).unwrap();
        window.correlation(
            |info| Some(info.unacked.into()),
            |info| info.rtt.map(|rtt| rtt.as_secs_f64()),
        )
    };
    let near = |found: Option<f64>, is: f64| (found.unwrap() - is).abs() < 1e-9;
    assert!(near(of(&[(1, 10), (2, 20), (3, 30), (4, 40)]), 1.0));
    assert!(near(of(&[(1, 40), (2, 30), (3, 20), (4, 10)]), -1.0));
    assert!(near(of(&[(1, 10), (2, 20), (2, 10), (1, 20)]), 0.0));
    assert_eq!(of(&[(1, 10), (2, 10), (3, 10), (4, 10)]), None);
    assert_eq!(of(&[(1, 10), (2, 20), (3, 30)]), None);
}

#[test]
fn a_slope_is_of_the_second_figure_over_the_first() {
    let samples = [(1, 30), (2, 50), (3, 70), (4, 90)].map(|(unacked, millis)| {
        sample(millis, |info| {
            info.unacked = unacked;
            info.rtt = Some(Duration::from_millis(millis));
        })
    });
    let window = Window::of(&samples).unwrap();
    let slope = window.slope(
        |info| Some(info.unacked.into()),
        |info| info.rtt.map(|rtt| rtt.as_secs_f64()),
    );
    assert!((slope.unwrap() - 0.02).abs() < 1e-12);
}

#[test]
fn one_sample_is_no_window() {
    assert!(Window::of(&[sample(0, |_| {})]).is_none());
    assert!(Window::of(&[sample(0, |_| {}), sample(0, |_| {})]).is_none());
    let mut handshake = sample(5, |_| {});
    handshake.connection.info = None;
    assert!(Window::of(&[sample(0, |_| {}), handshake]).is_none());
}
