//! The plan: transfers, their parameters, and the faults. The seed determines all of it.

use std::ops::Range;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use strum::IntoStaticStr;

use crate::experiment::Request;

/// The number of concurrent transfers.
pub(super) const AT_ONCE: u64 = 20;
/// The largest stream, in bytes.
const LARGEST: u64 = 2_000_000;
/// The largest stream that is written in small pieces, one segment each.
const LARGEST_IN_PIECES: u64 = 20_000;
/// The lengths that the guest's ring can have, in frames.
const RING: Range<u64> = 8..501;
/// The number of bytes that every connection of the guest can buffer with `--grow`. It is a quarter
/// of the receive buffer, because the kernel accounts for buffers and not for bytes.
pub(super) const GUEST_RCVBUF: u32 = 1 << 20;
/// The guest's `tcp_rmem` with `--grow`.
pub(super) const GROWN_RMEM: &str = "4096 4194304 8388608";
/// The guest's `tcp_rmem` otherwise: the kernel's default.
pub(super) const USUAL_RMEM: &str = "4096 131072 6291456";

/// A side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Peer,
    Guest,
}

/// The options of `taut snoop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Options {
    /// `taut snoop` does not run: the control.
    Off,
    Plain,
    Buffer,
    StartEarly,
    Grow,
    Ecn,
}

/// How a guest mishandles bytes that were acknowledged early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Some transfers go through the guest to a receiver behind it, over a link that loses
    /// segments.
    pub(super) forwards: bool,
    /// Some applications lower and raise SO_RCVBUF while data is in flight.
    pub(super) resizes: bool,
    /// The guest's TCP memory runs out at times.
    pub(super) exhausts: bool,
    /// The guest shrinks its advertised window (`tcp_shrink_window`).
    pub(super) shrinks: bool,
}

/// A fault of the `taut snoop` process while streams flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGKILL, and a new process after this time.
    Kill(Duration),
    /// SIGTERM, and a new process after this time.
    Stop(Duration),
    /// `--off`, and `--on` after this time.
    Off(Duration),
}

/// A part of the run with one set of options and one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) number: u16,
    pub(super) options: Options,
    /// Whether each segment is a separate frame with its whole checksum, as from a network.
    /// Otherwise frames are those of a host, with many segments and partial checksums.
    pub(super) single: bool,
    /// The length of the guest's ring.
    pub(super) ring: u32,
    pub(super) faults: Faults,
    /// Whether the process may be killed. A segment that the guest drops at that moment is lost,
    /// because the process's copies end with it.
    pub(super) kills: bool,
    /// The number of the first transfer; `transfers` is the number of transfers.
    pub(super) first: u64,
    pub(super) transfers: u64,
    pub(super) seed: u64,
}

/// How a side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    Bulk,
    /// 1 to 100 bytes at a time, each a segment (TCP_NODELAY).
    Pieces,
}

/// How a side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    AtOnce,
    /// A little at a time, at first.
    Slowly,
    /// Nothing for this long at the start.
    Late(Duration),
    /// With pauses; in each pause the receive buffer is smaller.
    Resizing,
}

/// An option in the client's SYN that the server does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Nothing,
    /// A request for a cookie of TCP Fast Open.
    FastOpen,
}

/// One side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The number of bytes that this side sends.
    pub(super) bytes: u64,
    pub(super) writing: Writing,
    pub(super) reading: Reading,
    /// The seed of the side's bytes.
    pub(super) seed: u64,
}

/// A connection with a stream in one direction or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) number: u64,
    pub(super) opener: Side,
    pub(super) v6: bool,
    /// Whether the guest's side is a host behind the guest.
    pub(super) behind: bool,
    pub(super) offer: Offer,
    pub(super) peer: Part,
    pub(super) guest: Part,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) phases: Vec<Phase>,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let (transfers, rounds) = request.form.pick((5_000, 4), (480, 1), (60, 1));
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let turn = random.next_u64();
        let count = rounds * Options::ALL.len() as u64;
        let phases = (0..count).map(|n| {
            let first = n * transfers / count;
            let round = n / Options::ALL.len() as u64;
            let options = Options::ALL[n as usize % Options::ALL.len()];
            let mut faults = Faults::draw(n.wrapping_add(turn), &mut random);
            // Happens once in a long run, and the outcome reports it.
            let loses = round > 0 && round == rounds - 1 && options == Options::Plain;
            faults.resizes |= loses;
            Phase {
                number: n as u16,
                options,
                faults,
                kills: loses || !faults.drops(),
                // Each set of options has both kinds of frames; a short run has each kind at least
                // once.
                single: (n + round).is_multiple_of(2),
                ring: (RING.start + random.next_u64() % (RING.end - RING.start)) as u32,
                first,
                transfers: (n + 1) * transfers / count - first,
                seed: random.next_u64(),
            }
        });
        let asked = |phase: &Phase| {
            let only = request.only.as_ref();
            only.is_none_or(|only| phase.name().contains(only.as_str()))
        };
        Self {
            phases: phases.filter(asked).collect(),
        }
    }
}

// === impl Faults ===

impl Faults {
    /// Draws the faults of a turn. Of five turns, one has no fault, and each other turn has at
    /// least one.
    fn draw(turn: u64, random: &mut Pcg64Mcg) -> Self {
        let own = turn % 5;
        let mut is_there =
            |fault: u64| own < 4 && (own == fault || random.next_u64().is_multiple_of(4));
        Self {
            forwards: is_there(0),
            resizes: is_there(1),
            exhausts: is_there(2),
            shrinks: is_there(3),
        }
    }

    /// Returns whether the guest may drop data inside the window that it advertised.
    pub(super) fn drops(self) -> bool {
        self.resizes || self.exhausts || self.shrinks
    }

    /// Returns the names of the faults, for people.
    pub(super) fn names(self) -> String {
        let all = [
            (self.forwards, "forwarding"),
            (self.resizes, "SO_RCVBUF"),
            (self.exhausts, "memory"),
            (self.shrinks, "shrinking windows"),
        ];
        let names = all.iter().filter(|(is_there, _)| *is_there);
        let names: Vec<_> = names.map(|(_, name)| *name).collect();
        if names.is_empty() {
            return "no faults".into();
        }
        names.join(", ")
    }
}

// === impl Options ===

impl Options {
    pub(super) const ALL: [Self; 6] = [
        Self::Plain,
        Self::Buffer,
        Self::StartEarly,
        Self::Grow,
        Self::Ecn,
        Self::Off,
    ];

    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the arguments of `taut snoop`.
    pub(super) fn arguments(self) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        match self {
            Self::Off | Self::Plain => Vec::new(),
            Self::Buffer => words("--buffer 64KB"),
            Self::StartEarly => words("--start-early"),
            Self::Grow => words(&format!("--grow --guest-rcvbuf {GUEST_RCVBUF}")),
            Self::Ecn => words("--ecn"),
        }
    }

    /// Returns how many bytes beyond the guest's right edge may be acknowledged early.
    pub(super) fn beyond(self) -> u32 {
        if self == Self::Grow { GUEST_RCVBUF } else { 0 }
    }
}

// === impl Phase ===

impl Phase {
    /// Returns the phase's name, for the notes and `--only`.
    pub(super) fn name(&self) -> String {
        let kills = if self.may_lose() { ", with kills" } else { "" };
        format!("{}, {}{kills}", self.options.name(), self.faults.names())
    }

    /// Returns whether the host may lose bytes that it has acknowledged, because it is killed while
    /// the guest drops data.
    pub(super) fn may_lose(&self) -> bool {
        self.kills && self.faults.drops() && self.options != Options::Off
    }

    /// Returns the transfer with this number, which does not depend on any other random choice.
    pub(super) fn transfer(&self, number: u64) -> Transfer {
        let mut random = Pcg64Mcg::seed_from_u64(mix(self.seed, number));
        let mut draw = |below: u64| random.next_u64() % below;
        let both = draw(4) == 0;
        let to_guest = both || draw(5) > 0;
        let mut part = |sends: bool, small_buffers: bool| {
            let writing = if draw(5) == 0 {
                Writing::Pieces
            } else {
                Writing::Bulk
            };
            let largest = match writing {
                Writing::Bulk => LARGEST,
                Writing::Pieces => LARGEST_IN_PIECES,
            };
            let exponent = (draw(1 << 20) as f64) / f64::from(1 << 20);
            let bytes = (largest as f64).powf(exponent) as u64;
            let reading = match draw(if small_buffers { 4 } else { 6 }) {
                0 => Reading::Slowly,
                1 => Reading::Late(Duration::from_millis(200 + draw(1_300))),
                _ => Reading::AtOnce,
            };
            Part {
                bytes: if sends { bytes.max(1) } else { 0 },
                writing,
                reading,
                seed: draw(u64::MAX),
            }
        };
        let peer = part(to_guest, false);
        let mut guest = part(both || !to_guest, true);
        let opener = match draw(4) {
            0 => Side::Guest,
            _ => Side::Peer,
        };
        let v6 = draw(3) == 0;
        let behind = draw(3) == 0 && self.faults.forwards;
        // Bytes that the application reads at once take no memory and are in no buffer that could
        // shrink.
        let (resizes, late) = (draw(2) == 0, draw(2) == 0);
        if resizes && self.faults.resizes && !behind {
            guest.reading = Reading::Resizing;
        } else if late && self.faults.exhausts && !behind {
            guest.reading = Reading::Late(Duration::from_millis(200 + draw(1_300)));
        }
        // MPTCP is not offered: on a lossy path or out of memory, sockets of Linux 6.18 that have
        // fallen back to TCP sometimes end a stream early, with and without `taut snoop`.
        let offer = match draw(8) {
            0 => Offer::FastOpen,
            _ => Offer::Nothing,
        };
        Transfer {
            number,
            opener,
            v6,
            behind,
            offer,
            peer,
            guest,
        }
    }

    /// Returns the faults of the process, each after a pause. The sequence is endless.
    pub(super) fn acts(&self) -> impl Iterator<Item = (Duration, Act)> + use<> {
        let mut random = Pcg64Mcg::seed_from_u64(!self.seed);
        let kills = self.kills;
        let mut is_first = true;
        // Each kind of fault occurs before any kind repeats.
        let mut bag = Vec::new();
        std::iter::repeat_with(move || {
            let mut ms = |range: Range<u64>| {
                let span = range.end - range.start;
                Duration::from_millis(range.start + random.next_u64() % span)
            };
            if bag.is_empty() {
                bag = vec![Act::Off(ms(0..300)), Act::Stop(ms(0..300))];
                if kills {
                    bag.push(Act::Kill(ms(0..300)));
                }
            }
            let pause = ms(500..3_000);
            let mut index = random.next_u64() as usize % bag.len();
            if std::mem::take(&mut is_first) {
                // Starts with a kill, if kills are allowed, so that a short phase includes one.
                index = bag.len() - 1;
            }
            (pause, bag.swap_remove(index))
        })
    }
}

// === impl Transfer ===

impl Transfer {
    pub(super) fn part(&self, side: Side) -> &Part {
        match side {
            Side::Peer => &self.peer,
            Side::Guest => &self.guest,
        }
    }
}

/// Returns when the guest's TCP memory runs out: alternately how long it suffices and how long it
/// does not.
pub(super) fn shortages(seed: u64) -> impl Iterator<Item = (Duration, Duration)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed.rotate_left(32));
    std::iter::repeat_with(move || {
        let mut ms = |range: Range<u64>| {
            let span = range.end - range.start;
            Duration::from_millis(range.start + random.next_u64() % span)
        };
        (ms(100..700), ms(100..800))
    })
}

/// Returns the guest's CPU slices: alternately how long it has a CPU and how long it has none.
pub(super) fn turns(seed: u64) -> impl Iterator<Item = (Duration, Duration)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let mut draw = |below: u64| random.next_u64() % below;
        let runs = Duration::from_micros(draw(30_000));
        let long = draw(50) == 0;
        let waits = if long { 1_000_000 } else { draw(100_000) };
        (runs, Duration::from_micros(waits))
    })
}

/// Returns a separate seed for each number (SplitMix64's finaliser).
fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
