//! A pure model of one direction of a link: it takes frames and returns trains of segments when they
//! are due.
//!
//! ```text
//! frame -> [policer] -> [queue, bytes] -> serialisation at `rate` -> [loss, per segment] -> delay -> train
//! ```
//!
//! A drop-tail queue is not a list. Service is first come, first served at a constant rate, so the time
//! at which the wire becomes free determines how many bytes wait and when each new segment leaves.
//! Everything about a segment is decided when it arrives. CoDel decides when a segment leaves, so its
//! queue is a list; a segment leaves at the moment at which the wire becomes free, whenever the caller
//! comes. Either way a delivery that the caller takes late (on a busy machine) never changes which
//! segments are dropped, marked or lost, or when the next ones are due. A frame that the caller passes
//! late may: it arrives at the `now` that the caller passes, and finds the queue of that moment.
//!
//! The caller passes the time: [`Path::handle_frame`] takes input, [`Path::poll_delivery`] returns
//! output, and [`Path::next_due`] says when to call again.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use super::aqm::{Aqm, PacketInfo};
use super::counters::PathCounters;
use super::shape::Shape;
use crate::units::Bytes;

/// A point in time, in nanoseconds since the link was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

// === impl Moment ===

impl Moment {
    /// Returns the moment `since_start` after the link was created.
    pub fn after(since_start: Duration) -> Self {
        // 584 years fit.
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The lengths of a frame's segments on the wire, in bytes from the Ethernet header on. All are equal
/// but the last, which may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// The number of segments; at least one.
    pub count: usize,
    /// The length of each segment but the last.
    pub each: u32,
    /// The length of the last segment.
    pub last: u32,
    /// A number of the flow that they belong to. FQ-CoDel has a queue for each.
    pub flow: u32,
    /// Whether they may be marked instead of dropped (ECT, RFC 3168).
    pub is_ect: bool,
}

// === impl Segments ===

impl Segments {
    fn length(self, index: usize) -> u32 {
        if index + 1 == self.count {
            self.last
        } else {
            self.each
        }
    }
}

/// The length of an Ethernet header.
const ETHERNET: u32 = 14;

/// The longest train of segments that is delivered at once, in serialisation time. TCP sees the pacing
/// of the wire at this granularity, and the host is not woken for every packet.
pub const QUANTUM: Duration = Duration::from_micros(100);

/// The least memory for segments in flight, in bytes. Beyond it, the shape (rate x longest delay + queue)
/// bounds them.
const MIN_MEMORY: u64 = 64 << 20;

/// A train that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// What the caller has cut out of the frame for it.
    pub payload: P,
    /// Whether its segment is to get a mark of congestion (CE, RFC 3168).
    pub is_marked: bool,
}

/// The model of one direction of a link. `P` is the caller's type for a train's payload.
#[derive(Debug)]
pub struct Path<P> {
    shape: Shape,
    /// A segment is lost if a draw of 64 bits is below this.
    loss_below: u128,
    /// The same for a segment that is held back.
    held_below: u128,
    /// The most bytes in flight.
    memory: u64,
    /// Draws losses.
    random: Pcg64,
    /// Draws jitter and which segments are held back, so that these do not change the losses.
    delays: Pcg64,
    is_cut: bool,
    /// When the last accepted segment has left: nanoseconds, and `1/rate`ths of one.
    free_at: u64,
    free_at_fraction: u64,
    /// When the policer's bucket will be full again, in nanoseconds.
    refilled_at: u64,
    /// The waiting segments, unless the queue is drop-tail.
    aqm: Option<Aqm<P>>,
    /// When the last train of `in_flight` is due.
    last_due: u64,
    in_flight: VecDeque<Train<P>>,
    /// Trains that are held back. All are held for the same time, so this is in the order of delivery, too.
    held: VecDeque<Train<P>>,
    in_flight_bytes: u64,
    counters: PathCounters,
}

/// Returns the generators of one direction's losses and delays.
fn generators(seed: u64, stream: u64) -> [Pcg64; 2] {
    // A link uses the streams 0 and 1.
    [stream, stream + 2].map(|stream| Pcg64::new(u128::from(seed), u128::from(stream)))
}

/// Returns the bound below which a share of the draws of 64 bits are.
fn bound(share: f64) -> u128 {
    // 2^64 is exact as a float, and above every draw.
    (share * 2_f64.powi(64)) as u128
}

/// Segments that are delivered together.
#[derive(Debug)]
struct Train<P> {
    due: u64,
    bytes: u64,
    delivery: Delivery<P>,
}

/// What happens to a serialised segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Carried,
    HeldBack,
    Lost,
}

/// A train that may still get more segments.
#[derive(Default)]
struct OpenTrain {
    segments: Range<usize>,
    bytes: u64,
}

// === impl Path ===

impl<P> Path<P> {
    /// A direction with this shape for IP packets of at most `mtu` bytes, whose losses are drawn from
    /// `stream` of `seed`.
    pub fn new(shape: Shape, mtu: u16, seed: u64, stream: u64) -> Self {
        let longest_delay = shape.delay + shape.jitter + shape.held_for;
        let on_the_wire = shape
            .rate
            .map_or(Bytes(0), |rate| rate.in_time(longest_delay));
        let [random, delays] = generators(seed, stream);
        Self {
            shape,
            loss_below: bound(shape.loss),
            held_below: bound(shape.reordering),
            memory: on_the_wire
                .0
                .saturating_add(shape.queue.0)
                .saturating_mul(2)
                .max(MIN_MEMORY),
            random,
            delays,
            is_cut: false,
            free_at: 0,
            free_at_fraction: 0,
            refilled_at: 0,
            aqm: Aqm::new(shape.discipline, shape.queue.0, u32::from(mtu) + ETHERNET),
            last_due: 0,
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            in_flight_bytes: 0,
            counters: PathCounters::default(),
        }
    }

    /// Draws losses and delays from another seed from now on: the next accepted segment gets its first
    /// draw.
    pub fn reseed(&mut self, seed: u64, stream: u64) {
        [self.random, self.delays] = generators(seed, stream);
    }

    /// Cuts the wire or restores it. While it is cut, arriving segments are dropped; those in flight have
    /// passed the cut already.
    pub fn cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
    }

    /// Returns the counters.
    pub fn counters(&self) -> &PathCounters {
        &self.counters
    }

    /// Handles a frame that arrives at `now`. Calls `cut` with each run of its segments that will be
    /// delivered together, in order; `cut` returns the payload to deliver.
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
        if self.aqm.is_some() {
            self.enqueue(now, segments, cut);
            return;
        }
        let longest = self.longest_train(segments.each);
        let mut train = OpenTrain::default();
        for index in 0..segments.count {
            let wire = segments.length(index);
            self.counters.bytes += u64::from(wire);
            let is_accepted =
                self.passes(now, wire) && self.accept(now, u64::from(wire) + train.bytes, wire);
            if !is_accepted {
                self.close(&mut train, &mut cut);
                continue;
            }
            // A train is due by the time at which its last segment has left, so it closes before a
            // segment that is not in it moves that.
            let fate = self.fate();
            if fate != Fate::Carried {
                self.close(&mut train, &mut cut);
            }
            self.serialise(now, wire);
            if fate != Fate::Carried {
                let of = index..index + 1;
                self.depart(fate, wire.into(), false, || cut(of));
                continue;
            }
            if train.segments.is_empty() {
                train.segments = index..index;
            }
            train.segments.end = index + 1;
            train.bytes += u64::from(wire);
            if train.segments.len() >= longest {
                self.close(&mut train, &mut cut);
            }
        }
        self.close(&mut train, &mut cut);
    }

    /// Queues the segments of a frame one by one: each leaves, and may be dropped, by itself.
    fn enqueue(&mut self, now: Moment, segments: Segments, mut cut: impl FnMut(Range<usize>) -> P) {
        self.advance(now);
        for index in 0..segments.count {
            let info = PacketInfo {
                flow: segments.flow,
                is_ect: segments.is_ect,
                wire: segments.length(index),
            };
            let wire = u64::from(info.wire);
            self.counters.bytes += wire;
            if !self.passes(now, info.wire) {
                continue;
            }
            let Some(aqm) = &mut self.aqm else { return };
            if self.in_flight_bytes + aqm.bytes() + wire > self.memory {
                self.counters.memory_drops += 1;
                continue;
            }
            if aqm.is_empty() {
                // The wire has been idle, and takes the segment at once.
                self.free_at = self.free_at.max(now.0);
            }
            self.counters.queue_drops += aqm.enqueue(now.0, info, cut(index..index + 1));
            self.advance(now);
        }
    }

    /// Lets the waiting segments leave whose turn on the wire has come by `now`.
    fn advance(&mut self, now: Moment) {
        while let Some(aqm) = self.aqm.as_mut().filter(|aqm| !aqm.is_empty()) {
            if self.free_at > now.0 {
                return;
            }
            let start = self.free_at;
            let (left, dropped) = aqm.dequeue(start);
            self.counters.aqm_drops += dropped;
            let Some(left) = left else { return };
            self.counters.waited += Duration::from_nanos(left.waited);
            self.counters.marks += u64::from(left.is_marked);
            self.serialise(Moment(start), left.wire);
            let fate = self.fate();
            self.depart(fate, left.wire.into(), left.is_marked, || left.payload);
        }
    }

    /// Returns the next train that is due at `now`, if any.
    pub fn poll_delivery(&mut self, now: Moment) -> Option<Delivery<P>> {
        self.advance(now);
        let first =
            |trains: &VecDeque<Train<P>>| trains.front().map_or(u64::MAX, |train| train.due);
        let (in_flight, held) = (first(&self.in_flight), first(&self.held));
        if in_flight.min(held) > now.0 {
            return None;
        }
        let train = match in_flight <= held {
            true => self.in_flight.pop_front()?,
            false => self.held.pop_front()?,
        };
        self.in_flight_bytes -= train.bytes;
        self.counters.delivered_bytes += train.bytes;
        self.counters.deliveries += 1;
        let lateness = now.since(Moment(train.due));
        self.counters.latest = self.counters.latest.max(lateness);
        self.counters.late += u64::from(lateness > self.shape.tolerance);
        Some(train.delivery)
    }

    /// Returns when [`Self::poll_delivery`] is next to be called: when a train is due, or a waiting
    /// segment leaves.
    pub fn next_due(&self) -> Option<Moment> {
        let trains = [self.in_flight.front(), self.held.front()];
        let due = trains.into_iter().flatten().map(|train| train.due);
        let is_waiting = self.aqm.as_ref().is_some_and(|aqm| !aqm.is_empty());
        let leaves = is_waiting.then_some(self.free_at);
        due.chain(leaves).min().map(Moment)
    }

    /// Returns whether the policer passes a segment of `wire` bytes. Counts the drop if not.
    fn passes(&mut self, now: Moment, wire: u32) -> bool {
        let Some(policer) = self.shape.policer else {
            return true;
        };
        let time = |bytes: u64| bytes.saturating_mul(8_000_000_000) / policer.rate.0;
        let refilled_at = self.refilled_at.max(now.0) + time(wire.into());
        let passes = refilled_at - now.0 <= time(policer.burst.0);
        match passes {
            true => self.refilled_at = refilled_at,
            false => self.counters.policer_drops += 1,
        }
        passes
    }

    /// Returns whether the queue has room for a segment of `wire` bytes, and memory for `train` bytes:
    /// the train that the segment would join. Counts the drop if not.
    fn accept(&mut self, now: Moment, train: u64, wire: u32) -> bool {
        if self.waiting(now) + u128::from(wire) > u128::from(self.shape.queue.0)
            && self.shape.rate.is_some()
        {
            self.counters.queue_drops += 1;
            return false;
        }
        if self.in_flight_bytes + train > self.memory {
            self.counters.memory_drops += 1;
            return false;
        }
        true
    }

    /// Returns the bytes that have not left yet, the rest of the segment on the wire included, rounded up.
    fn waiting(&self, now: Moment) -> u128 {
        let Some(rate) = self.shape.rate else {
            return 0;
        };
        let Some(busy) = self.free_at.checked_sub(now.0) else {
            return 0;
        };
        // Exact to the fraction, so that the queue's limit is exact to the byte.
        let bits = u128::from(busy) * u128::from(rate.0) + u128::from(self.free_at_fraction);
        bits.div_ceil(8_000_000_000)
    }

    /// Advances the time at which the wire becomes free by a segment of `wire` bytes.
    fn serialise(&mut self, now: Moment, wire: u32) {
        if self.free_at < now.0 {
            self.free_at = now.0;
            self.free_at_fraction = 0;
        }
        self.counters.serialised += 1;
        self.counters.waited += Moment(self.free_at).since(now);
        let Some(rate) = self.shape.rate else { return };
        let time = u128::from(wire) * 8_000_000_000 + u128::from(self.free_at_fraction);
        // A segment is at most 64 KiB: at 1 bit/s that is 5e14 ns, which fits.
        self.free_at += (time / u128::from(rate.0)) as u64;
        self.free_at_fraction = (time % u128::from(rate.0)) as u64;
    }

    /// Draws what happens to a segment.
    fn fate(&mut self) -> Fate {
        // A path without loss draws nothing, so that giving one direction a loss changes no other run.
        if self.loss_below > 0 && u128::from(self.random.next_u64()) < self.loss_below {
            return Fate::Lost;
        }
        match self.held_below > 0 && u128::from(self.delays.next_u64()) < self.held_below {
            true => Fate::HeldBack,
            false => Fate::Carried,
        }
    }

    /// Puts a train in flight, if it has segments.
    fn close(&mut self, train: &mut OpenTrain, cut: &mut impl FnMut(Range<usize>) -> P) {
        let OpenTrain { segments, bytes } = std::mem::take(train);
        if !segments.is_empty() {
            self.depart(Fate::Carried, bytes, false, || cut(segments));
        }
    }

    /// Sends a train on its way, which has just been serialised.
    fn depart(&mut self, fate: Fate, bytes: u64, is_marked: bool, payload: impl FnOnce() -> P) {
        if fate == Fate::Lost {
            self.counters.loss_drops += 1;
            return;
        }
        let due = self.free_at + Moment::after(self.shape.delay).0 + self.jitter();
        let train = |due| Train {
            due,
            bytes,
            delivery: Delivery {
                payload: payload(),
                is_marked,
            },
        };
        self.in_flight_bytes += bytes;
        self.last_due = self.last_due.max(due);
        if fate == Fate::HeldBack {
            self.counters.held += 1;
            let until = self.last_due + Moment::after(self.shape.held_for).0;
            self.held.push_back(train(until));
        } else {
            self.in_flight.push_back(train(self.last_due));
        }
    }

    /// Draws the additional delay of a train, in nanoseconds.
    fn jitter(&mut self) -> u64 {
        if self.shape.jitter.is_zero() {
            return 0;
        }
        let longest = u128::from(Moment::after(self.shape.jitter).0);
        // Below `longest`, which fits.
        ((u128::from(self.delays.next_u64()) * longest) >> 64) as u64
    }

    /// Returns the most segments of `wire` bytes that leave within [`QUANTUM`]; at least 1.
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
