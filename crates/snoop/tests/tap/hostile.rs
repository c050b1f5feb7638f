//! Arbitrary bytes pass, and nothing is acknowledged that the guest would not accept. What the
//! guest would do is stated here once more, from the RFCs and not from the programs.

use std::cell::RefCell;
use std::ops::Range;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use taut_sys::tap::VnetHeader;

use crate::checker::{self, Checker};
use crate::conn::{Conn, SERVER, Terms};
use crate::early_ack::ON;
use crate::rig::{ACK, FIN, PSH, RST, Rig, SYN, URG, fold, internet_sum};

/// TC_ACT_UNSPEC: the packet continues.
const PASS: i32 = -1;

/// Offsets of the Ethernet type and of IP.
const TYPE_AT: usize = 12;
const IP_AT: usize = 14;

/// Types whose tag the kernel removes from the frame, or drops the frame for.
const TAGGED: [[u8; 2]; 2] = [[0x81, 0], [0x88, 0xa8]];

/// The TCP fields that the programs may change in a guest's segment: number, window, checksum.
const LIFTED: [Range<usize>; 3] = [8..12, 14..16, 16..18];

/// One change of a frame.
#[derive(Clone, Debug)]
enum Change {
    Flip { at: usize, bits: u8 },
    Word { at: usize, word: u16 },
    Cut { to: usize },
    Append { bytes: Vec<u8> },
}

/// All changes of a frame.
#[derive(Clone, Debug)]
struct Changes {
    changes: Vec<Change>,
    /// TCP's checksum is corrected, without which the rest is not examined.
    summed: bool,
}

fn odd_word() -> impl Strategy<Value = u16> {
    prop_oneof![
        any::<u16>(),
        prop::sample::select(vec![0, 1, 0x7fff, 0x8000, 0xffff])
    ]
}

fn changes() -> impl Strategy<Value = Changes> {
    // Mostly the headers.
    let at = || prop_oneof![8 => TYPE_AT..100, 1 => TYPE_AT..1200];
    let change = prop_oneof![
        6 => (at(), 1..=255u8).prop_map(|(at, bits)| Change::Flip { at, bits }),
        3 => (at(), odd_word()).prop_map(|(at, word)| Change::Word { at, word }),
        1 => (IP_AT..1200usize).prop_map(|to| Change::Cut { to }),
        1 => vec(any::<u8>(), 1..40).prop_map(|bytes| Change::Append { bytes }),
    ];
    (vec(change, 1..4), prop::bool::weighted(0.8))
        .prop_map(|(changes, summed)| Changes { changes, summed })
}

// === impl Changes ===

impl Changes {
    /// Returns the changed frame without the device's header.
    fn of(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        for change in &self.changes {
            match change {
                Change::Flip { at, bits } => {
                    if let Some(byte) = frame.get_mut(*at) {
                        *byte ^= bits;
                    }
                }
                Change::Word { at, word } => {
                    if let Some(bytes) = frame.get_mut(*at..at + 2) {
                        bytes.copy_from_slice(&word.to_be_bytes());
                    }
                }
                Change::Cut { to } => frame.truncate(*to),
                Change::Append { bytes } => frame.extend(bytes),
            }
        }
        if self.summed {
            sum_up(&mut frame);
        }
        frame
    }
}

/// Offsets of the parts of a frame with TCP in IP.
struct Parts {
    v6: bool,
    tcp_at: usize,
    data_at: usize,
    end: usize,
}

impl Parts {
    /// Returns `None` if a host would not find TCP there (RFC 791 3.1, RFC 8200 3, RFC 9293 3.1).
    fn of(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(IP_AT..)?;
        let word = |at: usize| {
            Some(usize::from(u16::from_be_bytes([
                *ip.get(at)?,
                *ip.get(at + 1)?,
            ])))
        };
        let (v6, header, end) = match (&frame[TYPE_AT..IP_AT], *ip.first()? >> 4) {
            ([8, 0], 4) => {
                let header = usize::from(ip[0] & 15) * 4;
                let fragment = word(6)? & 0x3fff != 0;
                if header < 20 || fragment || *ip.get(9)? != 6 {
                    return None;
                }
                (false, header, word(2)?)
            }
            ([0x86, 0xdd], 6) if *ip.get(6)? == 6 => (true, 40, 40 + word(4)?),
            _ => return None,
        };
        let data = header + usize::from(*ip.get(header + 12)? >> 4) * 4;
        if data < header + 20 || data > end || end > ip.len() {
            return None;
        }
        Some(Self {
            v6,
            tcp_at: IP_AT + header,
            data_at: IP_AT + data,
            end: IP_AT + end,
        })
    }

    /// Returns the sum of the pseudo-header, of TCP and of the data.
    fn sum(&self, frame: &[u8]) -> u64 {
        let addrs = match self.v6 {
            false => &frame[IP_AT + 12..IP_AT + 20],
            true => &frame[IP_AT + 8..IP_AT + 40],
        };
        let len = (self.end - self.tcp_at) as u64;
        internet_sum(&frame[self.tcp_at..self.end], internet_sum(addrs, 6 + len))
    }

    fn tcp<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        &frame[self.tcp_at..self.end]
    }
}

/// Corrects the checksums of IP and TCP, if they exist.
fn sum_up(frame: &mut [u8]) {
    sum_up_ip(frame);
    let Some(parts) = Parts::of(frame) else {
        return;
    };
    let field = parts.tcp_at + 16..parts.tcp_at + 18;
    frame[field.clone()].fill(0);
    let sum = !fold(parts.sum(frame));
    frame[field].copy_from_slice(&sum.to_be_bytes());
}

fn sum_up_ip(frame: &mut [u8]) {
    if frame.get(TYPE_AT..IP_AT) != Some(&[8, 0]) || frame.len() <= IP_AT {
        return;
    }
    let header = IP_AT..IP_AT + usize::from(frame[IP_AT] & 15) * 4;
    if header.len() < 20 || header.end > frame.len() {
        return;
    }
    frame[IP_AT + 10..IP_AT + 12].fill(0);
    let sum = !fold(internet_sum(&frame[header], 0));
    frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum.to_be_bytes());
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// Returns what the guest would have after this frame, if it accepts any of it.
fn guest_would_have(frame: &[u8], was: &[u8], conn: &Conn, clock: u32) -> Option<u32> {
    let parts = Parts::of(frame)?;
    let as_it_was = Parts::of(was)?;
    let addrs = if parts.v6 { 8..40 } else { 12..20 };
    let addrs = IP_AT + addrs.start..IP_AT + addrs.end;
    if frame[addrs.clone()] != was[addrs] || fold(parts.sum(frame)) != 0xffff {
        return None;
    }
    if !parts.v6 && fold(internet_sum(&frame[IP_AT..parts.tcp_at], 0)) != 0xffff {
        return None;
    }
    let tcp = parts.tcp(frame);
    if tcp[..4] != as_it_was.tcp(was)[..4] {
        return None;
    }
    let (seq, ack, flags) = (long(tcp, 4), long(tcp, 8), tcp[13]);
    let end = seq.wrapping_add((parts.end - parts.data_at) as u32);
    let edge = conn.guest_ack.wrapping_add(conn.terms.window);
    let tsval = checker::tsval(&tcp[20..parts.data_at - parts.tcp_at]);
    // PAWS (RFC 7323 5.3), and the acknowledgement (RFC 9293 3.10.7.4).
    let old = tsval.is_some_and(|tsval| before(tsval, clock));
    let refused = flags & ACK == 0 || flags & (SYN | RST) != 0 || before(conn.guest_seq, ack);
    if old || refused || before(conn.guest_ack, seq) || !before(conn.guest_ack, end) {
        return None;
    }
    (!before(edge, end)).then_some(end)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    })
}

/// Replaces all flows by a new connection.
fn fresh_connection(rig: &mut Rig, isn: u32) -> Conn {
    let program = rig.program.as_ref().unwrap();
    for (key, _) in program.flows().unwrap() {
        program.forget(&key).unwrap();
    }
    rig.checker = Checker::new(false);
    let mut conn = Conn::new(Terms {
        peer_isn: isn,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    conn
}

fn with_device_header(frame: &[u8]) -> Vec<u8> {
    [&VnetHeader::default().to_bytes(), frame].concat()
}

fn is_tagged(frame: &[u8]) -> bool {
    TAGGED.iter().any(|tag| frame[TYPE_AT..IP_AT] == *tag)
}

#[test]
fn a_mutated_segment_is_acknowledged_only_if_the_guest_would_accept_it() {
    for v6 in [false, true] {
        let rig = RefCell::new(Rig::new(500, ON));
        rig.borrow_mut().v6 = v6;
        let acked = RefCell::new(0);
        let check = |(changes, isn): (Changes, u32)| {
            let rig = &mut *rig.borrow_mut();
            let mut conn = fresh_connection(rig, isn);
            let clock = conn.peer_clock;
            let whole = rig.frame(false, &conn.data(1000));
            let was = &whole[VnetHeader::LEN..];
            let frame = changes.of(was);
            rig.peer.write(&with_device_header(&frame)).unwrap();
            let answers = rig.frames_at(false);
            let got = rig.frames_at(true);
            if !is_tagged(&frame) {
                prop_assert_eq!(got, vec![frame.clone()], "it is the guest's as it came");
            }
            prop_assert!(answers.len() <= 1);
            let Some(answer) = answers.first() else {
                return Ok(());
            };
            let parts = Parts::of(answer).unwrap();
            let answer = parts.tcp(answer);
            prop_assert_eq!(answer[13], ACK);
            prop_assert_eq!(&answer[..4], &[0, SERVER as u8, 0x13, 0x88][..]);
            let has = guest_would_have(&frame, was, &conn, clock);
            prop_assert_eq!(Some(long(answer, 8)), has, "out of thin air");
            *acked.borrow_mut() += 1;
            Ok(())
        };
        let strategy = (changes(), any::<u32>());
        runner(600).run(&strategy, check).unwrap();
        assert!(*acked.borrow() > 0, "nothing was tried");
    }
}

#[test]
fn of_mutated_guest_segments_only_acks_without_news_are_dropped() {
    for v6 in [false, true] {
        let rig = RefCell::new(Rig::new(500, ON));
        rig.borrow_mut().v6 = v6;
        let dropped = RefCell::new(0);
        let lifted = RefCell::new(0);
        let check = |(changes, isn, len): (Changes, u32, usize)| {
            let rig = &mut *rig.borrow_mut();
            let mut conn = fresh_connection(rig, isn);
            let edge = conn.guest_ack.wrapping_add(conn.terms.window);
            for _ in 0..3 {
                let data = conn.data(1000);
                rig.peer_sends(&data);
            }
            prop_assert_eq!(rig.at_peer().len(), 3);
            // The guest has acknowledged one of three, and its application has read nothing.
            conn.guest_ack = conn.guest_ack.wrapping_add(1000);
            conn.terms.window = edge.wrapping_sub(conn.guest_ack);
            let whole = rig.frame(true, &conn.guest_data(len));
            let frame = changes.of(&whole[VnetHeader::LEN..]);
            rig.guest.write(&with_device_header(&frame)).unwrap();
            let mut seen = rig.frames_at(false);
            rig.frames_at(true);
            if is_tagged(&frame) {
                return Ok(());
            }
            let early_acked = conn.peer_seq;
            let Some(got) = seen.pop() else {
                let parts = Parts::of(&frame);
                prop_assert!(parts.is_some(), "no TCP, and dropped");
                let parts = parts.unwrap();
                let tcp = parts.tcp(&frame);
                prop_assert_eq!(parts.data_at, parts.end, "data");
                prop_assert_eq!(tcp[13] & (SYN | FIN | RST | URG | ACK), ACK);
                prop_assert!(before(long(tcp, 8), early_acked), "the last word");
                *dropped.borrow_mut() += 1;
                return Ok(());
            };
            prop_assert_eq!(seen.len(), 0);
            if got == frame {
                return Ok(());
            }
            // It was TCP, and only its acknowledgment may differ; its checksum is as right as
            // before.
            let parts = Parts::of(&frame).unwrap();
            let mut same = got.clone();
            for field in LIFTED {
                let field = parts.tcp_at + field.start..parts.tcp_at + field.end;
                same[field.clone()].copy_from_slice(&frame[field]);
            }
            prop_assert_eq!(&same, &frame);
            let sum = |frame: &[u8]| fold(parts.sum(frame)) % 0xffff;
            prop_assert_eq!(sum(&got), sum(&frame));
            let said = long(parts.tcp(&frame), 8);
            let says = long(parts.tcp(&got), 8);
            prop_assert!(says == said || says == early_acked, "{says} from {said}");
            *lifted.borrow_mut() += 1;
            Ok(())
        };
        let strategy = (
            changes(),
            any::<u32>(),
            prop_oneof![Just(0), Just(500usize)],
        );
        runner(600).run(&strategy, check).unwrap();
        assert!(*dropped.borrow() > 0 && *lifted.borrow() > 0);
    }
}

/// The programs at no tap: the kernel runs them for the test.
struct Bench {
    object: Object,
}

impl Bench {
    fn new() -> Self {
        let programs = include_bytes!(concat!(env!("OUT_DIR"), "/snoop.bpf.o"));
        let mut open = ObjectBuilder::default();
        let object = open.open_memory(programs).unwrap().load().unwrap();
        let bench = Self { object };
        // `struct snoop_config`: on, without an end or a limit of exposure.
        let mut config = [0; 64];
        config[0] = 1;
        config[32..40].fill(0xff);
        config[56..].fill(0xff);
        bench
            .map("config")
            .update(&0u32.to_ne_bytes(), &config, MapFlags::ANY)
            .unwrap();
        bench
    }

    fn map(&self, name: &str) -> libbpf_rs::Map<'_> {
        let mut maps = self.object.maps();
        maps.find(|map| map.name() == name).unwrap()
    }

    /// Returns how many packets left a program, by any exit.
    fn exits(&self, name: &str) -> u64 {
        let map = self.map(name);
        let of_each = map.keys().map(|exit| {
            let counts = map.lookup_percpu(&exit, MapFlags::ANY).unwrap().unwrap();
            let counts = counts.iter().map(|bytes| bytes[..8].try_into().unwrap());
            counts.map(u64::from_ne_bytes).sum::<u64>()
        });
        of_each.sum()
    }

    fn passes(&mut self, frame: &[u8]) -> Result<(), TestCaseError> {
        // For an IP frame the kernel requires a minimal header to run a program at all. (Shorter
        // ones are sent to the taps.)
        let header = match frame[TYPE_AT..IP_AT] {
            [8, 0] => 20,
            [0x86, 0xdd] => 40,
            _ => 0,
        };
        if frame.len() < IP_AT + header {
            return Ok(());
        }
        for (name, exits) in [
            ("snoop_to_guest", "to_guest_exits"),
            ("snoop_from_guest", "from_guest_exits"),
        ] {
            let before = self.exits(exits);
            let mut out = vec![0; frame.len() + 64];
            let mut programs = self.object.progs_mut();
            let program = programs.find(|program| program.name() == name).unwrap();
            let output = program
                .test_run(ProgramInput {
                    data_in: Some(frame),
                    data_out: Some(&mut out),
                    ..ProgramInput::default()
                })
                .unwrap();
            prop_assert_eq!(output.return_value.cast_signed(), PASS, "{}", name);
            prop_assert_eq!(output.data.as_deref(), Some(frame), "{}", name);
            prop_assert_eq!(self.exits(exits) - before, 1, "{} counts it once", name);
        }
        let flows: Vec<_> = self.map("flows").keys().collect();
        for flow in flows {
            self.map("flows").delete(&flow).unwrap();
        }
        Ok(())
    }
}

/// Random bytes, or bytes that resemble IP, or TCP in it.
fn strange_frame() -> impl Strategy<Value = Vec<u8>> {
    let rest = || vec(any::<u8>(), 0..200);
    let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    prop_oneof![
        vec(any::<u8>(), 14..300),
        (rest(), 0x45..=0x4fu8)
            .prop_map(move |(rest, first)| { [&macs[..], &[8, 0, first], &rest].concat() }),
        (rest(), any::<[u8; 5]>()).prop_map(move |(rest, b)| {
            [
                &macs[..],
                &[0x86, 0xdd, 0x60, b[0], b[1], b[2], 0, b[3], 6, b[4]],
                &rest,
            ]
            .concat()
        }),
        // Plain headers, and any segment after them.
        (vec(any::<u8>(), 20..120), any::<u8>()).prop_map(move |(mut tcp, len)| {
            tcp[12] = 0x50 | tcp[12] & 0xa1;
            let ip = [0x45, 0, 0, 20 + len % 120, 0, 0, 0x40, 0, 64, 6, 0, 0];
            [&macs[..], &[8, 0], &ip, &[10, 8, 0, 2, 10, 8, 0, 1], &tcp].concat()
        }),
    ]
}

#[test]
fn any_frame_without_a_flow_passes() {
    let bench = RefCell::new(Bench::new());
    runner(3000)
        .run(&strange_frame(), |frame| bench.borrow_mut().passes(&frame))
        .unwrap();
}

#[test]
fn a_mutated_valid_frame_without_a_flow_passes() {
    let mut rig = Rig::bare(100);
    let mut frames = Vec::new();
    for v6 in [false, true] {
        rig.v6 = v6;
        let mut conn = Conn::new(Terms::default());
        let mut psh = conn.data(500);
        psh.flags = ACK | PSH;
        for segment in [conn.syn(), conn.syn_ack(), psh, conn.data(0)] {
            frames.push(rig.frame(false, &segment)[VnetHeader::LEN..].to_vec());
        }
    }
    let bench = RefCell::new(Bench::new());
    let strategy = (changes(), prop::sample::select(frames));
    runner(2000)
        .run(&strategy, |(changes, frame)| {
            bench.borrow_mut().passes(&changes.of(&frame))
        })
        .unwrap();
}
