//! The sender: sends a stream over a new connection, and takes its timestamps.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use taut_sys::tcp_info::TcpInfo;

use super::guest::talk::Sent;

/// The pause between two reads of the acknowledged bytes.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The time limit of a stream.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns this machine's CLOCK_MONOTONIC, in nanoseconds.
pub(in crate::experiment) fn now() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Generates the bytes of a stream.
pub(in crate::experiment) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Sends `bytes`, waits until the last byte has been acknowledged, ends the stream, and reads the
/// receiver's report.
///
/// The FIN is sent separately: the last bytes of an application that has not closed yet carry none.
///
/// # Errors
/// If the connection fails, or takes longer than [`PATIENCE`].
pub(in crate::experiment) fn send(to: SocketAddr, bytes: &[u8]) -> io::Result<Sent> {
    let connect = now();
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let write = now();
    stream.write_all(bytes)?;
    // The SYN counts as one byte.
    let all = bytes.len() as u64 + 1;
    let (mut looked, mut longest_pause) = (now(), 0);
    let (acked, info) = loop {
        let info = TcpInfo::of(&stream)?;
        let at = now();
        longest_pause = longest_pause.max(at - looked);
        looked = at;
        if info.bytes_acked.is_some_and(|acked| acked >= all) {
            break (at, info);
        }
        if Duration::from_nanos(at - write) > PATIENCE {
            let e = format!("not all of a stream was acknowledged within {PATIENCE:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, e));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    stream.shutdown(Shutdown::Write)?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    let received = serde_json::from_slice(&said).map_err(|e| {
        io::Error::other(format!(
            "the receiver did not report what it had received: {e}"
        ))
    })?;
    Ok(Sent {
        connect,
        write,
        acked,
        longest_pause,
        repeated: info.total_retrans,
        ssthresh: info.snd_ssthresh,
        counted: None,
        received,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_bytes() {
        assert_eq!(bytes(1, 1000), bytes(1, 1000));
        assert_eq!(bytes(1, 1000)[..100], bytes(1, 100)[..]);
        assert_ne!(bytes(1, 1000), bytes(2, 1000));
    }

    #[test]
    fn a_receiver_that_says_nothing_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        assert!(send(to, b"a few bytes").is_err());
        receiver.join().unwrap();
    }
}
