//! Watches both sides of the host for an early ACK that the guest might not cover.
//!
//! The checker knows which segments the guest has sent and which have left its ring. It knows
//! nothing about `taut snoop`. Its events must be reported in causal order: a frame of the guest
//! before the frame enters the tap, and a frame for the peer after it has left the host.

mod history;
mod violation;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::Instant;

use super::segment::{ACK, FlowId, RST, SYN, Segment};
use history::{Lagged, RecentEdge, is_after, later};
use violation::Violation;

/// The number of violations that are reported in full.
const DESCRIBED: usize = 8;
/// The number of last frames of a flow that are shown with a violation.
const RECENT: usize = 24;

/// Where a frame was seen.
#[derive(Clone, Copy, Debug)]
enum Vantage {
    PeerSends,
    GuestGot,
    GuestSends,
    PeerGot,
}

/// The checker's results.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Frames with data for the guest that have entered the host.
    pub(super) data: u64,
    /// Early ACKs: those beyond what the guest itself had acknowledged.
    pub(super) early: u64,
    /// Frames in which the guest shrinks a window that it had advertised.
    pub(super) retreats: u64,
    pub(super) violations: u64,
    /// The first of the violations, in words.
    pub(super) described: Vec<String>,
}

/// The state of all flows.
#[derive(Debug, Default)]
pub(super) struct Checker {
    flows: HashMap<FlowId, Watched>,
    /// Flows with acknowledged bytes that have not yet been seen to leave the ring.
    owed: Vec<FlowId>,
    /// How many bytes beyond the guest's edge may be acknowledged (`--grow`).
    beyond: u32,
    pub(super) seen: Findings,
}

#[derive(Debug, Default)]
struct Watched {
    peer: Option<Opening>,
    guest: Option<Opening>,
    /// The end of the contiguous bytes that have left the ring.
    taken: u32,
    /// The ranges that have left the ring beyond a hole: starts and ends.
    beyond_hole: Vec<(u32, u32)>,
    /// The guest's farthest right edge; `None` before its first segment.
    edge: Option<u32>,
    /// The guest's right edge now and a while ago.
    recent_edge: Option<RecentEdge>,
    /// The guest's own acknowledgement numbers; `own_high` is the highest.
    own: HashSet<u32>,
    own_high: u32,
    /// The guest's next sequence number.
    snd: u32,
    /// The guest's TSval.
    tsval: Option<Lagged>,
    /// All TSvals of the peer.
    peer_stamps: HashSet<u32>,
    /// The acknowledged edge towards the peer.
    told: Option<Lagged>,
    recent: VecDeque<(Vantage, Segment)>,
}

/// The options of a SYN.
#[derive(Clone, Copy, Debug)]
struct Opening {
    isn: u32,
    scale: Option<u8>,
    has_stamps: bool,
}

// === impl Checker ===

impl Checker {
    /// Forgets all flows. From now on early ACKs may go `beyond` bytes past the guest's edge.
    pub(super) fn begin_phase(&mut self, beyond: u32) {
        *self = Self {
            beyond,
            seen: std::mem::take(&mut self.seen),
            ..Self::default()
        };
    }

    /// Records that a frame for the guest enters the host.
    pub(super) fn peer_sends(&mut self, segment: &Segment) {
        let flow = self.flow(Vantage::PeerSends, segment);
        if segment.has(SYN) {
            let known = flow.peer.is_some_and(|opening| opening.isn == segment.seq);
            if !known && !segment.has(ACK) {
                flow.begin_anew();
            }
            if !known {
                flow.peer = Some(Opening::of(segment));
                flow.taken = segment.seq.wrapping_add(1);
            }
        }
        if let Some((value, _)) = segment.stamps {
            flow.peer_stamps.insert(value);
        }
        self.seen.data += u64::from(segment.len > 0 && !segment.flow.behind);
        self.sound(segment);
    }

    /// Records that a frame has left the ring, which shows that it was in the ring.
    pub(super) fn guest_got(&mut self, segment: &Segment) {
        let flow = self.flow(Vantage::GuestGot, segment);
        if !segment.has(SYN | RST) {
            flow.arrived(segment);
        }
        self.sound(segment);
    }

    /// Records that the ring is empty: all acknowledged bytes must have been in it.
    pub(super) fn settle(&mut self) {
        for id in std::mem::take(&mut self.owed) {
            let Some(flow) = self.flows.get_mut(&id) else {
                continue;
            };
            let Some(told) = &flow.told else { continue };
            let missing = told.high.wrapping_sub(flow.taken);
            if missing.cast_signed() > 0 {
                self.violated(id, Violation::NotInRing(missing));
            }
        }
    }

    /// Records that the guest sends a frame.
    pub(super) fn guest_sends(&mut self, segment: &Segment, now: Instant) {
        let flow = self.flow(Vantage::GuestSends, segment);
        if segment.has(SYN) {
            let known = flow.guest.is_some_and(|opening| opening.isn == segment.seq);
            if !known && !segment.has(ACK) {
                flow.begin_anew();
            }
            if !known {
                flow.guest = Some(Opening::of(segment));
                flow.snd = segment.end();
            }
        }
        let mut retreats = false;
        if segment.has(ACK) && !segment.has(RST) {
            let edge = segment.ack.wrapping_add(flow.window(segment));
            flow.edge = Some(flow.edge.map_or(edge, |known| later(known, edge)));
            retreats = RecentEdge::state(&mut flow.recent_edge, edge, now);
            flow.own_high = match flow.own.is_empty() {
                true => segment.ack,
                false => later(flow.own_high, segment.ack),
            };
            flow.own.insert(segment.ack);
        }
        flow.snd = later(flow.snd, segment.end());
        if let Some((value, _)) = segment.stamps {
            Lagged::raise(&mut flow.tsval, value, now);
        }
        self.seen.retreats += u64::from(retreats);
        self.sound(segment);
    }

    /// Records that a frame for the peer has left the host, and checks it.
    pub(super) fn peer_got(&mut self, segment: &Segment, now: Instant) {
        self.sound(segment);
        let beyond = self.beyond;
        let flow = self.flow(Vantage::PeerGot, segment);
        if segment.has(SYN | RST) || !segment.has(ACK) || !flow.is_open() {
            return;
        }
        let mut violations = flow.wrong_stamps(segment, now);
        let edge = flow.edge.unwrap_or(flow.taken).wrapping_add(beyond);
        let over = segment.ack.wrapping_sub(edge);
        if over.cast_signed() > 0 {
            violations.push(Violation::BeyondEdge(over));
        }
        let right = segment.ack.wrapping_add(flow.window(segment));
        if is_after(right, edge) {
            violations.push(Violation::WindowBeyondEdge(right.wrapping_sub(edge)));
        }
        let ahead = segment.seq.wrapping_sub(flow.snd);
        if ahead.cast_signed() > 0 {
            violations.push(Violation::SequenceAhead(ahead));
        }
        let before = flow.told.map(|told| told.high);
        Lagged::raise(&mut flow.told, segment.ack, now);
        let past = flow.told.and_then(|told| told.past);
        if let Some(past) = past
            && is_after(past, segment.ack)
            && !flow.own.contains(&segment.ack)
        {
            violations.push(Violation::WentBack(past.wrapping_sub(segment.ack)));
        }
        let advances = before.is_none_or(|before| is_after(segment.ack, before));
        let early = advances && is_after(segment.ack, flow.own_high);
        if early && segment.flow.behind {
            violations.push(Violation::ForReceiverBehind);
        }
        if let (true, Some(recent)) = (early && over.cast_signed() <= 0, flow.recent_edge) {
            let over = segment.ack.wrapping_sub(recent.as_of(now).farthest());
            let over = over.wrapping_sub(beyond);
            if over.cast_signed() > 0 {
                violations.push(Violation::BeyondRetreat(over));
            }
        }
        let owed = is_after(segment.ack, flow.taken);
        self.seen.early += u64::from(early);
        if owed {
            self.owed.push(segment.flow);
        }
        for violation in violations {
            self.violated(segment.flow, violation);
        }
    }

    fn flow(&mut self, place: Vantage, segment: &Segment) -> &mut Watched {
        let flow = self.flows.entry(segment.flow).or_default();
        if flow.recent.len() == RECENT {
            flow.recent.pop_front();
        }
        flow.recent.push_back((place, *segment));
        flow
    }

    fn sound(&mut self, segment: &Segment) {
        if !segment.sound {
            self.violated(segment.flow, Violation::Checksum);
        }
    }

    fn violated(&mut self, id: FlowId, violation: Violation) {
        self.seen.violations += 1;
        if self.seen.described.len() >= DESCRIBED {
            return;
        }
        let Some(flow) = self.flows.get(&id) else {
            return;
        };
        let frames: Vec<_> = flow.recent.iter().map(|f| Told(f).to_string()).collect();
        self.seen.described.push(format!(
            "{violation}; flow {id:?}, taken {}, edge {:?}, highest acknowledgement of its own {}; its last \
             frames: {}",
            flow.taken,
            flow.edge,
            flow.own_high,
            frames.join(" | ")
        ));
    }
}

// === impl Watched ===

impl Watched {
    /// Starts again, because the ports are reused for a new connection.
    fn begin_anew(&mut self) {
        let recent = std::mem::take(&mut self.recent);
        *self = Self {
            recent,
            ..Self::default()
        };
    }

    /// Returns whether both SYNs have been seen.
    fn is_open(&self) -> bool {
        self.peer.is_some() && self.guest.is_some()
    }

    /// Returns the guest's window in bytes. The window in a SYN is not scaled (RFC 7323 2.2).
    fn window(&self, segment: &Segment) -> u32 {
        let scale = match (self.peer, self.guest) {
            (Some(peer), Some(guest)) if !segment.has(SYN) => peer.scale.and(guest.scale),
            _ => None,
        };
        u32::from(segment.window) << scale.unwrap_or(0)
    }

    fn arrived(&mut self, segment: &Segment) {
        self.beyond_hole.push((segment.seq, segment.end()));
        while let Some(next) = self
            .beyond_hole
            .iter()
            .position(|(from, to)| !is_after(*from, self.taken) && is_after(*to, self.taken))
        {
            self.taken = self.beyond_hole.swap_remove(next).1;
        }
        let taken = self.taken;
        self.beyond_hole.retain(|(_, to)| is_after(*to, taken));
    }

    /// Returns the violations of a segment's timestamps. Once negotiated, every segment has
    /// timestamps (RFC 7323 3.2).
    fn wrong_stamps(&self, segment: &Segment, now: Instant) -> Vec<Violation> {
        let agreed = [self.peer, self.guest]
            .iter()
            .all(|opening| opening.is_some_and(|opening| opening.has_stamps));
        let Some((value, echo)) = segment.stamps else {
            return Vec::from_iter(agreed.then_some(Violation::NoTimestamps));
        };
        let mut wrong = Vec::new();
        let fits = self.tsval.is_some_and(|known| {
            let past = known.as_of(now).past;
            !is_after(value, known.high) && past.is_none_or(|past| !is_after(past, value))
        });
        if !fits {
            wrong.push(Violation::WrongTsval(value));
        }
        if !self.peer_stamps.contains(&echo) {
            wrong.push(Violation::WrongTsecr(echo));
        }
        wrong
    }
}

// === impl Opening ===

impl Opening {
    fn of(syn: &Segment) -> Self {
        Self {
            isn: syn.seq,
            scale: syn.scale,
            has_stamps: syn.stamps.is_some(),
        }
    }
}

/// Formats a frame for the report of a violation.
struct Told<'a>(&'a (Vantage, Segment));

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, segment) = self.0;
        write!(
            f,
            "{place:?} {:02x} {}+{} ack {} win {}",
            segment.flags, segment.seq, segment.len, segment.ack, segment.window
        )?;
        match segment.stamps {
            Some((value, echo)) => write!(f, " ts {value} {echo}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
