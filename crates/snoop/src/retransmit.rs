//! Decides which retained segments to retransmit to a guest, and when. Pure: the time and the
//! programs' state of a flow are arguments.
//!
//! A guest that waits for its CPU has not lost anything, so only its own statements are evidence
//! that it lacks data (`contradicted`, `doubt`). What it does not acknowledge otherwise may be in its
//! ring, lost, or refused by its firewall: it is retransmitted too, and nothing is said about the
//! guest, which drops an unneeded retransmission as a duplicate.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::wire::{Copy, Flow, Key};

/// The time after which a guest that is heard, but has not acknowledged a segment in its ring, gets
/// the segment again: an ACK is delayed by no more than 500 ms (RFC 9293 3.8.6.3).
pub const HEARD: Duration = Duration::from_millis(500);

/// The same time for a guest that is not heard.
pub const SILENT: Duration = Duration::from_secs(2);

/// The number of retransmissions in a row from which the guest refuses the flow's data: it had room for
/// them, was heard long after each, and has not taken them. The last one is followed by 4 s.
const REFUSED: u32 = 3;

/// The upper limit of these times, which double with each try (RFC 6298 5.5).
pub const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Age at which the copy of a segment that was not acknowledged early is dropped. (The programs
/// decide within microseconds.)
const NOT_ACKNOWLEDGED: Duration = Duration::from_millis(100);

/// The time without progress after which the guest is given up: about as long as Linux senders try
/// (`tcp_retries2`, 924 s).
pub const GIVE_UP: Duration = Duration::from_secs(900);

/// The maximum number of segments sent at once while the guest accepts retransmissions.
const BURST_MAX: u32 = 32;

/// One tick of the programs' clock in nanoseconds, as a shift.
const TICK_SHIFT: u32 = 20;

/// Identifies a flow: the tap's interface index, and the key.
pub type Id = (u32, Key);

/// All retained copies.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    flows: HashMap<Id, FlowCopies>,
    /// Bytes of frames, by interface index of the tap.
    bytes: HashMap<u32, usize>,
    /// When the latest segment that a tap's guest has acknowledged was put into its ring, by interface
    /// index. The ring keeps order, so what was put there before has left it.
    taken: HashMap<u32, Duration>,
}

/// The copies of one flow, and the progress of its repair.
#[derive(Debug)]
struct FlowCopies {
    /// The copies in the order of their delivery into the ring.
    copies: VecDeque<Copy>,
    /// The total size of the copies' frames, in bytes.
    bytes: usize,
    /// Distinguishes connections with the same key ([`Flow::begun`]).
    begun: u32,
    /// VM_SEQ and RCV_EDGE at the last check.
    vm_seq: u32,
    rcv_edge: u32,
    /// The time at which VM_SEQ last moved, or the first copy arrived.
    moved: Duration,
    /// The time of the last retransmission, and the number of tries since VM_SEQ moved.
    sent: Option<Duration>,
    tries: u32,
    /// The number of these that the guest has not taken, although it was heard and had room.
    refused: u32,
    /// Whether the guest is known to lack data.
    lacking: bool,
    /// Whether the programs reported evidence that has not been handled yet.
    evidence: bool,
    /// The number of segments sent at once, and the end of the last ones.
    burst: u32,
    sent_to: u32,
}

/// The actions that are due for a flow.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Segments to send: the number of a copy, and a range of sequence numbers in it.
    pub(crate) segments: Vec<(usize, Range<u32>)>,
    pub(crate) news: Option<News>,
}

/// A change to report about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The guest lacks this many early-acknowledged bytes, which are now retransmitted.
    Lacks(u32),
    /// The guest has everything.
    Repaired,
    /// The guest was given up, and this many bytes are lost.
    Lost(u32),
}

// === impl Retained ===

impl Retained {
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Returns the bytes of frames retained for a tap's guest.
    pub(crate) fn bytes_of(&self, ifindex: u32) -> usize {
        self.bytes.get(&ifindex).copied().unwrap_or(0)
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.flows.keys().copied().collect()
    }

    /// Adds a copy.
    pub(crate) fn add(&mut self, copy: Copy, now: Duration) {
        let tap = self.bytes.entry(copy.ifindex).or_default();
        let flow = self.flows.entry((copy.ifindex, copy.key));
        let flow = flow.or_insert_with(|| FlowCopies::new(&copy, now));
        let before = flow.bytes;
        flow.add(copy, now);
        *tap = *tap + flow.bytes - before;
    }

    /// Records the programs' evidence that the guest lacks data of a flow.
    pub(crate) fn suspect(&mut self, id: &Id) {
        if let Some(held) = self.flows.get_mut(id) {
            held.evidence = true;
        }
    }

    /// Returns copy number `number` of a flow; see [`Due::segments`].
    pub(crate) fn copy(&self, id: &Id, number: usize) -> Option<&Copy> {
        self.flows.get(id)?.copies.get(number)
    }

    /// Returns whether the guest does not take the connection's data for another reason than a lack of
    /// time or room, for example because its firewall drops it. `begun`: see [`Flow::begun`].
    pub(crate) fn is_refused(&self, id: &Id, begun: u32) -> bool {
        let held = self.flows.get(id);
        held.is_some_and(|held| held.begun == begun && held.refused >= REFUSED)
    }

    /// Checks a flow. `flow` is the programs' state of it, or `None` if they removed it because it
    /// is over.
    pub(crate) fn look(&mut self, id: &Id, flow: Option<&Flow>, now: Duration) -> Due {
        let Some(held) = self.flows.get_mut(id) else {
            return Due::default();
        };
        let before = held.bytes;
        let taken = self.taken.entry(id.0).or_default();
        let due = match flow {
            Some(flow) => held.look(flow, taken, now),
            None => {
                held.clear();
                Due::default()
            }
        };
        let (ended, after) = (held.copies.is_empty(), held.bytes);
        if let Some(tap) = self.bytes.get_mut(&id.0) {
            *tap -= before - after;
        }
        if ended {
            self.flows.remove(id);
        }
        due
    }

    /// Restarts the timers of a tap's flows when the guest runs again: it could take nothing while
    /// it was stopped.
    pub(crate) fn resume(&mut self, ifindex: u32, now: Duration) {
        for ((index, _), held) in &mut self.flows {
            if *index == ifindex {
                (held.moved, held.sent) = (now, None);
                (held.tries, held.refused) = (0, 0);
            }
        }
    }

    /// Drops all flows of a tap that is no longer served.
    pub(crate) fn forget(&mut self, ifindex: u32) {
        self.flows.retain(|(index, _), _| *index != ifindex);
        self.bytes.remove(&ifindex);
        self.taken.remove(&ifindex);
    }
}

// === impl FlowCopies ===

impl FlowCopies {
    fn new(first: &Copy, now: Duration) -> Self {
        let vm_seq = first.seq;
        Self {
            copies: VecDeque::new(),
            bytes: 0,
            begun: first.begun,
            vm_seq,
            rcv_edge: vm_seq,
            moved: now,
            sent: None,
            tries: 0,
            refused: 0,
            lacking: false,
            evidence: false,
            burst: 1,
            sent_to: vm_seq,
        }
    }

    fn clear(&mut self) {
        self.copies.clear();
        self.bytes = 0;
    }

    fn add(&mut self, copy: Copy, now: Duration) {
        // The copy belongs to another connection with the same ports.
        if copy.begun != self.begun {
            *self = Self::new(&copy, now);
        }
        self.bytes += copy.frame.len();
        self.copies.push_back(copy);
    }

    /// Drops copies of data that the guest has acknowledged, and of segments that were not
    /// acknowledged early after all (NEXT_SEQ did not move, because the ring was full).
    fn drop_unneeded(&mut self, flow: &Flow, taken: &mut Duration, now: Duration) {
        let bytes = &mut self.bytes;
        self.copies.retain(|copy| {
            let is_taken = !is_after(copy.end(), flow.vm_seq);
            let is_early = is_after(flow.next_seq, copy.seq);
            let is_new = now.saturating_sub(copy.at) < NOT_ACKNOWLEDGED;
            let stays = !is_taken && (is_early || is_new);
            if is_taken {
                *taken = copy.at.max(*taken);
            }
            if !stays {
                *bytes -= copy.frame.len();
            }
            stays
        });
    }

    /// `taken`: see [`Retained::taken`].
    fn look(&mut self, flow: &Flow, taken: &mut Duration, now: Duration) -> Due {
        if flow.begun != self.begun {
            self.clear();
            return Due::default();
        }
        let progress = flow.vm_seq != self.vm_seq;
        // The guest has room again, and only the host knows what it lacks.
        let opens = !progress && is_after(flow.rcv_edge, self.rcv_edge);
        self.rcv_edge = flow.rcv_edge;
        if progress {
            (self.vm_seq, self.moved) = (flow.vm_seq, now);
            (self.tries, self.refused) = (0, 0);
        }
        // This includes copies that reached the ring buffer late.
        self.drop_unneeded(flow, taken, now);
        let lacks = flow.exposure();
        if lacks == 0 {
            let repaired = std::mem::take(&mut self.lacking);
            self.evidence = false;
            return Due {
                segments: Vec::new(),
                news: repaired.then_some(News::Repaired),
            };
        }
        if now.saturating_sub(self.moved) >= GIVE_UP {
            self.clear();
            return Due {
                segments: Vec::new(),
                news: Some(News::Lost(lacks)),
            };
        }
        let evidence = std::mem::take(&mut self.evidence);
        let heard = self.has_waited(now, HEARD) && self.is_heard(flow, *taken);
        // It has taken just what was retransmitted, so it had lost that, and lacks more.
        let lacks_more = progress && self.sent.is_some() && flow.vm_seq == self.sent_to;
        let lacking = (evidence || lacks_more) && !self.lacking;
        let accepts = progress && self.lacking || lacks_more;
        self.lacking |= lacking;
        if accepts {
            self.burst = (self.burst * 2).min(BURST_MAX);
        } else if lacking || self.lacking && opens || heard || self.has_waited(now, SILENT) {
            let has_room = !self.lacking && !is_after(self.sent_to, flow.rcv_edge);
            self.refused += u32::from(heard && self.tries > 0 && has_room);
            self.burst = 1;
            self.sent_to = flow.vm_seq;
            self.tries += 1;
        } else {
            return Due::default();
        }
        let news = lacking.then_some(News::Lacks(lacks));
        let segments = self.segments(flow);
        if !segments.is_empty() {
            self.sent = Some(now);
        }
        Due { segments, news }
    }

    /// Returns whether nothing has happened for `first`, doubled with each try.
    fn has_waited(&self, now: Duration, first: Duration) -> bool {
        let pause = first.saturating_mul(1 << self.tries.min(16)).min(PAUSE_MAX);
        now.saturating_sub(self.last_put().max(self.moved)) >= pause
    }

    /// Returns when the first unacknowledged segment was last put into the ring.
    fn last_put(&self) -> Duration {
        let put = self.copies.front().map(|copy| copy.at);
        [put, self.sent]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or_default()
    }

    /// Returns whether the guest was heard in this flow long after its first unacknowledged segment
    /// was put into its ring, or has taken a later segment of another flow.
    fn is_heard(&self, flow: &Flow, taken: Duration) -> bool {
        let put = self.last_put();
        // In ticks of the programs' clock, which wrap.
        let ticks = (put.as_nanos() >> TICK_SHIFT) as u32;
        let heard = flow.heard.wrapping_sub(ticks).cast_signed();
        i64::from(heard) << TICK_SHIFT >= HEARD.as_nanos() as i64 || taken > put
    }

    /// Returns the segments to send at once. The first one is always included, because it also
    /// probes a closed window (RFC 9293 3.8.6.1); more are included if they fit into the guest's
    /// window.
    fn segments(&mut self, flow: &Flow) -> Vec<(usize, Range<u32>)> {
        let mut segments = Vec::new();
        let mut next = later(self.sent_to, flow.vm_seq);
        while segments.len() < self.burst as usize && is_after(flow.acked_seq, next) {
            let holds = |copy: &Copy| !is_after(copy.seq, next) && is_after(copy.end(), next);
            let Some((number, copy)) = self.copies.iter().enumerate().find(|(_, c)| holds(c))
            else {
                break;
            };
            let at = next.wrapping_sub(copy.seq);
            let size = copy.segment.max(1);
            let end = copy
                .seq
                .wrapping_add((at / size * size + size).min(copy.len));
            if next != flow.vm_seq && is_after(end, flow.rcv_edge) {
                break;
            }
            segments.push((number, next..end));
            next = end;
        }
        self.sent_to = next;
        segments
    }
}

/// Compares sequence numbers by signed difference (RFC 9293 3.4).
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn later(a: u32, b: u32) -> u32 {
    if is_after(b, a) { b } else { a }
}

#[cfg(test)]
mod tests;
