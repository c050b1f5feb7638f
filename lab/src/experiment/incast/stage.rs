//! A guest that serves blocks, and a client that reads them over all its connections at once.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::experiment::guests::guest::{self, talk::Counters};
use crate::experiment::guests::hog::{Hog, Share, Taken};
use crate::experiment::guests::network::ALONE;
use crate::experiment::guests::qemu::{Files, Kernel};
use crate::experiment::guests::sender::Sender;
use crate::experiment::{ExperimentError, Request};
use crate::peer::program;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};

/// The guest's port.
const PORT: u16 = 5200;
/// The path's rate, in bit/s. An emulated processor with a third of a core can send faster.
pub(super) const RATE: u64 = 200_000_000;
const ROUND_TRIP: Duration = Duration::from_micros(500);
/// The queue of the switch's port.
pub(super) const QUEUE: u64 = 64 << 10;
/// A third of the core: three guests share a core in Xen's slices (pvtcp III), and each is
/// descheduled for two slices.
pub(super) const SHARE: Share = Share {
    off: Duration::from_millis(60),
    on: Duration::from_millis(30),
};
/// A peer that sends no bytes for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// The sysctl that enables tail loss probes.
const EARLY_RETRANS: &str = "/proc/sys/net/ipv4/tcp_early_retrans";
const NO_METRICS_SAVE: &str = "/proc/sys/net/ipv4/tcp_no_metrics_save";
const PARAMETERS: &str = "/sys/module/taut_pvtcp/parameters";

/// The settings of the guest's TCP time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tcp {
    /// Whether the minimum retransmission time-out is 200 ms, Linux's default; otherwise it is the
    /// least that the kernel's ticks allow.
    pub(super) is_long: bool,
    /// Whether tail loss probes are sent (RFC 8985). They are Linux's default; the paper's kernel
    /// had none.
    pub(super) has_probes: bool,
    /// Whether the module is active.
    pub(super) is_pvtcp: bool,
}

/// The guest.
pub(super) struct Stage {
    sender: Sender,
}

/// The results of reading blocks for a while.
pub(super) struct ReadRun {
    /// Mbit/s of payload.
    pub(super) goodput: f64,
    /// The number of rounds of blocks.
    pub(super) rounds: u64,
    pub(super) counted: Counters,
    /// The client's duplicate ACKs: one for each segment that arrived out of order or twice.
    pub(super) duplicate_acks: u64,
    pub(super) taken: Taken,
    pub(super) overrun: bool,
}

// === impl Tcp ===

impl Tcp {
    /// The kernel's defaults.
    pub(super) const DEFAULT: Self = Self {
        is_long: true,
        has_probes: true,
        is_pvtcp: false,
    };
    /// The three settings of the paper.
    pub(super) const LONG: Self = Self {
        is_long: true,
        has_probes: false,
        is_pvtcp: false,
    };
    pub(super) const SHORT: Self = Self {
        is_long: false,
        ..Self::LONG
    };
    pub(super) const PVTCP: Self = Self {
        is_pvtcp: true,
        ..Self::SHORT
    };
    /// All settings, the paper's three first.
    pub(super) const ALL: [Self; 7] = [
        Self::LONG,
        Self::SHORT,
        Self::PVTCP,
        Self::DEFAULT,
        Self {
            is_pvtcp: true,
            ..Self::DEFAULT
        },
        Self {
            is_long: false,
            ..Self::DEFAULT
        },
        Self {
            is_long: false,
            is_pvtcp: true,
            ..Self::DEFAULT
        },
    ];

    pub(super) fn name(self) -> String {
        format!(
            "{}{}{}",
            if self.is_pvtcp { "pvtcp" } else { "tcp" },
            if self.is_long { " 200 ms" } else { " short" },
            if self.has_probes { ", probes" } else { "" },
        )
    }
}

// === impl Stage ===

impl Stage {
    /// Boots a guest with the module, which is not active yet.
    pub(super) fn boot(kernel: &Kernel, request: &Request) -> Result<Self, ExperimentError> {
        let failed = ExperimentError::machine;
        let bare = Shape::delay(ROUND_TRIP / 2);
        let there = bare.rate(BitsPerSecond(RATE)).queue(Bytes(QUEUE));
        let module = kernel.module().map_err(failed("find the guest's module"))?;
        let ip = program::IP.file().map_err(failed("find ip"))?;
        let files = Files {
            with: vec![module.clone(), ip.clone()],
            modules: Vec::new(),
        };
        let link = LinkSpec::each(there, bare);
        let mut sender = Sender::boot("incast", link, kernel, &files, request)?;
        sender.run("/busybox/insmod", &[&module.display().to_string()])?;
        sender.set(NO_METRICS_SAVE, "1")?;
        let serves = sender.guest.serve(PORT);
        serves.map_err(failed("make the guest serve"))?;
        Ok(Self { sender })
    }

    /// Applies TCP settings to the guest.
    pub(super) fn be(&mut self, tcp: Tcp) -> Result<(), ExperimentError> {
        let early = if tcp.has_probes { "3" } else { "0" };
        self.sender.set(EARLY_RETRANS, early)?;
        for half in ["postpone", "filter"] {
            let text = if tcp.is_pvtcp { "Y" } else { "N" };
            self.sender.set(&format!("{PARAMETERS}/{half}"), text)?;
        }
        // With 1 ms, the kernel uses its own minimum, which is two of its ticks.
        let least = if tcp.is_long { "200ms" } else { "1ms" };
        let ip = program::IP
            .file()
            .map_err(ExperimentError::machine("find ip"))?;
        let (guest, ip) = (ALONE.0.to_string(), ip.display().to_string());
        let route = [
            "route",
            "replace",
            "10.78.0.0/24",
            "dev",
            "eth0",
            "src",
            &guest,
        ];
        self.sender
            .run(&ip, &[&route[..], &["rto_min", least]].concat())?;
        Ok(())
    }

    /// Reads blocks of this size over this many connections for `time`, with this share of its core
    /// for the guest.
    pub(super) fn read(
        &mut self,
        connections: usize,
        block: u32,
        share: Option<Share>,
        time: Duration,
    ) -> Result<ReadRun, ExperimentError> {
        let failed = ExperimentError::machine;
        let links = self.sender.world.link_reports()?;
        let counters = |sender: &mut Sender| {
            let counters = sender.guest.counters();
            counters.map_err(failed("read the counters of the guest"))
        };
        let before = counters(&mut self.sender)?;
        let hog = self.sender.take(share)?;
        let client = self.sender.world.host("server");
        let read = client.run(|| -> io::Result<_> {
            let before = guest::counters()?;
            let (rounds, took) = strobe(connections, block, time)?;
            let counted = guest::counters()?.since(&before);
            Ok((rounds, took, counted.answered_again))
        })?;
        let taken = hog.map(Hog::end).transpose();
        let taken = taken.map_err(failed("take the guest's core"))?;
        let (rounds, took, duplicate_acks) = read.map_err(failed("read blocks"))?;
        let counted = counters(&mut self.sender)?.since(&before);
        let overrun = links
            .iter()
            .zip(&self.sender.world.link_reports()?)
            .any(|(before, after)| after.since(before).overrun());
        let bytes = rounds as f64 * connections as f64 * f64::from(block);
        Ok(ReadRun {
            goodput: 8.0 * bytes / 1e6 / took.as_secs_f64(),
            rounds,
            counted,
            duplicate_acks,
            taken: taken.unwrap_or_default(),
            overrun,
        })
    }
}

/// Requests a block from all connections, and the next blocks when all have arrived, until the time
/// is over. Returns the number of rounds and the time they took.
fn strobe(connections: usize, block: u32, time: Duration) -> io::Result<(u64, Duration)> {
    let to = SocketAddr::from((ALONE.0, PORT));
    let connect = || {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    let mut streams: Vec<TcpStream> = (0..connections)
        .map(|_| connect())
        .collect::<io::Result<_>>()?;
    let mut room = vec![0; block as usize];
    let (began, mut rounds) = (Instant::now(), 0);
    while began.elapsed() < time {
        for stream in &mut streams {
            stream.write_all(&block.to_be_bytes())?;
        }
        for stream in &mut streams {
            stream.read_exact(&mut room)?;
        }
        rounds += 1;
    }
    Ok((rounds, began.elapsed()))
}
