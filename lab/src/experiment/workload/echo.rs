//! Round trips of single bytes over established connections.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Entrance;
use super::bulk::discard;
use super::pair::Pair;
use crate::experiment::stats;

/// The number of connections that take turns. A relay distributes connections over its threads, and
/// a single connection could be assigned to a good thread by chance.
const CONNECTIONS: usize = 8;
/// The pause between two bytes. It is so long that all threads are asleep when a byte arrives.
const PAUSE: Duration = Duration::from_millis(1);
/// The size of a burst of the simultaneous bulk flow, which runs at 1 Gbit/s. An unlimited flow
/// would use every CPU of a small machine, and the measurement would be one of the scheduler.
const BURST: usize = 125_000;

/// Other traffic through the relay at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::experiment) enum Beside {
    Nothing,
    Bulk,
}

/// Quantiles of the round trips of one measurement, in seconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Echo {
    pub(in crate::experiment) p50: f64,
    pub(in crate::experiment) p99: f64,
}

/// Sends bytes for `time`, each one a pause after the previous byte has returned.
pub(in crate::experiment) fn measure(
    entrance: &Entrance,
    time: Duration,
    beside: Beside,
) -> io::Result<Echo> {
    let pairs = (0..CONNECTIONS)
        .map(|_| Pair::open(entrance))
        .collect::<io::Result<Vec<_>>>()?;
    let flow = match beside {
        Beside::Nothing => None,
        Beside::Bulk => Some(Pair::open(entrance)?),
    };
    let over = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        for pair in &pairs {
            scope.spawn(|| send_back(&pair.server));
        }
        if let Some(flow) = &flow {
            scope.spawn(|| pour(&flow.client, &over));
            scope.spawn(|| discard(&flow.server));
        }
        let times = round_trips(&pairs, time);
        // End the threads, even after an error.
        over.store(true, Ordering::Relaxed);
        for pair in pairs.iter().chain(&flow) {
            let _ = pair.client.shutdown(Shutdown::Write);
        }
        times
    })?;
    let quantile = |p| stats::quantile(&times, p).unwrap_or(f64::NAN);
    Ok(Echo {
        p50: quantile(0.5),
        p99: quantile(0.99),
    })
}

fn round_trips(pairs: &[Pair], time: Duration) -> io::Result<Vec<f64>> {
    let end = Instant::now() + time;
    let mut times = Vec::new();
    for mut client in pairs.iter().map(|pair| &pair.client).cycle() {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let mut byte = [1];
        client.write_all(&byte)?;
        client.read_exact(&mut byte)?;
        times.push(start.elapsed().as_secs_f64());
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

fn send_back(mut stream: &TcpStream) -> io::Result<()> {
    // The time limit for opening a pair does not apply here: silence is no failure.
    stream.set_read_timeout(None)?;
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

fn pour(mut to: &TcpStream, over: &AtomicBool) -> io::Result<()> {
    let burst = vec![0x5a; BURST];
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        to.write_all(&burst)?;
        next += PAUSE;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
