//! From the guest: what the programs learn, and what passes.

use crate::reference::flow::{Flow, Mode, Scale};
use crate::reference::handshake::syn_window;
use crate::reference::{Config, Event, Expected, Fate, Model, RUNNING};
use crate::segment::{ACK, CWR, ECE, FIN, Mac, RST, SYN, Segment, URG};
use crate::seq::Seq;

/// Initial TTLs.
const USUAL_TTLS: [u8; 3] = [64, 128, 255];

/// The widest scale (RFC 7323 2.3).
const SCALE_MAX: u8 = 14;

/// The kind of a guest's segment, to the flow.
enum Heard {
    /// It passes, with this number and window.
    As(Seq, u16),
    Suppressed,
    Lifted(Seq, u16),
    Ended(&'static str),
    /// The guest lacks early-acknowledged data, by this evidence.
    Lacks {
        reach: Seq,
        contradicted: bool,
    },
}

// === impl Model ===

impl Model {
    /// Handles a frame from the guest.
    pub(crate) fn leaves(&mut self, s: &Segment) -> Expected {
        if s.has(RST) {
            self.forget();
            return Self::passes("rst", s);
        }
        if let Some(why) = self.foreign_origin(s) {
            self.bypass_foreign(s, why);
            return Self::passes(why, s);
        }
        let (config, now) = (self.config, self.now);
        if s.has(SYN) {
            let own = (!s.has(ACK)).then_some(0);
            self.largest_scale = self.largest_scale.max(s.said().scale.or(own));
            self.guest_syn(s);
            let window = match s.has(ACK) {
                true => syn_window(&config, s),
                false => s.window,
            };
            return Self::passes("syn", &Segment { window, ..*s });
        }
        if self.flow.is_none() {
            if s.has(FIN) || !s.has(ACK) {
                return Self::passes("no_flow", s);
            }
            let mut flow = Flow::met(s);
            if config.distrusted {
                flow.mode = Mode::Bypass("distrusted_peer");
            }
            self.flow = Some(flow);
        }
        let Some(flow) = &mut self.flow else {
            unreachable!("there is one by now");
        };
        let begins = flow.counted && flow.is_proof(s);
        flow.counted &= !begins;
        let scale_most = self.largest_scale.unwrap_or(SCALE_MAX).min(SCALE_MAX);
        let heard = flow.hear_guest(&config, s, scale_most, now);
        flow.on_guest_heard(now);
        let acked = flow.acked;
        if begins {
            self.has_begun();
        }
        self.forget_if_over();
        match heard {
            Heard::Suppressed => Expected {
                exit: "suppressed",
                fate: Fate::Dropped,
                copied: false,
                event: None,
            },
            Heard::Ended(exit) => Self::passes(exit, s),
            Heard::As(ack, window) if window < s.window => {
                Self::passes("narrowed", &Segment { ack, window, ..*s })
            }
            Heard::As(..) => Self::passes("passed", s),
            Heard::Lifted(ack, window) => Self::passes("lifted", &Segment { ack, window, ..*s }),
            Heard::Lacks {
                reach,
                contradicted,
            } => Expected {
                event: Some(Event {
                    vm_seq: s.ack,
                    acked_seq: acked,
                    reach,
                    contradicted,
                }),
                ..Self::passes(
                    if contradicted {
                        "contradicted"
                    } else {
                        "doubt"
                    },
                    s,
                )
            },
        }
    }

    /// Returns why a segment is not the guest's own: its Ethernet address, its TTL, its address.
    fn foreign_origin(&mut self, s: &Segment) -> Option<&'static str> {
        let flow = self.flow.as_ref().filter(|_| !s.has(SYN));
        let other_mac = match self.config.guest_mac {
            Some(mac) => s.from != mac,
            None => several(&mut self.source, s.from),
        };
        if other_mac {
            return Some("other_mac");
        }
        let forwarded = match flow.map(|flow| flow.ttl) {
            Some(ttl) if ttl > 0 => s.ttl != ttl,
            _ => {
                let added = self.config.guest_ttl;
                !USUAL_TTLS.contains(&s.ttl) && (added == 0 || s.ttl != added)
            }
        };
        if forwarded {
            return Some("forwarded");
        }
        (flow.is_none() && self.config.foreign_address).then_some("other_address")
    }

    fn bypass_foreign(&mut self, s: &Segment, why: &'static str) {
        let now = self.now;
        let Some(flow) = &mut self.flow else { return };
        if !flow.is_bypassed() {
            flow.mode = Mode::Bypass(why);
        }
        if !s.has(SYN) {
            flow.follow_to_the_end(s, now);
        }
        self.forget_if_over();
    }
}

/// Notes a source address, and returns whether the tap has several while the guest's is unknown.
fn several(source: &mut Option<(Mac, bool)>, mac: Mac) -> bool {
    let (first, several) = source.get_or_insert((mac, false));
    *several |= *first != mac;
    *several
}

// === impl Flow ===

impl Flow {
    /// Whether the segment confirms the connection: the guest has taken data, sends some, or
    /// closes. For a flow found just now, whether it has taken data is unknown.
    fn is_proof(&self, s: &Segment) -> bool {
        let took = self.scale != Scale::Unknown && s.ack.after(self.vm);
        s.len > 0 || s.has(FIN) || took
    }

    fn hear_guest(&mut self, config: &Config, s: &Segment, scale_most: u8, now: u32) -> Heard {
        let said = s.said();
        if self.is_bypassed() {
            self.follow_to_the_end(s, now);
            return Heard::Ended("bypass");
        }
        if s.has(FIN) {
            self.follow_to_the_end(s, now);
            self.mode = Mode::Bypass("closing");
            return Heard::Ended("fin");
        }
        if !s.has(ACK) || self.mode == Mode::Syn {
            return Heard::As(s.ack, s.window);
        }
        if let Some(kind) = said.foreign {
            self.mode = Mode::Bypass(match kind {
                19 => "md5",
                29 => "tcp_ao",
                30 => "mptcp",
                _ => "fast_open",
            });
            return Heard::Ended("bypass");
        }
        let before = *self;
        let met = self.scale == Scale::Unknown;
        self.learn(s, scale_most, now);
        if !met
            && self.mode != Mode::Unproven
            && let Some(why) = self.contradicts(config, s, &before, now)
        {
            self.mode = Mode::Bypass(why);
            let reach = self.edge;
            return Heard::Lacks {
                reach,
                contradicted: why == "contradicted",
            };
        }
        if !met && matches!(self.scale, Scale::AtLeast(_)) && self.retreats(before.edge) {
            self.mode = Mode::Bypass("retracted");
            return Heard::Ended("bypass");
        }
        // Data beyond the hole came after the early-acknowledged data before it.
        if let Some((start, end)) = said.sack
            && s.ack.before(self.acked)
            && start.after(s.ack)
            && end.after(self.ahead)
        {
            self.mode = Mode::Bypass("doubt");
            return Heard::Lacks {
                reach: end,
                contradicted: false,
            };
        }
        if self.mode == Mode::Unproven && (before.is_proof(s) || self.vm_client) {
            self.mode = Mode::Active;
            self.next = self.vm;
        }
        if !config.on && self.mode == Mode::Active {
            self.mode = Mode::UnexpectedSeq;
        }
        let plain = said.sack.is_none() && !said.unknown && !s.has(ECE | CWR | URG);
        if self.mode != Mode::Active || !plain {
            return self.pass(config, s);
        }
        if !s.ack.before(self.next) {
            // The first time it says what the sender already knows.
            let window = self.window(config, s.ack, self.edge);
            let news = s.ack + self.bytes(window);
            let repeats =
                s.ack == self.acked && s.ack != before.vm && !news.after(self.advertised_edge);
            if s.len == 0 && repeats {
                return Heard::Suppressed;
            }
            return self.pass(config, s);
        }
        let window = self.window(config, self.next, self.limit(config));
        let edge = self.next + self.bytes(window);
        if s.len == 0 && !s.ack.after(self.acked) && !edge.after(self.advertised_edge) {
            return Heard::Suppressed;
        }
        self.tell(now);
        self.advertised_edge = edge;
        Heard::Lifted(self.next, window)
    }

    fn retreats(&self, edge: Seq) -> bool {
        (self.edge + ((1 << self.shift()) - 1)).before(edge)
    }

    /// Whether the guest retracts its window over early-acknowledged data, or seems to lack the data.
    fn contradicts(
        &self,
        config: &Config,
        s: &Segment,
        before: &Self,
        now: u32,
    ) -> Option<&'static str> {
        if !s.ack.before(self.next) || s.ack.before(self.vm) {
            return None;
        }
        if self.retreats(before.edge) || !config.grows() && self.retreats(self.next) {
            return Some("contradicted");
        }
        let repeats = s.ack == before.vm
            && s.len == 0
            && s.ack.before(self.acked)
            && !self.edge.after(before.edge)
            && self.heard_since
            && Seq(now).from(Seq(self.awake)) >= RUNNING.cast_signed();
        repeats.then_some("doubt")
    }

    /// `scale_most`: the largest scale in the guest's SYNs.
    fn learn(&mut self, s: &Segment, scale_most: u8, now: u32) {
        let said = s.said();
        match self.scale {
            Scale::Unknown => {
                self.scale = Scale::AtLeast(0);
                self.begin_at(s.ack, u32::from(s.window));
                self.vm_snd = s.seq;
                self.vm_una = s.seq;
                // Data in the ring was not seen: up to the widest scale, of 512 at least.
                self.ahead = s.ack + (u32::from(s.window).max(512) << SCALE_MAX);
                (self.ts_vm, self.ts_peer) = said.timestamps.unwrap_or_default();
                (self.offer_ts, self.excess) = (None, None);
            }
            // It has taken what its window allows by a larger scale.
            Scale::AtLeast(scale) if self.excess.is_some_and(|end| !s.ack.before(end)) => {
                let end = self.excess.take();
                if end.is_some_and(|end| end.after(self.far + u32::from(self.mss))) {
                    self.scale = Scale::AtLeast((scale + 1).min(scale_most.max(scale)));
                    self.offer_ts = Some(self.ts_vm);
                    self.far = s.ack;
                }
            }
            _ => {}
        }
        self.learnt = true;
        self.vm_ts |= !self.vm_syn && said.timestamps.is_some();
        if s.ack.after(self.vm) {
            // A sender takes the window of an ACK of new data.
            let value = said.timestamps.unwrap_or_default().0;
            self.offer_ts = self.offer_ts.or(Some(value));
            self.vm = s.ack;
            self.owe_from(now);
            self.ahead = self.ahead.max(s.ack);
        }
        if !s.ack.before(self.vm) {
            let window = self.bytes(s.window);
            self.edge = s.ack + window;
            self.widest = self.widest.max(window);
            self.far = self.far.max(self.edge);
        }
        self.next = self.next.max(s.ack);
        // The guest has all of the older small segments.
        if !self.vm.before(self.extra_mark) {
            self.extra_older = if self.vm == self.next { 0 } else { self.extra };
            self.extra = 0;
            self.extra_mark = self.next;
        }
        // A first block below the number reports a duplicate (RFC 2883 4), and the earlier block
        // stays valid.
        let duplicate = said.sack.is_some_and(|(start, _)| !start.after(s.ack));
        if !s.ack.before(self.vm) && !duplicate {
            self.block = said.sack;
        }
        self.vm_snd = self.vm_snd.max(s.data_end());
        if let Some((value, echo)) = said.timestamps {
            self.ts_vm = self.ts_vm.max(value);
            // Its TS.Recent, also from unseen segments (RFC 7323 4.3).
            self.ts_peer = self.ts_peer.max(echo);
        }
        self.see_guest(s);
    }

    /// Passes a segment, narrowing a window beyond the sender's share.
    fn pass(&mut self, config: &Config, s: &Segment) -> Heard {
        let window = match config.on {
            true => self.window(config, s.ack, self.edge),
            false => s.window,
        };
        self.acked = self.acked.max(s.ack);
        if !s.ack.before(self.acked) {
            self.advertised_edge = s.ack + self.bytes(window);
        }
        Heard::As(s.ack, window)
    }

    /// Tracks, in a closing or bypassed flow, what the guest has and can still take.
    fn follow_to_the_end(&mut self, s: &Segment, now: u32) {
        if s.has(FIN) {
            self.vm_fin.end = Some(s.data_end() + 1);
        }
        self.vm_snd = self.vm_snd.max(s.data_end() + u32::from(s.has(FIN)));
        if !s.has(ACK) {
            return;
        }
        if s.ack.after(self.vm) {
            self.vm = s.ack;
            self.owe_from(now);
        }
        if s.ack == self.vm {
            self.edge = s.ack + self.bytes(s.window);
        }
        if self.peer_fin.end.is_some_and(|end| !s.ack.before(end)) {
            self.peer_fin.acked = true;
        }
    }
}
