//! What connections of `taut_pipe` leave to flows of others on a link that is full, and what they keep of it.

use proptest::prelude::*;

use super::super::raw::{PipeAck, PipeDecision, PipePace, PipeRound, PipeTerms, PipeTrial};
use super::link::{Flow, Link, share};
use super::{MSS, NO_LIMIT, Path, START, WINDOW, run};

/// 40 Mbit/s over 90 ms.
const RATE: f64 = 5e6;
const RTT: f64 = 0.09;
/// When flows of `taut_pipe` join those that were there before, and when these are measured.
const JOIN: f64 = 3.0;
const SETTLED: f64 = 4.0;
/// Which flow a full queue hits is chance, and one minute is few hits: contests that begin at different
/// moments are averaged.
const MOMENTS: u32 = 4;

/// A link whose queue holds so many bandwidth-delay products.
fn link(products: f64) -> Link {
    Link {
        rate: RATE,
        rtt: RTT,
        room: products * RATE * RTT,
        loss: 0.0,
    }
}

/// Returns the share of the link that `n` flows of CUBIC keep over a minute beside `n` of `taut_pipe`,
/// which start together at `rate`.
fn share_left(link: Link, n: usize, rate: f64) -> f64 {
    let contest = |moment: u32| {
        let join = JOIN + 0.2 * f64::from(moment);
        let apart = |i: usize| 0.013 * i as f64;
        let cubic = (0..n).map(|i| Flow::cubic(apart(i), link));
        let pipes = (0..n).map(|i| Flow::pipe(join + apart(i), link, rate / n as f64));
        let mut flows: Vec<Flow> = cubic.chain(pipes).collect();
        let rates = share(link, &mut flows, SETTLED, SETTLED + 60.0);
        rates[..n].iter().sum::<f64>() / rates.iter().sum::<f64>()
    };
    (0..MOMENTS).map(contest).sum::<f64>() / f64::from(MOMENTS)
}

#[test]
fn flows_of_cubic_keep_at_least_half_of_their_share_beside_as_many_of_taut_pipe() {
    for products in [0.5, 1.0, 2.0] {
        for n in [1, 2, 4] {
            for rate in [RATE, 10.0 * RATE] {
                let left = share_left(link(products), n, rate);
                assert!(
                    left >= 0.25,
                    "{n} flows, a queue of {products}, {rate}: {left}"
                );
                assert!(
                    left <= 0.75,
                    "{n} flows, a queue of {products}, {rate}: {left}"
                );
            }
        }
    }
}

#[test]
fn a_connection_that_is_alone_keeps_the_link_wherever_it_starts() {
    for products in [0.5, 1.0, 2.0] {
        for start in [0.2, 0.9, 1.0, 10.0] {
            let link = link(products);
            let mut flows = [Flow::pipe(0.0, link, start * RATE)];
            let rate = share(link, &mut flows, 2.0, 30.0)[0];
            assert!(
                rate >= 0.85 * RATE,
                "a queue of {products}, a start at {start}: {rate}"
            );
        }
    }
}

#[test]
fn a_connection_sends_at_its_rate_from_the_first_byte() {
    let link = link(1.0);
    let start = 0.8 * RATE;
    let mut flows = [Flow::pipe(0.0, link, start)];
    // What is sent in the first round trip is acknowledged in the second.
    let rate = share(link, &mut flows, RTT, 2.0 * RTT)[0];
    assert!(rate >= 0.95 * start, "{rate}");
}

#[test]
fn random_loss_without_a_queue_costs_nothing() {
    let link = Link {
        loss: 0.005,
        ..link(1.0)
    };
    let ceiling = 0.8 * RATE;
    let mut flows = [Flow::pipe(0.0, link, ceiling).at_most(ceiling)];
    let rate = share(link, &mut flows, 1.0, 60.0)[0];
    assert!(rate >= 0.99 * ceiling, "{rate}");
    assert_eq!(flows[0].pace().unwrap().competing, 0);
}

#[test]
fn a_connection_has_the_link_for_itself_again_when_the_others_have_ended() {
    let link = link(1.0);
    let flows = || {
        let cubic = Flow::cubic(0.0, link).until(20.0);
        [cubic, Flow::pipe(JOIN, link, RATE)]
    };
    let mut together = flows();
    share(link, &mut together, SETTLED, 20.0);
    assert_eq!(together[1].pace().unwrap().competing, 1);
    let rate = share(link, &mut flows(), 40.0, 60.0)[1];
    assert!(rate >= 0.85 * RATE, "{rate}");
}

/// An acknowledgement on a path of 20 ms with a queue of as much, when `delivered` segments were.
fn crowded(delivered: u32) -> PipeAck {
    PipeAck {
        now_us: 10_000_000,
        acked: 10,
        lost: 1,
        delivered,
        prior_delivered: delivered - 500,
        flight: 500,
        rtt_us: 40_000,
        least_rtt_us: 20_000,
        ..PipeAck::default()
    }
}

fn judge(pace: PipePace, ack: PipeAck) -> (PipePace, PipeDecision) {
    let trial = PipeTrial {
        pace,
        ack,
        ..PipeTrial::default()
    };
    let done = run("pipe_ack", &trial);
    (done.pace, done.decision)
}

fn starting() -> PipePace {
    PipePace {
        rate: START,
        ..PipePace::default()
    }
}

#[test]
fn a_loss_counts_as_congestion_only_while_a_queue_stands_or_if_it_is_a_mark() {
    let alone = PipeAck {
        rtt_us: 22_000,
        ..crowded(1000)
    };
    let (pace, decision) = judge(starting(), alone);
    assert_eq!((pace.competing, decision.competes), (0, 0));
    assert_eq!(judge(starting(), crowded(1000)).1.competes, 1);
    let marked = PipeAck {
        marked: 1,
        lost: 0,
        ..alone
    };
    assert_eq!(judge(starting(), marked).1.competes, 1);
}

#[test]
fn a_time_out_reduces_only_the_window_of_a_connection_that_shares_a_link() {
    let waited = PipeAck {
        lost: 0,
        timed_out: 1,
        ..crowded(1000)
    };
    let (alone, decision) = judge(starting(), waited);
    assert_eq!((alone.competing, decision.competes), (0, 0));
    let sharing = judge(starting(), crowded(1000)).0;
    let sharing = PipePace {
        reducing: 0,
        entering: 0,
        ..sharing
    };
    let (after, decision) = judge(sharing, waited);
    assert_eq!(decision.decreased, 1);
    assert_eq!(after.window, sharing.window * 7 / 10);
}

#[test]
fn an_application_that_sends_little_teaches_nothing_of_what_a_leg_carries() {
    let learns = |app_limited| {
        let pace = PipePace {
            competing: 1,
            rounds: 1,
            window: 100,
            ..starting()
        };
        let round = PipeRound {
            delivery: 1_000_000,
            leg_delivery: 1_000_000,
            delivered: 1000,
            rtt_us: 90_000,
            least_rtt_us: 20_000,
            mss: MSS,
            app_limited,
            ..PipeRound::default()
        };
        let trial = PipeTrial {
            pace,
            round,
            terms: PipeTerms {
                start: 125_000_000,
                limit: NO_LIMIT,
                window: WINDOW,
                ..PipeTerms::default()
            },
            ..PipeTrial::default()
        };
        let decision = run("pipe_decide", &trial).decision;
        (decision.learn > 0, decision.full)
    };
    assert_eq!(learns(1), (false, 0));
    assert_eq!(learns(0), (true, 1));
}

#[test]
fn a_share_is_reduced_at_most_once_a_round_trip() {
    let (pace, _) = judge(starting(), crowded(1000));
    assert_eq!(pace.window, 350);
    // Segments that were sent before the reduction.
    let (pace, _) = judge(pace, crowded(1400));
    assert_eq!(pace.window, 350);
    // The first one that was sent after it. All 500 arrived, after half of the time in a queue.
    let (pace, _) = judge(pace, crowded(1500));
    assert_eq!((pace.window, pace.plateau), (175, 500));
    let (pace, decision) = judge(pace, crowded(2001));
    assert_eq!(decision.decreased, 1);
    assert_eq!(pace.window, 122);
    assert_eq!(judge(pace, crowded(2101)).0.window, 122);
}

#[test]
fn a_raise_that_loses_segments_to_a_queue_is_taken_back_below_the_rate_before_it() {
    let raised = PipePace {
        rate: START * 3 / 2,
        proven: START,
        ..PipePace::default()
    };
    let (pace, decision) = judge(raised, crowded(1000));
    assert_eq!((decision.taken_back, decision.competes), (1, 0));
    assert_eq!(pace.rate, START - START / 8);
    // Losses of the same flight do not count again; later ones do.
    assert_eq!(judge(pace, crowded(1400)).1.competes, 0);
    assert_eq!(judge(pace, crowded(1500)).1.competes, 1);
}

#[test]
fn persistent_losses_hand_a_connection_that_shares_a_link_to_a_control_that_does_too() {
    let lossy = PipeRound {
        delivery: START,
        leg_delivery: START,
        delivered: 950,
        lost: 50,
        rtt_us: 40_000,
        least_rtt_us: 20_000,
        mss: MSS,
        ..PipeRound::default()
    };
    for (competing, crowded) in [(0, 0), (1, 1)] {
        let mut path = Path::new(START, 20_000, 0);
        path.pace = starting();
        path.pace.competing = competing;
        let decisions: Vec<PipeDecision> = (0..3).map(|_| path.judge(lossy)).collect();
        let fall_backs: Vec<u8> = decisions.iter().map(|d| d.fall_back).collect();
        assert_eq!(fall_backs, [0, 0, 1]);
        assert_eq!(decisions[2].crowded, crowded);
    }
}

#[test]
fn each_time_that_it_takes_itself_for_alone_and_is_not_it_waits_twice_as_long() {
    let clear = PipeRound {
        delivery: START,
        leg_delivery: START,
        delivered: 1000,
        rtt_us: 20_000,
        least_rtt_us: 20_000,
        mss: MSS,
        ..PipeRound::default()
    };
    let mut path = Path::new(START, 20_000, 0);
    path.pace = starting();
    let mut waited = Vec::new();
    for delivered in (1..=6).map(|n| 10_000 * n) {
        path.pace = judge(path.pace, crowded(delivered)).0;
        // What was in flight is acknowledged.
        path.pace = judge(path.pace, crowded(delivered + 500)).0;
        let rounds = (1..1000).find(|_| path.judge(clear).alone == 1).unwrap();
        assert_eq!(path.pace.competing, 0);
        waited.push(rounds);
    }
    assert_eq!(waited, [8, 16, 32, 64, 128, 128]);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let (pace, _) = judge(starting(), crowded(1000));
    let (mut pace, _) = judge(pace, crowded(1500));
    let window = pace.window;
    for second in 1..60 {
        let idle = PipeAck {
            now_us: 10_000_000 + second * 1_000_000,
            lost: 0,
            flight: 20,
            rtt_us: 20_000,
            ..crowded(1500 + 500 * second as u32)
        };
        pace = judge(pace, idle).0;
    }
    assert_eq!(pace.window, window);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_figures_make_a_window_without_bounds(
        state in any::<[u8; 4]>(),
        windows in any::<[u32; 3]>(),
        times in any::<[u32; 2]>(),
        ack in any::<[u32; 8]>(),
        now_us in 0_u64..1 << 60,
        proven in 0..=START,
    ) {
        let most = 1 << 24;
        let pace = PipePace {
            rate: START,
            proven,
            competing: state[0] % 2,
            entering: state[1] % 2,
            reducing: state[2] % 2,
            rounds: state[3],
            window: windows[0] % most + 2,
            plateau: windows[1],
            plateau_ms: times[0] % 100_001,
            growing_from_ms: times[1],
            reduced_at: windows[2],
            ..PipePace::default()
        };
        let ack = PipeAck {
            now_us,
            acked: ack[0] % 100_000,
            lost: ack[1],
            marked: ack[2] % 2,
            delivered: ack[3],
            prior_delivered: ack[4],
            flight: ack[5],
            rtt_us: ack[6],
            least_rtt_us: ack[7],
            timed_out: 0,
            reserved: 0,
        };
        let (after, decision) = judge(pace, ack);
        let grown = pace.window.max(ack.flight.min(most)) + ack.acked / 2 + 1;
        prop_assert!(after.window >= 2 && after.window <= grown, "{after:?}");
        prop_assert!(after.plateau_ms <= 100_000, "{after:?}");
        prop_assert!(after.rate >= START - START / 8 || decision.taken_back == 1);
        prop_assert!(u64::from(after.window) * u64::from(MSS) < 1 << 36);
    }
}
