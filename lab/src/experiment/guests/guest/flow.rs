//! Sends as fast as the connection allows, and samples the connection meanwhile.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use taut_sys::tcp_info::TcpInfo;

use super::talk::{Flow, FlowEnd, FlowSample};

/// The size of a write.
const BLOCK: usize = 64 << 10;
/// A peer that takes no bytes for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends over all connections at once.
pub(super) fn send(flows: &[Flow]) -> io::Result<Vec<FlowEnd>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = flows
            .iter()
            .map(|flow| scope.spawn(move || one(flow)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err(io::Error::other("a flow panicked"))))
            .collect()
    })
}

fn one(flow: &Flow) -> io::Result<FlowEnd> {
    let stream = TcpStream::connect_timeout(&flow.to, PATIENCE)?;
    sockopt::set_tcp_congestion(&stream, &flow.congestion_control).map_err(|e| {
        io::Error::other(format!(
            "no connection can have {}: {e}",
            flow.congestion_control
        ))
    })?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (block, began) = (vec![0; BLOCK], Instant::now());
    let samples = std::thread::scope(|scope| {
        let watched = &stream;
        let samples = scope.spawn(move || samples(watched, flow, began));
        let mut writer = &stream;
        while began.elapsed() < flow.time {
            writer.write_all(&block)?;
        }
        let samples = samples.join();
        samples.unwrap_or_else(|_| Err(io::Error::other("the thread that samples a flow panicked")))
    })?;
    let info = TcpInfo::of(&stream)?;
    // Discard queued bytes: the next flow should not wait for them.
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(FlowEnd {
        acked: info.bytes_acked.unwrap_or(0),
        repeated: info.total_retrans,
        samples,
    })
}

fn samples(stream: &TcpStream, flow: &Flow, began: Instant) -> io::Result<Vec<FlowSample>> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut samples = Vec::new();
    while began.elapsed() < flow.time {
        let info = TcpInfo::of(stream)?;
        samples.push(FlowSample {
            at: micros(began.elapsed()),
            srtt: micros(info.rtt.unwrap_or_default()),
            rto: micros(info.rto),
            cwnd: info.snd_cwnd,
            pacing: info.pacing_rate.unwrap_or(0),
            acked: info.bytes_acked.unwrap_or(0),
        });
        std::thread::sleep(flow.interval);
    }
    Ok(samples)
}
