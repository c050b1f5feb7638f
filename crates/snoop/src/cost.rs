//! Measures the programs' CPU time per packet on this machine, using the kernel's own statistics of
//! their run time.
//!
//! The measurement runs in a network namespace of its own: the taps of five guests and of one
//! sender at a bridge. Segments stay in the ring until the guest takes them, and no process sleeps
//! waiting for one, so no wake-up is measured.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::getpid;
use serde::Serialize;
use taut_sys::bpf::RunTimes;
use taut_sys::netns::{Netns, NetnsError};
use taut_sys::tap::{Tap, TapError as SysTapError};

use crate::copies::{self, Copies};
use crate::error::ProgramError;
use crate::program::Program;
use crate::records::Records;
use crate::tap::{self, Prepared, TapError};
use crate::wire::{Config, Spent};

mod frames;

use frames::{Ends, Stream};

/// Number of guests, as in the paper's second scenario (V-B).
const GUESTS: usize = 5;

/// Bytes of data in a segment; with timestamps the frame has 1514.
const SEGMENT: usize = 1448;

/// The number of segments of one stream before its guest acknowledges them: less than its window.
const BATCH: usize = 40;

/// Length of a tap's ring.
const RING: u32 = 16_384;

/// Default number of segments per scenario.
const SEGMENTS: usize = 200_000;

/// Number of rounds, each with and without the programs; the figures are medians.
const ROUNDS: usize = 7;

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The network namespace cannot be created.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A tap cannot be created.
    #[error(transparent)]
    Device(#[from] SysTapError),
    /// A tap cannot be prepared.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The programs cannot be used.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's run-time statistics cannot be enabled.
    #[error(
        "cannot enable the kernel's run-time statistics of BPF programs: {0}; they need Linux 5.8 or newer and CAP_SYS_ADMIN"
    )]
    RunTimes(#[from] taut_sys::Errno),
    /// Frames did not take the expected path.
    #[error("the measurement is invalid: {0}")]
    Astray(String),
    /// The user interrupted the measurement.
    #[error("the measurement was interrupted")]
    Ended,
    /// A frame could not be sent.
    #[error("cannot send a frame: {0}")]
    Send(#[from] io::Error),
}

/// The cost of one scenario, in nanoseconds per packet.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// `1 stream` or `100 streams, 5 taps`.
    pub scenario: String,
    /// Whether the device has to complete TCP's checksum, as for senders on this host.
    pub partial_checksum: bool,
    /// Bytes of data in a frame.
    pub frame: usize,
    /// Program time for a segment that is acknowledged early, without its delivery, in ns.
    pub ack: f64,
    /// Delivery into the ring by a clone, in ns.
    pub delivery: f64,
    /// Program time for a packet without data towards the guest, in ns.
    pub pass_to_guest: f64,
    /// Program time for an ACK of the guest that is dropped, in ns (`None` if a frame has many
    /// segments).
    pub suppress: Option<f64>,
    /// Program time for an ACK of the guest that passes, in ns.
    pub pass_from_guest: f64,
    /// The search for the flow, which is included in each of these times, in ns.
    pub lookup: f64,
    /// The extra time for sending a segment compared to no programs, in ns: all of the above, and
    /// the ACK's way back through the bridge.
    pub added: f64,
}

struct World {
    netns: Netns,
    guests: Vec<Tap>,
    peer: Tap,
    /// The program at each guest's tap, if any.
    served: Vec<(Option<Program>, Prepared)>,
    /// The copies of the programs.
    copies: Copies,
    streams: Vec<Stream>,
}

/// Measures all scenarios. Calls `step` before each one, and often calls `ends` to check whether to
/// give up.
///
/// # Errors
/// [`CostError`]; the namespace is removed.
pub fn measure(
    segments: Option<usize>,
    mut step: impl FnMut(&str),
    ends: impl Fn() -> bool,
) -> Result<Vec<Cost>, CostError> {
    let segments = segments.unwrap_or(SEGMENTS);
    let mut costs = Vec::new();
    for (scenario, streams, taps) in [("1 stream", 1, 1), ("100 streams, 5 taps", 100, GUESTS)] {
        for (frame, partial) in [(SEGMENT, true), (SEGMENT, false), (40 * SEGMENT, true)] {
            step(&format!("{scenario}, {frame} bytes"));
            let of = Ends { partial, frame };
            // A frame of many segments counts as that many segments.
            let frames = segments * SEGMENT / frame;
            costs.push(cost(scenario, streams, taps, of, frames, &ends)?);
        }
    }
    Ok(costs)
}

fn cost(
    scenario: &str,
    streams: usize,
    taps: usize,
    of: Ends,
    frames: usize,
    ends: &impl Fn() -> bool,
) -> Result<Cost, CostError> {
    let world = |served| World::new(taps, streams, of, served);
    let (mut bare, mut served, mut measured) =
        (world(None)?, world(Some(false))?, world(Some(true))?);
    let each = |time: Duration, count: usize| time.as_secs_f64() * 1e9 / count as f64;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        if ends() {
            return Err(CostError::Ended);
        }
        let frames = frames / ROUNDS;
        let without = bare.run(frames)?;
        let with = served.run(frames)?;
        let _counting = RunTimes::enable()?;
        let counted = served.run(frames)?;
        let split = measured.run(frames)?.spent;
        let suppressing = counted.suppressing.max(1);
        rounds.push([
            each(counted.acked, frames) - split.delivery_ns(),
            split.delivery_ns(),
            each(counted.passed_to_guest, counted.passing),
            each(counted.suppressed, suppressing),
            each(counted.passed_from_guest, counted.passing),
            split.lookup_ns(),
            each(with.sending, frames) - each(without.sending, frames),
        ]);
    }
    let median = |figure: usize| {
        let mut all: Vec<f64> = rounds.iter().map(|round| round[figure]).collect();
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    Ok(Cost {
        scenario: scenario.to_owned(),
        partial_checksum: of.partial,
        frame: of.frame,
        ack: median(0),
        delivery: median(1),
        pass_to_guest: median(2),
        suppress: (of.frame == SEGMENT).then(|| median(3)),
        pass_from_guest: median(4),
        lookup: median(5),
        added: median(6),
    })
}

/// Attaches the programs to a tap of the calling thread's network namespace.
fn serve(ifindex: u32, copies: &Copies, measured: bool) -> Result<Program, ProgramError> {
    let mut program = Program::load_measured(256, copies, measured)?;
    program.attach(ifindex)?;
    let config = Config {
        on: true,
        // A stream lasts longer than a guest may normally be silent.
        exposure: u32::MAX,
        exposure_ticks: u32::MAX,
        ..Config::default()
    };
    program.configure(&config, Duration::MAX)?;
    Ok(program)
}

/// Totals of a run.
#[derive(Default)]
struct Run {
    /// Program time for the acknowledged segments, including their delivery.
    acked: Duration,
    passed_to_guest: Duration,
    passed_from_guest: Duration,
    passing: usize,
    suppressed: Duration,
    suppressing: usize,
    /// The time that the sender spent on the segments.
    sending: Duration,
    /// The split of the programs' time, if they measured it.
    spent: Spent,
}

// === impl World ===

impl World {
    /// Creates the namespace, its taps and streams. `served` selects whether the programs run, and
    /// whether they measure the split of their time.
    fn new(
        taps: usize,
        streams: usize,
        ends: Ends,
        served: Option<bool>,
    ) -> Result<Self, CostError> {
        let kind = match served {
            None => "bare",
            Some(false) => "served",
            Some(true) => "measured",
        };
        let name = format!("taut-snoop-cost-{}-{kind}", getpid().as_raw_pid());
        let netns = Netns::create(&name)?;
        // From here on, dropping `netns` removes the namespace.
        let records = Records::default();
        let made = netns.run(|| -> Result<_, CostError> {
            let copies = Copies::new(copies::RING_BYTES)?;
            let guests = (0..taps).map(|n| Tap::create(&format!("guest{n}")));
            let guests = guests.collect::<Result<Vec<_>, _>>()?;
            let peer = Tap::create("peer")?;
            tap::bridge("bridge", RING)?;
            let mut all = Vec::new();
            for device in tap::devices()? {
                if !device.name.starts_with("guest") {
                    continue;
                }
                let prepared = Prepared::prepare(&device, None, &records)?;
                let program = served
                    .map(|measured| serve(device.index, &copies, measured))
                    .transpose()?;
                all.push((program, prepared));
            }
            Ok((guests, peer, all, copies))
        });
        let (guests, peer, served, copies) = match made {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => {
                Netns::delete(netns.name())?;
                return Err(error);
            }
            Err(error) => return Err(error.into()),
        };
        let mut world = Self {
            netns,
            guests,
            peer,
            served,
            copies,
            streams: Vec::with_capacity(streams),
        };
        for number in 0..streams {
            let mut stream = Stream::new(number, number % taps, ends);
            world.open(&mut stream)?;
            world.streams.push(stream);
        }
        world.empty();
        Ok(world)
    }

    fn run(&mut self, frames: usize) -> Result<Run, CostError> {
        let (acked, spent) = (self.acked()?, self.spent()?);
        let mut run = Run::default();
        let mut streams = std::mem::take(&mut self.streams);
        let mut left = frames;
        while left > 0 {
            for stream in &mut streams {
                let now = stream.batch().min(left);
                left -= now;
                self.transfer(stream, now, &mut run)?;
            }
        }
        self.streams = streams;
        let acked = self.acked()? - acked;
        if self.programs().next().is_some() && acked != frames as u64 {
            let why = format!("{acked} of {frames} segments were acknowledged early");
            return Err(CostError::Astray(why));
        }
        run.spent = self.spent()?.less(spent);
        Ok(run)
    }

    /// Opens a connection and sends its first segment, which the guest acknowledges itself.
    fn open(&self, stream: &mut Stream) -> Result<(), CostError> {
        let guest = &self.guests[stream.guest];
        for (from_guest, frame) in stream.handshake() {
            if from_guest { guest } else { &self.peer }.write(&frame)?;
        }
        Ok(())
    }

    /// Sends segments that are acknowledged early, and then the guest's ACKs, of which all but the
    /// last are dropped. Then sends some packets that pass in each direction: repetitions of the
    /// last ACK, and segments without data.
    fn transfer(&self, stream: &mut Stream, count: usize, run: &mut Run) -> Result<(), CostError> {
        let guest = &self.guests[stream.guest];
        let data: Vec<_> = (0..count).map(|_| stream.data()).collect();
        let (before, begun) = (self.run_time("snoop_to_guest")?, Instant::now());
        for frame in &data {
            self.peer.write(frame)?;
        }
        run.sending += begun.elapsed();
        run.acked += self.run_time("snoop_to_guest")?.saturating_sub(before);

        let acks = stream.guest_acks(count);
        let Some((last, others)) = acks.split_last() else {
            return Ok(());
        };
        let before = self.run_time("snoop_from_guest")?;
        for frame in others {
            guest.write(frame)?;
        }
        run.suppressed += self.run_time("snoop_from_guest")?.saturating_sub(before);
        run.suppressing += others.len();

        // The last ACK passes, and so do its repetitions.
        let before = self.run_time("snoop_from_guest")?;
        for _ in 0..BATCH {
            guest.write(last)?;
        }
        run.passed_from_guest += self.run_time("snoop_from_guest")?.saturating_sub(before);
        let empty = stream.empty();
        let before = self.run_time("snoop_to_guest")?;
        for _ in 0..BATCH {
            self.peer.write(&empty)?;
        }
        run.passed_to_guest += self.run_time("snoop_to_guest")?.saturating_sub(before);
        run.passing += BATCH;
        self.empty();
        Ok(())
    }

    /// Empties all rings.
    fn empty(&self) {
        self.copies.take();
        let mut buffer = vec![0; Tap::MAX_READ];
        for tap in self.guests.iter().chain([&self.peer]) {
            while tap.read(&mut buffer).is_ok() {}
        }
    }

    fn run_time(&self, name: &'static str) -> Result<Duration, CostError> {
        let mut all = Duration::ZERO;
        for program in self.programs() {
            all += program.run_time(name)?;
        }
        Ok(all)
    }

    fn programs(&self) -> impl Iterator<Item = &Program> {
        self.served
            .iter()
            .filter_map(|(program, _)| program.as_ref())
    }

    fn acked(&self) -> Result<u64, CostError> {
        let mut all = 0;
        for program in self.programs() {
            all += program.to_guest()?.of("acked");
        }
        Ok(all)
    }

    fn spent(&self) -> Result<Spent, CostError> {
        let mut all = Spent::default();
        for program in self.programs() {
            all = all.and(program.spent()?);
        }
        Ok(all)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let served = std::mem::take(&mut self.served);
        // A failure here cannot be handled.
        let _ = self.netns.run(|| drop(served));
        let _ = Netns::delete(self.netns.name());
    }
}
