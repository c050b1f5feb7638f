//! `budget`: 500 connections at five distances with different demands, under a memory budget: the
//! memory they use and the rates they get.

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::retry::Retry;
use super::{Experiment, ExperimentError, Request, stats};
use crate::peer::program;
use stage::{Arm, ArmRun, RATE, ROUND_TRIPS, Times, Wants};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "budget",
    about: "500 connections at 1 to 200 ms in 64 MB of memory: with `taut tune --budget`, with a tcp_mem of that size, and without a limit",
    has_parts: false,
    minutes: 6,
    run,
};

/// The budget, in bytes.
const BUDGET: u64 = 64_000_000;
/// Measurements of each arm.
const RUNS: usize = 2;
const TIMES: Times = Times {
    part: 1,
    begin: Duration::from_secs(15),
    warm_up: Duration::from_secs(10),
    measure: Duration::from_secs(20),
};
const TIMES_QUICK: Times = Times {
    part: 1,
    begin: Duration::from_secs(8),
    warm_up: Duration::from_secs(4),
    measure: Duration::from_secs(6),
};

const TIMES_SMOKE: Times = Times {
    part: 10,
    begin: Duration::from_millis(500),
    warm_up: Duration::from_millis(500),
    measure: Duration::from_millis(500),
};

/// A figure's name, its unit, and the function that computes it.
type Column = (&'static str, &'static str, fn(&Figures) -> f64);

/// The figures of one run.
struct Figures {
    /// The peak memory of the server's sockets, as a share of the budget.
    peak: f64,
    /// The peak memory of all sockets of the machine, at both ends, as a share of the budget.
    machine_peak: f64,
    /// Jain's index of the share of its due rate that each connection gets.
    jain: f64,
    /// Jain's index for greedy connections alone.
    jain_greedy: f64,
    /// The payload rate of all connections together, in Mbit/s.
    goodput: f64,
    /// The smallest share of its due rate that a connection gets.
    least: f64,
    connections: usize,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let runs = request
        .runs
        .unwrap_or(if request.form.is_short() { 1 } else { RUNS });
    // The smallest form has no arm that sets the machine's `tcp_mem`, which tests beside it would notice.
    let (arms, times) = request.form.pick(
        (&Arm::ALL[..], TIMES),
        (&[Arm::TcpMem, Arm::Taut][..], TIMES_QUICK),
        (&[Arm::Taut][..], TIMES_SMOKE),
    );
    let programs = program::versions(&[program::NGINX, program::CURL])?;
    let progress = Progress::new("budget: runs", (runs * arms.len()) as u64);
    let mut all: BTreeMap<Arm, Vec<ArmRun>> = BTreeMap::new();
    let mut again = Retry::new(request.form.is_short(), runs * arms.len());
    for _ in 0..runs {
        for arm in arms {
            let world = || stage::run(*arm, BUDGET, times, request);
            let seen = again.measure(world, |seen| seen.overrun)?;
            all.entry(*arm).or_default().push(seen);
            progress.step();
        }
    }
    drop(progress);
    let mut environment = Environment::here();
    environment.programs = programs;
    for round_trip in ROUND_TRIPS {
        let link = "40 Mbit/s, a queue of as much as the path holds and 256 KiB at least";
        environment
            .links
            .insert(format!("{} ms", round_trip.as_millis()), link.to_owned());
    }
    Ok(outcome(request, environment, &all, again.count))
}

fn figures(seen: &ArmRun) -> Figures {
    let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64 / BUDGET as f64;
    let satisfied = |takes: fn(Wants) -> bool| -> Vec<f64> {
        let of = seen.rates.iter().filter(|(_, wants, _)| takes(*wants));
        of.filter_map(|(_, wants, rate)| Some((rate / wants.due()?).min(1.0)))
            .collect()
    };
    let greedy = satisfied(|wants| wants == Wants::All);
    let satisfied = satisfied(|_| true);
    let bytes: f64 = seen.rates.iter().map(|(.., rate)| rate).sum();
    Figures {
        peak: most(&seen.held),
        machine_peak: most(&seen.machine),
        jain: jain(&satisfied),
        jain_greedy: jain(&greedy),
        goodput: 8.0 * bytes / 1e6,
        least: satisfied.iter().copied().fold(1.0, f64::min),
        connections: seen.connections,
    }
}

/// Returns Jain's index of fairness: 1 if all values are equal.
fn jain(of: &[f64]) -> f64 {
    let (sum, squares) = of
        .iter()
        .fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (of.len() as f64 * squares)
}

fn outcome(
    request: &Request,
    environment: Environment,
    all: &BTreeMap<Arm, Vec<ArmRun>>,
    again: u64,
) -> Outcome {
    let by_arm: BTreeMap<Arm, Vec<Figures>> = all
        .iter()
        .map(|(arm, seen)| (*arm, seen.iter().map(figures).collect()))
        .collect();
    let each = |arm, of: fn(&Figures) -> f64| -> Vec<f64> {
        by_arm
            .get(&arm)
            .map(|figures| figures.iter().map(of).collect())
            .unwrap_or_default()
    };
    let median = |arm, of| stats::median(&each(arm, of)).unwrap_or(f64::NAN);
    let most = |arm, of| each(arm, of).into_iter().fold(f64::NAN, f64::max);
    let least = |arm, of| each(arm, of).into_iter().fold(f64::NAN, f64::min);
    let mut series = Vec::new();
    for arm in by_arm.keys() {
        let columns: [Column; 6] = [
            ("memory, most", "of the budget", |of| of.peak),
            ("memory of the machine, most", "of the budget", |of| {
                of.machine_peak
            }),
            ("Jain's index", "of 1", |of| of.jain),
            ("Jain's index of the greedy", "of 1", |of| of.jain_greedy),
            ("goodput", "Mbit/s", |of| of.goodput),
            ("least satisfied", "of what is due", |of| of.least),
        ];
        for (metric, unit, of) in columns {
            series.extend(Series::of(arm.name(), metric, unit, each(*arm, of)));
        }
        for round_trip in ROUND_TRIPS {
            for wants in Wants::ALL {
                let of = all[arm].iter().flat_map(|seen| &seen.rates);
                let rates = of.filter(|(of, what, _)| (*of, *what) == (round_trip, wants));
                let rates = rates.map(|(.., rate)| 8.0 * rate / 1e6).collect();
                let name = format!(
                    "{}/{} ms/{}",
                    arm.name(),
                    round_trip.as_millis(),
                    wants.name()
                );
                series.extend(Series::of(&name, "rate", "Mbit/s", rates));
            }
        }
    }
    let connections = by_arm.values().flatten().map(|of| of.connections).min();
    let asked = ROUND_TRIPS.len() as u64 * Wants::ALL.map(Wants::count).iter().sum::<u64>();
    let overruns = all.values().flatten().filter(|seen| seen.overrun).count();
    let machine = [("link_overruns", Check::none(overruns as u64))];
    let mut checks = vec![(
        "connections",
        // A handshake may be lost more than once in a full queue.
        Check::at_least(connections.unwrap_or(0) as f64, 0.98 * asked as f64),
    )];
    if by_arm.contains_key(&Arm::Kernel) {
        // Checks that the problem exists: without a limit the connections use more memory than the
        // budget.
        let peak = median(Arm::Kernel, |of| of.peak);
        checks.push(("kernel_peak_over_budget", Check::at_least(peak, 1.05)));
    }
    let goodput = |arm| median(arm, |of| of.goodput);
    Outcome {
        environment,
        calibration: Calibration::of(checks).and_machine(machine),
        headline: BTreeMap::from([
            ("peak_over_budget".to_owned(), most(Arm::Taut, |of| of.peak)),
            (
                "machine_peak_over_budget".to_owned(),
                most(Arm::Taut, |of| of.machine_peak),
            ),
            ("jain".to_owned(), median(Arm::Taut, |of| of.jain)),
            (
                "jain_greedy".to_owned(),
                median(Arm::Taut, |of| of.jain_greedy),
            ),
            ("jain_tcp_mem".to_owned(), median(Arm::TcpMem, |of| of.jain)),
            (
                "jain_greedy_tcp_mem".to_owned(),
                median(Arm::TcpMem, |of| of.jain_greedy),
            ),
            (
                "goodput_over_kernel".to_owned(),
                goodput(Arm::Taut) / goodput(Arm::TcpMem),
            ),
            (
                "least_satisfied".to_owned(),
                least(Arm::Taut, |of| of.least),
            ),
            (
                "least_satisfied_tcp_mem".to_owned(),
                least(Arm::TcpMem, |of| of.least),
            ),
        ]),
        series,
        notes: vec![
            format!(
                "{again} worlds were built again because a link was late in them; their \
                 measurements are discarded."
            ),
            format!(
                "{} links of {} Mbit/s from one server. Of a hundred connections on each, 20 take \
                 as much as they get, the server limits 20 to 0.4 Mbit/s, the clients of 40 read \
                 0.4 Mbit/s, and 20 are idle after 256 KiB.",
                ROUND_TRIPS.len(),
                RATE / 1_000_000
            ),
            "`peak_over_budget` is the memory of the server's sockets by the kernel's account of \
             each (the queues of both directions, and forward allocations), from before the first \
             connection on; `machine_peak_over_budget` is the kernel's sum for the machine \
             (/proc/net/sockstat), which includes the clients' sockets."
                .to_owned(),
            "`goodput_over_kernel` is the ratio to the kernel alone with a `tcp_mem` of the \
             budget's size."
                .to_owned(),
            "A connection is satisfied if it gets what it is due: a limited one its rate, the \
             others an equal part of the rest of their link; a higher rate counts the same. \
             `tcp_mem` bounds the whole machine, clients included, and in `tcp_mem twice` at twice \
             the budget; the old value is restored at the end."
                .to_owned(),
        ],
        ..Outcome::new(EXPERIMENT.name, request)
    }
}
