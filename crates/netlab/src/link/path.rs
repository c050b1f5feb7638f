//! One direction of a link as a pure model: frames in, trains of segments out, at the right time.
//!
//! ```text
//! frame -> [drop-tail queue, bytes] -> serialisation at `rate` -> [loss, per segment] -> delay -> train
//! ```
//!
//! The queue is not kept as a list. Service is first come, first served at a constant rate, so the
//! moment at which the wire falls free says how many bytes wait, and when each new segment will have
//! left. All of a segment's fate is thus settled when it arrives, and a late caller (a busy machine)
//! makes deliveries late but never changes which segments are lost or when the next ones are due.
//!
//! `now` is an argument everywhere: [`Path::handle_frame`] takes input, [`Path::poll_delivery`] gives
//! output, [`Path::next_due`] says when to come back.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use super::counters::PathCounters;
use super::shape::Shape;
use crate::units::Bytes;

/// A point in a link's time: nanoseconds since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

// === impl Moment ===

impl Moment {
    /// The moment `since_start` after the link began.
    pub fn after(since_start: Duration) -> Self {
        // 584 years fit.
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The segments of one frame, by their lengths on the wire: the Ethernet header and all after it, in
/// bytes. All are of one length but the last, which may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// How many; at least one.
    pub count: usize,
    /// The length of each but the last.
    pub each: u32,
    /// The length of the last.
    pub last: u32,
}

// === impl Segments ===

impl Segments {
    fn wire(self, index: usize) -> u32 {
        if index + 1 == self.count {
            self.last
        } else {
            self.each
        }
    }
}

/// Segments are delivered in trains no longer than this much serialisation time: TCP sees the
/// wire's pacing at this grain, and the host is not woken for every packet.
pub const QUANTUM: Duration = Duration::from_micros(100);

/// What is under way is bounded by the shape (rate x delay + queue), and at least by this where the
/// rate is not.
const LEAST_MEMORY: u64 = 64 << 20;

/// One direction of a link, carrying payloads `P`.
#[derive(Debug)]
pub struct Path<P> {
    shape: Shape,
    /// Losses happen when a draw is below this; of 2^64.
    loss_below: u128,
    memory: u64,
    random: Pcg64,
    is_cut: bool,
    /// When the last accepted segment has left, in nanoseconds and `1/rate`ths of one.
    free_at: u64,
    free_at_fraction: u64,
    under_way: VecDeque<Train<P>>,
    under_way_bytes: u64,
    counters: PathCounters,
}

/// The draws of one direction.
fn losses(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::new(u128::from(seed), u128::from(stream))
}

#[derive(Debug)]
struct Train<P> {
    due: u64,
    bytes: u64,
    payload: P,
}

/// A train being gathered.
#[derive(Default)]
struct Gathering {
    segments: Range<usize>,
    bytes: u64,
}

// === impl Path ===

impl<P> Path<P> {
    /// A direction of `shape` whose losses come from `stream` of `seed`.
    pub fn new(shape: Shape, seed: u64, stream: u64) -> Self {
        let in_flight = shape
            .rate
            .map_or(Bytes(0), |rate| rate.in_time(shape.delay));
        Self {
            shape,
            // 2^64 as a float is exact; a loss of 1 is above every draw.
            loss_below: (shape.loss * 2_f64.powi(64)) as u128,
            memory: in_flight
                .0
                .saturating_add(shape.queue.0)
                .saturating_mul(2)
                .max(LEAST_MEMORY),
            random: losses(seed, stream),
            is_cut: false,
            free_at: 0,
            free_at_fraction: 0,
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            counters: PathCounters::default(),
        }
    }

    /// Draws losses from another seed from now on: the next accepted segment meets its first draw.
    pub fn reseed(&mut self, seed: u64, stream: u64) {
        self.random = losses(seed, stream);
    }

    /// Cuts the wire, or mends it. While it is cut nothing that arrives gets through; what is under
    /// way has passed the cut already.
    pub fn cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
    }

    /// What has happened so far.
    pub fn counters(&self) -> &PathCounters {
        &self.counters
    }

    /// Takes a frame that arrived `now`. `cut` is called with each run of its segments that will be
    /// delivered together, in order, and returns what to deliver.
    pub fn handle_frame(
        &mut self,
        now: Moment,
        segments: Segments,
        mut cut: impl FnMut(Range<usize>) -> P,
    ) {
        self.counters.frames += 1;
        self.counters.segments += segments.count as u64;
        if self.is_cut {
            self.counters.cut_drops += segments.count as u64;
            return;
        }
        let longest = self.longest_train(segments.each);
        let mut train = Gathering::default();
        for index in 0..segments.count {
            let wire = segments.wire(index);
            self.counters.bytes += u64::from(wire);
            if !self.admit(now, u64::from(wire) + train.bytes, wire) {
                self.depart(&mut train, &mut cut);
                continue;
            }
            // The wire is busy until this segment has left, so the train before it must go with the
            // wire's time as it was.
            if self.is_lost() {
                self.depart(&mut train, &mut cut);
                self.serialise(now, wire);
                continue;
            }
            self.serialise(now, wire);
            if train.segments.is_empty() {
                train.segments = index..index;
            }
            train.segments.end = index + 1;
            train.bytes += u64::from(wire);
            if train.segments.len() >= longest {
                self.depart(&mut train, &mut cut);
            }
        }
        self.depart(&mut train, &mut cut);
    }

    /// The next payload whose time has come, if any.
    pub fn poll_delivery(&mut self, now: Moment) -> Option<P> {
        if self.under_way.front()?.due > now.0 {
            return None;
        }
        let train = self.under_way.pop_front()?;
        self.under_way_bytes -= train.bytes;
        self.counters.delivered_bytes += train.bytes;
        self.counters.deliveries += 1;
        let lateness = now.since(Moment(train.due));
        self.counters.latest = self.counters.latest.max(lateness);
        self.counters.late += u64::from(lateness > self.shape.tolerance);
        Some(train.payload)
    }

    /// When [`Self::poll_delivery`] will next have something.
    pub fn next_due(&self) -> Option<Moment> {
        self.under_way.front().map(|train| Moment(train.due))
    }

    /// Whether there is room for a segment of `wire` bytes, in the queue and, with the train it would
    /// join, in memory.
    fn admit(&mut self, now: Moment, held: u64, wire: u32) -> bool {
        if self.waiting(now) + u128::from(wire) > u128::from(self.shape.queue.0)
            && self.shape.rate.is_some()
        {
            self.counters.queue_drops += 1;
            return false;
        }
        if self.under_way_bytes + held > self.memory {
            self.counters.memory_drops += 1;
            return false;
        }
        true
    }

    /// Bytes that have not left yet, with what is left of the segment being serialised, rounded up.
    fn waiting(&self, now: Moment) -> u128 {
        let Some(rate) = self.shape.rate else {
            return 0;
        };
        let Some(busy) = self.free_at.checked_sub(now.0) else {
            return 0;
        };
        // Exact, fraction and all: a queue that is full to the byte takes no byte more.
        let bits = u128::from(busy) * u128::from(rate.0) + u128::from(self.free_at_fraction);
        bits.div_ceil(8_000_000_000)
    }

    /// Moves the moment at which the wire falls free.
    fn serialise(&mut self, now: Moment, wire: u32) {
        if self.free_at < now.0 {
            self.free_at = now.0;
            self.free_at_fraction = 0;
        }
        let Some(rate) = self.shape.rate else { return };
        let time = u128::from(wire) * 8_000_000_000 + u128::from(self.free_at_fraction);
        // A segment is at most 64 KiB: at 1 bit/s that is 5e14 ns, which fits.
        self.free_at += (time / u128::from(rate.0)) as u64;
        self.free_at_fraction = (time % u128::from(rate.0)) as u64;
    }

    fn is_lost(&mut self) -> bool {
        // Lossless paths draw nothing, so that giving one direction a loss later changes no other run.
        let lost = self.loss_below > 0 && u128::from(self.random.next_u64()) < self.loss_below;
        self.counters.loss_drops += u64::from(lost);
        lost
    }

    fn depart(&mut self, train: &mut Gathering, cut: &mut impl FnMut(Range<usize>) -> P) {
        let Gathering { segments, bytes } = std::mem::take(train);
        if segments.is_empty() {
            return;
        }
        let due = Moment(self.free_at).0 + Moment::after(self.shape.delay).0;
        self.under_way_bytes += bytes;
        self.under_way.push_back(Train {
            due,
            bytes,
            payload: cut(segments),
        });
    }

    fn longest_train(&self, wire: u32) -> usize {
        let Some(rate) = self.shape.rate else {
            return usize::MAX;
        };
        let segments = rate.in_time(QUANTUM).0 / u64::from(wire.max(1));
        usize::try_from(segments).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
