//! The world of one run, and its programs.

mod observer;
mod run;

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_sys::child::Child;

use self::observer::Observer;
pub(super) use self::run::{Shown, carried_without_limit, run};
use super::away::Away;
use super::case::Case;
use super::cause::{Cause, End};
use super::family::Family;
use super::mode::{Mode, Statement};
use super::reader::Reader;
use super::writer::Writer;
use crate::experiment::guests::network;
use crate::experiment::{ExperimentError, Request};
use crate::peer::{Service, nginx, program};
use taut_netlab::link::counters::PathCounters;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{Host, World, WorldBuilder};

/// The size of a file whose download does not end during the observation, in bytes.
const LARGE: u64 = 4 << 30;
/// The number of small files that curl requests one after another. It is more than curl can request
/// during the observation.
const QUESTIONS: u32 = 100_000;
/// The second port of nginx, for another flow that is not observed.
const OTHER_PORT: u16 = 8080;
/// iperf3's port.
const IPERF_PORT: u16 = 5201;
/// The port to which a program or a guest sends data, which is discarded, and the first of the server's ports for output
/// of guests (`HEARD_PORT`).
const SINK_PORT: u16 = 5009;
const HEARD_PORT: u16 = 5010;
/// How long iperf3 may take until it listens again, and a connection until it has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// A quota that stops no program of one thread or two.
const UNLIMITED_CPUS: f64 = 8.0;

/// A world with its programs.
pub(super) struct Stage<'a> {
    case: &'a Case,
    // Fields are dropped in this order: clients before servers.
    away: Option<Away>,
    talking: Vec<Child>,
    reading: Option<Reader>,
    writing: Option<Writer>,
    serving: Option<Service>,
    world: World,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    fn build(case: &'a Case) -> Result<Self, ExperimentError> {
        let mut world = WorldBuilder::new("verdicts").host("server").host("client");
        world = match case.is_narrow() {
            false => world.link("server", "client", case.link()),
            true => {
                let plain = LinkSpec::both(Shape::default());
                let narrow = LinkSpec {
                    mtu: case.knob as u16,
                    ..plain
                };
                // The links of both ends have the usual MTU, so that neither end advertises an MSS
                // that fits the narrow link.
                world
                    .host("near")
                    .host("far")
                    .link("server", "near", case.link())
                    .link("near", "far", narrow)
                    .link("far", "client", plain)
            }
        };
        world = match case.cause {
            _ if !case.is_limited => world,
            Cause::ReceiveBuffer | Cause::ReceiveBufferHere => {
                // The kernel needs twice the size, for its overhead.
                let most = (2 * case.knob).to_string();
                world.sysctl(
                    "client",
                    "net.ipv4.tcp_rmem",
                    &format!("4096 {most} {most}"),
                )
            }
            Cause::NoScaling => world.sysctl("client", "net.ipv4.tcp_window_scaling", "0"),
            Cause::MtuProbing => world.sysctl("server", "net.ipv4.tcp_mtu_probing", "1"),
            _ => world,
        };
        if case.family.has_aqm() {
            let ecn = if case.has_ecn { "1" } else { "0" };
            for host in ["server", "client"] {
                world = world.sysctl(host, "net.ipv4.tcp_ecn", ecn);
            }
        }
        let control = case.family.control();
        world = world.sysctl("server", "net.ipv4.tcp_congestion_control", control);
        let world = world.build()?;
        let mut stage = Self {
            case,
            away: None,
            talking: Vec::new(),
            reading: None,
            writing: None,
            serving: None,
            world,
        };
        match case.cause {
            Cause::BlackHole | Cause::MtuProbing => stage.silence()?,
            Cause::PolicerHere => stage.police()?,
            Cause::Descheduled | Cause::DescheduledSender => {
                let sharers = usize::try_from(case.knob).unwrap_or(usize::MAX);
                let away = Away::boot(&stage.world, sharers, case.slice, case.seed);
                stage.away = Some(away.map_err(ExperimentError::machine("boot a guest"))?);
            }
            _ => {}
        }
        stage.serve()?;
        Ok(stage)
    }

    /// Stops the router before the narrow link from reporting dropped packets.
    fn silence(&self) -> Result<(), ExperimentError> {
        self.filter(
            "near",
            "table inet lab { chain out { type filter hook output priority 0; \
             icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }",
        )
    }

    /// Drops packets to the client beyond the rate, after a burst of a tenth of a second.
    fn police(&self) -> Result<(), ExperimentError> {
        let (rate, burst) = (self.case.knob, (self.case.knob / 10).max(15_000));
        self.filter(
            "client",
            &format!(
                "table inet lab {{ chain in {{ type filter hook input priority 0; \
                 tcp sport 80 limit rate over {rate} bytes/second burst {burst} bytes drop; }}; }}"
            ),
        )
    }

    fn filter(&self, host: &str, rules: &str) -> Result<(), ExperimentError> {
        let mut nft = program::NFT.command();
        nft.arg(rules).stdin(Stdio::null());
        let done = self
            .world
            .host(host)
            .spawn(nft)
            .and_then(|mut nft| nft.wait());
        match done {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(io::Error::other(format!("nft: {status}"))),
            Err(e) => Err(e),
        }
        .map_err(ExperimentError::machine("set a host's rules with nft"))
    }

    fn serve(&mut self) -> Result<(), ExperimentError> {
        let dir = self.world.dir();
        let sink = match self.case.cause {
            Cause::DescheduledSender => Some((self.world.host("server"), network::SERVER)),
            cause if cause == Cause::ThrottledSender || self.case.pauses().is_some() => {
                let client = self.world.host("client");
                Some((client, client.addr()))
            }
            _ => None,
        };
        if let Some((host, addr)) = sink {
            let mut sink = program::SOCAT.command();
            let listen = format!("TCP-LISTEN:{SINK_PORT},fork");
            sink.args(["-u", &listen, "OPEN:/dev/null"]);
            let addr = SocketAddr::from((addr, SINK_PORT));
            let service = Service::start(host, "socat", sink, addr, dir)?;
            self.serving = Some(service);
            return Ok(());
        }
        if self.case.cause == Cause::Pacing {
            let client = self.world.host("client");
            let mut server = program::IPERF3.command();
            server.args([
                "--server",
                "--forceflush",
                "--port",
                &IPERF_PORT.to_string(),
            ]);
            let addr = SocketAddr::from((client.addr(), IPERF_PORT));
            let service = Service::start(client, "iperf3", server, addr, dir)?;
            // iperf3 takes the first connection, which tested whether it listens, for a test, and
            // then restarts.
            let began = Instant::now();
            while service
                .said()
                .unwrap_or_default()
                .matches("Server listening")
                .count()
                < 2
            {
                if began.elapsed() > PATIENCE {
                    let e = io::Error::other(
                        "iperf3 does not listen again after a connection without a test",
                    );
                    return Err(ExperimentError::machine("start iperf3")(e));
                }
                std::thread::sleep(PAUSE);
            }
            self.serving = Some(service);
            return Ok(());
        }
        let www = dir.join("www");
        let make =
            |name: &str, len: u64| -> io::Result<()> { File::create(www.join(name))?.set_len(len) };
        let made = fs::create_dir_all(&www)
            .and_then(|()| make("large", LARGE))
            .and_then(|()| make("small", self.case.knob.min(1 << 20)));
        made.map_err(ExperimentError::machine("write nginx's files"))?;
        let knob = self.case.knob;
        let listen = match self.case.cause {
            Cause::SendBuffer if self.case.is_limited => format!(" sndbuf={knob}"),
            Cause::Descheduled => format!("; listen {}:80", network::SERVER),
            _ if self.case.family == Family::Standing => {
                format!("; listen {}:{OTHER_PORT}", self.world.addr("server"))
            }
            _ => String::new(),
        };
        let location = match self.case.cause {
            // By default nginx sends what it may send in a second at once, and the path limits that.
            Cause::SlowSender if self.case.family.is_near() => {
                format!("limit_rate {knob}; sendfile_max_chunk 8k;")
            }
            Cause::SlowSender | Cause::Elsewhere => format!("limit_rate {knob};"),
            // All requests use one connection.
            Cause::Questions => format!("keepalive_requests {QUESTIONS};"),
            _ => String::new(),
        };
        let own = nginx::Own {
            listen: &listen,
            server: &location,
        };
        let server = self.world.host("server");
        self.serving = Some(nginx::serve_with(server, dir, &own)?);
        Ok(())
    }

    /// Starts the program that makes the connection.
    fn talk(&mut self) -> Result<(), ExperimentError> {
        if let Some(away) = &mut self.away {
            let begun = match self.case.cause {
                Cause::DescheduledSender => away.upload(SINK_PORT),
                _ => away.download(&format!("http://{}/large", network::SERVER)),
            };
            return begun.map_err(ExperimentError::machine("start a program in a guest"));
        }
        let server = SocketAddr::from((self.world.addr("server"), 80));
        if let Some(pace) = self.case.pace() {
            let reader = Reader::start(self.world.host("client"), server, "/large", pace);
            let reader = reader.map_err(ExperimentError::machine("start a reader"))?;
            self.reading = Some(reader);
            return Ok(());
        }
        if let Some(pauses) = self.case.pauses() {
            let sink = SocketAddr::from((self.world.addr("client"), SINK_PORT));
            let writer = Writer::start(self.world.host("server"), sink, pauses);
            let writer = writer.map_err(ExperimentError::machine("start a sender"))?;
            self.writing = Some(writer);
            return Ok(());
        }
        for _ in 1..self.case.flows {
            self.fetch(80)?;
        }
        let (host, mut command) = match self.case.cause {
            Cause::Idle => {
                let mut socat = program::SOCAT.command();
                socat.arg("-").arg(format!("TCP:{server}"));
                // The pipe must stay open: socat ends when this is dropped.
                socat.stdin(Stdio::piped());
                ("client", socat)
            }
            Cause::Pacing => {
                let mut iperf = program::IPERF3.command();
                let client = self.world.addr("client").to_string();
                iperf.args(["--client", &client, "--port", &IPERF_PORT.to_string()]);
                iperf.args(["--time", "60"]);
                if self.case.is_limited {
                    iperf.args(["--fq-rate", &(8 * self.case.knob).to_string()]);
                }
                iperf.stdin(Stdio::null());
                ("server", iperf)
            }
            Cause::ThrottledSender => ("server", self.throttled()?),
            cause => {
                let mut curl = program::CURL.command();
                curl.args(["-q", "--silent", "--noproxy", "*", "--output", "/dev/null"]);
                curl.stdin(Stdio::null());
                if matches!(cause, Cause::SlowReader | Cause::SlowReaderHere) {
                    curl.args(["--limit-rate", &self.case.knob.to_string()]);
                }
                match cause {
                    Cause::Questions => curl.arg(format!("http://{server}/small?[1-{QUESTIONS}]")),
                    _ => curl.arg(format!("http://{server}/large")),
                };
                ("client", curl)
            }
        };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.world.host(host).spawn(command);
        self.talking
            .push(child.map_err(ExperimentError::machine("start a client"))?);
        Ok(())
    }

    /// Returns a program that compresses what it sends, which takes more CPU time than it has.
    fn throttled(&self) -> Result<Command, ExperimentError> {
        let cpus = match self.case.is_limited {
            true => self.case.knob as f64 / 1e3,
            // More than the program can use.
            false => UNLIMITED_CPUS,
        };
        let group = self.world.cpu_quota(cpus);
        let lacks = || io::Error::other("this machine has no CPU controller for cgroups");
        let group = group.and_then(|group| group.ok_or_else(lacks));
        let group = group.map_err(ExperimentError::machine("make a cgroup with a CPU quota"))?;
        let script = format!(
            "echo $$ > \"$1\" && gzip -9 </dev/urandom | exec socat -u STDIN TCP:{}:{SINK_PORT}",
            self.world.addr("client")
        );
        let mut sh = Command::new("sh");
        sh.args(["-c", &script, "sh"]).arg(group.processes());
        sh.stdin(Stdio::null());
        Ok(sh)
    }

    /// Starts another download, from this port of nginx.
    fn fetch(&mut self, port: u16) -> Result<(), ExperimentError> {
        let mut curl = program::CURL.command();
        curl.args(["-q", "--silent", "--noproxy", "*", "--output", "/dev/null"]);
        curl.arg(format!("http://{}:{port}/large", self.world.addr("server")));
        curl.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = self.world.host("client").spawn(curl);
        self.talking
            .push(child.map_err(ExperimentError::machine("start a client"))?);
        Ok(())
    }

    fn cut(&self) {
        self.world.cut("server", "client", true);
    }

    /// Returns the counters of the bottleneck.
    fn bottleneck(&self) -> Result<PathCounters, ExperimentError> {
        let reports = self.world.link_reports()?;
        let first = reports.first().map(|link| match self.case.cause {
            Cause::DescheduledSender => link.b_to_a.path,
            _ => link.a_to_b.path,
        });
        Ok(first.unwrap_or_default())
    }

    fn watched(&self) -> &Host {
        match self.case.cause.watched() {
            // A guest sends its verdict to the server.
            End::Server | End::Guest => self.world.host("server"),
            End::Client => self.world.host("client"),
        }
    }

    fn observe(
        &mut self,
        mode: Mode,
        request: &Request,
        time: Duration,
    ) -> Result<Observer, ExperimentError> {
        let started = self.start(mode, request, time);
        started.map_err(ExperimentError::machine(mode.name()))
    }

    /// Returns the host of the end that is not watched.
    fn other_end(&self) -> &Host {
        match self.case.cause.watched() {
            End::Server | End::Guest => self.world.host("client"),
            End::Client => self.world.host("server"),
        }
    }

    /// Starts a command that observes from now on. If it runs in the guest, also starts the listener
    /// for its output.
    fn start(&mut self, mode: Mode, request: &Request, time: Duration) -> io::Result<Observer> {
        let (end, port) = match (self.case.cause, self.case.cause.watched()) {
            (Cause::Pacing, _) => ("dport", IPERF_PORT),
            (Cause::ThrottledSender, _) | (_, End::Guest) => ("dport", SINK_PORT),
            _ if self.case.pauses().is_some() => ("dport", SINK_PORT),
            (_, End::Server) => ("sport", 80),
            (_, End::Client) => ("dport", 80),
        };
        let args = mode.args(time, &format!("{end} {port}"));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let far = (mode == Mode::BothEnds).then(|| {
            let end = if end == "sport" { "dport" } else { "sport" };
            let mut taut = Command::new(&request.taut);
            taut.args(Mode::Why.args(time, &format!("{end} {port}")));
            taut.stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            self.other_end().spawn(taut)
        });
        let mut far = far.transpose()?;
        let report = far.as_mut().and_then(|far| far.pipes().stdout.take());
        // Each command's output from a guest has a port of its own.
        let port = HEARD_PORT + mode as u16;
        let mut command = match &self.away {
            Some(_) if self.case.cause.watched() == End::Guest => {
                let mut socat = program::SOCAT.command();
                // A peer that is silent for this long will stay silent.
                let listen = format!("TCP-LISTEN:{port},accept-timeout=60");
                socat.args(["-T", "60", "-u", &listen, "STDOUT"]);
                socat
            }
            _ => {
                let mut taut = Command::new(&request.taut);
                taut.args(&args);
                taut
            }
        };
        let output = self.world.dir().join(format!("observed-{}", mode as u16));
        let file = File::create(&output)?;
        command
            .stdin(report.map_or_else(Stdio::null, Stdio::from))
            .stdout(file)
            .stderr(Stdio::null());
        let child = self.watched().spawn(command)?;
        if let (End::Guest, Some(away)) = (self.case.cause.watched(), &mut self.away) {
            let limit = (mode == Mode::Watch).then_some(time);
            away.say(&request.taut, &args, limit, port)?;
        }
        Ok(Observer {
            mode,
            child,
            far,
            output,
        })
    }

    /// Ends a command that observes, and reads its output. `taut watch` ends after the connection.
    fn finish(&mut self, observer: Observer) -> Result<Statement, ExperimentError> {
        if observer.mode != Mode::Watch {
            return observer.mode.statement(&observer.finish()?, false);
        }
        let must_end = self.case.cause.can_end();
        if must_end {
            self.talking.clear();
            self.reading = None;
            self.writing = None;
            let ended = observer.wait_for_end();
            ended.map_err(ExperimentError::machine(observer.mode.name()))?;
        }
        let stopped = observer.child.signal(Signal::TERM);
        stopped.map_err(ExperimentError::machine(observer.mode.name()))?;
        observer.mode.statement(&observer.finish()?, must_end)
    }
}
