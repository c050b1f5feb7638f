//! `tune-cost`: the cost of tuning many idle connections.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use strum::IntoStaticStr;

use super::commands::stop_tune;
use super::descriptors::enough_descriptors;
use super::observe_cost::{Case, OpenConnections, lines};
use super::outcome::{Calibration, Check, Outcome, Series};
use super::process_tree::ProcessTree;
use super::progress::Progress;
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Request, stats};
use taut_netlab::world::{Host, WorldBuilder};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "tune-cost",
    about: "CPU of `taut tune` with 10,000 idle connections: advising, applying, with one busy connection, and with a budget",
    has_parts: false,
    minutes: 8,
    run,
};

/// The number of connections, counting both ends: one half are the peers of the other half.
const CONNECTIONS: usize = 10_000;
const CONNECTIONS_QUICK: usize = 2_000;
const CONNECTIONS_SMOKE: usize = 100;
/// How long to wait after the start. All connections have been scanned a few times by then.
const WARM_UP: Duration = Duration::from_secs(15);
const WARM_UP_QUICK: Duration = Duration::from_secs(3);
/// How long to measure after the warm-up.
const MEASURE: Duration = Duration::from_secs(30);
const MEASURE_QUICK: Duration = Duration::from_secs(3);
/// Either of the two in the smallest form.
const SMOKE: Duration = Duration::from_millis(500);
/// How long `taut tune` may take to undo its changes.
const ENDS: Duration = Duration::from_secs(60);

/// How `taut tune` runs.
#[derive(Clone, Copy, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum How {
    Advise,
    Apply,
    /// Applies changes, while one more connection carries a byte each second.
    ApplyOneTalks,
    Budget,
}

/// CPU time as shares of a core.
struct Cost {
    /// During the start, which reads every connection and finds its owner.
    start: f64,
    /// After the start.
    rest: f64,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let machine = ExperimentError::machine;
    let (connections, warm_up, time) = request.form.pick(
        (CONNECTIONS, WARM_UP, MEASURE),
        (CONNECTIONS_QUICK, WARM_UP_QUICK, MEASURE_QUICK),
        (CONNECTIONS_SMOKE, SMOKE, SMOKE),
    );
    let rounds = Rounds::of(request);
    enough_descriptors(connections / 2).map_err(machine("hold both ends of every connection"))?;
    let world = WorldBuilder::new("tune-cost").host("host").build()?;
    let host = world.host("host");
    let held = host
        .run(|| OpenConnections::open(Case::idle(connections)))?
        .map_err(machine("open connections"))?;
    let seen = lines(request, host).map_err(machine("count connections"))?;
    let progress = Progress::new(
        "tune-cost: measurements",
        (How::ALL.len() * rounds.most) as u64,
    );
    let (mut series, mut headline) = (Vec::new(), BTreeMap::new());
    let mut costs: [Vec<Cost>; How::ALL.len()] = Default::default();
    for _ in 0..rounds.most {
        for (how, costs) in How::ALL.into_iter().zip(&mut costs) {
            progress.step();
            let rests: Vec<f64> = costs.iter().map(|cost| cost.rest).collect();
            if !rounds.need_more(&rests) {
                continue;
            }
            let talks = match how {
                How::ApplyOneTalks => Some(host.run(|| OpenConnections::open(Case::busy(2)))?),
                _ => None,
            };
            let talks = talks.transpose().map_err(machine("open a connection"))?;
            let cost = measure(how.command(request, world.dir()), host, warm_up, time);
            costs.push(cost.map_err(machine(how.name()))?);
            if let Some(talks) = talks {
                talks.end().map_err(machine("keep a connection busy"))?;
            }
        }
    }
    drop(progress);
    drop(held);
    for (how, costs) in How::ALL.into_iter().zip(costs) {
        let rest: Vec<f64> = costs.iter().map(|cost| cost.rest).collect();
        let start: Vec<f64> = costs.iter().map(|cost| cost.start).collect();
        headline.insert(
            format!("{}_core_share", how.key()),
            stats::median(&rest).unwrap_or(f64::NAN),
        );
        for (metric, shares) in [("CPU at rest", rest), ("CPU of the start", start)] {
            series.extend(Series::of(how.name(), metric, "of a core", shares));
        }
    }
    Ok(Outcome {
        // Checks that the scan covers all connections.
        calibration: Calibration::of([(
            "connections_seen",
            Check::exactly(seen as f64, connections as f64),
        )]),
        headline,
        series,
        notes: vec![format!(
            "User and system time of the process, over {} s that begin {} s after its start, and \
             over the time before. Both ends of each connection are on the machine, and both count. \
             They are idle, except for the additional connection of `one talks`, which carries a \
             byte each way each second.",
            time.as_secs(),
            warm_up.as_secs()
        )],
        ..Outcome::new(EXPERIMENT.name, request)
    })
}

fn measure(command: Command, host: &Host, warm_up: Duration, time: Duration) -> io::Result<Cost> {
    let mut child = host.spawn(command)?;
    let began = Instant::now();
    let process = ProcessTree::of(&[child.id()]);
    let mut share = |until: Duration, since: Duration| -> io::Result<f64> {
        let before = process.cpu()?;
        thread::sleep(until.saturating_sub(began.elapsed()));
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it ended early: {status}")));
        }
        let used = process.cpu()?.saturating_sub(before);
        Ok(used.as_secs_f64() / (until - since).as_secs_f64())
    };
    let start = share(warm_up, Duration::ZERO)?;
    let rest = share(warm_up + time, warm_up)?;
    stop_tune(&mut child, ENDS)?;
    Ok(Cost { start, rest })
}

// === impl How ===

impl How {
    const ALL: [Self; 4] = [Self::Advise, Self::Apply, Self::ApplyOneTalks, Self::Budget];

    fn name(self) -> &'static str {
        match self {
            Self::Advise => "taut tune",
            Self::Apply => "taut tune --apply",
            Self::ApplyOneTalks => "taut tune --apply, one talks",
            Self::Budget => "taut tune --apply --budget 1GiB",
        }
    }

    fn key(self) -> &'static str {
        self.into()
    }

    fn command(self, request: &Request, dir: &Path) -> Command {
        let mut command = Command::new(&request.taut);
        command.args(["tune", "--own-netns", "--journal"]);
        command.arg(dir.join("journal"));
        match self {
            Self::Advise => {}
            Self::Apply | Self::ApplyOneTalks => _ = command.arg("--apply"),
            Self::Budget => _ = command.args(["--apply", "--budget", "1GiB"]),
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}
