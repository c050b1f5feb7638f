//! The guest's CPU: a thread that carries frames between the guest and its tap on the host.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use taut_sys::tap::Tap;

use super::rig::Taps;
use crate::experiment::tap_frames::{next, wait_for};

/// How long a paused guest runs, and how long it then waits for its CPU.
const TURN: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(60));
/// The longest wait between two checks for the end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How the guest's CPU is shared.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    paused: AtomicBool,
    over: AtomicBool,
}

// === impl Cpu ===

impl Cpu {
    /// Sets whether the guest has its CPU only in slices.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Ends [`Cpu::carry`].
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Carries frames both ways until [`Cpu::end`]. Frames are lost only if a ring is full.
    pub(super) fn carry(&self, taps: &Taps) -> io::Result<()> {
        let mut buffer = vec![0; Tap::MAX_READ];
        while !self.over.load(Ordering::Relaxed) {
            let (runs, waits) = TURN;
            let until = Instant::now() + runs;
            loop {
                move_frames(&taps.ring, &taps.guest, &mut buffer)?;
                move_frames(&taps.guest, &taps.ring, &mut buffer)?;
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                wait_for([&taps.ring, &taps.guest], left.min(POLL_INTERVAL))?;
            }
            if self.paused.load(Ordering::Relaxed) {
                std::thread::sleep(waits);
            }
        }
        Ok(())
    }
}

fn move_frames(from: &Tap, to: &Tap, buffer: &mut [u8]) -> io::Result<()> {
    while let Some(len) = next(from, buffer)? {
        // A device that is down accepts no frames. TCP repairs the loss.
        let _ = to.write(&buffer[..len]);
    }
    Ok(())
}
