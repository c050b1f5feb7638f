//! The guest: a small TCP receiver with a buffer, which may drop data inside its window.

use std::collections::VecDeque;

use crate::peer::Terms;
use crate::segment::{ACK, FIN, GUEST_MAC, Mac, Options, PEER_MAC, RST, SYN, Segment};
use crate::seq::Seq;

/// Number of remembered ACKs.
const SENT_MAX: usize = 16;

/// A receiver.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) terms: Terms,
    peer: Terms,
    /// Its next sequence number, and the peer's acknowledgment number.
    pub(crate) next: Seq,
    una: Seq,
    /// The next expected byte, and data beyond it.
    pub(crate) rcv: Seq,
    beyond: Vec<(Seq, Seq)>,
    /// Size of its receive buffer, and the unread bytes in it.
    pub(crate) buffer: u32,
    pub(crate) unread: u32,
    /// Bytes that it accepts beyond its window (`--guest-rcvbuf`).
    pub(crate) beyond_edge: u32,
    /// It retracts its window (which RFC 9293 3.8.6 discourages).
    pub(crate) shrinks: bool,
    advertised_edge: Seq,
    /// The right edge that it advertised before it was first seen.
    earlier_edge: Seq,
    /// The peer's latest TSval, and its acknowledgment number then (RFC 7323 4.3).
    recent: Seq,
    last_ack: Seq,
    pub(crate) clock: Seq,
    pub(crate) timestamps: bool,
    pub(crate) shift: u8,
    /// The peer's FIN was received in order.
    fin_at: Option<Seq>,
    /// A peer's SYN was seen, or the connection was found in mid-flow.
    pub(crate) knows_peer: bool,
    pub(crate) closed: bool,
    /// It has sent its FIN.
    pub(crate) ended: bool,
    pub(crate) ttl: u8,
    pub(crate) mac: Mac,
    /// ACKs that it has sent.
    pub(crate) sent: VecDeque<Segment>,
    /// It dropped data inside its window, retracts it, or received data that the tap did not see:
    /// it may lack early-acknowledged data until a retransmission.
    pub(crate) reneged: bool,
    /// It sends false ACKs, or believed a forged segment: anything may be lost.
    pub(crate) lies: bool,
}

// === impl Guest ===

impl Guest {
    pub(crate) fn new(terms: Terms, peer: Terms, buffer: u32) -> Self {
        let scales = peer.scale.is_some();
        Self {
            terms,
            peer,
            next: terms.first,
            una: terms.first,
            rcv: Seq(0),
            beyond: Vec::new(),
            buffer,
            unread: 0,
            beyond_edge: 0,
            shrinks: false,
            advertised_edge: Seq(0),
            earlier_edge: Seq(0),
            recent: Seq(0),
            last_ack: Seq(0),
            clock: terms.clock.unwrap_or_default(),
            timestamps: terms.clock.is_some() && peer.clock.is_some(),
            shift: terms.scale.filter(|_| scales).unwrap_or(0).min(14),
            fin_at: None,
            knows_peer: false,
            closed: false,
            ended: false,
            ttl: 64,
            mac: GUEST_MAC,
            sent: VecDeque::new(),
            reneged: false,
            lies: false,
        }
    }

    /// The peer starts with this number and timestamp.
    pub(crate) fn meets(&mut self, first: Seq, recent: Seq) {
        self.knows_peer = true;
        self.rcv = first + 1;
        self.last_ack = self.rcv;
        self.advertised_edge = self.rcv;
        self.earlier_edge = self.rcv;
        self.recent = recent;
    }

    /// Creates a guest in mid-flow, which has offered `earlier` bytes more than its window.
    pub(crate) fn established(&mut self, peer_first: Seq, recent: Seq, earlier: u32) {
        self.meets(peer_first, recent);
        self.earlier_edge = self.rcv + self.buffer + earlier;
        self.next = self.terms.first + 1;
        self.una = self.next;
    }

    /// Returns its present window, in its scale.
    fn window(&mut self, shift: u8) -> u16 {
        let taken: u32 = self.beyond.iter().map(|(from, to)| from.room(*to)).sum();
        let free = self.buffer.saturating_sub(self.unread + taken);
        let mut edge = self.rcv + free;
        if !self.shrinks {
            edge = edge.max(self.advertised_edge);
        }
        let field = (self.rcv.room(edge) >> shift).min(0xffff);
        let edge = self.rcv + (field << shift);
        if self.shrinks {
            self.reneged |= edge.before(self.advertised_edge);
            self.advertised_edge = edge;
        } else {
            self.advertised_edge = self.advertised_edge.max(edge);
        }
        field as u16
    }

    fn segment(&mut self, flags: u16, len: u16) -> Segment {
        let shift = if flags & SYN != 0 { 0 } else { self.shift };
        let window = self.window(shift);
        self.last_ack = self.rcv;
        let mut options = match self.timestamps {
            true => Options::NONE.timestamps(self.clock, self.recent),
            false => Options::NONE,
        };
        if self.terms.sack {
            let blocks: Vec<_> = self.beyond.iter().rev().copied().collect();
            options = options.sack(&blocks);
        }
        Segment {
            seq: self.next,
            ack: self.rcv,
            flags,
            window,
            options,
            len,
            ttl: self.ttl,
            ecn: 0,
            from: self.mac,
            to: PEER_MAC,
            sums_up: true,
        }
    }

    pub(crate) fn ack(&mut self) -> Segment {
        let ack = self.segment(ACK, 0);
        if self.sent.len() == SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(ack);
        ack
    }

    pub(crate) fn data(&mut self, len: u16, flags: u16) -> Segment {
        let data = self.segment(ACK | flags, len);
        self.next = data.end();
        data
    }

    /// Returns the data that the peer has not acknowledged.
    pub(crate) fn again(&mut self, len: u16) -> Option<Segment> {
        let una = self.una.max(self.terms.first + 1);
        let open = una.room(self.next).saturating_sub(u32::from(self.ended));
        let len = u32::from(len).min(open) as u16;
        let mut data = self.segment(ACK, len);
        data.seq = una;
        (len > 0).then_some(data)
    }

    pub(crate) fn syn(&mut self, with_ack: bool) -> Segment {
        let after = self.next;
        self.next = self.terms.first;
        let mut syn = self.segment(SYN | if with_ack { ACK } else { 0 }, 0);
        if !with_ack {
            syn.ack = Seq(0);
        }
        syn.options = self
            .terms
            .options(self.clock, self.recent, with_ack.then_some(&self.peer));
        self.next = if after == self.terms.first {
            after + 1
        } else {
            after
        };
        syn
    }

    /// Whether it has sent its SYN, and knows the peer's.
    pub(crate) fn is_open(&self) -> bool {
        self.knows_peer && self.next != self.terms.first
    }

    /// Its application reads.
    pub(crate) fn read(&mut self, bytes: u32) {
        self.unread = self.unread.saturating_sub(bytes);
    }

    /// Handles a segment from its ring. Returns whether it has to acknowledge at once.
    pub(crate) fn receive(&mut self, s: &Segment) -> bool {
        if s.to != self.mac || !s.sums_up || self.closed {
            return false;
        }
        if s.has(SYN) {
            if !self.knows_peer {
                let value = s.said().timestamps.unwrap_or_default().0;
                self.meets(s.seq, value);
            }
            return true;
        }
        if s.has(RST) {
            self.closed = s.seq == self.rcv;
            return false;
        }
        if !self.knows_peer || !s.has(ACK) {
            return false;
        }
        // PAWS (RFC 7323 5.3), and the ACK (RFC 9293 3.10.7.4).
        let old = |value: Seq| self.timestamps && value.before(self.recent);
        if s.tsval().is_some_and(old) || s.ack.after(self.next) {
            return true;
        }
        if s.ack.before(self.una - (1 << 20)) {
            return true;
        }
        self.una = self.una.max(s.ack);
        if let Some(value) = s.tsval()
            && !s.seq.after(self.last_ack)
            && !s.end().before(self.last_ack)
        {
            self.recent = self.recent.max(value);
        }
        if s.len == 0 && !s.has(FIN) {
            return s.seq != self.rcv;
        }
        self.take(s)
    }

    fn take(&mut self, s: &Segment) -> bool {
        let end = s.data_end();
        let from = s.seq.max(self.rcv);
        let edge = self.advertised_edge.max(self.rcv) + self.beyond_edge;
        let edge = edge.max(self.earlier_edge);
        let fresh = end.after(from) || s.has(FIN) && !end.before(self.rcv);
        if !fresh || from.after(edge) {
            return true;
        }
        let end = end.min(edge);
        // Data without room in the buffer is dropped, whatever the window.
        let room = self.buffer.saturating_sub(self.unread) + self.beyond_edge;
        let room = room.max(self.rcv.room(self.earlier_edge));
        if from.room(end) > 0 && end.after(self.rcv + room) {
            self.reneged = true;
            return true;
        }
        if s.has(FIN) && end == s.data_end() {
            self.fin_at = Some(end);
        }
        if from.after(self.rcv) {
            if from != end {
                self.beyond.push((from, end));
            }
            return true;
        }
        self.advance(end);
        while let Some(at) = self.beyond.iter().position(|b| !b.0.after(self.rcv)) {
            let (_, end) = self.beyond.swap_remove(at);
            self.advance(end);
        }
        if self.fin_at == Some(self.rcv) {
            self.rcv = self.rcv + 1;
            self.fin_at = None;
        }
        false
    }

    fn advance(&mut self, end: Seq) {
        self.unread += self.rcv.room(end);
        self.rcv = self.rcv.max(end);
    }

    /// Has room for everything again.
    pub(crate) fn recovers(&mut self) {
        self.buffer = self.buffer.max(1 << 24);
        self.unread = 0;
    }

    /// Discards data beyond a hole (RFC 2018 8).
    pub(crate) fn drop_beyond(&mut self) {
        self.reneged |= !self.beyond.is_empty();
        self.beyond.clear();
    }
}
