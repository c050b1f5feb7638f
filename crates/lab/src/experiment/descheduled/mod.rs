//! `descheduled`: what a sending guest gets of its path when its processor is taken from it, by congestion control (2BRobust, arXiv
//! 2601.05665; pvtcp).

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, json};

use super::guests::qemu::{self, Kernel};
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request, stats};
use crate::peer::program;
use stage::{Path, Seen, Stage};

/// For the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "descheduled",
    about: "what a sending guest gets while its CPU is taken from it: Cubic, BBR, and both with `taut guest`",
    has_parts: true,
    run,
};

/// The guest's kernel.
const KERNEL: &str = "6.12";
const PATHS: [Path; 2] = [
    Path {
        rate: 100_000_000,
        round_trip: Duration::from_millis(20),
    },
    Path {
        rate: 500_000_000,
        round_trip: Duration::from_millis(1),
    },
];
/// What the guest has of its core.
const SHARES: [f64; 5] = [1.0, 0.7, 0.5, 0.35, 0.25];
const SHARES_QUICK: [f64; 2] = [1.0, 0.25];
/// Measurements of each.
const RUNS: usize = 3;
/// A flow goes for so long before it is measured, and is measured for so long: BBR's models are of 10 s.
const TIMES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
const TIMES_QUICK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    Cubic,
    Bbr,
    TautCubic,
    TautBbr,
}

/// Where a figure is: the path, the share in per cent, and who sends.
type Key = (Path, u32, Sender);

// === impl Sender ===

impl Sender {
    const ALL: [Self; 4] = [Self::Cubic, Self::Bbr, Self::TautCubic, Self::TautBbr];

    /// It is there once `taut guest up` has run.
    fn is_ours(self) -> bool {
        matches!(self, Self::TautCubic | Self::TautBbr)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::TautCubic => "taut_cubic",
            Self::TautBbr => "taut_bbr",
        }
    }
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let kernel =
        Kernel::find(KERNEL).map_err(ExperimentError::machine("find the guest's kernel"))?;
    let programs = program::versions(&[qemu::EMULATOR])?;
    let runs = request.runs.unwrap_or(if request.quick { 1 } else { RUNS });
    let (paths, shares, times) = match request.quick {
        true => (&PATHS[..1], &SHARES_QUICK[..], TIMES_QUICK),
        false => (&PATHS[..], &SHARES[..], TIMES),
    };
    let takes = |name: &str| {
        request
            .only
            .as_deref()
            .is_none_or(|only| name.contains(only))
    };
    let steps: Vec<(Path, f64, Sender)> = paths
        .iter()
        .flat_map(|path| shares.iter().map(move |share| (*path, *share)))
        .flat_map(|(path, share)| Sender::ALL.map(|sender| (path, share, sender)))
        .filter(|(path, share, sender)| takes(&name(*path, percent(*share), *sender)))
        .collect();
    if let (true, Some(only)) = (steps.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let progress = Progress::new("descheduled: flows", (runs * steps.len()) as u64);
    let mut all: BTreeMap<Key, Vec<Seen>> = BTreeMap::new();
    let mut fair: BTreeMap<(Path, Sender), Vec<f64>> = BTreeMap::new();
    for path in paths {
        let here: Vec<_> = steps.iter().filter(|(of, ..)| of == path).collect();
        if here.is_empty() {
            continue;
        }
        let mut stage = Stage::build(*path, &kernel, times, request)?;
        if here.iter().any(|(.., sender)| sender.is_ours()) {
            stage.sender.taut(&["guest", "up"])?;
        }
        for _ in 0..runs {
            for (_, share, sender) in &here {
                let seen = stage.flows(&[sender.name()], *share)?;
                let key = (*path, percent(*share), *sender);
                all.entry(key).or_default().push(seen);
                progress.step();
            }
            if request.only.is_some() || request.quick {
                continue;
            }
            for sender in [Sender::Bbr, Sender::TautBbr] {
                let seen = stage.flows(&[sender.name(), Sender::Cubic.name()], 1.0)?;
                if let [own, cubic] = seen.goodput[..] {
                    fair.entry((*path, sender))
                        .or_default()
                        .push(own / (own + cubic));
                }
            }
        }
    }
    drop(progress);
    let mut environment = Environment::here();
    environment.programs = programs;
    let release = kernel
        .release()
        .map_err(ExperimentError::machine("read the kernel's name"))?;
    environment.guests = vec![format!(
        "Linux {release} under QEMU (TCG), one processor, 1 GiB"
    )];
    for path in paths {
        environment.links.insert(
            path.name(),
            "the queue holds as much as the path, and 250 kB at least".to_owned(),
        );
    }
    Ok(outcome(request, environment, &all, &fair))
}

fn percent(share: f64) -> u32 {
    (100.0 * share).round() as u32
}

fn name(path: Path, share: u32, sender: Sender) -> String {
    format!("{}/{share} %/{}", path.name(), sender.name())
}

fn outcome(
    request: &Request,
    environment: Environment,
    all: &BTreeMap<Key, Vec<Seen>>,
    fair: &BTreeMap<(Path, Sender), Vec<f64>>,
) -> Outcome {
    let first = |seen: &Seen| seen.goodput.first().copied().unwrap_or(f64::NAN);
    let goodput = |path, share, sender| {
        let seen = all.get(&(path, share, sender)).map(Vec::as_slice);
        let rates: Vec<f64> = seen.unwrap_or_default().iter().map(first).collect();
        stats::median(&rates).unwrap_or(f64::NAN)
    };
    let long = PATHS[0];
    let at = |share, sender| goodput(long, share, sender);
    let mut series = Vec::new();
    for ((path, share, sender), seen) in all {
        let name = name(*path, *share, *sender);
        let looks = |of: fn(&super::guests::guest::talk::FlowLook) -> f64| -> Vec<f64> {
            let looks = seen.iter().flat_map(|seen| &seen.flowed.flows);
            looks.flat_map(|flow| &flow.looks).map(of).collect()
        };
        let counted = |of: fn(&Seen) -> u64| seen.iter().map(|seen| of(seen) as f64).collect();
        series.extend(Series::of(
            &name,
            "goodput",
            "Mbit/s",
            seen.iter().map(first).collect(),
        ));
        series.extend(Series::of(
            &name,
            "smoothed round trip",
            "ms",
            looks(|look| look.srtt as f64 / 1e3),
        ));
        series.extend(Series::of(
            &name,
            "time-out",
            "ms",
            looks(|look| look.rto as f64 / 1e3),
        ));
        series.extend(Series::of(
            &name,
            "time-outs",
            "",
            counted(|seen| seen.flowed.counted.timeouts),
        ));
        series.extend(Series::of(
            &name,
            "segments sent again",
            "",
            counted(|seen| {
                seen.flowed
                    .flows
                    .iter()
                    .map(|flow| u64::from(flow.repeated))
                    .sum()
            }),
        ));
    }
    for ((path, sender), shares) in fair {
        let name = format!("{}/{} beside cubic", path.name(), sender.name());
        series.extend(Series::of(
            &name,
            "share of the path",
            "of 1",
            shares.clone(),
        ));
    }
    let seen = || all.values().flatten();
    let late: u64 = seen().map(|seen| seen.taken.late).sum();
    let slices: u64 = seen().map(|seen| seen.taken.slices).sum();
    let overruns = seen().filter(|seen| seen.overrun).count();
    let mut checks = vec![
        ("link_overruns", Check::none(overruns as u64)),
        (
            "late_slices",
            Check::at_most(late as f64 / slices.max(1) as f64, 0.01),
        ),
    ];
    let (cubic, bbr) = (at(25, Sender::Cubic), at(25, Sender::Bbr));
    if !cubic.is_nan() && !bbr.is_nan() {
        // The problem is there: BBR loses what Cubic does not (2BRobust, figure 1).
        checks.push(("cubic_over_bbr_share25", Check::at_least(cubic / bbr, 3.0)));
    }
    let fairness = |sender| {
        fair.get(&(long, sender))
            .and_then(|shares| stats::median(shares))
            .unwrap_or(f64::NAN)
    };
    Outcome {
        experiment: EXPERIMENT.name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: request.seed,
        quick: request.quick,
        environment,
        calibration: Calibration::of(checks),
        headline: [
            ("cubic_mbit_share25", cubic),
            ("bbr_mbit_share25", bbr),
            ("taut_bbr_over_cubic_share25", at(25, Sender::TautBbr) / cubic),
            ("taut_bbr_over_bbr_share100", at(100, Sender::TautBbr) / at(100, Sender::Bbr)),
            ("taut_cubic_over_cubic_share25", at(25, Sender::TautCubic) / cubic),
            ("fairness_taut_bbr_over_bbr", fairness(Sender::TautBbr) / fairness(Sender::Bbr)),
        ]
        .into_iter()
        .filter(|(_, figure)| !figure.is_nan())
        .map(|(name, figure)| (name.to_owned(), figure))
        .collect(),
        series,
        paper: json!({"bbr_mbit_share_35_or_less": "10 to 20 (2BRobust)"}).as_object().cloned().unwrap_or_default(),
        ideal: Map::new(),
        notes: vec![
            "The guest's processor is a thread of QEMU's on a core of its own, which somebody with a real-time priority takes for 30 ms at a time; \
             its devices, the link and the server are on the other cores."
                .to_owned(),
            "Goodput is what the server has read, from the end of the warm-up on.".to_owned(),
        ],
    }
}
