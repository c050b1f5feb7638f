//! How a flow begins.

use crate::reference::flow::{Fin, Flow, Mode, Scale};
use crate::reference::{Config, Model, Pending};
use crate::segment::{ACK, AE, CWR, ECE, Segment};

/// The MSS if the SYN was not seen, or had no option (RFC 9293 3.7.1).
const MSS_USUAL: u16 = 1460;
const MSS_DEFAULT: u16 = 536;

/// A property of a SYN that the other end cannot decline: signed segments.
fn signed(s: &Segment) -> Option<&'static str> {
    match s.said().foreign {
        Some(19) => Some("md5"),
        Some(29) => Some("tcp_ao"),
        _ => None,
    }
}

/// A reason in a SYN-ACK against early ACKs.
fn accepted(s: &Segment) -> Option<&'static str> {
    let said = s.said();
    let accecn = match (s.has(AE), s.has(CWR), s.has(ECE)) {
        (true, true, true) | (false, false, _) => false,
        // RFC 9768 3.1.1, table 2: all others are an accurate ECN server's.
        _ => true,
    };
    match said.foreign {
        Some(30) => Some("mptcp"),
        Some(19 | 29) => signed(s),
        _ if said.unknown => Some("option"),
        _ if s.len > 0 => Some("fast_open"),
        _ if accecn => Some("accecn"),
        _ => None,
    }
}

// === impl Model ===

impl Model {
    /// A peer's SYN describes a possible connection; its SYN-ACK answers the guest.
    pub(super) fn peer_syn(&mut self, s: &Segment) {
        if s.has(ACK) {
            if let Some(flow) = &mut self.flow {
                flow.peer_syn_ack(s);
            }
            return;
        }
        let is_repeated = |flow: &Flow| flow.peer_syn && flow.begun == s.seq + 1;
        if self.flow.as_ref().is_some_and(is_repeated) {
            return;
        }
        let said = s.said();
        self.pending = Some(Pending {
            first: s.seq + 1,
            ts: said.timestamps.unwrap_or_default().0,
            data: s.len,
            scales: said.scale.is_some(),
            timestamps: said.timestamps.is_some(),
            signed: signed(s),
        });
    }

    /// Handles the guest's SYN or SYN-ACK.
    pub(super) fn guest_syn(&mut self, s: &Segment) {
        let config = self.config;
        let flow = self.flow.get_or_insert_with(Flow::new);
        let listens = s.has(ACK) && config.start_early && !flow.counted;
        let alone = listens && self.opening.unwrap_or(0) == 0;
        if listens {
            self.opening = Some(self.opening.unwrap_or(0) + 1);
            flow.counted = true;
        }
        let pending = match s.has(ACK) {
            true => self.pending.take(),
            false => None,
        };
        flow.guest_syn(&config, s, pending.as_ref());
        if config.distrusted && !flow.is_bypassed() {
            flow.mode = Mode::Bypass("distrusted_peer");
        }
        if alone && flow.mode == Mode::Unproven {
            flow.mode = Mode::Active;
        }
    }
}

// === impl Flow ===

impl Flow {
    /// Starts a flow in mid-flow with this segment of the guest.
    pub(crate) fn met(s: &Segment) -> Self {
        let mut flow = Self {
            mode: Mode::Unproven,
            scale: Scale::Unknown,
            mss: MSS_USUAL,
            vm_snd: s.data_end(),
            vm_una: s.seq,
            ..Self::new()
        };
        flow.see_guest(s);
        flow
    }

    fn restart(&mut self) {
        self.mode = Mode::Syn;
        self.widest = 0;
        self.frame = 0;
        (self.peer_fin, self.vm_fin) = (Fin::default(), Fin::default());
        (self.peer_syn, self.peer_scales, self.peer_ts) = (false, false, false);
        (self.vm_syn, self.vm_client, self.learnt) = (true, false, false);
    }

    fn peer_syn_ack(&mut self, s: &Segment) {
        if self.mode != Mode::Syn || !self.vm_client || s.ack != self.vm_snd {
            return;
        }
        // The guest does not see it.
        if s.to != self.vm_mac {
            return;
        }
        let said = s.said();
        self.peer_syn = true;
        self.peer_scales |= said.scale.is_some();
        self.peer_ts |= said.timestamps.is_some();
        self.begun = s.seq + 1;
        self.ts_peer = said.timestamps.unwrap_or_default().0;
        // The window of the guest's SYN has no scale.
        self.begin_at(s.seq + 1, self.widest);
        self.mode = accepted(s).map_or(Mode::Unproven, Mode::Bypass);
    }

    fn guest_syn(&mut self, config: &Config, s: &Segment, pending: Option<&Pending>) {
        let said = s.said();
        let mut why = signed(s);
        let mut unseen = false;
        let follows =
            |pending: &&Pending| s.ack.0.wrapping_sub(pending.first.0) <= u32::from(pending.data);
        if !s.has(ACK) {
            self.restart();
            self.vm_client = true;
        } else if let Some(pending) = pending.filter(follows) {
            self.restart();
            self.peer_syn = true;
            self.peer_scales = pending.scales;
            self.peer_ts = pending.timestamps;
            self.ts_peer = pending.ts;
            // It has taken data in the SYN, or the SYN or the SYN-ACK has a reason.
            why = if s.ack != pending.first {
                Some("fast_open")
            } else {
                pending.signed.or(accepted(s))
            };
        } else if self.mode == Mode::Syn && !self.vm_syn {
            // The peer's SYN was not seen: the answer has scale and timestamps only if it had them.
            self.restart();
            (self.peer_syn, self.peer_scales, self.peer_ts) = (true, true, true);
            self.ts_peer = said.timestamps.unwrap_or_default().1;
            why = accepted(s);
            unseen = true;
        } else {
            return;
        }
        self.vm_scales = said.scale.is_some();
        self.vm_ts = said.timestamps.is_some();
        self.scale = Scale::Said(said.scale.unwrap_or(0).min(14));
        self.ts_vm = said.timestamps.unwrap_or_default().0;
        self.vm_snd = s.seq + 1;
        self.vm_una = s.seq;
        self.mss = match said.mss {
            None | Some(0) => MSS_DEFAULT,
            Some(mss) => mss,
        };
        self.see_guest(s);
        self.widest = u32::from(s.window);
        if s.has(ACK) {
            self.begun = s.ack;
            self.begin_at(s.ack, u32::from(s.window));
            self.advertised_edge = s.ack + u32::from(syn_window(config, s));
            if unseen {
                // Data that its first transmission invited may be in the ring.
                self.ahead = self.edge;
            }
            self.learnt = true;
            self.mode = Mode::Unproven;
        }
        if let Some(why) = why {
            self.mode = Mode::Bypass(why);
        }
    }

    /// Learns the headers of the guest's packets.
    pub(super) fn see_guest(&mut self, s: &Segment) {
        self.ttl = s.ttl;
        self.vm_mac = s.from;
        self.peer_mac = s.to;
    }
}

/// Returns the window in the guest's SYN-ACK, as the sender gets it.
pub(super) fn syn_window(config: &Config, s: &Segment) -> u16 {
    match config.buffer {
        0 => s.window,
        buffer => u32::from(s.window).min(buffer) as u16,
    }
}
