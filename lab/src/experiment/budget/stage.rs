//! A server with clients at five distances; measures the memory and the rates of its connections.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::child::Child;
use taut_sys::sock_diag::SockDiag;

use crate::experiment::commands::stop_tune;
use crate::experiment::{ExperimentError, Request};
use crate::peer::{Service, nginx, program};
use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{Host, World, WorldBuilder};

/// The round trips of the clients, each with its own link.
pub(super) const ROUND_TRIPS: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
/// The rate of each link, in bit/s.
pub(super) const RATE: u64 = 40_000_000;
/// The share of a link's bits that is payload.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// The rate of rate-limited connections, in bytes per second.
const MODEST: u64 = 50_000;
/// The tolerated lateness of links. 500 processes on a few processors make deliveries late, but
/// lateness below this changes neither the memory nor the rates over seconds.
const TOLERANCE: Duration = Duration::from_millis(25);
/// The interval between readings of memory.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The size of a file that no client reads to its end, in bytes; it is sparse.
const LARGE: u64 = 1 << 40;
/// The size of the first response to connections that are idle afterwards.
const PART: u64 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two checks whether connections have started.
const PAUSE: Duration = Duration::from_millis(20);
/// The page size, the kernel's unit of TCP memory.
pub(super) const PAGE: u64 = 4096;

/// How memory is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// Without a limit.
    Kernel,
    /// By the kernel, with a `tcp_mem` of the budget's size.
    TcpMem,
    /// By the kernel, with a `tcp_mem` of twice that size: the other ends of the connections are on
    /// this machine too, and their memory counts.
    TcpMemTwice,
    /// By `taut tune --apply --budget`.
    Taut,
}

/// A connection's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wants {
    /// As much as possible.
    All,
    /// The server limits the rate.
    Modest,
    /// The client limits the rate.
    Reads,
    /// None, after a first response.
    Rests,
}

/// The key of a connection: connections from the same port can go to different ports of the server.
type Ends = (SocketAddr, SocketAddr);

/// A connection's round trip, demand, and payload rate in bytes per second.
type Rate = (Duration, Wants, f64);

/// The results of one run.
pub(super) struct ArmRun {
    /// The memory of the server's sockets, one reading after another, in bytes.
    pub(super) held: Vec<u64>,
    /// The memory of all sockets of the machine in bytes, from the kernel's sum, minus its value
    /// before the run.
    pub(super) machine: Vec<u64>,
    /// The number of connections.
    pub(super) connections: usize,
    /// The rate of each expected connection.
    pub(super) rates: Vec<Rate>,
    /// Whether the links were slower than configured.
    pub(super) overrun: bool,
}

// === impl Arm ===

impl Arm {
    pub(super) const ALL: [Self; 4] = [Self::Kernel, Self::TcpMem, Self::TcpMemTwice, Self::Taut];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::TcpMem => "tcp_mem",
            Self::TcpMemTwice => "tcp_mem twice",
            Self::Taut => "taut",
        }
    }
}

// === impl Wants ===

impl Wants {
    pub(super) const ALL: [Self; 4] = [Self::All, Self::Modest, Self::Reads, Self::Rests];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Modest => "modest",
            Self::Reads => "slow readers",
            Self::Rests => "rest",
        }
    }

    /// Returns the number of such connections among the hundred clients of a link.
    pub(super) fn count(self) -> u64 {
        match self {
            Self::All => 20,
            Self::Modest => 20,
            Self::Reads => 40,
            Self::Rests => 20,
        }
    }

    /// Returns the server's port, which identifies the demand.
    fn port(self) -> u16 {
        match self {
            Self::All => 80,
            Self::Modest => 81,
            Self::Reads => 82,
            Self::Rests => 83,
        }
    }

    fn of(port: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|wants| wants.port() == port)
    }

    /// Returns the rate due to such a connection, in bytes per second; `None` for an idle one.
    pub(super) fn due(self) -> Option<f64> {
        let modest = MODEST as f64;
        match self {
            Self::Modest | Self::Reads => Some(modest),
            Self::Rests => None,
            Self::All => {
                let others = Self::Modest.count() + Self::Reads.count();
                let left = RATE as f64 / 8.0 * PAYLOAD - others as f64 * modest;
                Some(left / Self::All.count() as f64)
            }
        }
    }

    fn client(self, server: IpAddr) -> Command {
        let mut curl = program::CURL.command();
        curl.args(["-q", "--silent", "--noproxy", "*", "--output", "/dev/null"]);
        let port = self.port();
        match self {
            Self::Reads => curl.args(["--limit-rate", &MODEST.to_string()]),
            // One response now, and the next after the run.
            Self::Rests => curl.args(["--rate", "1/h"]),
            Self::All | Self::Modest => &mut curl,
        };
        match self {
            Self::Rests => curl.arg(format!("http://{server}:{port}/part?[1-2]")),
            _ => curl.arg(format!("http://{server}:{port}/large")),
        };
        curl.stdin(Stdio::null());
        curl.stdout(Stdio::null()).stderr(Stdio::null());
        curl
    }
}

/// The timing of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// One in so many clients takes part.
    pub(super) part: u64,
    /// The time over which clients start: 500 processes that start at once would delay the links,
    /// which are processes too.
    pub(super) begin: Duration,
    /// The time between the last client's start and the measurement.
    pub(super) warm_up: Duration,
    /// The duration of the measurement.
    pub(super) measure: Duration,
}

/// Runs one arm.
pub(super) fn run(
    arm: Arm,
    budget: u64,
    times: Times,
    request: &Request,
) -> Result<ArmRun, ExperimentError> {
    let machine = ExperimentError::machine;
    let world = build(request)?;
    let server = world.host("server");
    let _serves = serve(&world)?;
    let before = machine_held().map_err(machine("read /proc/net/sockstat"))?;
    let bound = match arm {
        Arm::TcpMem => Some(budget),
        Arm::TcpMemTwice => Some(2 * budget),
        Arm::Kernel | Arm::Taut => None,
    };
    if let Some(bound) = bound {
        // Uses the proportions of the kernel's defaults.
        let most = bound / PAGE;
        let bounds = [most / 2, most / 3 * 2, most].map(|pages| pages + before / PAGE);
        world
            .bound_tcp_memory(bounds)
            .map_err(machine("set net.ipv4.tcp_mem"))?;
    }
    let tuner = match arm {
        Arm::Taut => Some(tune(&world, budget, request).map_err(machine("start taut tune"))?),
        _ => None,
    };
    let ends = AtomicBool::new(false);
    let seen = Mutex::new((Vec::new(), Vec::new()));
    let loaded = std::thread::scope(|scope| {
        let looks = scope.spawn(|| -> io::Result<()> {
            while !ends.load(Ordering::Relaxed) {
                let held = server.run(held).map_err(io::Error::other)??;
                let all = machine_held()?.saturating_sub(before);
                if let Ok(mut seen) = seen.lock() {
                    seen.0.push(held);
                    seen.1.push(all);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            Ok(())
        });
        let loaded = load(&world, times);
        ends.store(true, Ordering::Relaxed);
        let looked = looks
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("it ended")));
        looked.map_err(machine("read memory"))?;
        loaded
    })?;
    if let Some(mut tune) = tuner {
        stop_tune(&mut tune, PATIENCE).map_err(machine("stop taut tune"))?;
    }
    let (held, all) = seen.into_inner().unwrap_or_default();
    Ok(ArmRun {
        held,
        machine: all,
        connections: loaded.connections,
        rates: loaded.rates,
        overrun: loaded.overrun,
    })
}

fn client_name(index: usize) -> String {
    format!("client{index}")
}

fn build(request: &Request) -> Result<World, ExperimentError> {
    let mut world = WorldBuilder::new("budget").host("server");
    for (index, round_trip) in ROUND_TRIPS.into_iter().enumerate() {
        let rate = BitsPerSecond(RATE);
        let bare = Shape::delay(round_trip / 2).tolerance(TOLERANCE);
        let queue = Bytes(rate.in_time(round_trip).0.max(256 << 10));
        let link = LinkSpec::each(bare.rate(rate).queue(queue), bare).seed(request.seed);
        let name = client_name(index);
        world = world.host(&name).link("server", &name, link);
    }
    let world = world.sysctl_everywhere("net.ipv4.tcp_congestion_control", "cubic");
    Ok(world.build()?)
}

fn serve(world: &World) -> Result<Service, ExperimentError> {
    let dir = world.dir();
    let www = dir.join("www");
    let make =
        |name: &str, len: u64| -> io::Result<()> { File::create(www.join(name))?.set_len(len) };
    fs::create_dir_all(&www)
        .and_then(|()| make("large", LARGE))
        .and_then(|()| make("part", PART))
        .map_err(ExperimentError::machine("make nginx's files"))?;
    let addr = world.addr("server");
    let more: String = Wants::ALL
        .into_iter()
        .filter(|wants| *wants != Wants::All)
        .map(|wants| format!("; listen {addr}:{}", wants.port()))
        .collect();
    let modest = format!(
        "if ($server_port = {}) {{ set $limit_rate {MODEST}; }} keepalive_timeout 1h;",
        Wants::Modest.port()
    );
    let own = nginx::Own {
        listen: &more,
        server: &modest,
    };
    Ok(nginx::serve_with(world.host("server"), dir, &own)?)
}

fn tune(world: &World, budget: u64, request: &Request) -> io::Result<Child> {
    let (journal, out) = (world.dir().join("journal"), world.dir().join("tune.out"));
    let mut tune = Command::new(&request.taut);
    tune.args(["tune", "--apply", "--own-netns", "--json", "--budget"]);
    tune.arg(budget.to_string()).arg("--journal").arg(journal);
    tune.stdin(Stdio::null());
    tune.stdout(File::create(&out)?);
    tune.stderr(File::create(world.dir().join("tune.err"))?);
    let mut tune = world.host("server").spawn(tune)?;
    // The first output line reports how much memory new connections may have. Before that line,
    // `taut tune` limits nothing.
    let began = Instant::now();
    while fs::metadata(&out)?.len() == 0 {
        if let Some(status) = tune.wait_for(PAUSE)? {
            return Err(io::Error::other(format!("it ended early ({status})")));
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("it does not start"));
        }
    }
    Ok(tune)
}

/// The bytes that clients have received.
struct Loaded {
    connections: usize,
    rates: Vec<Rate>,
    overrun: bool,
}

/// Starts all clients, and measures what they receive after the warm-up.
fn load(world: &World, times: Times) -> Result<Loaded, ExperimentError> {
    let machine = ExperimentError::machine;
    let reports = world.link_reports()?;
    let server = IpAddr::V4(world.addr("server"));
    let hosts: Vec<_> = (0..ROUND_TRIPS.len())
        .map(|index| world.host(&client_name(index)))
        .collect();
    // Starts connections of all kinds and distances in turn, at an even pace.
    let mut plan: Vec<(u64, Wants)> = Wants::ALL
        .into_iter()
        .flat_map(|wants| {
            let count = wants.count() / times.part;
            (0..count).map(move |number| (number * 1000 / count, wants))
        })
        .collect();
    plan.sort();
    let began = Instant::now();
    let mut clients = Vec::new();
    for (index, (_, wants)) in plan.iter().enumerate() {
        for host in &hosts {
            let client = host.spawn(wants.client(server));
            clients.push(client.map_err(machine("start curl"))?);
        }
        let due = times.begin * (index as u32 + 1) / plan.len() as u32;
        std::thread::sleep((began + due).saturating_duration_since(Instant::now()));
    }
    std::thread::sleep(times.warm_up);
    let look = || -> Result<_, ExperimentError> {
        let at = Instant::now();
        let got: Result<Vec<_>, ExperimentError> = hosts
            .iter()
            .map(|host| read(host).map_err(machine("read connections")))
            .collect();
        Ok((at, got?))
    };
    let (first_at, first) = look()?;
    std::thread::sleep(times.measure);
    let (last_at, last) = look()?;
    // The measurement ends here: killing 500 clients at once is a load that must not count.
    let overrun = overrun(&reports, &world.link_reports()?);
    let seconds = (last_at - first_at).as_secs_f64();
    let mut rates = Vec::new();
    for ((round_trip, first), last) in ROUND_TRIPS.into_iter().zip(&first).zip(&last) {
        for (ends, (wants, before)) in first {
            // A connection that has ended has received no more bytes. `first` still lists it, so it
            // counts for the whole run.
            let after = last.get(ends).map_or(*before, |(_, after)| *after);
            let bytes = after.saturating_sub(*before);
            rates.push((round_trip, *wants, bytes as f64 / seconds));
        }
        // A client that never connected has received no bytes. A connection whose handshake came
        // after the first reading has no rate.
        let late = last.iter().filter(|(ends, _)| !first.contains_key(ends));
        let found: Vec<Wants> = first
            .values()
            .chain(late.map(|(_, of)| of))
            .map(|of| of.0)
            .collect();
        for wants in Wants::ALL {
            let there = found.iter().filter(|of| **of == wants).count();
            let missing = ((wants.count() / times.part) as usize).saturating_sub(there);
            rates.extend(std::iter::repeat_n((round_trip, wants, 0.0), missing));
        }
    }
    let connections = first.iter().map(HashMap::len).sum();
    Ok(Loaded {
        connections,
        rates,
        overrun,
    })
}

/// Returns whether a link was late.
fn overrun(before: &[LinkReport], after: &[LinkReport]) -> bool {
    let both = before.iter().zip(after);
    let since = both.map(|(before, after)| after.since(before));
    since
        .filter(LinkReport::overrun)
        .inspect(|report| tracing::info!(?report, "a link was too slow"))
        .count()
        > 0
}

/// Returns the bytes that the client has read on each of a host's connections.
fn read(host: &Host) -> io::Result<HashMap<Ends, (Wants, u64)>> {
    let found = host.run(|| {
        let mut found = HashMap::new();
        SockDiag::open()?.dump(|connection| {
            let wants = Wants::of(connection.remote.port());
            if let (Some(wants), Some(info)) = (wants, &connection.info) {
                let received = info.bytes_received.unwrap_or(0);
                let bytes = received.saturating_sub(connection.recv_queue.into());
                found.insert((connection.local, connection.remote), (wants, bytes));
            }
        })?;
        Ok::<_, Errno>(found)
    });
    Ok(found.map_err(io::Error::other)??)
}

/// Returns the memory of the sockets of this namespace, by the kernel's account of each, in bytes.
fn held() -> io::Result<u64> {
    let mut sum = 0;
    SockDiag::open()?.dump(|connection| {
        if let Some(memory) = connection.memory {
            sum += u64::from(memory.rmem_alloc)
                + u64::from(memory.wmem_queued)
                + u64::from(memory.fwd_alloc);
        }
    })?;
    Ok(sum)
}

/// Returns the memory of all TCP sockets of the machine, in bytes.
fn machine_held() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let pages = line.and_then(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "mem")?;
        words.next()?.parse::<u64>().ok()
    });
    let pages = pages.ok_or_else(|| io::Error::other("the kernel does not report TCP's memory"))?;
    Ok(pages * PAGE)
}
