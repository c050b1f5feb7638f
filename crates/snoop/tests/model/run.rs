//! Carries a sequence out: packets through the programs and through the model, and what must hold after each.

use std::collections::VecDeque;

use crate::action::Action;
use crate::guest::Guest;
use crate::kept::Kept;
use crate::machine::{Machine, RINGS, Side};
use crate::observer::Observer;
use crate::peer::Peer;
use crate::reference::{Event, Expected, Fate, Model, Surroundings};
use crate::segment::{FRAME_MAX, Options, Segment};
use crate::setup::{Opening, Setup};

/// A packet goes on; it is dropped; it is redirected (linux/pkt_cls.h).
const PASS: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// Marks of the programs' own packets (src/bpf/snoop.h).
const ACK_MARK: u32 = 0x7461_7575;
const LEFTOVER_MARK: u32 = 0x7461_7576;
const ACK_DATA_MARK: u32 = 0x7461_7577;

/// What did not hold.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// After which action.
    pub(crate) at: usize,
    pub(crate) what: String,
}

/// A frame in the guest's ring.
#[derive(Clone, Copy, Debug)]
struct InRing {
    segment: Segment,
    /// It is in the tap's, for the programs have put it there; else it has only passed them.
    put: bool,
}

/// A sequence that is being carried out.
pub(crate) struct Run<'m> {
    pub(crate) machine: &'m mut Machine,
    pub(crate) setup: Setup,
    pub(crate) model: Model,
    pub(crate) observer: Observer,
    pub(crate) peer: Peer,
    pub(crate) guest: Guest,
    ring: VecDeque<InRing>,
    /// Of the ring, what the programs have put there.
    put: u32,
    /// The peer's segments that are late.
    pub(crate) delayed: Vec<Segment>,
    /// Early ACKs on their way back, and whether they are renewed; and whether the next one waits.
    backlog: VecDeque<(Segment, bool)>,
    pub(crate) ack_waits: bool,
    /// What is lost on the way to the peer: the next early ACK, the guest's next segment.
    pub(crate) ack_lost: bool,
    pub(crate) guest_lost: bool,
    /// What user space is to be told, and copies that it has not taken.
    events: Vec<Event>,
    copies: Vec<Segment>,
    /// Copies that user space has taken.
    retained: Vec<Segment>,
    packets: u64,
    frame: Vec<u8>,
    key: [u8; 40],
    /// Where a report of the sequence is written, if one is.
    log: Option<Vec<String>>,
}

/// What a sequence has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) early_acks: u64,
}

/// Carries a sequence out. Returns how it went, and the report if one is wanted.
pub(crate) fn run(
    machine: &mut Machine,
    setup: &Setup,
    actions: &[Action],
    report: bool,
) -> (Result<Counts, Failure>, Vec<String>) {
    let mut run = Run::new(machine, *setup, report);
    let mut result = Ok(());
    let mut at = 0;
    for action in actions {
        run.note(|| format!("{at:3} {action:?}"));
        result = run.act(*action).and_then(|()| run.flush());
        if result.is_err() {
            break;
        }
        at += 1;
    }
    let result = result.and_then(|()| run.settle());
    run.clear();
    let counts = Counts {
        packets: run.packets,
        early_acks: u64::from(run.observer.early_acks),
    };
    let result = result.map(|()| counts).map_err(|what| Failure { at, what });
    (result, run.log.unwrap_or_default())
}

// === impl Run ===

impl<'m> Run<'m> {
    fn new(machine: &'m mut Machine, setup: Setup, report: bool) -> Self {
        let mut guest = Guest::new(setup.guest, setup.peer, setup.buffer);
        guest.shrinks = setup.shrinks;
        guest.ttl = setup.ttl;
        guest.beyond_edge = setup.config.guest_rcvbuf;
        let mut peer = Peer::new(setup.peer, setup.guest);
        let shift = guest.shift;
        let observer = Observer::new(&setup, shift);
        if setup.opening == Opening::Midflow {
            guest.established(setup.peer.first, peer.clock, setup.earlier);
            let window = u32::from(guest.ack().window) << shift;
            peer.established(setup.guest.first, window + setup.earlier);
            peer.recent = guest.clock;
        }
        machine.configure(&setup.config, setup.by_address, setup.awake);
        Self {
            machine,
            setup,
            model: Model::new(setup.config),
            observer,
            peer,
            guest,
            ring: VecDeque::new(),
            put: 0,
            delayed: Vec::new(),
            backlog: VecDeque::new(),
            ack_waits: false,
            ack_lost: false,
            guest_lost: false,
            events: Vec::new(),
            copies: Vec::new(),
            retained: Vec::new(),
            packets: 0,
            frame: vec![0; FRAME_MAX],
            key: setup.ends.key(),
            log: report.then(Vec::new),
        }
    }
    /// Writes a line of the report, if there is one.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    fn note_segment(&mut self, what: &str, from_guest: bool, s: &Segment) {
        let (peer, guest) = (self.setup.peer.first, self.setup.guest.first);
        self.note(|| format!("      {what}: {}", s.shown(from_guest, peer, guest)));
    }

    /// Whether the programs are compared with the model. Where an ACK may be of several segments, that depends on
    /// the time, and only what must hold in any case is looked at.
    fn is_exact(&self) -> bool {
        !self.setup.awake
    }

    /// The frame comes to the tap from the peer's side.
    pub(crate) fn arrives(&mut self, s: &Segment) -> Result<(), String> {
        self.note_segment("to the guest", false, s);
        self.packets += 1;
        let around = Surroundings {
            ring: self.put < RINGS[self.setup.tap],
            copies: self.copies.len() < self.machine.copies_max(),
        };
        let expected = self.model.arrives(s, around);
        let len = s.write(&self.setup.ends, false, &mut self.frame);
        let frame = &self.frame[..len];
        let ran = self.machine.run(Side::ToGuest, self.setup.tap, 0, frame);
        let seen = match (ran.action, ran.mark) {
            (PASS, 0) if ran.frame == frame => Fate::Passes(*s),
            (PASS, _) => return Err("a frame for the guest was changed".into()),
            (SHOT, _) => Fate::Dropped,
            (REDIRECT, LEFTOVER_MARK) => Fate::Delivered,
            (REDIRECT, mark @ (ACK_MARK | ACK_DATA_MARK)) => Fate::Acknowledged {
                ack: Segment::read(&self.setup.ends, true, ran.frame)?,
                renewed: mark == ACK_DATA_MARK,
            },
            (action, mark) => return Err(format!("action {action}, mark {mark:x}")),
        };
        if self.is_exact() {
            self.compare(Side::ToGuest, &expected, seen)?;
            if expected.copied {
                self.copies.push(*s);
            }
        }
        match seen {
            Fate::Passes(_) => self.put_in_ring(s, false),
            Fate::Dropped if around.ring => {
                return Err("a frame for the guest was dropped, and the ring has room".into());
            }
            Fate::Dropped => {}
            _ if !around.ring => return Err("delivered to a ring without a place".into()),
            Fate::Delivered => self.put_in_ring(s, true),
            Fate::Acknowledged { ack, renewed } => {
                self.put_in_ring(s, true);
                self.note_segment("early ACK", true, &ack);
                if !ack.sums_up {
                    return Err("an early ACK with a wrong checksum".into());
                }
                self.observer.early(&ack)?;
                self.backlog.push_back((ack, renewed));
            }
        }
        Ok(())
    }

    /// The guest sends.
    pub(crate) fn guest_sends(&mut self, s: &Segment) -> Result<(), String> {
        self.note_segment("from the guest", true, s);
        self.packets += 1;
        let expected = self.model.leaves(s);
        let len = s.write(&self.setup.ends, true, &mut self.frame);
        let frame = &self.frame[..len];
        let ran = self.machine.run(Side::FromGuest, self.setup.tap, 0, frame);
        let seen = match ran.action {
            PASS => Fate::Passes(Segment::read(&self.setup.ends, true, ran.frame)?),
            SHOT => Fate::Dropped,
            action => return Err(format!("action {action}")),
        };
        if self.is_exact() {
            self.compare(Side::FromGuest, &expected, seen)?;
            self.events.extend(expected.event);
        }
        let passed = match seen {
            Fate::Passes(passed) => Some(passed),
            _ => None,
        };
        self.observer.guest_says(s, passed.as_ref())?;
        if let Some(passed) = passed {
            if passed != *s {
                self.note_segment("as", true, &passed);
            }
            if !std::mem::take(&mut self.guest_lost) {
                self.peer.receive(&passed);
            }
        } else {
            self.note(|| "      dropped".into());
        }
        self.ack_waits = false;
        Ok(())
    }

    /// What waits on its way back goes on, unless it is to wait.
    fn flush(&mut self) -> Result<(), String> {
        if self.ack_waits {
            return Ok(());
        }
        while let Some((ack, renewed)) = self.backlog.pop_front() {
            let mark = if renewed { ACK_DATA_MARK } else { ACK_MARK };
            let len = ack.write(&self.setup.ends, true, &mut self.frame);
            let frame = &self.frame[..len];
            let ran = self
                .machine
                .run(Side::FromGuest, self.setup.tap, mark, frame);
            if (ran.action, ran.mark) != (PASS, 0) {
                return Err("an early ACK did not pass".into());
            }
            let passed = Segment::read(&self.setup.ends, true, ran.frame)?;
            if self.is_exact() {
                let expected = self.model.own_ack(&ack, renewed);
                if !self.machine.exits(Side::FromGuest).has_left_by("ours") {
                    return Err("an early ACK was not taken for one".into());
                }
                if passed != expected {
                    let (peer, guest) = (self.setup.peer.first, self.setup.guest.first);
                    return Err(format!(
                        "an early ACK left as\n        {}\n      and not as\n        {}",
                        passed.shown(true, peer, guest),
                        expected.shown(true, peer, guest)
                    ));
                }
            }
            if !std::mem::take(&mut self.ack_lost) {
                self.peer.receive(&passed);
            }
        }
        Ok(())
    }

    /// Compares what the programs did, and what they keep, with the model.
    fn compare(&mut self, side: Side, expected: &Expected, seen: Fate) -> Result<(), String> {
        let (peer, guest) = (self.setup.peer.first, self.setup.guest.first);
        let shown = |fate: &Fate| match fate {
            Fate::Passes(s) => format!("passes: {}", s.shown(side == Side::FromGuest, peer, guest)),
            Fate::Acknowledged { ack, renewed } => {
                format!(
                    "early ACK: {}, renewed {renewed}",
                    ack.shown(true, peer, guest)
                )
            }
            other => format!("{other:?}"),
        };
        if !self.machine.exits(side).has_left_by(expected.exit) || seen != expected.fate {
            let left = self.machine.exits(side).left_by();
            return Err(format!(
                "expected `{}`, {}\n      saw {left:?}, {}",
                expected.exit,
                shown(&expected.fate),
                shown(&seen)
            ));
        }
        let wanted = self.model.flow.as_ref().map(Kept::of);
        let kept = self.machine.kept(&self.key);
        if wanted != kept {
            let shown = |kept: Option<Kept>| kept.map(|kept| kept.shown(peer, guest));
            return Err(format!(
                "after `{}` the programs keep {:?}\n      and not {:?}",
                expected.exit,
                shown(kept),
                shown(wanted)
            ));
        }
        Ok(())
    }

    /// A frame that goes into the guest's ring; `put`: by the programs.
    pub(crate) fn put_in_ring(&mut self, s: &Segment, put: bool) {
        self.observer.in_ring(s);
        self.put += u32::from(put);
        self.ring.push_back(InRing { segment: *s, put });
    }

    /// The next frame of the ring's; `None` if it is empty.
    pub(crate) fn out_of_ring(&mut self) -> Result<Option<Segment>, String> {
        let Some(next) = self.ring.pop_front() else {
            return Ok(None);
        };
        if next.put {
            self.put -= 1;
            let len = next.segment.write(&self.setup.ends, false, &mut self.frame);
            if self.machine.take(self.setup.tap) != Some(&self.frame[..len]) {
                return Err(format!("{:?} is not in the ring", next.segment));
            }
        }
        Ok(Some(next.segment))
    }

    /// User space takes the copies.
    pub(crate) fn take_copies(&mut self) -> Result<(), String> {
        let expected = std::mem::take(&mut self.copies);
        let copies = self.machine.copies();
        if self.is_exact() && copies.len() != expected.len() {
            let (seen, expected) = (copies.len(), expected.len());
            return Err(format!("{seen} copies, and not {expected}"));
        }
        for (n, copy) in copies.iter().enumerate() {
            let segment = Segment::read(&self.setup.ends, false, copy)?;
            if self.is_exact() && segment != expected[n] {
                return Err(format!(
                    "a copy of {segment:?}, and not of {:?}",
                    expected[n]
                ));
            }
            self.observer.copied(&segment);
            self.retained.push(segment);
        }
        self.observer.all_copied()
    }

    /// At the end the guest takes all that is there, and says so; then everybody knows all.
    fn settle(&mut self) -> Result<(), String> {
        self.note(|| "    the end".into());
        self.ack_waits = false;
        self.guest_lost = false;
        self.flush()?;
        self.take_copies()?;
        let events = self.machine.events();
        if self.is_exact() && events != self.events {
            return Err(format!("events {events:?}, and not {:?}", self.events));
        }
        if self.guest.closed || self.guest.lies || !self.guest.is_open() {
            return Ok(());
        }
        self.guest.recovers();
        while let Some(segment) = self.out_of_ring()? {
            self.guest.receive(&segment);
        }
        self.says_all()?;
        // Held segments may be acknowledged early during a pass; the next one retransmits them.
        let mut passes = if self.guest.reneged { 3 } else { 0 };
        while passes > 0 && self.observer.settles(self.guest.rcv).is_err() {
            self.note(|| "    the host retransmits".into());
            self.retransmit()?;
            self.says_all()?;
            passes -= 1;
        }
        self.observer.settles(self.guest.rcv)?;
        self.observer.sender_knows_everything()
    }

    /// The guest says what it has. (What it says first may be what the sender knows.)
    fn says_all(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            let ack = self.guest.ack();
            self.guest_sends(&ack)?;
        }
        Ok(())
    }

    /// What the host does with the copies, where the guest lacks something: it retransmits them with the peer's
    /// latest acknowledgement and TSval, as far as the programs know them.
    fn retransmit(&mut self) -> Result<(), String> {
        let Some(kept) = self.machine.kept(&self.key) else {
            return Ok(());
        };
        let (peer, guest) = (self.setup.peer.first, self.setup.guest.first);
        self.note(|| format!("      {}", kept.shown(peer, guest)));
        for copy in self.retained.clone() {
            let owed = copy.data_end().after(kept.vm_seq) && copy.seq.before(kept.acked_seq);
            if !owed {
                continue;
            }
            let mut again = Segment {
                ack: kept.vm_una,
                ..copy
            };
            if let Some((_, echo)) = copy.said().timestamps {
                again.options = Options::NONE.timestamps(kept.ts_peer, echo);
            }
            self.note_segment("again", false, &again);
            self.guest.receive(&again);
        }
        Ok(())
    }

    /// Leaves nothing behind for the next sequence.
    fn clear(&mut self) {
        while self.ring.iter().any(|frame| frame.put) {
            if self.ring.pop_front().is_some_and(|frame| frame.put) {
                self.machine.take(self.setup.tap);
            }
        }
        // What a failure has left there.
        while self.put > 0 && self.machine.take(self.setup.tap).is_some() {}
        self.machine.forget(&self.key);
        self.machine.events();
        self.machine.copies();
    }

    pub(crate) fn key(&self) -> [u8; 40] {
        self.key
    }
}
