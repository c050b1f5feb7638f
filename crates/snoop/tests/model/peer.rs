//! The sender: a small TCP endpoint that follows the actions.

use crate::segment::{ACK, FIN, GUEST_MAC, Options, PEER_MAC, PSH, SYN, Segment};
use crate::seq::Seq;

/// Number of remembered segments.
const SENT_MAX: usize = 24;

/// What an end offers in its SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) first: Seq,
    pub(crate) scale: Option<u8>,
    /// Its first timestamp, if it uses timestamps.
    pub(crate) clock: Option<Seq>,
    pub(crate) mss: Option<u16>,
    pub(crate) sack: bool,
}

/// A sender.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) terms: Terms,
    guest: Terms,
    pub(crate) next: Seq,
    /// The guest's acknowledgment number.
    pub(crate) una: Seq,
    /// The guest's right edge.
    pub(crate) edge: Seq,
    /// The guest's next byte.
    pub(crate) rcv: Seq,
    /// The guest's latest TSval.
    pub(crate) recent: Seq,
    pub(crate) clock: Seq,
    /// Both ends have timestamps, and by how many bits the guest's windows are shifted.
    pub(crate) timestamps: bool,
    pub(crate) shift: u8,
    pub(crate) mss: u16,
    /// Its latest segments.
    pub(crate) sent: Vec<Segment>,
    pub(crate) window: u16,
    /// Duplicate ACKs (RFC 5681 2).
    duplicates: u32,
    /// It has sent its FIN: no new data.
    pub(crate) ended: bool,
}

// === impl Terms ===

impl Terms {
    /// Returns the options of its SYN, limited to those in `other`'s if it answers that.
    pub(crate) fn options(&self, clock: Seq, echo: Seq, other: Option<&Self>) -> Options {
        let scales = other.is_none_or(|other| other.scale.is_some());
        let timestamps = other.is_none_or(|other| other.clock.is_some());
        let mut options = Options::NONE;
        if let Some(mss) = self.mss {
            options = options.and(&[2, 4]).and(&mss.to_be_bytes());
        }
        if self.sack {
            options = options.and(&[1, 1, 4, 2]);
        }
        if self.clock.is_some() && timestamps {
            options = options.timestamps(clock, echo);
        }
        if let Some(scale) = self.scale.filter(|_| scales) {
            options = options.and(&[1, 3, 3, scale]);
        }
        options
    }
}

// === impl Peer ===

impl Peer {
    /// Creates a peer before the connection. `guest`: what the guest will offer.
    pub(crate) fn new(terms: Terms, guest: Terms) -> Self {
        let scales = terms.scale.is_some();
        Self {
            terms,
            guest,
            next: terms.first,
            una: terms.first,
            edge: terms.first,
            rcv: guest.first,
            recent: Seq(0),
            clock: terms.clock.unwrap_or_default(),
            timestamps: terms.clock.is_some() && guest.clock.is_some(),
            shift: guest.scale.filter(|_| scales).unwrap_or(0).min(14),
            mss: guest.mss.unwrap_or(536),
            sent: Vec::new(),
            window: 500,
            duplicates: 0,
            ended: false,
        }
    }

    /// Creates a peer in mid-flow: the guest has acknowledged everything, and advertises this
    /// window.
    pub(crate) fn established(&mut self, guest_first: Seq, window: u32) {
        self.next = self.terms.first + 1;
        self.una = self.next;
        self.edge = self.next + window;
        self.rcv = guest_first + 1;
    }

    pub(crate) fn options(&self) -> Options {
        match self.timestamps {
            true => Options::NONE.timestamps(self.clock, self.recent),
            false => Options::NONE,
        }
    }

    /// From here on, with these bytes.
    pub(crate) fn segment(&self, seq: Seq, len: u16) -> Segment {
        Segment {
            seq,
            ack: self.rcv,
            flags: ACK,
            window: self.window,
            options: self.options(),
            len,
            ttl: 57,
            ecn: 0,
            from: PEER_MAC,
            to: GUEST_MAC,
            sums_up: true,
        }
    }

    pub(crate) fn syn(&mut self, with_ack: bool) -> Segment {
        let mut syn = self.segment(self.terms.first, 0);
        syn.flags = SYN | if with_ack { ACK } else { 0 };
        if !with_ack {
            syn.ack = Seq(0);
        }
        syn.options = self
            .terms
            .options(self.clock, self.recent, with_ack.then_some(&self.guest));
        if self.next == self.terms.first {
            self.next = self.terms.first + 1;
        }
        syn
    }

    /// Returns the next data, as much of `len` as the window allows; `None` if that is none. After
    /// two duplicate ACKs it retransmits the first unacknowledged data.
    pub(crate) fn data(&mut self, len: u16, push: bool) -> Option<Segment> {
        if self.duplicates >= 2 {
            self.duplicates = 0;
            return self.again(0, len);
        }
        let len = u32::from(len).min(self.next.room(self.edge)) as u16;
        if len == 0 || self.ended || self.next == self.terms.first {
            return None;
        }
        let mut data = self.segment(self.next, len);
        if push {
            data.flags |= PSH;
        }
        self.next = data.data_end();
        Some(data)
    }

    /// Returns unacknowledged data, with the present timestamp. Beyond a retracted window, it
    /// retransmits the first segment alone.
    pub(crate) fn again(&self, skip: u32, len: u16) -> Option<Segment> {
        let fin = u32::from(self.ended);
        let open = self.una.room(self.next).saturating_sub(fin);
        let within = open.min(self.una.room(self.edge));
        let skip = if within > 0 { skip % within } else { 0 };
        let len = u32::from(len).min(open - skip) as u16;
        (len > 0 && self.una != self.terms.first).then(|| self.segment(self.una + skip, len))
    }

    /// Its FIN, or its FIN again.
    pub(crate) fn fin(&mut self) -> Segment {
        let seq = self.next - u32::from(self.ended);
        self.ended = true;
        let mut fin = self.segment(seq, 0);
        fin.flags |= FIN;
        fin
    }

    pub(crate) fn remember(&mut self, segment: &Segment) {
        if self.sent.len() == SENT_MAX {
            self.sent.remove(0);
        }
        self.sent.push(*segment);
    }

    /// Handles a segment from the guest, or from the host in its place.
    pub(crate) fn receive(&mut self, s: &Segment) {
        if s.has(SYN) && self.rcv == s.seq {
            self.rcv = s.end();
            self.recent = s.said().timestamps.unwrap_or_default().0;
        }
        if !s.has(ACK) || s.ack.after(self.next) {
            return;
        }
        let shift = if s.has(SYN) { 0 } else { self.shift };
        if s.ack == self.una && s.len == 0 && self.una != self.next {
            self.duplicates += 1;
        }
        if !s.ack.before(self.una) {
            self.una = s.ack;
            self.edge = s.ack + (u32::from(s.window) << shift);
        }
        if !s.seq.after(self.rcv) && s.end().after(self.rcv) {
            self.rcv = s.end();
        }
        if let Some((value, _)) = s.said().timestamps {
            self.recent = self.recent.max(value);
        }
    }
}
