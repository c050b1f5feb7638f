//! What is transferred, how, and what is done meanwhile: all of it from the seed.

use std::ops::Range;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::experiment::Request;

/// The largest stream, in bytes.
const LARGEST: u64 = 2_000_000;
/// The largest that is written in small pieces: a segment for each.
const LARGEST_IN_PIECES: u64 = 20_000;
/// The least and the most that a guest's ring has.
const RING: Range<u64> = 8..501;
/// What every connection of the guest's bears, with `--grow`: a quarter of the buffer that it has
/// then, for the kernel accounts for buffers and not for bytes.
pub(super) const GUEST_RCVBUF: u32 = 1 << 20;
/// The guest's `tcp_rmem` then.
pub(super) const GROWN_RMEM: &str = "4096 4194304 8388608";
/// The guest's `tcp_rmem` otherwise: the kernel's own.
pub(super) const USUAL_RMEM: &str = "4096 131072 6291456";

/// Who.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Peer,
    Guest,
}

/// How `taut snoop` is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Options {
    /// Not at all: the control.
    Off,
    Plain,
    Buffer,
    StartEarly,
    Grow,
    Ecn,
}

/// What is done to it while streams flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGKILL, and a new process after this.
    Kill(Duration),
    /// SIGTERM, and a new process after this.
    Stop(Duration),
    /// `--off`, and `--on` after this.
    Off(Duration),
}

/// A part of the run, of one set of options and one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) number: u16,
    pub(super) options: Options,
    /// Each segment is a frame of its own with its whole checksum, as from a network; else frames
    /// are as a host gives them: many segments, partial checksums.
    pub(super) single: bool,
    /// Places of the guest's ring.
    pub(super) ring: u32,
    /// The first transfer, and how many.
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
    /// A little now and then.
    Slowly,
    /// Not at all for so long, at the start.
    Late(Duration),
}

/// What one side does in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Bytes that it sends.
    pub(super) bytes: u64,
    pub(super) writing: Writing,
    pub(super) reading: Reading,
    /// Where its bytes come from.
    pub(super) seed: u64,
}

/// A connection, with a stream one way or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) number: u64,
    pub(super) opener: Side,
    pub(super) v6: bool,
    pub(super) peer: Part,
    pub(super) guest: Part,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) phases: Vec<Phase>,
}

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let (transfers, rounds) = if request.quick { (360, 1) } else { (10_000, 4) };
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let count = rounds * Options::ALL.len() as u64;
        let phases = (0..count).map(|n| {
            let first = n * transfers / count;
            let round = n / Options::ALL.len() as u64;
            Phase {
                number: n as u16,
                options: Options::ALL[n as usize % Options::ALL.len()],
                // Each set of options meets both; a short run has both at least.
                single: (n + round).is_multiple_of(2),
                ring: (RING.start + random.next_u64() % (RING.end - RING.start)) as u32,
                first,
                transfers: (n + 1) * transfers / count - first,
                seed: random.next_u64(),
            }
        });
        Self {
            phases: phases.collect(),
        }
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
        match self {
            Self::Off => "off",
            Self::Plain => "plain",
            Self::Buffer => "buffer",
            Self::StartEarly => "start-early",
            Self::Grow => "grow",
            Self::Ecn => "ecn",
        }
    }

    /// On the command line of `taut snoop`.
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

    /// How far beyond the guest's own right edge may be promised, in bytes.
    pub(super) fn beyond(self) -> u32 {
        if self == Self::Grow { GUEST_RCVBUF } else { 0 }
    }
}

// === impl Phase ===

impl Phase {
    /// The transfer of this number, whatever else is drawn.
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
        let guest = part(both || !to_guest, true);
        Transfer {
            number,
            opener: if draw(4) == 0 {
                Side::Guest
            } else {
                Side::Peer
            },
            v6: draw(3) == 0,
            peer,
            guest,
        }
    }

    /// What is done to the process, each after a pause, for as long as the phase lasts.
    pub(super) fn acts(&self) -> impl Iterator<Item = (Duration, Act)> + use<> {
        let mut random = Pcg64Mcg::seed_from_u64(!self.seed);
        // Each kind comes before any comes again.
        let mut bag = Vec::new();
        std::iter::repeat_with(move || {
            let mut ms = |range: Range<u64>| {
                let span = range.end - range.start;
                Duration::from_millis(range.start + random.next_u64() % span)
            };
            if bag.is_empty() {
                bag = vec![
                    Act::Kill(ms(0..300)),
                    Act::Off(ms(0..300)),
                    Act::Stop(ms(0..300)),
                ];
            }
            let pause = ms(500..3_000);
            let index = random.next_u64() as usize % bag.len();
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

/// The guest's turns: for how long it has a CPU, and then for how long it has none.
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

/// A seed of its own for each number (SplitMix64's finaliser).
fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    fn plan(quick: bool) -> Plan {
        Plan::of(&Request {
            quick,
            seed: 1,
            runs: None,
            only: None,
            taut: PathBuf::new(),
        })
    }

    #[test]
    fn every_set_of_options_meets_frames_of_both_kinds_and_all_transfers_are_planned() {
        let plan = plan(false);
        let kinds: BTreeSet<_> = plan.phases.iter().map(|p| (p.options, p.single)).collect();
        assert_eq!(kinds.len(), 2 * Options::ALL.len());
        assert_eq!(plan.phases.iter().map(|p| p.transfers).sum::<u64>(), 10_000);
        for pair in plan.phases.windows(2) {
            assert_eq!(pair[0].first + pair[0].transfers, pair[1].first);
        }
    }

    #[test]
    fn the_short_form_has_every_set_of_options_too() {
        let plan = plan(true);
        let kinds: BTreeSet<_> = plan.phases.iter().map(|p| p.options).collect();
        assert_eq!(kinds.len(), Options::ALL.len());
        assert!(plan.phases.iter().any(|p| p.single));
        assert!(plan.phases.iter().any(|p| !p.single));
    }

    #[test]
    fn transfers_are_of_every_kind_and_the_same_for_a_seed() {
        let phase = plan(false).phases[0];
        let all: Vec<_> = (0..1_000).map(|n| phase.transfer(n)).collect();
        assert_eq!(all[7], phase.transfer(7));
        let has = |what: fn(&Transfer) -> bool| assert!(all.iter().any(what));
        has(|t| t.v6);
        has(|t| !t.v6);
        has(|t| t.opener == Side::Guest);
        has(|t| t.peer.bytes > 0 && t.guest.bytes > 0);
        has(|t| t.peer.bytes == 0);
        has(|t| t.peer.bytes > 1_000_000);
        has(|t| (1..10).contains(&t.peer.bytes));
        has(|t| t.peer.writing == Writing::Pieces);
        has(|t| matches!(t.guest.reading, Reading::Late(_)));
        has(|t| t.guest.reading == Reading::Slowly);
        assert!(all.iter().all(|t| t.peer.bytes + t.guest.bytes > 0));
    }

    #[test]
    fn every_kind_of_act_comes_before_any_comes_again() {
        let acts: Vec<_> = plan(false).phases[0].acts().take(3).collect();
        let has = |what: fn(&Act) -> bool| assert!(acts.iter().any(|(_, act)| what(act)));
        has(|act| matches!(act, Act::Kill(_)));
        has(|act| matches!(act, Act::Stop(_)));
        has(|act| matches!(act, Act::Off(_)));
    }
}
