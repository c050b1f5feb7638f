//! A sending guest whose processor is taken away in slices, and a path behind it.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::experiment::guests::guest::talk::{Flow, FlowSample, Flowed};
use crate::experiment::guests::hog::{Hog, Share, Taken};
use crate::experiment::guests::network::SERVER;
use crate::experiment::guests::qemu::{Files, Kernel};
use crate::experiment::guests::sender::Sender;
use crate::experiment::{ExperimentError, Request};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::Host;

/// The server's port for the first flow; further flows use the following ports.
const PORT: u16 = 5100;
/// The maximum number of simultaneous flows.
pub(super) const FLOWS: u16 = 2;
/// How long the core is taken at a time: Xen's slice (pvtcp IV-A).
const OFF: Duration = Duration::from_millis(30);
/// The interval between samples of a flow.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// The interval between two readings of the received bytes.
const PART: Duration = Duration::from_millis(100);

/// A path behind the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    /// The rate, in bit/s.
    pub(super) rate: u64,
    pub(super) round_trip: Duration,
}

/// The guest with its path.
pub(super) struct Stage {
    pub(super) sender: Sender,
    sink: Sink,
    /// The path of the module `taut_pvtcp` in the guest.
    module: String,
    /// The warm-up and the measured time of a flow.
    warm_up: Duration,
    measure: Duration,
}

/// The results of a run.
pub(super) struct FlowRun {
    /// The payload rate of each flow, in Mbit/s.
    pub(super) goodput: Vec<f64>,
    /// The samples are those after the warm-up; all other figures cover the whole time.
    pub(super) flowed: Flowed,
    pub(super) taken: Taken,
    /// Whether the link was slower than configured.
    pub(super) overrun: bool,
}

/// Receives and counts bytes.
struct Sink {
    ends: Arc<AtomicBool>,
    /// The number of bytes received at each port since the start.
    bytes: Arc<[AtomicU64]>,
    threads: Vec<JoinHandle<()>>,
}

// === impl Path ===

impl Path {
    pub(super) fn name(self) -> String {
        format!(
            "{} Mbit x {} ms",
            self.rate / 1_000_000,
            self.round_trip.as_millis()
        )
    }

    /// Returns the round trip with a full queue, which is the longest that the path can have.
    pub(super) fn longest(self) -> Duration {
        self.round_trip + Duration::from_secs_f64(8.0 * self.queue().0 as f64 / self.rate as f64)
    }

    /// Returns the size of the queue: the path's bandwidth-delay product, but at least a burst.
    fn queue(self) -> Bytes {
        Bytes(
            BitsPerSecond(self.rate)
                .in_time(self.round_trip)
                .0
                .max(250_000),
        )
    }
}

// === impl FlowRun ===

impl FlowRun {
    /// Returns the first flow's payload rate, in Mbit/s.
    pub(super) fn first(&self) -> f64 {
        self.goodput.first().copied().unwrap_or(f64::NAN)
    }

    /// Returns the first flow's share of all payload.
    pub(super) fn part(&self) -> f64 {
        self.first() / self.goodput.iter().sum::<f64>()
    }

    pub(super) fn samples(&self, of: fn(&FlowSample) -> f64) -> impl Iterator<Item = f64> {
        let samples = self.flowed.flows.iter().flat_map(|flow| &flow.samples);
        samples.map(of)
    }

    pub(super) fn repeated(&self) -> f64 {
        let repeated = self
            .flowed
            .flows
            .iter()
            .map(|flow| f64::from(flow.repeated));
        repeated.sum()
    }
}

// === impl Stage ===

impl Stage {
    pub(super) fn build(
        path: Path,
        kernel: &Kernel,
        times: (Duration, Duration),
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let bare = Shape::delay(path.round_trip / 2);
        let link = LinkSpec::each(
            bare.rate(BitsPerSecond(path.rate)).queue(path.queue()),
            bare,
        );
        let module = kernel.module();
        let module = module.map_err(ExperimentError::machine("find the guest's module"))?;
        let files = Files {
            with: vec![module.clone()],
            modules: vec!["tcp_bbr"],
        };
        let sender = Sender::boot("descheduled", link, kernel, &files, request)?;
        let sink = Sink::open(sender.world.host("server"));
        Ok(Self {
            sink: sink.map_err(ExperimentError::machine("listen at the server"))?,
            sender,
            module: module.display().to_string(),
            warm_up: times.0,
            measure: times.1,
        })
    }

    /// Loads `taut_pvtcp` into the guest's kernel.
    pub(super) fn load_module(&mut self) -> Result<(), ExperimentError> {
        let module = self.module.clone();
        self.sender.run("/busybox/insmod", &[&module]).map(drop)
    }

    /// Unloads the module.
    pub(super) fn unload_module(&mut self) -> Result<(), ExperimentError> {
        self.sender.run("/busybox/rmmod", &["taut_pvtcp"]).map(drop)
    }

    /// Runs one flow with each of these congestion controls at once, while the guest gets this
    /// share of its core.
    pub(super) fn flows(&mut self, of: &[&str], share: f64) -> Result<FlowRun, ExperimentError> {
        let failed = ExperimentError::machine;
        let time = self.warm_up + self.measure;
        let flows = (PORT..).zip(of).map(|(port, congestion_control)| Flow {
            to: SocketAddr::from((SERVER, port)),
            congestion_control: (*congestion_control).to_owned(),
            time,
            interval: SAMPLE_INTERVAL,
        });
        let flows: Vec<Flow> = flows.collect();
        let links = self.sender.world.link_reports()?;
        let hog = self.sender.take(Share::of(share, OFF))?;
        let (guest, sink) = (&mut self.sender.guest, &self.sink);
        let ends = AtomicBool::new(false);
        let (flowed, counted) = std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                let mut counted = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    counted.push((Instant::now(), sink.count()));
                    std::thread::sleep(PART);
                }
                counted
            });
            let flowed = guest.flows(flows);
            ends.store(true, Ordering::Relaxed);
            (flowed, counting.join().unwrap_or_default())
        });
        let taken = hog.map(Hog::end).transpose();
        let taken = taken.map_err(failed("take the guest's core"))?;
        let mut flowed = flowed.map_err(failed("make the guest send"))?;
        for flow in &mut flowed.flows {
            let is_measured =
                |sample: &FlowSample| Duration::from_micros(sample.at) >= self.warm_up;
            flow.samples.retain(is_measured);
        }
        let overrun = links
            .iter()
            .zip(&self.sender.world.link_reports()?)
            .any(|(before, after)| after.since(before).overrun());
        Ok(FlowRun {
            goodput: self.goodput(&counted, of.len()),
            flowed,
            taken: taken.unwrap_or_default(),
            overrun,
        })
    }

    /// Returns the Mbit/s of each flow, counted from `warm_up` after the first byte.
    fn goodput(&self, counted: &[(Instant, Vec<u64>)], flows: usize) -> Vec<f64> {
        let Some((_, first)) = counted.first() else {
            return Vec::new();
        };
        let began = counted
            .iter()
            .find(|(_, now)| now.iter().sum::<u64>() > first.iter().sum::<u64>());
        let Some((began, _)) = began else {
            return vec![0.0; flows];
        };
        let inside = counted.iter().filter(|(at, _)| {
            let since = at.saturating_duration_since(*began);
            since >= self.warm_up && since <= self.warm_up + self.measure
        });
        let inside: Vec<_> = inside.collect();
        let (Some((from, before)), Some((to, after))) = (inside.first(), inside.last()) else {
            return vec![0.0; flows];
        };
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        let bytes = before.iter().zip(after).take(flows);
        bytes
            .map(|(before, after)| 8.0 * (after - before) as f64 / 1e6 / seconds)
            .collect()
    }
}

// === impl Sink ===

impl Sink {
    fn open(server: &Host) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let bytes: Arc<[AtomicU64]> = (0..FLOWS).map(|_| AtomicU64::new(0)).collect();
        let mut threads = Vec::new();
        for flow in 0..FLOWS {
            let at = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT + flow));
            let listener = server
                .run(|| TcpListener::bind(at))
                .map_err(io::Error::other)??;
            listener.set_nonblocking(true)?;
            let (ends, bytes) = (Arc::clone(&ends), Arc::clone(&bytes));
            let take = move || take(&listener, &ends, &bytes[usize::from(flow)]);
            threads.push(
                std::thread::Builder::new()
                    .name("sink".to_owned())
                    .spawn(take)?,
            );
        }
        Ok(Self {
            ends,
            bytes,
            threads,
        })
    }

    fn count(&self) -> Vec<u64> {
        let bytes = self.bytes.iter();
        bytes.map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Accepts and reads one connection after the other.
fn take(listener: &TcpListener, ends: &AtomicBool, bytes: &AtomicU64) {
    let mut block = vec![0; 1 << 18];
    while !ends.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(1))));
        if prepared.is_err() {
            continue;
        }
        while !ends.load(Ordering::Relaxed) {
            match stream.read(&mut block) {
                Ok(0) => break,
                Ok(len) => {
                    bytes.fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                // The flow has ended normally.
                Err(_) => break,
            }
        }
    }
}
