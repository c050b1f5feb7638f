//! The two threads that carry frames: the network between the peer and the host, and the guest's
//! CPU.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use taut_sys::tap::Tap;

use super::checker::Checker;
use super::mangle::{Mangled, Mangler};
use super::plan;
use super::segment::{Segment, complete_checksum};
use crate::experiment::tap_frames::{next, wait_for};
use taut_netlab::link::frame::Frame;

/// The number of frames taken from one TAP before the other has its turn.
const BURST: usize = 64;
/// How long a thread waits between checks for the end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// State shared with the threads.
#[derive(Debug, Default)]
pub(super) struct Shared {
    checker: Mutex<Checker>,
    /// Whether each segment is a separate frame.
    pub(super) single: AtomicBool,
    /// How often the guest had no CPU.
    pub(super) pauses: AtomicU64,
    /// Frames that a kernel did not accept. The guest's frames must not be lost.
    pub(super) refused: AtomicU64,
    over: AtomicBool,
}

// === impl Shared ===

impl Shared {
    pub(super) fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends both threads.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn give(&self, tap: &Tap, frame: &[u8]) {
        if tap.write(frame).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Carries frames between the peer's TAP and the host's until the end. Returns how it mangled the
/// frames of each direction.
pub(super) fn network(
    peer: &Tap,
    host: &Tap,
    seed: u64,
    shared: &Shared,
) -> io::Result<[Mangled; 2]> {
    let mut towards_host = Mangler::new(seed);
    let mut towards_peer = Mangler::new(!seed);
    let mut buffer = vec![0; Tap::MAX_READ];
    let enter = |frame: Vec<u8>| {
        if let Some(segment) = Segment::read(&frame, false) {
            shared.checker().peer_sends(&segment);
        }
        shared.give(host, &frame);
    };
    while !shared.is_over() {
        let now = Instant::now();
        let due = [towards_host.next_due(), towards_peer.next_due()];
        let due = due.into_iter().flatten().min();
        let wait = due.map_or(POLL_INTERVAL, |due| {
            due.saturating_duration_since(now).min(POLL_INTERVAL)
        });
        wait_for([peer, host], wait)?;
        let now = Instant::now();
        towards_host.poll(now).into_iter().for_each(enter);
        for frame in towards_peer.poll(now) {
            shared.give(peer, &frame);
        }
        for _ in 0..BURST {
            let Some(len) = next(peer, &mut buffer)? else {
                break;
            };
            for frame in pieces(&buffer[..len], shared) {
                if Segment::read(&frame, false).is_none() {
                    // Neighbour discovery is not part of the test.
                    shared.give(host, &frame);
                    continue;
                }
                towards_host.handle(now, frame).into_iter().for_each(enter);
            }
        }
        for _ in 0..BURST {
            let Some(len) = next(host, &mut buffer)? else {
                break;
            };
            let read = &buffer[..len];
            let Some(segment) = Segment::read(read, true) else {
                shared.give(peer, read);
                continue;
            };
            shared.checker().peer_got(&segment, Instant::now());
            for frame in pieces(read, shared) {
                for frame in towards_peer.handle(now, frame) {
                    shared.give(peer, &frame);
                }
            }
        }
    }
    Ok([towards_host.mangled, towards_peer.mangled])
}

/// Acts as the guest's CPU. In each slice it takes all frames from the ring, and sends the frames
/// of the guest's kernel; between slices it does neither. It loses no frame.
pub(super) fn cpu(ring: &Tap, guest: &Tap, seed: u64, shared: &Shared) -> io::Result<()> {
    let mut buffer = vec![0; Tap::MAX_READ];
    for (runs, waits) in plan::turns(seed) {
        let until = Instant::now() + runs;
        loop {
            empty(ring, guest, &mut buffer, shared)?;
            while let Some(len) = next(guest, &mut buffer)? {
                if let Some(segment) = Segment::read(&buffer[..len], true) {
                    // Report the frame before it enters the tap, and so before its effects.
                    shared.checker().guest_sends(&segment, Instant::now());
                }
                shared.give(ring, &buffer[..len]);
            }
            let left = until.saturating_duration_since(Instant::now());
            if shared.is_over() {
                return Ok(());
            }
            if left.is_zero() {
                break;
            }
            wait_for([ring, guest], left.min(POLL_INTERVAL))?;
        }
        shared.pauses.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(waits);
    }
    Ok(())
}

/// Takes all frames out of the ring, and checks that no acknowledged byte is missing.
fn empty(ring: &Tap, guest: &Tap, buffer: &mut [u8], shared: &Shared) -> io::Result<()> {
    loop {
        // The checker is locked while the ring is read, so that any byte it counts as acknowledged
        // was acknowledged before the read.
        let mut checker = shared.checker();
        let Some(len) = next(ring, buffer)? else {
            checker.settle();
            return Ok(());
        };
        if let Some(segment) = Segment::read(&buffer[..len], false) {
            checker.guest_got(&segment);
        }
        drop(checker);
        shared.give(guest, &buffer[..len]);
    }
}

/// Returns the frame or, if frames are single, each of its segments as a network would carry it.
fn pieces(read: &[u8], shared: &Shared) -> Vec<Vec<u8>> {
    if !shared.single.load(Ordering::Relaxed) {
        return vec![read.to_vec()];
    }
    let Ok(frame) = Frame::parse(read) else {
        return vec![read.to_vec()];
    };
    let mut pieces: Vec<_> = (0..frame.segments().count)
        .map(|n| frame.cut(n..n + 1))
        .collect();
    for piece in &mut pieces {
        complete_checksum(piece);
    }
    pieces
}
