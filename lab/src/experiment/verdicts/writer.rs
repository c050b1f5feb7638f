//! A sender that pauses between bursts, and records for how long it has had data to send.

use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

use taut_netlab::world::Host;
use taut_sys::tcp_info::TcpInfo;

/// A thread that sends. Dropping this ends the connection and the thread.
pub(super) struct Writer {
    stream: TcpStream,
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

/// How a sender pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pauses {
    /// The bytes of a burst, on average.
    pub(super) burst: u64,
    /// The share of the time in which it has nothing to send.
    pub(super) idle: f64,
    pub(super) seed: u64,
}

/// What the thread has done.
#[derive(Default)]
struct Log {
    is_over: AtomicBool,
    bursts: Mutex<Vec<Burst>>,
}

/// When a burst began, and when its last byte was sent. From then on it is the application that limits
/// the connection.
type Burst = (Instant, Option<Instant>);

/// The pause between two checks whether all data is sent.
const CHECK: Duration = Duration::from_millis(1);

// === impl Writer ===

impl Writer {
    /// Connects `host` to a sink and sends to it with these pauses.
    pub(super) fn start(host: &Host, sink: SocketAddr, pauses: Pauses) -> io::Result<Self> {
        let connected = host.run(move || TcpStream::connect(sink));
        let stream = connected.map_err(io::Error::other)??;
        let writing = stream.try_clone()?;
        let log = Arc::new(Log::default());
        let kept = Arc::clone(&log);
        let thread = std::thread::Builder::new().spawn(move || kept.write(writing, pauses))?;
        Ok(Self {
            stream,
            log,
            thread: Some(thread),
        })
    }

    /// Returns the share of this time in which there was data to send.
    pub(super) fn busy(&self, from: Instant, to: Instant) -> f64 {
        share_within(&self.log.bursts(), from, to)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.log.is_over.store(true, Ordering::Relaxed);
        // A write that waits for room then fails.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

// === impl Log ===

impl Log {
    /// Writes until the connection ends.
    fn write(&self, mut stream: TcpStream, pauses: Pauses) {
        let mut random = Pcg64Mcg::seed_from_u64(pauses.seed);
        let zeros = vec![0; 1 << 16];
        while !self.is_over() {
            let began = Instant::now();
            self.bursts().push((began, None));
            // A burst is between half and one and a half of the mean.
            let drawn = 0.5 + random.next_u64() as f64 / u64::MAX as f64;
            let mut left = (pauses.burst as f64 * drawn) as usize;
            while left > 0 {
                match stream.write(&zeros[..left.min(zeros.len())]) {
                    Ok(0) | Err(_) => return,
                    Ok(written) => left -= written,
                }
            }
            while has_unsent(&stream) && !self.is_over() {
                std::thread::park_timeout(CHECK);
            }
            let busy = began.elapsed();
            if let Some((_, ended)) = self.bursts().last_mut() {
                *ended = Some(began + busy);
            }
            let until = began + busy.mul_f64(1.0 / (1.0 - pauses.idle));
            while Instant::now() < until && !self.is_over() {
                std::thread::park_timeout(until - Instant::now().min(until));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn bursts(&self) -> MutexGuard<'_, Vec<Burst>> {
        self.bursts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_unsent(stream: &TcpStream) -> bool {
    // A connection that has ended has none.
    let info = TcpInfo::of(stream).ok();
    info.and_then(|info| info.notsent_bytes)
        .is_some_and(|bytes| bytes > 0)
}

/// Returns the share of this time that lies within bursts.
fn share_within(bursts: &[Burst], from: Instant, to: Instant) -> f64 {
    let overlaps = bursts.iter().map(|&(began, ended)| {
        let ended = ended.unwrap_or(to).min(to);
        ended.saturating_duration_since(began.max(from))
    });
    let (busy, all) = (overlaps.sum::<Duration>(), to.duration_since(from));
    busy.as_secs_f64() / all.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_counts_as_far_as_it_lies_within_the_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let bursts = [
            (at(0), Some(at(1))),
            (at(2), Some(at(6))),
            (at(8), Some(at(9))),
            (at(12), None),
            (at(20), None),
        ];
        // 4 to 6, 8 to 9 and 12 to 14.
        assert_eq!(share_within(&bursts, at(4), at(14)), 0.5);
        assert_eq!(share_within(&bursts, at(6), at(8)), 0.0);
        assert_eq!(share_within(&bursts, at(3), at(5)), 1.0);
    }
}
