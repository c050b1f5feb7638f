//! `descheduled`: the throughput of a sending guest whose processor is taken away in slices, by
//! congestion control (2BRobust, arXiv 2601.05665; pvtcp).

mod stage;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::guests::qemu::{self, Kernel};
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::retry::{LeftOut, Retry};
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Request, stats};
use crate::peer::program;
use stage::{FlowRun, Path, Stage};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "descheduled",
    about: "throughput of a sending guest whose CPU is taken away in slices: Cubic, BBR, and both with `taut guest`",
    has_parts: true,
    minutes: 12,
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
/// The shares of its core that the guest gets.
const SHARES: [f64; 5] = [1.0, 0.7, 0.5, 0.35, 0.25];
const SHARES_QUICK: [f64; 2] = [1.0, 0.25];
/// The warm-up of a flow and the duration of its measurement. BBR's models cover 10 s.
const TIMES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
const TIMES_QUICK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
const TIMES_SMOKE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(800));

/// The sender's congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    Cubic,
    Bbr,
    TautCubic,
    TautBbr,
    /// With `taut_pvtcp` in the guest's kernel.
    CubicModule,
    BbrModule,
}

/// The key of a figure: path, share in per cent, and sender.
type Key = (Path, u32, Sender);

// === impl Sender ===

impl Sender {
    /// All senders, those without the module first.
    const ALL: [Self; 6] = [
        Self::Cubic,
        Self::Bbr,
        Self::TautCubic,
        Self::TautBbr,
        Self::CubicModule,
        Self::BbrModule,
    ];

    /// Returns whether the congestion control exists only after `taut guest up` has run.
    fn is_ours(self) -> bool {
        matches!(self, Self::TautCubic | Self::TautBbr)
    }

    fn has_module(self) -> bool {
        matches!(self, Self::CubicModule | Self::BbrModule)
    }

    fn congestion_control(self) -> &'static str {
        match self {
            Self::Cubic | Self::CubicModule => "cubic",
            Self::Bbr | Self::BbrModule => "bbr",
            Self::TautCubic => "taut_cubic",
            Self::TautBbr => "taut_bbr",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::CubicModule => "cubic with taut_pvtcp",
            Self::BbrModule => "bbr with taut_pvtcp",
            _ => self.congestion_control(),
        }
    }
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let kernel =
        Kernel::find(KERNEL).map_err(ExperimentError::machine("find the guest's kernel"))?;
    let programs = program::versions(&[qemu::EMULATOR])?;
    let rounds = Rounds::of(request);
    let (paths, shares, senders, times) = request.form.pick(
        (&PATHS[..], &SHARES[..], &Sender::ALL[..], TIMES),
        (
            &PATHS[..1],
            &SHARES_QUICK[..],
            &Sender::ALL[..4],
            TIMES_QUICK,
        ),
        (
            &PATHS[..1],
            &SHARES_QUICK[1..],
            &[Sender::Cubic, Sender::TautBbr][..],
            TIMES_SMOKE,
        ),
    );
    let takes = |path: Path, share: f64, sender: Sender| match &request.only {
        Some(only) => name(path, percent(share), sender).contains(only),
        None => is_by_default(path, share, sender),
    };
    let steps: Vec<(Path, f64, Sender)> = paths
        .iter()
        .flat_map(|path| shares.iter().map(move |share| (*path, *share)))
        .flat_map(|(path, share)| senders.iter().map(move |sender| (path, share, *sender)))
        .filter(|(path, share, sender)| takes(*path, *share, *sender))
        .collect();
    if let (true, Some(only)) = (steps.is_empty(), &request.only) {
        return Err(ExperimentError::NoPart(only.clone()));
    }
    let mut again = Retry::new(request.form.is_short(), rounds.most * steps.len());
    let progress = Progress::new("descheduled: flows", (rounds.most * steps.len()) as u64);
    let mut all: BTreeMap<Key, Vec<FlowRun>> = BTreeMap::new();
    let mut fair: BTreeMap<(Path, Sender), Vec<FlowRun>> = BTreeMap::new();
    for path in paths {
        let here: Vec<_> = steps.iter().filter(|(of, ..)| of == path).collect();
        if here.is_empty() {
            continue;
        }
        let mut on_path = || -> Result<(), ExperimentError> {
            let mut stage = Stage::build(*path, &kernel, times, request)?;
            if here.iter().any(|(.., sender)| sender.is_ours()) {
                stage.sender.taut(&["guest", "up"])?;
            }
            for _ in 0..rounds.most {
                for (_, share, sender) in &here {
                    let seen = all.entry((*path, percent(*share), *sender)).or_default();
                    if rounds.need_more(&on_time(seen, FlowRun::first)) {
                        seen.push(measure(&mut again, &mut stage, &[*sender], *share)?);
                    }
                    progress.step();
                }
                if request.only.is_some() || request.form.is_short() {
                    continue;
                }
                for sender in [Sender::Bbr, Sender::TautBbr] {
                    let seen = fair.entry((*path, sender)).or_default();
                    if rounds.need_more(&on_time(seen, FlowRun::part)) {
                        let both = [sender, Sender::Cubic];
                        seen.push(measure(&mut again, &mut stage, &both, 1.0)?);
                    }
                }
            }
            Ok(())
        };
        // Runs on its own thread: booting a guest moves the calling thread off the guest's core,
        // and the next guest could then not choose a core.
        let measured = std::thread::scope(|scope| scope.spawn(&mut on_path).join());
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    drop(progress);
    let mut left_out = LeftOut::default();
    let all_named = all
        .iter_mut()
        .map(|((path, share, sender), seen)| (name(*path, *share, *sender), seen));
    let fair_named = fair
        .iter_mut()
        .map(|((path, sender), seen)| (fair_name(*path, *sender), seen));
    for (name, seen) in all_named.chain(fair_named) {
        left_out.take(name, seen, rounds.enough(), |seen| seen.overrun);
    }
    let late_note = left_out.note("flows", again.count);
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
    Ok(outcome(request, environment, &all, &fair, late_note))
}

/// Returns whether the full form measures a cell; `--only` selects the rest. The module and the second path are
/// measured with the smallest share alone, and both together only where a headline figure needs it.
fn is_by_default(path: Path, share: f64, sender: Sender) -> bool {
    match (path == PATHS[0], sender.has_module()) {
        (true, false) => [100, 50, 25].contains(&percent(share)),
        (true, true) | (false, false) => percent(share) == 25,
        (false, true) => sender == Sender::CubicModule && percent(share) == 25,
    }
}

/// Runs flows of these senders at once, and repeats the run if the link was late. Loads the module
/// if a sender needs it.
fn measure(
    again: &mut Retry,
    stage: &mut Stage,
    of: &[Sender],
    share: f64,
) -> Result<FlowRun, ExperimentError> {
    let has_module = of.iter().any(|sender| sender.has_module());
    let names: Vec<_> = of.iter().map(|of| of.congestion_control()).collect();
    if has_module {
        stage.load_module()?;
    }
    let seen = again.measure(|| stage.flows(&names, share), |seen| seen.overrun)?;
    if has_module {
        stage.unload_module()?;
    }
    Ok(seen)
}

// === the outcome ===

fn percent(share: f64) -> u32 {
    (100.0 * share).round() as u32
}

fn name(path: Path, share: u32, sender: Sender) -> String {
    format!("{}/{share} %/{}", path.name(), sender.name())
}

fn fair_name(path: Path, sender: Sender) -> String {
    format!("{}/{} beside cubic", path.name(), sender.name())
}

fn outcome(
    request: &Request,
    environment: Environment,
    all: &BTreeMap<Key, Vec<FlowRun>>,
    fair: &BTreeMap<(Path, Sender), Vec<FlowRun>>,
    late_note: Option<String>,
) -> Outcome {
    let [long, short] = PATHS;
    let of = |path, share, sender| {
        let seen = all.get(&(path, share, sender));
        seen.map(Vec::as_slice).unwrap_or_default()
    };
    let goodput = |share, sender| median(of(long, share, sender), FlowRun::first);
    let srtt = |sender| {
        let samples: Vec<f64> = of(long, 100, sender).iter().flat_map(srtts).collect();
        stats::median(&samples).unwrap_or(f64::NAN)
    };
    let beyond = |sender| part_beyond(of(short, 25, sender), short);
    let fairness = |sender| {
        let seen = fair.get(&(long, sender));
        median(seen.map(Vec::as_slice).unwrap_or_default(), FlowRun::part)
    };
    let (cubic, bbr) = (goodput(25, Sender::Cubic), goodput(25, Sender::Bbr));
    let headline = [
        ("cubic_mbit_share25", cubic),
        ("bbr_mbit_share25", bbr),
        (
            "taut_bbr_over_cubic_share25",
            goodput(25, Sender::TautBbr) / cubic,
        ),
        (
            "taut_bbr_over_bbr_share100",
            goodput(100, Sender::TautBbr) / goodput(100, Sender::Bbr),
        ),
        (
            "rtt_taut_bbr_over_bbr_share100",
            srtt(Sender::TautBbr) / srtt(Sender::Bbr),
        ),
        (
            "fairness_taut_bbr_over_bbr",
            fairness(Sender::TautBbr) / fairness(Sender::Bbr),
        ),
        (
            "taut_cubic_over_cubic_share25",
            goodput(25, Sender::TautCubic) / cubic,
        ),
        ("samples_beyond_path_share25", beyond(Sender::Cubic)),
        (
            "samples_beyond_path_share25_module",
            beyond(Sender::CubicModule),
        ),
    ];
    let seen = || all.values().chain(fair.values()).flatten();
    let late: u64 = seen().map(|seen| seen.taken.late).sum();
    let slices: u64 = seen().map(|seen| seen.taken.slices).sum();
    let overruns = seen().filter(|seen| seen.overrun).count();
    let machine = [
        ("link_overruns", Check::none(overruns as u64)),
        (
            "late_slices",
            Check::at_most(late as f64 / slices.max(1) as f64, 0.01),
        ),
    ];
    let mut checks = Vec::new();
    if !cubic.is_nan() && !bbr.is_nan() {
        // Checks that the problem exists: BBR loses throughput that Cubic does not (2BRobust,
        // figure 1).
        checks.push(("cubic_over_bbr_share25", Check::at_least(cubic / bbr, 3.0)));
    }
    let mut notes = vec![
        "The guest's processor is a thread of QEMU on a core of its own, which a thread with \
         real-time priority takes for 30 ms at a time; the guest's devices, the link and the server \
         run on the other cores."
            .to_owned(),
        "Goodput counts the bytes that the server has read after the warm-up; round trips and \
         time-outs are sampled after it, too.".to_owned(),
        "`beyond the path`: the share of samples in which the smoothed round trip was longer than \
         the path's with a full queue; RTT samples that span a gap cause this."
            .to_owned(),
    ];
    notes.extend(late_note);
    Outcome {
        environment,
        calibration: Calibration::of(checks).and_machine(machine),
        headline: headline
            .into_iter()
            .filter(|(_, figure)| !figure.is_nan())
            .map(|(name, figure)| (name.to_owned(), figure))
            .collect(),
        series: series(all, fair),
        paper: json!({"bbr_mbit_share_35_or_less": "10 to 20 (2BRobust)"})
            .as_object()
            .cloned()
            .unwrap_or_default(),
        notes,
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

fn series(
    all: &BTreeMap<Key, Vec<FlowRun>>,
    fair: &BTreeMap<(Path, Sender), Vec<FlowRun>>,
) -> Vec<Series> {
    let mut series = Vec::new();
    for ((path, share, sender), seen) in all {
        let each = |of: fn(&FlowRun) -> f64| seen.iter().map(of).collect();
        let timeouts = |seen: &FlowRun| {
            seen.samples(|sample| sample.rto as f64 / 1e3)
                .collect::<Vec<_>>()
        };
        let beyond = seen.iter().map(|seen| part_beyond([seen], *path));
        for (metric, unit, samples) in [
            ("goodput", "Mbit/s", each(FlowRun::first)),
            (
                "smoothed round trip",
                "ms",
                seen.iter().flat_map(srtts).collect(),
            ),
            ("beyond the path", "of 1", beyond.collect()),
            ("time-out", "ms", seen.iter().flat_map(timeouts).collect()),
            (
                "time-outs",
                "",
                each(|seen| seen.flowed.counted.timeouts as f64),
            ),
            ("segments sent again", "", each(FlowRun::repeated)),
        ] {
            let name = name(*path, *share, *sender);
            series.extend(Series::of(&name, metric, unit, samples));
        }
    }
    for ((path, sender), seen) in fair {
        let name = fair_name(*path, *sender);
        let parts = seen.iter().map(FlowRun::part).collect();
        series.extend(Series::of(&name, "share of the path", "of 1", parts));
    }
    series
}

/// Returns a figure of the runs during which the link was not late.
fn on_time(seen: &[FlowRun], of: fn(&FlowRun) -> f64) -> Vec<f64> {
    seen.iter().filter(|seen| !seen.overrun).map(of).collect()
}

fn median(seen: &[FlowRun], of: fn(&FlowRun) -> f64) -> f64 {
    let figures: Vec<f64> = seen.iter().map(of).collect();
    stats::median(&figures).unwrap_or(f64::NAN)
}

/// Returns all samples of the smoothed round-trip time, in milliseconds.
fn srtts(seen: &FlowRun) -> impl Iterator<Item = f64> {
    seen.samples(|sample| sample.srtt as f64 / 1e3)
}

/// Returns the share of samples whose smoothed round trip was longer than any round trip that the
/// path can have.
fn part_beyond<'a>(seen: impl IntoIterator<Item = &'a FlowRun>, path: Path) -> f64 {
    let longest = 1e3 * path.longest().as_secs_f64();
    let samples: Vec<f64> = seen.into_iter().flat_map(srtts).collect();
    let beyond = samples.iter().filter(|srtt| **srtt > longest).count();
    beyond as f64 / samples.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_form_measures_what_the_headline_figures_need() {
        let [long, short] = PATHS;
        for sender in &Sender::ALL[..4] {
            assert!(is_by_default(long, 0.25, *sender));
        }
        assert!(is_by_default(long, 1.0, Sender::Bbr) && is_by_default(long, 1.0, Sender::TautBbr));
        for sender in [Sender::Cubic, Sender::CubicModule] {
            assert!(is_by_default(short, 0.25, sender));
        }
    }
}
