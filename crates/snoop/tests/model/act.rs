//! Performs one action in any state.

use crate::action::{Action, Odd, Size, Way};
use crate::run::Run;
use crate::segment::{
    ACK, AE, CE, CWR, ECE, FIN, GUEST_MAC, OTHER_MAC, Options, PSH, RST, Segment, URG,
};
use crate::seq::Seq;

/// Maximum data in a frame: copies of longer ones take more room.
const LEN_MAX: u32 = 1460;

/// Makes a segment odd.
fn make_odd(s: &mut Segment, odd: Odd) {
    match odd {
        Odd::Plain => {}
        Odd::Urgent => s.flags |= URG,
        Odd::Cwr => s.flags |= CWR,
        Odd::Ece => s.flags |= ECE,
        Odd::Ae => s.flags |= AE,
        Odd::Ect => s.ecn = 2,
        Odd::Ce => s.ecn = CE,
        Odd::Fin => s.flags |= FIN,
        Odd::NoAck => s.flags &= !ACK,
        Odd::Unknown => s.options = s.options.padded().and(&[253, 4, 0, 0]),
        Odd::Kind(kind) => s.options = s.options.padded().and(&[kind, 4, 0, 0]),
        Odd::NoTimestamps => s.options = Options::NONE,
        Odd::OldClock(by) => {
            if let Some((value, echo)) = s.said().timestamps {
                s.options = Options::NONE.timestamps(value - u32::from(by), echo);
            }
        }
        Odd::OtherMac => {
            if s.from == crate::segment::PEER_MAC {
                s.to = OTHER_MAC;
            } else {
                s.from = OTHER_MAC;
            }
        }
        Odd::WrongSum => s.sums_up = false,
        Odd::Window(window) => s.window = window,
        Odd::Ttl(ttl) => s.ttl = ttl,
        Odd::Sack(from, len) => {
            let start = s.ack.moved(i32::from(from));
            let timestamps = s.said().timestamps;
            s.options = match timestamps {
                Some((value, echo)) => Options::NONE.timestamps(value, echo),
                None => Options::NONE,
            };
            s.options = s.options.sack(&[(start, start + u32::from(len))]);
        }
    }
    s.options = s.options.padded();
}

// === impl Run ===

impl Run<'_> {
    /// Performs the action, or nothing if the state does not allow it.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::GuestTakes { .. }
            | Action::GuestAcks(_)
            | Action::GuestRepeats(_)
            | Action::GuestReads(_)
            | Action::GuestBuffer { .. }
            | Action::GuestDropsBeyond
            | Action::GuestData { .. }
            | Action::GuestAgain(_)
            | Action::GuestFin
            | Action::GuestReset
            | Action::GuestSyn { .. } => self.guest_acts(action),
            Action::AckWaits => {
                self.ack_waits = true;
                Ok(())
            }
            Action::AckLost => {
                self.ack_lost = true;
                Ok(())
            }
            Action::On(on) => {
                self.setup.config.on = on;
                self.configure();
                Ok(())
            }
            Action::Full(full) => {
                self.setup.config.full = full;
                self.configure();
                Ok(())
            }
            Action::Sharing(flows) => {
                self.setup.config.sharing = u32::from(flows);
                self.configure();
                Ok(())
            }
            Action::CopiesTaken => self.take_copies(),
            Action::TimePasses(ticks) => {
                let ticks = u32::from(ticks);
                self.model.now += ticks;
                self.observer.pass_time(ticks);
                let key = self.key();
                self.machine
                    .pass_time(&key, ticks, &["heard", "awake", "owed", "fed"]);
                Ok(())
            }
            Action::ClocksTick(by) => {
                self.peer.clock = self.peer.clock + u32::from(by);
                self.guest.clock = self.guest.clock + u32::from(by);
                Ok(())
            }
            _ => self.peer_acts(action),
        }
    }

    fn configure(&mut self) {
        self.model.config = self.setup.config;
        let setup = &self.setup;
        self.machine
            .configure(&setup.config, setup.by_address, setup.awake);
    }

    fn bytes(&self, size: Size) -> u16 {
        let mss = u32::from(self.peer.mss);
        let bytes = match size {
            Size::Part(parts, bytes) => mss * u32::from(parts) / 100 + u32::from(bytes),
            Size::Window => self.peer.next.room(self.peer.edge),
        };
        bytes.min(LEN_MAX) as u16
    }

    fn peer_acts(&mut self, action: Action) -> Result<(), String> {
        let peer = &self.peer;
        let open = peer.next != peer.terms.first;
        match action {
            Action::PeerData {
                size,
                push,
                way,
                odd,
            } => {
                let len = self.bytes(size);
                match self.peer.data(len, push) {
                    Some(data) => self.peer_sends(data, way, odd),
                    None => Ok(()),
                }
            }
            Action::PeerAgain {
                skip,
                size,
                way,
                odd,
            } => {
                let len = self.bytes(size);
                match self.peer.again(u32::from(skip), len) {
                    Some(data) => self.peer_sends(data, way, odd),
                    None => Ok(()),
                }
            }
            Action::PeerLate(which) if !self.delayed.is_empty() => {
                let at = usize::from(which) % self.delayed.len();
                let late = self.delayed.remove(at);
                self.arrives(&late)
            }
            Action::PeerCopy(which) if !self.peer.sent.is_empty() => {
                let at = usize::from(which) % self.peer.sent.len();
                let copy = self.peer.sent[at];
                self.arrives(&copy)
            }
            Action::PeerSyn { moved, ack, odd } => {
                let mut syn = self.peer.syn(ack);
                make_odd(&mut syn, odd);
                // The guest believes the first one it sees.
                let seen = syn.sums_up && syn.to == GUEST_MAC;
                if !seen || self.guest.knows_peer && !ack {
                    syn.seq = syn.seq.moved(moved);
                }
                self.arrives(&syn)
            }
            Action::PeerAck(odd) if open => {
                let ack = peer.segment(peer.next, 0);
                self.peer_sends(ack, Way::Arrives, odd)
            }
            Action::PeerKeepalive(byte) if open => {
                let keepalive = peer.segment(peer.una - 1, u16::from(byte));
                self.peer_sends(keepalive, Way::Arrives, Odd::Plain)
            }
            Action::PeerProbe(len) if open && !peer.ended => {
                let probe = peer.segment(peer.next, u16::from(len));
                self.peer_sends(probe, Way::Arrives, Odd::Plain)
            }
            Action::PeerFin if open => {
                let fin = self.peer.fin();
                self.peer_sends(fin, Way::Arrives, Odd::Plain)
            }
            Action::PeerReset(by) if open => {
                let seq = peer.una.moved(i32::from(by));
                let mut reset = self.peer.segment(seq, 0);
                reset.flags = RST;
                // No end waits for more.
                self.guest.lies = true;
                self.arrives(&reset)
            }
            Action::Forged {
                seq,
                ack,
                len,
                clock,
            } if open => {
                let mut forged = peer.segment(peer.una.moved(seq), len.min(LEN_MAX as u16));
                forged.ack = self.guest.next.moved(ack);
                if peer.timestamps {
                    let value = peer.clock.moved(clock);
                    let echo = self.guest.terms.clock.unwrap_or_default();
                    forged.options = Options::NONE.timestamps(value, echo);
                }
                // The guest accepts an ACK that is behind, or covers what it has sent, and then
                // also a forged timestamp, and an ACK that the peer has not given.
                self.guest.lies |= ack != 0 || forged.ack != peer.rcv;
                self.guest.reneged |= self.model.flow.is_none();
                self.arrives(&forged)
            }
            Action::Unseen(size) => {
                let len = self.bytes(size);
                if let Some(data) = self.peer.data(len, false) {
                    self.note(|| format!("      unseen: {} bytes", data.len));
                    self.put_in_ring(&data, false);
                    // By this timestamp the guest may drop earlier segments.
                    self.guest.reneged = true;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn peer_sends(&mut self, mut s: Segment, way: Way, odd: Odd) -> Result<(), String> {
        if odd != Odd::Fin || self.peer.next == s.data_end() {
            make_odd(&mut s, odd);
        }
        self.peer.ended |= s.has(FIN);
        if !self.peer.next.after(s.end()) {
            self.peer.next = s.end();
        }
        self.peer.remember(&s);
        match way {
            Way::Lost => Ok(()),
            Way::Arrives => self.arrives(&s),
            Way::Delayed => {
                self.delayed.push(s);
                Ok(())
            }
            Way::Twice => {
                self.arrives(&s)?;
                self.arrives(&s)
            }
        }
    }

    fn guest_acts(&mut self, action: Action) -> Result<(), String> {
        if self.guest.closed {
            return Ok(());
        }
        let open = self.guest.is_open();
        match action {
            Action::GuestTakes { count, drops } => {
                for _ in 0..count {
                    let Some(segment) = self.out_of_ring()? else {
                        break;
                    };
                    if drops {
                        self.guest.reneged |= segment.len > 0;
                    } else {
                        self.guest.receive(&segment);
                    }
                }
                Ok(())
            }
            Action::GuestAcks(odd) if open => {
                let mut ack = self.guest.ack();
                self.lies(odd);
                make_odd(&mut ack, odd);
                self.guest_sends(&ack)
            }
            Action::GuestRepeats(which) if !self.guest.sent.is_empty() => {
                let at = usize::from(which) % self.guest.sent.len();
                let ack = self.guest.sent[at];
                self.guest_sends(&ack)
            }
            Action::GuestReads(bytes) => {
                self.guest.read(bytes);
                Ok(())
            }
            Action::GuestBuffer { bytes, shrinks } => {
                self.guest.buffer = bytes;
                self.guest.shrinks = shrinks;
                Ok(())
            }
            Action::GuestDropsBeyond => {
                self.guest.drop_beyond();
                Ok(())
            }
            Action::GuestData { len, lost, odd } if open && len > 0 && !self.guest.ended => {
                self.guest_lost = lost;
                let mut data = self.guest.data(len, PSH);
                self.lies(odd);
                make_odd(&mut data, odd);
                self.guest_sends(&data)
            }
            Action::GuestAgain(len) if open => match self.guest.again(len) {
                Some(data) => self.guest_sends(&data),
                None => Ok(()),
            },
            Action::GuestFin if open && !self.guest.ended => {
                self.guest.ended = true;
                let fin = self.guest.data(0, FIN);
                self.guest_sends(&fin)
            }
            Action::GuestReset if open => {
                let mut reset = self.guest.ack();
                (reset.flags, reset.ack, reset.window) = (RST, Seq(0), 0);
                self.guest.closed = true;
                self.guest_sends(&reset)
            }
            Action::GuestSyn { ack, odd } if self.guest.knows_peer || !ack => {
                // Another connection of the same ends replaces this one.
                self.guest.lies |= !ack && self.guest.knows_peer;
                let mut syn = self.guest.syn(ack);
                make_odd(&mut syn, odd);
                self.guest_sends(&syn)
            }
            _ => Ok(()),
        }
    }

    /// An odd segment may acknowledge more than the guest has sent, or less.
    fn lies(&mut self, odd: Odd) {
        self.guest.lies |= matches!(
            odd,
            Odd::Window(_) | Odd::Sack(..) | Odd::OtherMac | Odd::NoAck
        );
    }
}
