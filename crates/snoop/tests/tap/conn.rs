//! A connection through the rig: the next segments of each end.

use crate::rig::{ACK, PSH, Rig, SYN, Segment};

pub(crate) const SERVER: u16 = 80;

/// The parameters of the two ends.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The guest's window scale, if both have one.
    pub(crate) scale: Option<u8>,
    pub(crate) timestamps: bool,
    pub(crate) mss: u16,
    /// The guest's window in bytes.
    pub(crate) window: u32,
    pub(crate) peer_isn: u32,
    pub(crate) guest_isn: u32,
    pub(crate) port: u16,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            scale: Some(7),
            timestamps: true,
            mss: 1460,
            window: 64_000,
            peer_isn: 1_000_000,
            guest_isn: 9_000_000,
            port: 5000,
        }
    }
}

/// The peer is a client that sends, the guest a server.
pub(crate) struct Conn {
    pub(crate) terms: Terms,
    /// The peer's next sequence number.
    pub(crate) peer_seq: u32,
    /// The guest's acknowledgment number.
    pub(crate) guest_ack: u32,
    pub(crate) guest_seq: u32,
    /// The timestamps of both.
    pub(crate) peer_clock: u32,
    pub(crate) guest_clock: u32,
}

// === impl Conn ===

impl Conn {
    pub(crate) fn new(terms: Terms) -> Self {
        Self {
            terms,
            peer_seq: terms.peer_isn,
            guest_ack: terms.peer_isn.wrapping_add(1),
            guest_seq: terms.guest_isn,
            peer_clock: 100,
            guest_clock: 700,
        }
    }

    pub(crate) fn syn_options(&self, from_guest: bool) -> Vec<u8> {
        let mut options = vec![2, 4];
        options.extend(self.terms.mss.to_be_bytes());
        options.extend([4, 2]);
        if self.terms.timestamps {
            options.extend(self.timestamps(from_guest));
        } else {
            options.extend([1, 1]);
        }
        if let Some(scale) = self.terms.scale {
            options.extend([1, 3, 3, if from_guest { scale } else { 7 }]);
        }
        options
    }

    fn timestamps(&self, from_guest: bool) -> Vec<u8> {
        let (own, other) = match from_guest {
            true => (self.guest_clock, self.peer_clock),
            false => (self.peer_clock, self.guest_clock),
        };
        let mut option = vec![8, 10];
        option.extend(own.to_be_bytes());
        option.extend(other.to_be_bytes());
        option
    }

    pub(crate) fn options(&self, from_guest: bool) -> Vec<u8> {
        match self.terms.timestamps {
            true => [vec![1, 1], self.timestamps(from_guest)].concat(),
            false => Vec::new(),
        }
    }

    fn segment(&self, from_guest: bool) -> Segment {
        let (ports, seq, ack) = match from_guest {
            true => ((SERVER, self.terms.port), self.guest_seq, self.guest_ack),
            false => ((self.terms.port, SERVER), self.peer_seq, self.guest_seq),
        };
        let window = match (from_guest, self.terms.scale) {
            (true, Some(scale)) => self.terms.window >> scale,
            (true, None) => self.terms.window,
            (false, _) => 500,
        };
        Segment {
            seq,
            ack,
            flags: ACK,
            window: window.min(65_535) as u16,
            options: self.options(from_guest),
            len: 0,
            ports,
            ecn: 0,
            ae: false,
        }
    }

    pub(crate) fn syn(&mut self) -> Segment {
        let mut syn = self.segment(false);
        (syn.flags, syn.ack, syn.options) = (SYN, 0, self.syn_options(false));
        self.peer_seq = self.peer_seq.wrapping_add(1);
        syn
    }

    pub(crate) fn syn_ack(&mut self) -> Segment {
        let mut syn_ack = self.segment(true);
        (syn_ack.flags, syn_ack.options) = (SYN | ACK, self.syn_options(true));
        syn_ack.window = self.terms.window.min(65_535) as u16;
        self.guest_seq = self.guest_seq.wrapping_add(1);
        syn_ack
    }

    /// The peer acknowledges the guest's data.
    pub(crate) fn pure_ack(&mut self) -> Segment {
        self.peer_clock += 1;
        self.segment(false)
    }

    /// Data from the peer.
    pub(crate) fn data(&mut self, len: usize) -> Segment {
        self.peer_clock += 1;
        let mut data = self.segment(false);
        (data.flags, data.len) = (ACK | PSH, len);
        self.peer_seq = self.peer_seq.wrapping_add(len as u32);
        data
    }

    /// A retransmission of the peer, with its present timestamp.
    pub(crate) fn again(&mut self, segment: &Segment) -> Segment {
        self.peer_clock += 1;
        Segment {
            options: self.options(false),
            ..segment.clone()
        }
    }

    /// The guest acknowledges the available data.
    pub(crate) fn guest_acks(&mut self, ack: u32) -> Segment {
        self.guest_clock += 1;
        self.guest_ack = ack;
        self.segment(true)
    }

    /// Data from the guest.
    pub(crate) fn guest_data(&mut self, len: usize) -> Segment {
        self.guest_clock += 1;
        let mut data = self.segment(true);
        (data.flags, data.len) = (ACK | PSH, len);
        self.guest_seq = self.guest_seq.wrapping_add(len as u32);
        data
    }

    /// The handshake, which passes unchanged.
    pub(crate) fn open(&mut self, rig: &mut Rig) {
        let syn = self.syn();
        rig.peer_sends(&syn);
        assert_eq!(rig.at_guest(), [syn]);
        let syn_ack = self.syn_ack();
        rig.guest_sends(&syn_ack);
        assert_eq!(rig.at_peer(), [syn_ack]);
        let ack = self.segment(false);
        rig.peer_sends(&ack);
        assert_eq!(rig.at_guest(), [ack]);
    }

    /// Like [`Conn::open_and_prove`], if the guest's window does not pass unchanged.
    pub(crate) fn open_and_prove_narrowed(&mut self, rig: &mut Rig) {
        for segment in [self.syn(), self.segment(false), self.data(100)] {
            if segment.flags & ACK != 0 && segment.len == 0 {
                let syn_ack = self.syn_ack();
                rig.guest_sends(&syn_ack);
            }
            rig.peer_sends(&segment);
        }
        rig.at_guest();
        let ack = self.guest_acks(self.peer_seq);
        rig.guest_sends(&ack);
        rig.at_peer();
    }

    /// The handshake, and the first data, which the guest acknowledges itself.
    pub(crate) fn open_and_prove(&mut self, rig: &mut Rig) {
        self.open(rig);
        let first = self.data(100);
        rig.peer_sends(&first);
        assert_eq!(rig.at_peer(), []);
        assert_eq!(rig.at_guest(), [first]);
        let ack = self.guest_acks(self.peer_seq);
        rig.guest_sends(&ack);
        assert_eq!(rig.at_peer(), [ack]);
    }

    /// Returns the expected early ACK: up to `ack`, with the guest's unchanged right edge.
    pub(crate) fn early(&self, ack: u32, edge: u32) -> Segment {
        let mut early = self.segment(true);
        early.ack = ack;
        let window = edge.wrapping_sub(ack) >> self.terms.scale.unwrap_or(0);
        early.window = window.min(65_535) as u16;
        early
    }
}
