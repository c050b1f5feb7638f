//! The state of a flow, and the windows advertised to its sender.

use crate::reference::Config;
use crate::segment::{ACK, FIN, Mac, Segment};
use crate::seq::Seq;

/// A segment that is farther behind is no retransmission.
const BEHIND: u32 = 1 << 24;

/// FL_MODE, and the states before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Syn,
    Unproven,
    Active,
    UnexpectedSeq,
    NoBuf,
    /// With the reason.
    Bypass(&'static str),
}

/// The guest's window scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From its SYN.
    Said(u8),
    /// The SYN was not seen: a lower bound.
    AtLeast(u8),
    /// The guest was not seen yet.
    Unknown,
}

/// One end's FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fin {
    /// The number after it.
    pub(crate) end: Option<Seq>,
    pub(crate) acked: bool,
}

/// A flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) mode: Mode,
    /// NEXT_SEQ, ACKED_SEQ, VM_SEQ, RCV_EDGE, ADVERTISED_EDGE, GROWN_EDGE.
    pub(crate) next: Seq,
    pub(crate) acked: Seq,
    pub(crate) vm: Seq,
    pub(crate) edge: Seq,
    pub(crate) advertised_edge: Seq,
    pub(crate) grown: Seq,
    /// The farthest right edge that the guest has advertised.
    pub(crate) far: Seq,
    /// The end of what may be in the ring beyond a hole.
    pub(crate) ahead: Seq,
    /// The guest's SACK block: start and end.
    pub(crate) block: Option<(Seq, Seq)>,
    /// The peer's first byte.
    pub(crate) begun: Seq,
    pub(crate) vm_snd: Seq,
    /// The peer's acknowledgment number.
    pub(crate) vm_una: Seq,
    pub(crate) ts_vm: Seq,
    pub(crate) ts_peer: Seq,
    pub(crate) peer_window: u16,
    /// The widest window that the guest has advertised.
    pub(crate) widest: u32,
    /// Buffer overhead of small segments: the younger, the older, and where the younger begin.
    pub(crate) extra: u32,
    pub(crate) extra_older: u32,
    pub(crate) extra_mark: Seq,
    /// Average bytes of data in a frame.
    pub(crate) frame: u32,
    pub(crate) mss: u16,
    pub(crate) scale: Scale,
    /// In mid-flow: a peer that echoes a later TSval knows an offer that was seen, and the end of what
    /// such a peer sent beyond the window by the assumed scale.
    pub(crate) offer_ts: Option<Seq>,
    pub(crate) excess: Option<Seq>,
    pub(crate) peer_syn: bool,
    pub(crate) vm_syn: bool,
    pub(crate) peer_scales: bool,
    pub(crate) peer_ts: bool,
    pub(crate) vm_ts: bool,
    pub(crate) vm_scales: bool,
    /// The guest opened the connection.
    pub(crate) vm_client: bool,
    /// An ACK of the guest was seen.
    pub(crate) learnt: bool,
    /// When VM_SEQ last moved or fell behind, and when the guest was last heard (2^20 ns).
    pub(crate) owed: u32,
    pub(crate) heard: u32,
    /// When it was first heard since `owed`, and whether it was.
    pub(crate) awake: u32,
    pub(crate) heard_since: bool,
    pub(crate) peer_fin: Fin,
    pub(crate) vm_fin: Fin,
    pub(crate) vm_mac: Mac,
    pub(crate) peer_mac: Mac,
    pub(crate) ttl: u8,
    /// Counted in its listener's handshakes.
    pub(crate) counted: bool,
}

// === impl Flow ===

impl Flow {
    /// Notes that the guest has sent something.
    pub(crate) fn on_guest_heard(&mut self, now: u32) {
        self.heard = now;
        if !self.heard_since {
            self.awake = now;
        }
        self.heard_since = true;
    }

    /// Starts the time in which the guest has to make progress.
    pub(crate) fn owe_from(&mut self, now: u32) {
        (self.owed, self.heard_since) = (now, false);
    }

    /// Returns a flow without any known state.
    pub(crate) fn new() -> Self {
        let zero = Seq(0);
        Self {
            mode: Mode::Syn,
            next: zero,
            acked: zero,
            vm: zero,
            edge: zero,
            advertised_edge: zero,
            grown: zero,
            far: zero,
            ahead: zero,
            block: None,
            begun: zero,
            vm_snd: zero,
            vm_una: zero,
            ts_vm: zero,
            ts_peer: zero,
            peer_window: 0,
            widest: 0,
            extra: 0,
            extra_older: 0,
            extra_mark: zero,
            frame: 0,
            mss: 0,
            scale: Scale::Said(0),
            offer_ts: None,
            excess: None,
            peer_syn: false,
            vm_syn: false,
            peer_scales: false,
            peer_ts: false,
            vm_ts: false,
            vm_scales: false,
            vm_client: false,
            learnt: false,
            owed: 0,
            heard: 0,
            awake: 0,
            heard_since: false,
            peer_fin: Fin::default(),
            vm_fin: Fin::default(),
            vm_mac: [0; 6],
            peer_mac: [0; 6],
            ttl: 0,
            counted: false,
        }
    }

    /// Everything before `first` is acknowledged, nothing after it is known, and the sender knows
    /// this window.
    pub(crate) fn begin_at(&mut self, first: Seq, window: u32) {
        for seq in [
            &mut self.next,
            &mut self.acked,
            &mut self.vm,
            &mut self.ahead,
            &mut self.extra_mark,
        ] {
            *seq = first;
        }
        for edge in [
            &mut self.edge,
            &mut self.advertised_edge,
            &mut self.grown,
            &mut self.far,
        ] {
            *edge = first + window;
        }
        (self.extra, self.extra_older) = (0, 0);
        self.block = None;
    }

    pub(crate) fn is_bypassed(&self) -> bool {
        matches!(self.mode, Mode::Bypass(_))
    }

    /// Whether the mode allows early ACKs.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.mode, Mode::Active | Mode::UnexpectedSeq | Mode::NoBuf)
    }

    pub(crate) fn is_over(&self) -> bool {
        let ended = |fin: Fin| fin.end.is_some() && fin.acked;
        ended(self.peer_fin) && ended(self.vm_fin) && !self.acked.after(self.vm)
    }

    fn some_fin(&self) -> bool {
        self.peer_fin.end.is_some() || self.vm_fin.end.is_some()
    }

    /// Returns the shift of the guest's windows, or its lower bound.
    pub(crate) fn shift(&self) -> u32 {
        match self.scale {
            // Until the peer's SYN is seen, as if it had a scale.
            Scale::Said(scale) if !self.peer_syn => u32::from(scale),
            Scale::Said(scale) if self.peer_scales && self.vm_scales => u32::from(scale),
            Scale::AtLeast(scale) => u32::from(scale),
            _ => 0,
        }
    }

    pub(crate) fn bytes(&self, window: u16) -> u32 {
        u32::from(window) << self.shift()
    }

    pub(crate) fn has_timestamps(&self) -> bool {
        self.peer_ts && self.vm_ts
    }

    /// Returns the limit of growth: the guest's edge plus the buffer that it never advertised. With
    /// a lower bound of the scale, that is unknown.
    pub(crate) fn most(&self, config: &Config) -> Seq {
        match self.scale {
            Scale::AtLeast(_) => self.edge,
            _ => self.edge + config.guest_rcvbuf.saturating_sub(self.widest),
        }
    }

    /// Returns the limit of early ACKs: the guest's edge, or with growth beyond.
    pub(crate) fn limit(&self, config: &Config) -> Seq {
        match config.grows() {
            true => self.edge.max(self.grown.min(self.most(config))),
            false => self.edge,
        }
    }

    /// Returns the window in an ACK of `ack`, up to `edge`: within the buffer and the flow's share
    /// of the ring, but never less than advertised, nor than two segments.
    pub(crate) fn window(&self, config: &Config, ack: Seq, edge: Seq) -> u16 {
        let mut most = match config.buffer {
            0 => edge,
            buffer => ack + buffer,
        };
        if config.ring > 0 {
            let frame = u64::from(self.frame.max(u32::from(self.mss)));
            let share = frame * u64::from(config.ring) / u64::from(config.sharing.max(1));
            most = most.min(self.vm + share.min(1 << 30) as u32);
        }
        most = most
            .max(self.advertised_edge)
            .max(ack + 2 * u32::from(self.mss));
        let unit = 1_u32 << self.shift();
        let units = ack.room(most).wrapping_add(unit - 1) >> self.shift();
        let offered = ack.room(edge) >> self.shift();
        units.min(offered).min(0xffff) as u16
    }

    /// Whether the guest accepts a segment as part of its connection (RFC 9293 3.10.7.4, RFC 5961
    /// 5.2).
    pub(crate) fn is_acceptable(&self, s: &Segment) -> bool {
        s.to == self.vm_mac && !s.ack.after(self.vm_snd) && !s.ack.before(self.vm_una)
    }

    /// Whether the segment is in the range that the guest examines.
    pub(crate) fn is_near(&self, s: &Segment, edge: Seq) -> bool {
        !s.seq.after(edge) && !s.seq.before(self.vm - BEHIND)
    }

    /// Notes a segment that passes without an early ACK, and may wait beyond a hole.
    pub(crate) fn goes_ahead(&mut self, s: &Segment) {
        let end = s.data_end() + u32::from(s.has(FIN));
        if end != s.seq && end.after(self.next) {
            self.ahead = self.ahead.max(end);
        }
    }

    /// Learns that the peer, knowing a window that was seen, sends more than it allows by the assumed
    /// scale.
    pub(crate) fn see_excess(&mut self, s: &Segment) {
        let knows = |echo: Seq| self.vm_ts && self.offer_ts.is_some_and(|ts| echo.after(ts));
        let end = s.data_end();
        if matches!(self.scale, Scale::AtLeast(_))
            && self.excess.is_none()
            && s.len > 0
            && s.sums_up
            && s.seq.after(self.acked)
            && s.said().timestamps.is_some_and(|(_, echo)| knows(echo))
            && self.is_acceptable(s)
            && end.after(self.far + u32::from(self.mss))
            && end.before(self.vm + (0xffff << 14))
        {
            self.excess = Some(end);
        }
    }

    /// Learns the peer's acknowledgment number and timestamp from its segment.
    pub(crate) fn hear_peer(&mut self, s: &Segment) {
        let edge = self.edge.max(self.grown);
        if !s.sums_up || !s.has(ACK) || !self.is_acceptable(s) || !self.is_near(s, edge) {
            return;
        }
        if let Some(tsval) = s.tsval() {
            self.ts_peer = self.ts_peer.max(tsval);
        }
        self.vm_una = s.ack;
        self.peer_window = s.window;
        if s.has(FIN) {
            self.peer_fin.end = Some(s.data_end() + 1);
        }
        if self.vm_fin.end.is_some_and(|end| !s.ack.before(end)) {
            self.vm_fin.acked = true;
        }
    }

    /// Learns from a segment without data, if it has news and its checksum is right.
    pub(crate) fn learn_from_pure_ack(&mut self, s: &Segment) {
        let news = s.has(ACK)
            && (s.ack.after(self.vm_una)
                || s.window != self.peer_window
                || s.tsval().is_some_and(|tsval| tsval.after(self.ts_peer)));
        if self.some_fin() || news {
            self.hear_peer(s);
        }
    }

    /// Notes an ACK of everything in the ring.
    pub(crate) fn tell(&mut self, now: u32) {
        if !self.acked.after(self.vm) {
            self.owe_from(now);
        }
        self.acked = self.next;
    }
}
