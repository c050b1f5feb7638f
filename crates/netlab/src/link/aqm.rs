//! Queues that keep themselves short: CoDel (RFC 8289) and FQ-CoDel (RFC 8290), as pure models.
//!
//! Such a queue decides when a segment leaves it, by how long that segment has waited, so unlike the
//! drop-tail queue it is a list. The caller passes the time at which the wire becomes free.

use std::collections::VecDeque;

use super::shape::Discipline;

/// The delay that a queue may keep, in nanoseconds (RFC 8289 4.3).
const TARGET: u64 = 5_000_000;
/// The time for which a queue may exceed [`TARGET`], in nanoseconds: long enough for a sender to react
/// (RFC 8289 4.3).
const INTERVAL: u64 = 100_000_000;
/// The number of queues of FQ-CoDel (RFC 8290 5.2.3).
const QUEUES: usize = 1024;

/// The properties of a segment that decide its queue and its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketInfo {
    /// A number of the segment's flow.
    pub(super) flow: u32,
    /// Whether the segment may be marked instead of dropped (ECT, RFC 3168).
    pub(super) is_ect: bool,
    /// Its length on the wire.
    pub(super) wire: u32,
}

/// A segment that has left the queue.
#[derive(Debug)]
pub(super) struct Dequeued<P> {
    pub(super) payload: P,
    pub(super) wire: u32,
    /// How long it waited, in nanoseconds.
    pub(super) waited: u64,
    /// Whether it is to get a mark of congestion (CE, RFC 3168).
    pub(super) is_marked: bool,
}

/// A queue with active management. CoDel is FQ-CoDel with a single queue.
#[derive(Debug)]
pub(super) struct Aqm<P> {
    /// The bytes that may wait.
    limit: u64,
    /// The longest frame. It is the quantum: the bytes that a queue may send in its turn (RFC 8290 5.2.4).
    /// And with no more than this waiting, a drop would leave the wire idle (RFC 8289 5.5).
    quantum: u32,
    bytes: u64,
    queues: Vec<Queue<P>>,
    /// Queues that just became busy have priority over those that stay busy (RFC 8290 4.2).
    new: VecDeque<usize>,
    old: VecDeque<usize>,
}

#[derive(Debug)]
struct Queue<P> {
    segments: VecDeque<Waiting<P>>,
    bytes: u64,
    /// The bytes that it may still send in its turn.
    credit: i64,
    /// Whether it is in one of the lists of busy queues.
    is_listed: bool,
    control: Control,
}

#[derive(Debug)]
struct Waiting<P> {
    arrived: u64,
    info: PacketInfo,
    payload: P,
}

/// The state of CoDel, with the names of RFC 8289 5.
#[derive(Debug, Clone, Copy, Default)]
struct Control {
    first_above: Option<u64>,
    drop_next: u64,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

// === impl Aqm ===

impl<P> Aqm<P> {
    /// Returns the queue for this discipline; `None` for drop-tail. At most `limit` bytes wait, in frames
    /// of at most `longest` bytes.
    pub(super) fn new(discipline: Discipline, limit: u64, longest: u32) -> Option<Self> {
        let count = match discipline {
            Discipline::DropTail => return None,
            Discipline::Codel => 1,
            Discipline::FqCodel => QUEUES,
        };
        Some(Self {
            limit,
            quantum: longest,
            bytes: 0,
            queues: (0..count).map(|_| Queue::default()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a segment that arrives at `now`. Returns the number of segments dropped because the
    /// queue was full: the segment itself, or with FQ-CoDel the first of the longest queue (RFC 8290 4.1).
    pub(super) fn enqueue(&mut self, now: u64, info: PacketInfo, payload: P) -> u64 {
        let wire = u64::from(info.wire);
        if self.queues.len() == 1 && self.bytes + wire > self.limit {
            return 1;
        }
        let index = info.flow as usize % self.queues.len();
        let queue = &mut self.queues[index];
        queue.bytes += wire;
        queue.segments.push_back(Waiting {
            arrived: now,
            info,
            payload,
        });
        self.bytes += wire;
        if !queue.is_listed {
            queue.is_listed = true;
            queue.credit = self.quantum.into();
            self.new.push_back(index);
        }
        let mut dropped = 0;
        while self.bytes > self.limit {
            let longest = self.queues.iter_mut().max_by_key(|queue| queue.bytes);
            let Some(first) = longest.and_then(Queue::pop) else {
                break;
            };
            self.bytes -= u64::from(first.info.wire);
            dropped += 1;
        }
        dropped
    }

    /// Returns the segment that leaves when the wire becomes free at `now`, if any, and the
    /// number of segments that CoDel dropped before it.
    pub(super) fn dequeue(&mut self, now: u64) -> (Option<Dequeued<P>>, u64) {
        let mut dropped = 0;
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let Some(index) = list.pop_front() else {
                return (None, dropped);
            };
            let queue = &mut self.queues[index];
            if queue.credit <= 0 {
                queue.credit += i64::from(self.quantum);
                self.old.push_back(index);
                continue;
            }
            let before = queue.bytes;
            let left = queue.dequeue(now, self.quantum, &mut dropped);
            self.bytes -= before - queue.bytes;
            let Some(left) = left else {
                // A new queue that has become empty waits for one turn of the old ones, so that a flow
                // does not gain priority again by pausing.
                if is_new && !self.old.is_empty() {
                    self.old.push_back(index);
                } else {
                    queue.is_listed = false;
                }
                continue;
            };
            queue.credit -= i64::from(left.wire);
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.push_front(index);
            return (Some(left), dropped);
        }
    }
}

// === impl Queue ===

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self {
            segments: VecDeque::new(),
            bytes: 0,
            credit: 0,
            is_listed: false,
            control: Control::default(),
        }
    }
}

impl<P> Queue<P> {
    fn pop(&mut self) -> Option<Waiting<P>> {
        let first = self.segments.pop_front()?;
        self.bytes -= u64::from(first.info.wire);
        Some(first)
    }

    /// CoDel's `dequeue` (RFC 8289 5.6), for frames of at most `longest` bytes. Drops are added to
    /// `dropped`.
    fn dequeue(&mut self, now: u64, longest: u32, dropped: &mut u64) -> Option<Dequeued<P>> {
        let (mut first, mut may_drop) = self.pop_judged(now, longest)?;
        let mut is_marked = false;
        if self.control.is_dropping {
            self.control.is_dropping = may_drop;
            while self.control.is_dropping && now >= self.control.drop_next {
                self.control.count = self.control.count.saturating_add(1);
                let next = self.control.next(self.control.drop_next);
                if first.info.is_ect {
                    is_marked = true;
                    self.control.drop_next = next;
                    break;
                }
                *dropped += 1;
                (first, may_drop) = self.pop_judged(now, longest)?;
                match may_drop {
                    true => self.control.drop_next = next,
                    false => self.control.is_dropping = false,
                }
            }
        } else if may_drop {
            is_marked = first.info.is_ect;
            self.control.start(now);
            if !is_marked {
                *dropped += 1;
                (first, _) = self.pop_judged(now, longest)?;
            }
        }
        Some(Dequeued {
            waited: now - first.arrived,
            wire: first.info.wire,
            payload: first.payload,
            is_marked,
        })
    }

    /// Returns the first segment, and whether the queue has been too long for long enough that CoDel may
    /// drop it (`dodequeue`).
    fn pop_judged(&mut self, now: u64, longest: u32) -> Option<(Waiting<P>, bool)> {
        let Some(first) = self.pop() else {
            self.control.first_above = None;
            self.control.is_dropping = false;
            return None;
        };
        if now - first.arrived < TARGET || self.bytes <= u64::from(longest) {
            self.control.first_above = None;
            return Some((first, false));
        }
        let since = *self.control.first_above.get_or_insert(now + INTERVAL);
        Some((first, now >= since))
    }
}

// === impl Control ===

impl Control {
    /// Starts to drop. If the queue was too long a short time ago, the rate of drops that controlled it
    /// then is the best guess.
    fn start(&mut self, now: u64) {
        let since_last = self.count.saturating_sub(self.last_count);
        let is_recent = now < self.drop_next.saturating_add(16 * INTERVAL);
        self.count = if since_last > 1 && is_recent {
            since_last
        } else {
            1
        };
        self.last_count = self.count;
        self.drop_next = self.next(now);
        self.is_dropping = true;
    }

    /// Returns when the next segment is to be dropped if the last one was at `from`.
    fn next(&self, from: u64) -> u64 {
        from + (INTERVAL as f64 / f64::from(self.count.max(1)).sqrt()) as u64
    }
}
