//! Runs the decisions of `taut_pipe` in virtual time, over a link that is a few figures.
//!
//! The kernel runs them, compiled as they are for sockets (`taut_pipe_trial.bpf.c`).

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod link;
mod neighbours;

use libbpf_rs::ProgramInput;
use proptest::prelude::*;
use taut_bpf::{Map, Object, Open};

use super::raw::{PipeAck, PipeDecision, PipeLeg, PipePace, PipeRound, PipeTerms, PipeTrial};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/taut_pipe_trial.bpf.o"));

const MSS: u32 = 1448;
const START: u64 = 125_000_000;
const NO_LIMIT: u64 = 1_000_000_000_000;
const WINDOW: u32 = 2_000_000;
const SECOND: u64 = 1_000_000_000;

/// Runs one of the programs.
fn run(name: &'static str, trial: &PipeTrial) -> PipeTrial {
    thread_local! {
        static TRIALS: (Object, Map<u32, PipeTrial>) = {
            assert!(
                rustix::process::geteuid().is_root(),
                "this test loads a BPF program and must run as root; `make test` does"
            );
            let object = Open::new("taut_pipe_trial", OBJECT).unwrap().load().unwrap();
            let map = object.map("trials").unwrap();
            (object, map)
        };
    }
    TRIALS.with(|(object, trials)| {
        trials.insert(&0, trial).unwrap();
        let program = object.program(name).unwrap();
        let done = program.test_run(ProgramInput::default()).unwrap();
        assert_eq!(done.return_value, 0);
        trials.get(&0).unwrap().unwrap()
    })
}

/// A path with one connection, one round trip after another.
#[derive(Clone, Debug)]
struct Path {
    /// Bytes a second.
    carries: u64,
    rtt_us: u64,
    /// The bytes that the queue takes.
    room: u64,
    queue: u64,
    /// The rate at which the data was sent that arrives now.
    sent_at: u64,
    pace: PipePace,
    terms: PipeTerms,
}

impl Path {
    fn new(carries: u64, rtt_us: u64, room: u64) -> Self {
        let pace = PipePace {
            rate: START,
            seeking: 1,
            ..PipePace::default()
        };
        let terms = PipeTerms {
            start: START,
            limit: NO_LIMIT,
            window: WINDOW,
            ..PipeTerms::default()
        };
        Self {
            carries,
            rtt_us,
            room,
            queue: 0,
            sent_at: START,
            pace,
            terms,
        }
    }

    /// Sends at the connection's rate, or at `most`, for one round.
    fn round(&mut self, most: u64) -> PipeDecision {
        let us = self.rtt_us + self.queue * 1_000_000 / self.carries;
        // At least 256 segments.
        let us = us.max(256 * u64::from(MSS) * 1_000_000 / self.sent_at.max(1));
        let bytes = |rate: u64| rate * us / 1_000_000;
        let before = self.queue;
        let arrived = before + bytes(self.sent_at);
        let carried = arrived.min(bytes(self.carries));
        let lost = (arrived - carried).saturating_sub(self.room);
        self.queue = arrived - carried - lost;
        let delivery = carried * 1_000_000 / us;
        let least = before.min(self.queue) * 1_000_000 / self.carries;
        let decision = self.judge(PipeRound {
            delivery,
            leg_delivery: delivery,
            delivered: u32::try_from(carried / u64::from(MSS)).unwrap(),
            lost: u32::try_from(lost / u64::from(MSS)).unwrap(),
            rtt_us: u32::try_from(self.rtt_us + least).unwrap(),
            least_rtt_us: u32::try_from(self.rtt_us).unwrap(),
            mss: MSS,
            ..PipeRound::default()
        });
        self.sent_at = self.pace.rate.min(most);
        decision
    }

    fn judge(&mut self, round: PipeRound) -> PipeDecision {
        let done = run(
            "pipe_decide",
            &PipeTrial {
                pace: self.pace,
                round,
                terms: self.terms,
                ..PipeTrial::default()
            },
        );
        self.pace = done.pace;
        if done.decision.learn != 0 {
            self.terms.known = done.decision.learn;
        }
        done.decision
    }
}

#[test]
fn the_rate_grows_from_where_it_starts_to_what_the_path_carries() {
    let ten_gbit = 1_250_000_000;
    let mut path = Path::new(ten_gbit, 1000, 1 << 20);
    for _ in 0..30 {
        path.round(u64::MAX);
    }
    assert!(path.pace.rate >= ten_gbit / 4 * 3, "{:?}", path.pace);
    assert!(path.terms.known >= ten_gbit / 4 * 3, "{:?}", path.terms);
}

#[test]
fn a_raise_that_makes_a_queue_is_taken_back() {
    // Twice the initial rate, with a deep queue.
    let mut path = Path::new(2 * START, 20_000, 1 << 30);
    let taken_back = (0..100).any(|_| path.round(u64::MAX).taken_back == 1);
    assert!(taken_back);
    assert_eq!(path.pace.seeking, 0);
    // A rate counts as delivered if seven eighths of it are.
    assert!(path.pace.rate <= 2 * START / 7 * 8, "{:?}", path.pace);
}

#[test]
fn a_rate_that_is_not_used_does_not_grow() {
    let mut path = Path::new(100 * START, 20_000, 1 << 30);
    path.sent_at = START / 2;
    for _ in 0..100 {
        assert_eq!(path.round(START / 2).raised, 0);
    }
    assert_eq!(path.pace.rate, START);
    assert_eq!(path.terms.known, 0);
}

#[test]
fn a_ceiling_bounds_the_rate_of_a_connection() {
    let mut path = Path::new(100 * START, 20_000, 1 << 30);
    path.terms.limit = START * 3;
    for _ in 0..100 {
        path.round(u64::MAX);
    }
    assert_eq!(path.pace.rate, START * 3);
    // The only connection of its leg.
    assert_eq!(path.terms.known, START * 3);
}

/// A round in which this connection delivers `delivery`, and its leg `leg_delivery`, bytes a second.
fn undisturbed(delivery: u64, leg_delivery: u64) -> PipeRound {
    PipeRound {
        delivery,
        leg_delivery,
        delivered: 1000,
        rtt_us: 20_000,
        least_rtt_us: 20_000,
        mss: MSS,
        ..PipeRound::default()
    }
}

#[test]
fn a_ceiling_does_not_bound_what_the_connections_of_a_leg_teach_together() {
    let mut path = Path::new(START, 20_000, 0);
    path.terms.limit = START;
    for connections in [2, 4, 5] {
        let together = connections * START;
        assert_eq!(path.judge(undisturbed(START, together)).learn, together);
    }
    // What is known is above the ceiling, and is not lowered to it.
    assert_eq!(path.judge(undisturbed(START, 4 * START)).learn, 0);
    assert_eq!(path.pace.rate, START);
    // The highest rate of all.
    let beyond = path.judge(undisturbed(START, 2 * NO_LIMIT));
    assert_eq!(beyond.learn, NO_LIMIT);
}

/// Something has held the acknowledgements up, so that more come in a round than the path carries.
#[test]
fn acknowledgements_that_come_together_do_not_show_a_higher_rate_of_the_leg() {
    let together = |connections: u64| PipeRound {
        own_delivery: START + START / 2,
        ..undisturbed(START, connections * (START + START / 2))
    };
    let mut path = Path::new(START, 20_000, 0);
    path.terms.limit = START;
    path.terms.known = START;
    for _ in 0..100 {
        assert_eq!(path.judge(together(1)).learn, 0);
    }
    // Its samples tell how much of what all delivered was held up.
    let learnt = path.judge(together(4)).learn;
    assert!((START * 39 / 10..=START * 4).contains(&learnt), "{learnt}");
}

#[test]
fn losses_in_three_rounds_hand_the_connection_over_and_two_do_not() {
    let lossy = PipeRound {
        delivery: START,
        leg_delivery: START,
        delivered: 950,
        lost: 50,
        rtt_us: 1000,
        least_rtt_us: 1000,
        mss: MSS,
        ..PipeRound::default()
    };
    let clear = PipeRound { lost: 0, ..lossy };
    let mut path = Path::new(START, 1000, 0);
    path.pace.seeking = 0;
    for _ in 0..10 {
        assert_eq!(path.judge(lossy).fall_back, 0);
        assert_eq!(path.judge(lossy).fall_back, 0);
        assert_eq!(path.judge(clear).fall_back, 0);
    }
    path.judge(lossy);
    path.judge(lossy);
    let last = path.judge(lossy);
    assert_eq!(last.fall_back, 1);
    assert_eq!(last.learn, START - START / 8);
    assert_eq!(last.full, 1);
}

#[test]
fn in_another_flows_queue_the_rate_neither_falls_nor_grows() {
    let crowded = PipeRound {
        delivery: START,
        leg_delivery: START,
        delivered: 1000,
        rtt_us: 90_000,
        least_rtt_us: 20_000,
        mss: MSS,
        ..PipeRound::default()
    };
    let mut path = Path::new(START, 20_000, 0);
    for _ in 0..50 {
        path.judge(crowded);
    }
    assert_eq!(path.pace.rate, START);
}

#[test]
fn a_connection_with_a_ceiling_below_the_initial_rate_is_judged_by_its_ceiling() {
    let ceiling = START / 4;
    let mut path = Path::new(START, 20_000, 0);
    path.terms.limit = ceiling;
    // It uses all of its rate, and the leg delivers more than was known.
    let learnt = path.judge(undisturbed(ceiling, 2 * START));
    assert_eq!(learnt.learn, 2 * START);
    assert_eq!(path.pace.rate, ceiling);
    // In another flow's queue, all that it sends is delivered.
    let crowded = PipeRound {
        rtt_us: 90_000,
        ..undisturbed(ceiling, ceiling)
    };
    for _ in 0..50 {
        // As at a start, which is at the initial rate.
        path.pace.rate = START;
        assert_eq!(path.judge(crowded).capped, 0);
    }
    assert_eq!(path.pace.rate, ceiling);
}

#[test]
fn a_raise_ends_with_a_ceiling_below_it() {
    let mut path = Path::new(START, 20_000, 0);
    assert_eq!(path.judge(undisturbed(START, START)).raised, 1);
    path.terms.limit = START / 2;
    let lossy = PipeRound {
        lost: 500,
        ..undisturbed(START / 2, START / 2)
    };
    assert_eq!(path.judge(lossy).taken_back, 0);
    assert_eq!(path.pace.rate, START / 2);
}

/// What is known at `now` of a leg that carried three times [`START`] and no more, after a round.
fn learnt(pace: PipePace, round: PipeRound, now: u64) -> PipeLeg {
    let trial = PipeTrial {
        pace,
        round,
        terms: Path::new(START, 20_000, 0).terms,
        leg: PipeLeg {
            rate: 3 * START,
            full: 1,
            stamp: SECOND,
            ..PipeLeg::default()
        },
        now,
        ..PipeTrial::default()
    };
    run("pipe_decide", &trial).leg
}

#[test]
fn what_was_forgotten_after_an_hour_does_not_come_back() {
    let hour = 3600 * SECOND;
    let pace = PipePace {
        rate: START,
        seeking: 1,
        ..PipePace::default()
    };
    let more = undisturbed(START, 2 * START);
    let now = SECOND + hour;
    let leg = learnt(pace, more, now);
    assert_eq!((leg.rate, leg.full, leg.stamp), (2 * START, 0, now));
    let leg = learnt(pace, more, now - 1);
    assert_eq!((leg.rate, leg.full, leg.stamp), (2 * START, 1, now - 1));

    // A raise that is taken back says that the leg is full, and nothing of a rate.
    let raised = PipePace {
        proven: START / 2,
        ..pace
    };
    let lossy = PipeRound { lost: 500, ..more };
    let leg = learnt(raised, lossy, now);
    assert_eq!((leg.rate, leg.full, leg.stamp), (0, 1, now));
    let leg = learnt(raised, lossy, now - 1);
    assert_eq!((leg.rate, leg.full, leg.stamp), (3 * START, 1, now - 1));

    // A round that says nothing of the leg.
    let idle = undisturbed(START / 8, START / 8);
    assert_eq!(learnt(pace, idle, now).stamp, SECOND);
    // Another CPU has learnt it since `now` was read.
    let leg = learnt(pace, more, SECOND - 1);
    assert_eq!((leg.rate, leg.full), (2 * START, 1));
}

/// The state of a leg with this many connections, the last of which starts now.
fn share(active: i32, starting: i32, load: u64) -> u64 {
    let leg = PipeLeg {
        load,
        active,
        starting,
        span_began: SECOND,
        ..PipeLeg::default()
    };
    let trial = PipeTrial {
        leg,
        now: SECOND + 1,
        terms: PipeTerms {
            start: START,
            ..PipeTerms::default()
        },
        ..PipeTrial::default()
    };
    run("pipe_share", &trial).share
}

#[test]
fn connections_that_start_together_share_the_rate_of_their_leg() {
    assert_eq!(share(1, 1, 0), START);
    assert_eq!(share(6, 6, 0), START / 6);
    // Slow readers leave most of the leg to the one that starts.
    assert_eq!(share(200, 1, START / 10), START - START / 10);
    // A leg that is full is shared equally.
    assert_eq!(share(4, 1, START), START / 4);
    assert_eq!(share(4, 1, 2 * START), START / 4);
    // Counts of an entry that was evicted meanwhile.
    assert_eq!(share(-3, -1, 0), START);
}

#[test]
fn the_load_is_what_was_delivered_in_the_last_span() {
    let mut trial = PipeTrial {
        acked: 1_000_000,
        now: SECOND,
        terms: PipeTerms {
            start: START,
            ..PipeTerms::default()
        },
        ..PipeTrial::default()
    };
    trial.leg.span_began = SECOND;
    trial.leg.active = 100;
    for _ in 0..20 {
        trial.now += 10_000_000;
        trial = run("pipe_share", &trial);
    }
    assert_eq!(trial.leg.load, 100_000_000, "100 MB a second");
    assert_eq!(trial.share, START - 100_000_000);
    // A minute later nothing is left of it.
    trial.acked = 0;
    let idle = PipeTrial {
        now: trial.now + 60 * SECOND,
        ..trial
    };
    assert!(run("pipe_share", &idle).share >= START - 1_000_000);
}

#[test]
fn the_least_round_trip_of_a_leg_is_that_of_any_connection_for_five_minutes() {
    let see = |leg: PipeLeg, rtt_us, second| {
        let ack = PipeAck {
            least_rtt_us: rtt_us,
            ..PipeAck::default()
        };
        let trial = PipeTrial {
            leg,
            ack,
            now: second * SECOND,
            ..PipeTrial::default()
        };
        let done = run("pipe_leg_rtt", &trial);
        (done.leg, done.ack.least_rtt_us)
    };
    let (leg, least) = see(PipeLeg::default(), 90_000, 1);
    assert_eq!(least, 90_000);
    // A connection that was made in a queue, and one without a sample.
    assert_eq!(see(leg, 145_000, 2).1, 90_000);
    assert_eq!(see(leg, 0, 2).1, 90_000);
    assert_eq!(see(leg, 145_000, 301).1, 90_000);
    assert_eq!(see(leg, 145_000, 302).1, 145_000);
    let (leg, _) = see(leg, 90_000, 200);
    assert_eq!(see(leg, 145_000, 302).1, 90_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_any_path_the_rate_settles_at_what_it_carries(
        mbit in 20u64..40_000,
        rtt_us in 50u64..300_000,
        room in 0u64..64_000_000,
    ) {
        let carries = mbit * 125_000;
        let mut path = Path::new(carries, rtt_us, room);
        for _ in 0..400 {
            let decision = path.round(u64::MAX);
            if decision.fall_back == 1 {
                break;
            }
        }
        let (rate, known) = (path.pace.rate, path.terms.known);
        prop_assert!(rate <= carries * 3 / 2 + 1, "{path:?}");
        prop_assert!(known <= carries, "{path:?}");
        prop_assert!(rate >= carries / 2, "{path:?}");
    }

    #[test]
    fn no_figures_make_a_rate_of_zero_or_one_above_the_limit(
        rate in 1u64..=NO_LIMIT, proven in 0u64..=NO_LIMIT,
        delivery in 0u64..=NO_LIMIT, leg_delivery in 0u64..=NO_LIMIT, own in 0u64..=NO_LIMIT,
        known in 0u64..=NO_LIMIT, limit in 1_000_000_000u64..=NO_LIMIT,
        counts in any::<[u32; 2]>(), rtt in any::<[u32; 2]>(), flags in any::<[u8; 4]>(),
    ) {
        let mut path = Path::new(START, 1000, 0);
        path.pace = PipePace {
            rate: rate.min(limit),
            // The rate before a raise.
            proven: proven % (rate.min(limit) + 1),
            lossy: flags[0] % 3,
            queued: flags[1] % 3,
            clear: flags[2] % 8,
            seeking: flags[3] % 2,
            ..PipePace::default()
        };
        path.terms.known = known;
        path.terms.limit = limit;
        let before = path.pace.rate;
        let round = PipeRound {
            delivery,
            leg_delivery,
            own_delivery: own,
            delivered: counts[0],
            lost: counts[1],
            rtt_us: rtt[0] % 10_000_000,
            least_rtt_us: rtt[1] % 10_000_000,
            mss: MSS,
            ..PipeRound::default()
        };
        let least = 10 * u64::from(MSS) * 1_000_000 / u64::from(round.least_rtt_us.max(10_000));
        let decision = path.judge(round);
        prop_assert!(path.pace.rate > 0 || delivery == 0);
        if decision.raised == 1 {
            prop_assert!(path.pace.rate <= limit);
            prop_assert!(path.pace.rate <= before + before / 2);
        } else {
            prop_assert!(path.pace.rate <= before.max(delivery).max(least), "{:?}", path.pace);
        }
        prop_assert!(u32::from(decision.raised) + u32::from(decision.capped)
            + u32::from(decision.taken_back) + u32::from(decision.fall_back) <= 1);
    }
}
