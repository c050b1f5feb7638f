//! `observe-cost`: the cost of scanning many connections once a second.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use taut_sys::child::children_cpu_time;

use super::descriptors::enough_descriptors;
use super::outcome::{Calibration, Check, Outcome, Series};
use super::progress::Progress;
use super::rounds::Rounds;
use super::{Experiment, ExperimentError, Request, stats};
use taut_netlab::world::{Host, WorldBuilder};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "observe-cost",
    about: "CPU of `taut top --batch` at 1 Hz beside `ss -tinem`, at 10,000 connections, idle and busy, and at 100",
    has_parts: false,
    minutes: 3,
    run,
};

/// The numbers of connections, counting both ends: one half are the peers of the other half.
const CASES: [Case; 3] = [Case::idle(10_000), Case::idle(100), Case::busy(10_000)];
const CASES_QUICK: [Case; 3] = [Case::idle(2_000), Case::idle(100), Case::busy(2_000)];
const CASES_SMOKE: [Case; 2] = [Case::idle(100), Case::busy(100)];
/// The number of scans in one measurement, one per second.
const SCANS: u32 = 10;
const LOOKS_QUICK: u32 = 3;
/// The interval between scans.
const SECOND: Duration = Duration::from_secs(1);
/// The interval at which every busy connection carries a byte each way. It is shorter than the
/// interval between scans.
const ROUND: Duration = Duration::from_millis(800);

/// The connections to scan.
#[derive(Clone, Copy)]
pub(super) struct Case {
    connections: usize,
    /// Whether all connections carry bytes between two scans; otherwise none does.
    is_busy: bool,
}

/// The program that scans.
#[derive(Clone, Copy)]
enum Who {
    /// Prints tables of all connections.
    Top,
    /// Prints a line of JSON for each connection.
    TopJson,
    /// Prints tables once, which shows the cost of a start.
    TopOnce,
    /// Prints the kernel's figures as text.
    Ss,
}

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let machine = ExperimentError::machine;
    let (cases, scans): (&[Case], _) = request.form.pick(
        (&CASES, SCANS),
        (&CASES_QUICK, LOOKS_QUICK),
        (&CASES_SMOKE, 1),
    );
    let most = cases[0].connections;
    let rounds = Rounds::of(request);
    enough_descriptors(most / 2).map_err(machine("hold both ends of every connection"))?;
    let world = WorldBuilder::new("observe-cost").host("host").build()?;
    let host = world.host("host");
    let progress = Progress::new(
        "observe-cost: measurements",
        (cases.len() * Who::ALL.len() * rounds.most) as u64,
    );
    let (mut series, mut headline, mut seen) = (Vec::new(), BTreeMap::new(), 0.0);
    let mut slowest = Duration::ZERO;
    for &case in cases {
        let held = host
            .run(|| OpenConnections::open(case))?
            .map_err(machine("open connections"))?;
        if case.connections == most && !case.is_busy {
            seen = lines(request, host).map_err(machine("count connections"))? as f64;
        }
        let mut shares: [Vec<f64>; Who::ALL.len()] = Default::default();
        for _ in 0..rounds.most {
            for (who, shares) in Who::ALL.into_iter().zip(&mut shares) {
                progress.step();
                if rounds.need_more(shares) {
                    let share = measure(request, host, who, scans);
                    shares.push(share.map_err(machine(who.name()))?);
                }
            }
        }
        if let Some(round) = held.end().map_err(machine("keep connections busy"))? {
            slowest = slowest.max(round);
        }
        for (who, shares) in Who::ALL.into_iter().zip(shares) {
            let median = stats::median(&shares).unwrap_or(f64::NAN);
            headline.insert(format!("{}_{}_core_share", who.key(), case.key()), median);
            series.extend(Series::of(
                &format!("{}/{}", who.name(), case.name()),
                "CPU",
                "of a core",
                shares,
            ));
        }
    }
    drop(progress);
    Ok(Outcome {
        // Checks that the scan covers all connections.
        calibration: Calibration::of([
            ("connections_seen", Check::exactly(seen, most as f64)),
            // Checks that all busy connections carry bytes between any two scans.
            (
                "slowest_round_seconds",
                Check {
                    measured: slowest.as_secs_f64(),
                    least: 0.0,
                    most: Some(SECOND.as_secs_f64()),
                },
            ),
        ]),
        headline,
        series,
        notes: vec![
            "User and system time of the processes, start and first scan included, divided by the \
             duration of the scans. Both ends of each connection are on the machine, and both \
             count. Idle connections carry nothing; busy ones carry a byte each way within every \
             second. `ss` is started for each scan. `-n 1` is a single scan over a second: the cost \
             of a start."
                .to_owned(),
        ],
        ..Outcome::new(EXPERIMENT.name, request)
    })
}

/// Open connections; dropping it closes them.
pub(super) struct OpenConnections {
    /// The thread that keeps the connections busy; it stops when this is dropped.
    busy: Option<(mpsc::Sender<()>, JoinHandle<io::Result<Duration>>)>,
    _pairs: Arc<Vec<(TcpStream, TcpStream)>>,
}

/// Returns the number of connections in a scan.
pub(super) fn lines(request: &Request, host: &Host) -> io::Result<usize> {
    let mut command = Who::TopJson.command(request, 1);
    command.stdout(Stdio::piped());
    let mut child = host.spawn(command)?;
    let said = child.pipes().stdout.take().map(io::read_to_string);
    child.wait()?;
    Ok(said.transpose()?.unwrap_or_default().lines().count())
}

/// Returns CPU time over elapsed time, in cores.
fn measure(request: &Request, host: &Host, who: Who, scans: u32) -> io::Result<f64> {
    let before = children_cpu_time()?;
    let processes = match who {
        Who::Ss => scans,
        Who::Top | Who::TopJson | Who::TopOnce => 1,
    };
    let scans = if matches!(who, Who::TopOnce) {
        1
    } else {
        scans
    };
    let began = Instant::now();
    for process in 0..processes {
        let mut child = host.spawn(who.command(request, scans))?;
        let status = child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("{}: {status}", who.name())));
        }
        if matches!(who, Who::Ss) {
            thread::sleep((SECOND * (process + 1)).saturating_sub(began.elapsed()));
        }
    }
    let used = children_cpu_time()?.saturating_sub(before);
    // The last scan returns without waiting for its interval, but counts as a full interval too.
    Ok(used.as_secs_f64() / (SECOND * scans).as_secs_f64())
}

// === impl Case ===

impl Case {
    pub(super) const fn idle(connections: usize) -> Self {
        Self {
            connections,
            is_busy: false,
        }
    }

    pub(super) const fn busy(connections: usize) -> Self {
        Self {
            connections,
            is_busy: true,
        }
    }

    fn name(self) -> String {
        let what = if self.is_busy { "busy" } else { "idle" };
        format!("{} {what} connections", self.connections)
    }

    fn key(self) -> String {
        let busy = if self.is_busy { "_busy" } else { "" };
        format!("{}{busy}", self.connections)
    }
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Opens the connections in the namespace of the calling thread.
    pub(super) fn open(case: Case) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let to = listener.local_addr()?;
        let pairs = (0..case.connections / 2).map(|_| {
            let ends = (TcpStream::connect(to)?, listener.accept()?.0);
            // Send each byte at once.
            ends.0.set_nodelay(true)?;
            ends.1.set_nodelay(true)?;
            Ok(ends)
        });
        let pairs = Arc::new(pairs.collect::<io::Result<Vec<_>>>()?);
        let busy = case.is_busy.then(|| {
            let (stop, stopped) = mpsc::channel();
            let pairs = pairs.clone();
            (stop, thread::spawn(move || talk(&pairs, &stopped)))
        });
        Ok(Self {
            busy,
            _pairs: pairs,
        })
    }

    /// Ends the traffic, and returns the longest time in which a busy connection carried no bytes;
    /// `None` for idle connections.
    pub(super) fn end(self) -> io::Result<Option<Duration>> {
        let Some((stop, talking)) = self.busy else {
            return Ok(None);
        };
        drop(stop);
        match talking.join() {
            Ok(slowest) => slowest.map(Some),
            Err(_) => Err(io::Error::other(
                "the thread that keeps connections busy has failed",
            )),
        }
    }
}

/// Carries a byte each way over each connection, repeatedly; returns the longest pause.
fn talk(pairs: &[(TcpStream, TcpStream)], stopped: &mpsc::Receiver<()>) -> io::Result<Duration> {
    let mut byte = [0];
    let mut next = Instant::now();
    let (mut before, mut slowest) = (next, Duration::ZERO);
    loop {
        let began = Instant::now();
        slowest = slowest.max(began.duration_since(before));
        before = began;
        for (mut client, mut server) in pairs.iter().map(|(client, server)| (client, server)) {
            client.write_all(&byte)?;
            server.read_exact(&mut byte)?;
            server.write_all(&byte)?;
            client.read_exact(&mut byte)?;
        }
        next = (next + ROUND).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now());
        match stopped.recv_timeout(wait) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            _ => return Ok(slowest),
        }
    }
}

// === impl Who ===

impl Who {
    const ALL: [Self; 4] = [Self::Top, Self::TopJson, Self::TopOnce, Self::Ss];

    fn name(self) -> &'static str {
        match self {
            Self::Top => "taut top --batch",
            Self::TopJson => "taut top --json",
            Self::TopOnce => "taut top --batch -n 1",
            Self::Ss => "ss -tinem",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Top => "top_batch",
            Self::TopJson => "top_json",
            Self::TopOnce => "top_once",
            Self::Ss => "ss",
        }
    }

    fn command(self, request: &Request, scans: u32) -> Command {
        let mut command = match self {
            Self::Ss => Command::new("ss"),
            Self::Top | Self::TopJson | Self::TopOnce => Command::new(&request.taut),
        };
        match self {
            Self::Ss => command.arg("-tinem"),
            Self::Top | Self::TopOnce => command.args(["top", "--batch"]),
            Self::TopJson => command.args(["top", "--json"]),
        };
        if !matches!(self, Self::Ss) {
            command.args([
                "--own-netns",
                "--interval",
                "1s",
                "--scans",
                &scans.to_string(),
            ]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}
