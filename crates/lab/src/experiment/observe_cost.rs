//! `observe-cost`: what it costs to look at many connections once a second.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Map;
use taut_sys::child::children_cpu_time;

use super::descriptors::enough_descriptors;
use super::outcome::{Calibration, Check, Environment, Outcome, Series};
use super::progress::Progress;
use super::{Experiment, ExperimentError, Request, stats};
use crate::world::{Host, WorldBuilder};

/// For the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "observe-cost",
    about: "CPU of `taut top --batch` at 1 Hz beside `ss -tinem`, at 10,000 connections and at 100",
    has_parts: false,
    run,
};

/// Connections that are there, half of them the other half's peers.
const CONNECTIONS: [usize; 2] = [10_000, 100];
const CONNECTIONS_QUICK: [usize; 2] = [2_000, 100];
/// Looks of one measurement, a second apart.
const LOOKS: u32 = 10;
const LOOKS_QUICK: u32 = 3;
/// Measurements of each.
const RUNS: usize = 5;
/// Between looks.
const SECOND: Duration = Duration::from_secs(1);

/// Who looks.
#[derive(Clone, Copy)]
enum Who {
    /// Tables of all.
    Top,
    /// A line of JSON for each.
    TopJson,
    /// The kernel's figures, as text.
    Ss,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let machine = ExperimentError::machine;
    let (connections, looks) = match request.quick {
        true => (CONNECTIONS_QUICK, LOOKS_QUICK),
        false => (CONNECTIONS, LOOKS),
    };
    let runs = request.runs.unwrap_or(if request.quick { 1 } else { RUNS });
    enough_descriptors(connections[0] / 2)
        .map_err(machine("hold both ends of every connection"))?;
    let world = WorldBuilder::new("observe-cost").host("host").build()?;
    let host = world.host("host");
    let progress = Progress::new("observe-cost: measurements", (2 * 3 * runs) as u64);
    let (mut series, mut headline, mut seen) = (Vec::new(), BTreeMap::new(), 0.0);
    for count in connections {
        let held = host
            .run(|| open(count))?
            .map_err(machine("open connections"))?;
        if count == connections[0] {
            seen = lines(request, host).map_err(machine("count connections"))? as f64;
        }
        let mut shares: [Vec<f64>; 3] = Default::default();
        for _ in 0..runs {
            for (who, shares) in [Who::Top, Who::TopJson, Who::Ss]
                .into_iter()
                .zip(&mut shares)
            {
                let share = measure(request, host, who, looks);
                shares.push(share.map_err(machine(who.name()))?);
                progress.step();
            }
        }
        drop(held);
        for (who, shares) in [Who::Top, Who::TopJson, Who::Ss].into_iter().zip(shares) {
            let median = stats::median(&shares).unwrap_or(f64::NAN);
            headline.insert(format!("{}_{count}_core_share", who.key()), median);
            series.extend(Series::of(
                &format!("{}/{count} connections", who.name()),
                "CPU",
                "of a core",
                shares,
            ));
        }
    }
    drop(progress);
    Ok(Outcome {
        experiment: EXPERIMENT.name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: request.seed,
        quick: request.quick,
        environment: Environment::here(),
        // All of them are looked at.
        calibration: Calibration::of([(
            "connections_seen",
            Check::exactly(seen, connections[0] as f64),
        )]),
        headline,
        series,
        paper: Map::new(),
        ideal: Map::new(),
        notes: vec![
            "User and system time of the processes, start and first look included, over the time that they \
             looked. The connections are idle; both ends of each are on the machine, and counted. `ss` is \
             started for each look."
                .to_owned(),
        ],
    })
}

/// So many ends of connections.
fn open(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    (0..count / 2)
        .map(|_| Ok((TcpStream::connect(to)?, listener.accept()?.0)))
        .collect()
}

/// Connections that a look has.
fn lines(request: &Request, host: &Host) -> io::Result<usize> {
    let mut command = Who::TopJson.command(request, 1);
    command.stdout(Stdio::piped());
    let mut child = host.spawn(command)?;
    let said = child.pipes().stdout.take().map(io::read_to_string);
    child.wait()?;
    Ok(said.transpose()?.unwrap_or_default().lines().count())
}

/// CPU time over time, in cores.
fn measure(request: &Request, host: &Host, who: Who, looks: u32) -> io::Result<f64> {
    let before = children_cpu_time()?;
    let processes = match who {
        Who::Ss => looks,
        Who::Top | Who::TopJson => 1,
    };
    let began = Instant::now();
    for process in 0..processes {
        let mut child = host.spawn(who.command(request, looks))?;
        let status = child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("{}: {status}", who.name())));
        }
        if matches!(who, Who::Ss) {
            std::thread::sleep((SECOND * (process + 1)).saturating_sub(began.elapsed()));
        }
    }
    let used = children_cpu_time()?.saturating_sub(before);
    // The last look is over at once, and has its second too.
    Ok(used.as_secs_f64() / (SECOND * looks).as_secs_f64())
}

// === impl Who ===

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Top => "taut top --batch",
            Self::TopJson => "taut top --json",
            Self::Ss => "ss -tinem",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Top => "top_batch",
            Self::TopJson => "top_json",
            Self::Ss => "ss",
        }
    }

    fn command(self, request: &Request, looks: u32) -> Command {
        let mut command = match self {
            Self::Ss => Command::new("ss"),
            Self::Top | Self::TopJson => Command::new(&request.taut),
        };
        match self {
            Self::Ss => command.arg("-tinem"),
            Self::Top => command.args(["top", "--batch"]),
            Self::TopJson => command.args(["top", "--json"]),
        };
        if !matches!(self, Self::Ss) {
            command.args([
                "--own-netns",
                "--interval",
                "1s",
                "--looks",
                &looks.to_string(),
            ]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}
