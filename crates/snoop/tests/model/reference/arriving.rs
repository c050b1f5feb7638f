//! Towards the guest: which segments are acknowledged early.

use crate::reference::{Config, Expected, Fate, Flow, Mode, Model, Surroundings};
use crate::segment::{ACK, AE, CE, CWR, ECE, FIN, Options, PSH, RST, SYN, Segment, URG};
use crate::seq::Seq;

/// The buffer overhead of a segment below four fifths of an MSS.
fn extra(mss: u16, len: u16) -> u32 {
    if len < mss - mss / 5 {
        u32::from(mss - len)
    } else {
        0
    }
}

fn foreign_reason(kind: u8) -> &'static str {
    match kind {
        19 => "md5",
        29 => "tcp_ao",
        30 => "mptcp",
        _ => "fast_open",
    }
}

// === impl Model ===

impl Model {
    /// Handles a frame for the guest.
    pub(crate) fn arrives(&mut self, s: &Segment, around: Surroundings) -> Expected {
        if s.len == 0 && !s.has(SYN | FIN | RST | URG) {
            if let Some(flow) = &mut self.flow {
                flow.learn_from_pure_ack(s);
            }
            self.forget_if_over();
            return Self::passes("no_data", s);
        }
        // A segment that begins or ends a flow must be one that the guest believes.
        if s.has(SYN | FIN | RST) && !s.sums_up {
            return Self::passes("checksum", s);
        }
        if s.has(RST) {
            if let Some(flow) = self.flow.as_mut().filter(|flow| s.to == flow.vm_mac) {
                flow.peer_resets(s);
            }
            return Self::passes("rst", s);
        }
        if s.has(SYN) {
            self.peer_syn(s);
            return Self::passes("syn", s);
        }
        let (config, now) = (self.config, self.now);
        let Some(flow) = &mut self.flow else {
            return Self::passes("no_flow", s);
        };
        flow.see_excess(s);
        if !config.on {
            if s.has(FIN) && flow.is_acceptable(s) {
                flow.mode = Mode::Bypass("closing");
            } else if s.len > 0 && flow.mode == Mode::Active {
                flow.mode = Mode::UnexpectedSeq;
            }
            flow.goes_ahead(s);
            flow.hear_peer(s);
            self.forget_if_over();
            return Self::passes("off", s);
        }
        if !flow.is_promising(&config, s, now) {
            let exit = flow.judge(&config, s, now).err().unwrap_or("overtaken");
            flow.goes_ahead(s);
            flow.hear_peer(s);
            self.forget_if_over();
            return Self::passes(exit, s);
        }
        if !s.sums_up {
            flow.rests(Mode::UnexpectedSeq);
            return Self::passes("checksum", s);
        }
        if config.full || !around.copies {
            flow.rests(Mode::NoBuf);
            flow.goes_ahead(s);
            flow.hear_peer(s);
            return Self::passes("not_kept", s);
        }
        let delivered = |exit, fate| Expected {
            exit,
            fate,
            copied: true,
            event: None,
        };
        if !around.ring {
            flow.rests(Mode::NoBuf);
            return delivered("ring_full", Fate::Dropped);
        }
        if let Err(exit) = flow.judge(&config, s, now) {
            flow.goes_ahead(s);
            flow.hear_peer(s);
            return delivered(exit, Fate::Delivered);
        }
        let (window, echo) = flow.acknowledge(&config, s, now);
        flow.hear_peer(s);
        let ack = flow.early_ack(window, echo);
        let renewed = flow.vm_snd != flow.vm_una;
        delivered("acked", Fate::Acknowledged { ack, renewed })
    }
}

// === impl Flow ===

impl Flow {
    /// Whether the segment looks as if it may be acknowledged: only then is it delivered here.
    fn is_promising(&self, config: &Config, s: &Segment, now: u32) -> bool {
        let said = s.said();
        self.is_followed()
            && s.seq == self.next
            && s.len > 0
            && !self.is_exposed(config, s)
            && !self.is_overdue(config, now)
            && (s.flags & !AE) | PSH == ACK | PSH
            && said.foreign.is_none()
            && !said.unknown
            && (config.ecn || s.ecn == 0)
            && !s.data_end().after(self.limit(config))
    }

    /// The exposure would exceed its limit.
    fn is_exposed(&self, config: &Config, s: &Segment) -> bool {
        s.data_end().0.wrapping_sub(self.vm.0) > config.exposure
    }

    /// The guest has made no progress for too long.
    fn is_overdue(&self, config: &Config, now: u32) -> bool {
        let owed = now.wrapping_sub(self.owed).cast_signed();
        self.acked.after(self.vm) && i64::from(owed) > i64::from(config.exposure_ticks)
    }

    /// The segment at NEXT_SEQ passes: no early ACK until it is seen again.
    fn rests(&mut self, mode: Mode) {
        if self.is_followed() {
            self.mode = mode;
        }
    }

    fn refuse(&mut self, mode: Mode, exit: &'static str) -> Result<(), &'static str> {
        self.mode = mode;
        Err(exit)
    }

    /// Whether the segment may be acknowledged early; otherwise returns the exit, and may change
    /// the mode.
    fn judge(&mut self, config: &Config, s: &Segment, now: u32) -> Result<(), &'static str> {
        use Mode::{Bypass, NoBuf, UnexpectedSeq};
        let said = s.said();
        let limit = self.limit(config);
        if self.is_bypassed() {
            return Err("bypass");
        }
        if !self.learnt || self.mode == Mode::Syn {
            return Err("unlearnt");
        }
        // A forged segment.
        if !self.is_near(s, limit) {
            return Err("out_of_order");
        }
        if !self.is_acceptable(s) {
            return Err("misdirected");
        }
        // Reasons that end early ACKs.
        if s.has(FIN) {
            return self.refuse(Bypass("closing"), "bypass");
        }
        if s.has(URG) {
            return self.refuse(Bypass("urgent"), "bypass");
        }
        if let Some(kind) = said.foreign {
            return self.refuse(Bypass(foreign_reason(kind)), "bypass");
        }
        if said.unknown {
            return self.refuse(Bypass("option"), "bypass");
        }
        if s.len == 0 {
            return Err("no_data");
        }
        if s.ecn != 0 && !config.ecn {
            return self.refuse(Bypass("ect"), "bypass");
        }
        if self.mode == Mode::Unproven {
            return Err("unlearnt");
        }
        // Reasons against an early ACK for this segment.
        if s.seq != self.next {
            return self.refuse(UnexpectedSeq, "out_of_order");
        }
        if s.ecn == CE || s.has(AE | CWR | ECE) {
            return self.refuse(UnexpectedSeq, "ce");
        }
        if !s.has(ACK) {
            return self.refuse(UnexpectedSeq, "options");
        }
        // In mid-flow the first segment shows whether the peer has timestamps.
        if self.vm_ts && !self.peer_syn && said.timestamps.is_some() {
            self.peer_ts = true;
        }
        let old = |tsval: Seq| tsval.before(self.ts_peer);
        if said.timestamps.is_some() != self.has_timestamps() || s.tsval().is_some_and(old) {
            return self.refuse(UnexpectedSeq, "options");
        }
        if s.data_end().after(limit) {
            return self.refuse(NoBuf, "beyond_window");
        }
        if self.is_exposed(config, s) {
            return self.refuse(NoBuf, "exposure");
        }
        if self.is_overdue(config, now) {
            return self.refuse(NoBuf, "overdue");
        }
        // A window, an eighth of it and one MSS of buffer, small segments counted as an MSS each.
        let taken = s.data_end().0.wrapping_sub(self.vm.0)
            + self.extra
            + self.extra_older
            + extra(self.mss, s.len);
        let offered = self.vm.room(limit);
        if taken > offered + offered / 8 + u32::from(self.mss) {
            return self.refuse(NoBuf, "budget");
        }
        Ok(())
    }

    /// Acknowledges a segment in the ring. Returns the window and TSecr of the ACK.
    fn acknowledge(&mut self, config: &Config, s: &Segment, now: u32) -> (u16, Seq) {
        self.next = s.data_end();
        let len = u32::from(s.len);
        self.frame = match self.frame {
            0 => len,
            frame => frame - frame / 8 + len / 8,
        };
        self.extra += extra(self.mss, s.len);
        self.mode = Mode::Active;
        self.grow(config);
        let window = self.window(config, self.next, self.limit(config));
        self.tell(now);
        self.advertised_edge = self.next + self.bytes(window);
        (window, s.tsval().unwrap_or_default())
    }

    /// Two segments for each acknowledged one, up to the space that the guest never advertised.
    fn grow(&mut self, config: &Config) {
        if config.grows() {
            let grown = self.grown.max(self.edge) + 2 * u32::from(self.mss);
            self.grown = grown.min(self.most(config));
        }
    }

    fn early_ack(&self, window: u16, echo: Seq) -> Segment {
        let mut options = Options::NONE;
        if self.has_timestamps() {
            options = options.timestamps(self.ts_vm, echo);
        }
        // The guest's SACK block (RFC 2018 4).
        let beyond = |block: &(Seq, Seq)| block.0.after(self.next) && block.0.after(self.vm);
        if let Some(block) = self.block.filter(beyond) {
            options = options.sack(&[block]);
        }
        Segment {
            seq: self.vm_snd,
            ack: self.next,
            flags: ACK,
            window,
            options,
            len: 0,
            ttl: self.ttl,
            ecn: 0,
            from: self.vm_mac,
            to: self.peer_mac,
            sums_up: true,
        }
    }

    /// A reset inside the window ends early ACKs. With the expected number, no end waits for
    /// early-acknowledged data any more (RFC 5961 3.2).
    fn peer_resets(&mut self, s: &Segment) {
        if self.mode == Mode::Syn || s.seq.before(self.vm) || s.seq.after(self.edge) {
            return;
        }
        if s.seq == self.next {
            self.vm = self.vm.max(self.acked);
        }
        self.mode = Mode::Bypass("closing");
    }
}
