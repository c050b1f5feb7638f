//! What must hold whatever the programs decide, seen from both sides of the tap: it knows the packets and nothing
//! of the state machine.

use crate::reference::{Config, RUNNING};
use crate::segment::{ACK, FIN, GUEST_MAC, RST, SYN, Segment};
use crate::seq::Seq;
use crate::setup::Setup;

/// A broken rule, as a sentence.
pub(crate) type Broken = String;

/// Initial TTLs.
const USUAL_TTLS: [u8; 3] = [64, 128, 255];

/// Observes one connection.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    /// Bytes beyond the guest's edge that early ACKs may cover (`--grow`).
    pub(crate) grows: u32,
    pub(crate) exposure: u32,
    /// Shift of the guest's windows, whether the programs know it or not.
    shift: u8,
    /// The programs saw the SYN with the shift.
    scale_known: bool,
    /// The configuration may narrow the guest's windows.
    narrows: bool,
    /// The guest has sent an ACK.
    known: bool,
    /// Ticks of 2^20 ns: now, when the guest was last heard, and when it last made progress or fell
    /// behind.
    now: u32,
    heard: u32,
    /// When it was first heard since then, and whether it was.
    awake: u32,
    heard_since: bool,
    owed: u32,
    /// The guest's own acknowledgment number and right edge.
    vm: Seq,
    edge: Seq,
    /// The edge of a SYN-ACK that the guest has sent since.
    syn_edge: Seq,
    /// The acknowledged and the advertised edge.
    pub(crate) acked: Seq,
    pub(crate) advertised_edge: Seq,
    /// The end of the data in the ring up to the first hole, and data beyond.
    in_ring: Seq,
    beyond: Vec<(Seq, Seq)>,
    /// Why there may be no more early ACKs.
    ended: Option<&'static str>,
    /// Early-acknowledged data, and the copies seen.
    early_acked: Vec<(Seq, Seq)>,
    copies: Vec<(Seq, Seq)>,
    /// First SACK blocks that the guest has sent.
    blocks: Vec<(Seq, Seq)>,
    /// The guest's Ethernet address is known; otherwise, whether frames came from it, and from
    /// another one.
    mac_known: bool,
    from_guest: bool,
    /// The guest has sent a segment from which the programs track the connection.
    followed: bool,
    from_others: bool,
    /// The TTL of its segments, and a configured initial TTL.
    ttl: Option<u8>,
    added_ttl: u8,
    pub(crate) early_acks: u32,
}

// === impl Observer ===

impl Observer {
    pub(crate) fn new(setup: &Setup, shift: u8) -> Self {
        let first = setup.peer.first + 1;
        Self {
            grows: setup.config.guest_rcvbuf,
            exposure: setup.config.exposure,
            shift,
            narrows: setup.config.buffer > 0 || setup.config.ring > 0,
            scale_known: false,
            known: false,
            now: 1 << 24,
            heard: 0,
            awake: 0,
            heard_since: false,
            owed: 0,
            vm: first,
            edge: first,
            syn_edge: first,
            acked: first,
            advertised_edge: first,
            in_ring: first,
            beyond: Vec::new(),
            ended: match setup.config {
                Config {
                    distrusted: true, ..
                } => Some("its peer was distrusted"),
                Config {
                    foreign_address: true,
                    ..
                } => Some("its address was foreign"),
                _ => None,
            },
            early_acked: Vec::new(),
            copies: Vec::new(),
            blocks: Vec::new(),
            mac_known: setup.config.guest_mac.is_some(),
            from_guest: false,
            followed: false,
            from_others: false,
            ttl: None,
            added_ttl: setup.config.guest_ttl,
            early_acks: 0,
        }
    }

    /// Advances the time by ticks of 2^20 ns.
    pub(crate) fn pass_time(&mut self, ticks: u32) {
        self.now += ticks;
    }

    /// Notes an ACK that the sender gets.
    fn tells(&mut self, ack: Seq) {
        if !self.acked.after(self.vm) {
            (self.owed, self.heard_since) = (self.now, false);
        }
        self.acked = self.acked.max(ack);
    }

    fn edge_of(&self, s: &Segment) -> Seq {
        let shift = if s.has(SYN) { 0 } else { self.shift };
        s.ack + (u32::from(s.window) << shift)
    }

    /// Notes a segment in the guest's ring.
    pub(crate) fn in_ring(&mut self, s: &Segment) {
        if s.len == 0 || s.to != GUEST_MAC || !s.sums_up {
            return;
        }
        self.beyond.push((s.seq, s.data_end()));
        let reaches = |(from, to): &(Seq, Seq), end: Seq| !from.after(end) && to.after(end);
        while let Some(at) = self
            .beyond
            .iter()
            .position(|range| reaches(range, self.in_ring))
        {
            self.in_ring = self.beyond.swap_remove(at).1;
        }
    }

    /// Checks an early ACK.
    pub(crate) fn early(&mut self, s: &Segment) -> Result<(), Broken> {
        self.early_acks += 1;
        if !self.known {
            return Err("an early ACK for a guest that has not been heard".into());
        }
        if let Some(why) = self.ended {
            return Err(format!("acknowledged early after {why}"));
        }
        let most = self.edge.max(self.syn_edge) + self.grows;
        if s.ack.after(most) {
            let beyond = s.ack.from(self.edge);
            return Err(format!(
                "acknowledged {beyond} bytes beyond the guest's right edge"
            ));
        }
        if s.ack.after(self.in_ring) {
            let beyond = s.ack.from(self.in_ring);
            return Err(format!(
                "acknowledged {beyond} bytes that are not in the ring"
            ));
        }
        if !s.ack.after(self.acked) {
            return Err("an early ACK without news".into());
        }
        self.is_within_exposure(s.ack)?;
        if self.edge_of(s).after(most) {
            return Err("an early ACK advertises more than the guest does".into());
        }
        let least = self.advertised_edge.min(self.edge);
        if self.scale_known && !(self.edge_of(s) + (1 << self.shift)).after(least) {
            return Err("an early ACK retracts a window".into());
        }
        if let Some(block) = s.said().sack
            && (!self.blocks.contains(&block) || !block.0.after(s.ack))
        {
            return Err("an early ACK with a SACK block that the guest has not sent".into());
        }
        self.early_acked.push((self.acked, s.ack));
        self.tells(s.ack);
        self.advertised_edge = self.edge_of(s);
        Ok(())
    }

    fn is_within_exposure(&self, ack: Seq) -> Result<(), Broken> {
        let (exposed, bound) = (ack.from(self.vm), self.exposure);
        if exposed > bound.cast_signed() {
            return Err(format!(
                "{exposed} bytes are exposed, and the bound is {bound}"
            ));
        }
        Ok(())
    }

    /// Notes a copy that user space takes.
    pub(crate) fn copied(&mut self, s: &Segment) {
        self.copies.push((s.seq, s.data_end()));
    }

    /// Checks, once user space has taken all copies, that all early-acknowledged data has one.
    pub(crate) fn all_copied(&self) -> Result<(), Broken> {
        for (from, to) in &self.early_acked {
            let mut at = *from;
            while at.before(*to) {
                let has = |copy: &&(Seq, Seq)| !copy.0.after(at) && copy.1.after(at);
                let Some((_, end)) = self.copies.iter().find(has) else {
                    let lacks = at.room(*to);
                    return Err(format!(
                        "no copy of {lacks} bytes that were acknowledged early"
                    ));
                };
                at = *end;
            }
        }
        Ok(())
    }

    /// Checks a segment of the guest, and what passed of it.
    pub(crate) fn guest_says(
        &mut self,
        s: &Segment,
        passed: Option<&Segment>,
    ) -> Result<(), Broken> {
        match passed {
            None => self.may_be_dropped(s)?,
            Some(after) => self.may_pass(s, after)?,
        }
        if s.has(RST) {
            return Ok(());
        }
        let own = self.is_own(s);
        self.blocks.extend(s.said().sack);
        if s.has(SYN) {
            self.scale_known |= own && !self.known && self.is_sent_with(s.ttl);
            self.hear_opening(s, passed);
            return Ok(());
        }
        if s.has(ACK) && own && self.contradicts(s) {
            if passed != Some(s) {
                return Err("a contradiction of the guest did not pass unchanged".into());
            }
            self.ended = Some("the guest's contradiction");
        }
        if s.has(FIN) && own && self.followed {
            self.ended = Some("the guest's FIN");
        }
        if own {
            self.heard = self.now;
            if !self.heard_since {
                self.awake = self.now;
            }
            self.heard_since = true;
        }
        if s.has(ACK) && own && !(self.known && s.ack.before(self.vm)) {
            if s.ack != self.vm {
                self.owed = self.now;
                self.heard_since = false;
            }
            self.known = true;
            self.vm = s.ack;
            self.edge = self.edge_of(s);
            self.syn_edge = self.edge;
            self.in_ring = self.in_ring.max(s.ack);
        }
        if let Some(after) = passed.filter(|after| after.has(ACK)) {
            if after.ack.after(s.ack) && after.ack.after(self.acked) {
                self.is_within_exposure(after.ack)?;
                self.early_acked.push((self.acked.max(s.ack), after.ack));
            }
            self.tells(after.ack);
            if !after.ack.before(self.acked) {
                self.advertised_edge = self.edge_of(after);
            }
        }
        Ok(())
    }

    /// Whether a segment belongs to the guest itself, judged from outside; otherwise there may be
    /// no more early ACKs for the connection.
    fn is_own(&mut self, s: &Segment) -> bool {
        let own = s.from == GUEST_MAC;
        self.from_guest |= own;
        self.from_others |= !own;
        let mixed = !self.mac_known && self.from_guest && self.from_others;
        if mixed || !own && self.followed {
            self.ended = Some("a frame from another Ethernet address");
        }
        self.followed |= own && self.is_sent_with(s.ttl) && s.has(SYN | ACK) && !s.has(FIN);
        if own && s.has(SYN) && !s.has(ACK) {
            // The guest begins another connection.
            self.ttl = None;
        }
        if own && s.has(ACK) && !s.has(SYN) {
            let first = *self.ttl.get_or_insert(s.ttl);
            if first != s.ttl {
                self.ended = Some("a change of the TTL");
            }
            if !self.is_sent_with(first) {
                self.ttl = None;
            }
        }
        own
    }

    fn is_sent_with(&self, ttl: u8) -> bool {
        USUAL_TTLS.contains(&ttl) || ttl == self.added_ttl
    }

    fn hear_opening(&mut self, s: &Segment, passed: Option<&Segment>) {
        if !s.has(ACK) {
            return;
        }
        if self.known {
            // A repeated SYN-ACK: its window is the guest's, too.
            if s.ack == self.vm {
                self.syn_edge = self.edge_of(s);
            }
            return;
        }
        self.known = true;
        (self.vm, self.edge) = (s.ack, self.edge_of(s));
        self.syn_edge = self.edge;
        (self.acked, self.in_ring) = (s.ack, self.in_ring.max(s.ack));
        self.advertised_edge = passed.map_or(self.edge, |after| self.edge_of(after));
    }

    /// Whether the guest contradicts early ACKs: it is behind, and its right edge retreats by a
    /// unit of its scale or is before the acknowledged edge; or it repeats itself, and was running
    /// long after the data came.
    fn contradicts(&self, s: &Segment) -> bool {
        if !self.known || s.ack.before(self.vm) || !s.ack.before(self.acked) {
            return false;
        }
        let edge = self.edge_of(s) + (1 << self.shift);
        let closes = self.grows == 0 && !edge.after(self.acked);
        // By a lower bound of the scale it may look as if it did not.
        let retreats = self.scale_known && !edge.after(self.edge);
        // A guest that was running, and repeats itself.
        let repeats = s.len == 0
            && s.ack == self.vm
            && !self.edge_of(s).after(self.edge)
            && self.heard_since
            && Seq(self.now).from(Seq(self.awake)) >= RUNNING.cast_signed();
        closes || retreats || repeats
    }

    fn may_be_dropped(&self, s: &Segment) -> Result<(), Broken> {
        if s.has(SYN | FIN | RST) || s.len > 0 || !s.has(ACK) {
            return Err("more than an ACK was dropped".into());
        }
        if s.said().sack.is_some() {
            return Err("an ACK with SACK was dropped".into());
        }
        // Less than a unit of the scale cannot be expressed, counted from a later byte.
        let edge = self.edge_of(s) - ((1 << self.shift) - 1);
        let counts = self.scale_known && !self.narrows && !s.ack.before(self.vm);
        let is_news = counts && edge.after(self.advertised_edge);
        if s.ack.after(self.acked) || is_news {
            return Err("an ACK with news for the sender was dropped".into());
        }
        Ok(())
    }

    fn may_pass(&self, s: &Segment, after: &Segment) -> Result<(), Broken> {
        let same = Segment {
            ack: s.ack,
            window: s.window,
            ..*after
        };
        if same != *s {
            return Err(format!("{s:?} was changed to {after:?}"));
        }
        if s == after {
            return Ok(());
        }
        if !after.has(ACK) || after.ack.before(s.ack) {
            return Err("an ACK was revoked".into());
        }
        if after.ack != s.ack {
            if s.said().sack.is_some() {
                return Err("a number was raised beside SACK".into());
            }
            if after.ack.after(self.in_ring.max(s.ack)) {
                return Err("a number was raised beyond the data in the ring".into());
            }
        }
        // Rounded down to units of the scale, the guest's edge may seem to retreat.
        let latest = if self.known { self.edge } else { s.ack };
        let edge = self.edge_of(s).max(latest) + ((1 << self.shift) - 1);
        if self.edge_of(after).after(edge + self.grows) {
            return Err("a window was widened".into());
        }
        Ok(())
    }

    /// Checks, once the guest has acknowledged everything, that the sender knows it, and the
    /// guest's window.
    pub(crate) fn sender_knows_everything(&self) -> Result<(), Broken> {
        if self.acked.before(self.vm) {
            return Err("the sender has no ACK of all that the guest has".into());
        }
        if !self.narrows && self.advertised_edge.before(self.edge) {
            return Err("the sender does not know the guest's window".into());
        }
        Ok(())
    }

    /// Checks that a guest without losses, which has emptied its ring, has all acknowledged data.
    pub(crate) fn settles(&self, rcv: Seq) -> Result<(), Broken> {
        if self.acked.after(rcv) {
            let lacks = self.acked.from(rcv);
            return Err(format!("the guest lacks {lacks} acknowledged bytes"));
        }
        Ok(())
    }
}
