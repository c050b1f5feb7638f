//! A path with one connection on it.

use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use taut_sys::child::Child;
use taut_sys::sock_diag::SockDiag;

use crate::experiment::commands::stop_tune;
use crate::experiment::{ExperimentError, Request};
use crate::peer::program;
use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{Host, World, WorldBuilder};

/// The sender's port.
const PORT: u16 = 9000;
/// How long to wait before measuring: until slow start is over, which `taut tune` does not affect.
const WARM_UP: Duration = Duration::from_secs(2);
/// The duration of the measurement before `taut tune` starts.
const BEFORE: Duration = Duration::from_secs(2);
/// The time from the start of `taut tune` to the end of the measurement after it.
const AFTER: Duration = Duration::from_secs(5);
/// The duration of the measurement after `taut tune` has started: the last part of [`AFTER`].
const LAST: Duration = Duration::from_secs(1);
/// In the smallest form, all of these are divided by this.
const SMOKE: u32 = 5;
/// The interval between samples of the window.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A delivery is late after this fraction of a round trip.
const LATE: u32 = 20;
/// How long a program may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// The size of a process' reads and writes. With a smaller size, a gigabit would need too much CPU
/// time.
const BLOCK: &str = "262144";

/// How buffers are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Settings {
    /// By the kernel, with its defaults.
    Kernel,
    /// By the kernel, with the settings of tuned's profile network-throughput.
    Tuned,
    /// By `taut tune --apply` at both ends, started after a while.
    Taut,
    /// Like [`Settings::Taut`], for connections that started with the receive buffer maximum of
    /// Linux before 6.16, which limits the scale of their windows.
    TautNarrow,
}

/// Which end has fixed a buffer, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fixed {
    /// Neither end.
    Nobody,
    /// The receiver has fixed its receive buffer, after connecting.
    Receiver,
    /// The sender has fixed its send buffer, after connecting.
    Sender,
    /// The receiver, before connecting. This case is measured without tuning only.
    ReceiverFromStart,
}

/// The results of one transfer.
pub(super) struct TransferRun {
    /// The payload rate before tuning, in Mbit/s.
    pub(super) before: f64,
    /// The payload rate after tuning, in Mbit/s.
    pub(super) after: Option<f64>,
    /// All samples of the receiver's advertised window, in kB.
    pub(super) windows: Vec<f64>,
    /// Whether the link was slower than configured.
    pub(super) overrun: bool,
}

/// The path.
pub(super) struct Stage<'a> {
    world: World,
    settings: Settings,
    request: &'a Request,
}

/// The progress of a transfer.
#[derive(Clone, Copy)]
struct Progress {
    at: Instant,
    received: u64,
    window: u32,
}

// === impl Settings ===

impl Settings {
    pub(super) const ALL: [Self; 4] = [Self::Kernel, Self::Tuned, Self::Taut, Self::TautNarrow];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Tuned => "tuned",
            Self::Taut => "taut",
            Self::TautNarrow => "taut, 6 MiB at first",
        }
    }
}

// === impl Fixed ===

impl Fixed {
    /// The cases measured before and after tuning.
    pub(super) const ALL: [Self; 3] = [Self::Nobody, Self::Receiver, Self::Sender];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nothing fixed",
            Self::Receiver => "receiver fixed",
            Self::Sender => "sender fixed",
            Self::ReceiverFromStart => "receiver fixed before",
        }
    }
}

// === impl Stage ===

impl<'a> Stage<'a> {
    pub(super) fn build(
        round_trip: Duration,
        rate: u64,
        settings: Settings,
        request: &'a Request,
    ) -> Result<Self, ExperimentError> {
        let rate = BitsPerSecond(rate);
        // Lateness below this does not affect the measurements.
        let late = (round_trip / LATE).max(Shape::default().tolerance);
        let bare = Shape::delay(round_trip / 2).tolerance(late);
        let queue = Bytes(rate.in_time(round_trip).0.max(256 << 10));
        let link = LinkSpec::each(bare.rate(rate).queue(queue), bare).seed(request.seed);
        let mut world = WorldBuilder::new("long-fat")
            .host("sender")
            .host("receiver")
            .link("sender", "receiver", link)
            .sysctl_everywhere("net.ipv4.tcp_congestion_control", "cubic");
        let (receive, send) = match settings {
            // The defaults of Linux 6.16 and later.
            Settings::Kernel | Settings::Taut => (32 << 20, 4 << 20),
            Settings::Tuned => (16 << 20, 16 << 20),
            Settings::TautNarrow => (6 << 20, 4 << 20),
        };
        world = world
            .sysctl_everywhere("net.ipv4.tcp_rmem", &format!("4096 131072 {receive}"))
            .sysctl_everywhere("net.ipv4.tcp_wmem", &format!("4096 16384 {send}"));
        Ok(Self {
            world: world.build()?,
            settings,
            request,
        })
    }

    /// Runs one connection and measures it.
    pub(super) fn transfer(
        &self,
        fixed: Fixed,
        bytes: u64,
    ) -> Result<TransferRun, ExperimentError> {
        let machine = ExperimentError::machine;
        let reports = self.world.link_reports()?;
        let (sender, receiver) = (self.world.host("sender"), self.world.host("receiver"));
        let _sends = spawn(sender, &sends(fixed, bytes)).map_err(machine("start socat"))?;
        listens(sender).map_err(machine("wait for socat to listen"))?;
        let to = SocketAddr::from((self.world.addr("sender"), PORT));
        let _receives =
            spawn(receiver, &receives(fixed, bytes, to)).map_err(machine("start socat"))?;
        let part = self.request.form.pick(1, 1, SMOKE);
        std::thread::sleep(WARM_UP / part);
        let mut windows = Vec::new();
        let mut watch = |time: Duration| watch(receiver, time / part, &mut windows);
        let before = watch(BEFORE).map_err(machine("sample a connection"))?;
        let after = match fixed {
            Fixed::ReceiverFromStart => None,
            _ => {
                let tuners = match self.settings {
                    Settings::Taut | Settings::TautNarrow => {
                        self.tune().map_err(machine("start taut tune"))?
                    }
                    Settings::Kernel | Settings::Tuned => Vec::new(),
                };
                watch(AFTER - LAST).map_err(machine("sample a connection"))?;
                let after = watch(LAST).map_err(machine("sample a connection"))?;
                tuners
                    .into_iter()
                    .try_for_each(|mut tune| stop_tune(&mut tune, PATIENCE))
                    .map_err(machine("stop taut tune"))?;
                Some(after)
            }
        };
        Ok(TransferRun {
            before,
            after,
            windows,
            overrun: overrun(&reports, &self.world.link_reports()?),
        })
    }

    fn tune(&self) -> io::Result<Vec<Child>> {
        ["sender", "receiver"]
            .into_iter()
            .map(|host| {
                let journal = self.world.dir().join(format!("{host}.journal"));
                let mut tune = Command::new(&self.request.taut);
                tune.args(["tune", "--apply", "--own-netns", "--json", "--journal"]);
                tune.arg(journal).stdin(Stdio::null());
                tune.stdout(Stdio::null()).stderr(Stdio::null());
                self.world.host(host).spawn(tune)
            })
            .collect()
    }
}

fn sends(fixed: Fixed, bytes: u64) -> Vec<String> {
    let mut listen = format!("TCP-LISTEN:{PORT},reuseaddr");
    if fixed == Fixed::Sender {
        listen += &format!(",sndbuf-late={bytes}");
    }
    ["-u", "-b", BLOCK, "OPEN:/dev/zero", &listen]
        .map(str::to_owned)
        .into()
}

fn receives(fixed: Fixed, bytes: u64, to: SocketAddr) -> Vec<String> {
    let mut connect = format!("TCP:{to}");
    match fixed {
        Fixed::Receiver => connect += &format!(",rcvbuf-late={bytes}"),
        Fixed::ReceiverFromStart => connect += &format!(",rcvbuf={bytes}"),
        Fixed::Nobody | Fixed::Sender => {}
    }
    ["-u", "-b", BLOCK, &connect, "OPEN:/dev/null"]
        .map(str::to_owned)
        .into()
}

fn spawn(host: &Host, args: &[String]) -> io::Result<Child> {
    let mut socat = program::SOCAT.command();
    socat.args(args).stdin(Stdio::null());
    socat.stdout(Stdio::null()).stderr(Stdio::null());
    host.spawn(socat)
}

/// Waits until a process listens at the port.
fn listens(host: &Host) -> io::Result<()> {
    let began = Instant::now();
    let line = format!(":{PORT:04X} 00000000:0000 0A");
    while began.elapsed() < PATIENCE {
        let tables = host.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
        if tables.map_err(io::Error::other)??.contains(&line) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::Error::other("socat does not listen"))
}

/// Returns the payload rate over `time`, in Mbit/s, and samples the window.
fn watch(receiver: &Host, time: Duration, windows: &mut Vec<f64>) -> io::Result<f64> {
    let first = progress(receiver)?;
    let mut last = first;
    while last.at < first.at + time {
        std::thread::sleep(
            POLL_INTERVAL.min((first.at + time).saturating_duration_since(Instant::now())),
        );
        last = progress(receiver)?;
        windows.push(f64::from(last.window) / 1e3);
    }
    let bits = 8.0 * (last.received - first.received) as f64;
    Ok(bits / 1e6 / (last.at - first.at).as_secs_f64())
}

fn progress(receiver: &Host) -> io::Result<Progress> {
    let found = receiver.run(|| {
        let mut found = None;
        SockDiag::open()?.dump(|connection| {
            if let (PORT, Some(info)) = (connection.remote.port(), &connection.info) {
                found = Some(Progress {
                    at: Instant::now(),
                    received: info.bytes_received.unwrap_or(0),
                    window: info.rcv_wnd.unwrap_or(0),
                });
            }
        })?;
        Ok::<_, taut_sys::Errno>(found)
    });
    let found = found.map_err(io::Error::other)??;
    found.ok_or_else(|| io::Error::other("the connection has ended"))
}

fn overrun(before: &[LinkReport], after: &[LinkReport]) -> bool {
    before.iter().zip(after).any(|(before, after)| {
        let more = after.since(before);
        more.a_to_b.overrun() || more.b_to_a.overrun()
    })
}
