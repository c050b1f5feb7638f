//! A network between the peer and the host that loses, duplicates and reorders frames.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// How many of a thousand frames are lost. The same number is duplicated, and the same number is
/// late.
const EACH: u64 = 5;
/// The maximum number of frames that overtake a late one.
const OVERTAKEN_BY: u64 = 8;
/// The maximum delay of a late frame.
const LATE: Duration = Duration::from_millis(3);
/// The maximum number of waiting frames. Further frames are not delayed.
const WAITING: usize = 64;

/// One direction.
#[derive(Debug)]
pub(super) struct Mangler {
    random: Pcg64Mcg,
    held: VecDeque<DelayedFrame>,
    pub(super) mangled: Mangled,
}

/// The number of frames that were mangled in each way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mangled {
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) late: u64,
}

#[derive(Debug)]
struct DelayedFrame {
    frame: Vec<u8>,
    /// The number of frames that must still overtake this frame.
    behind: u64,
    until: Instant,
}

// === impl Mangler ===

impl Mangler {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Pcg64Mcg::seed_from_u64(seed),
            held: VecDeque::new(),
            mangled: Mangled::default(),
        }
    }

    /// Takes a frame and returns the frames that come out now.
    pub(super) fn handle(&mut self, now: Instant, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let fate = self.random.next_u64() % 1_000;
        if fate < EACH {
            self.mangled.lost += 1;
            return out;
        }
        if (2 * EACH..3 * EACH).contains(&fate) && self.held.len() < WAITING {
            self.mangled.late += 1;
            self.held.push_back(DelayedFrame {
                frame,
                behind: 1 + self.random.next_u64() % OVERTAKEN_BY,
                until: now + LATE,
            });
            return out;
        }
        if fate < 2 * EACH {
            self.mangled.doubled += 1;
            out.push(frame.clone());
        }
        out.push(frame);
        for held in &mut self.held {
            held.behind = held.behind.saturating_sub(1);
        }
        out.extend(self.poll(now));
        out
    }

    /// Returns the frames that have waited for long enough.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let (out, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| held.behind == 0 || held.until <= now);
        self.held = held;
        out.into_iter().map(|held| held.frame).collect()
    }

    /// Returns when the next frame has waited for long enough.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_frames_some_are_lost_some_doubled_some_late_and_nothing_else_happens() {
        let now = Instant::now();
        let mut mangler = Mangler::new(1);
        let sent = 10_000_u32;
        let mut got: Vec<u32> = Vec::new();
        let mut frames = Vec::new();
        for n in 0..sent {
            frames.extend(mangler.handle(now, n.to_be_bytes().to_vec()));
        }
        frames.extend(mangler.poll(now + LATE));
        for frame in frames {
            got.push(u32::from_be_bytes(frame.try_into().unwrap()));
        }
        let Mangled {
            lost,
            doubled,
            late,
        } = mangler.mangled;
        for count in [lost, doubled, late] {
            assert!((25..100).contains(&count), "{:?}", mangler.mangled);
        }
        assert_eq!(got.len() as u64, u64::from(sent) - lost + doubled);
        assert!(!got.is_sorted());
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len() as u64, u64::from(sent) - lost);
    }

    #[test]
    fn a_late_frame_comes_without_others_too() {
        let now = Instant::now();
        let mut mangler = Mangler::new(1);
        while mangler.mangled.late == 0 {
            mangler.handle(now, vec![1]);
        }
        let due = mangler.next_due().unwrap();
        assert_eq!(due, now + LATE);
        assert!(mangler.poll(now).is_empty());
        assert_eq!(mangler.poll(due).len(), 1);
        assert_eq!(mangler.next_due(), None);
    }
}
