//! An HTTP client that reads a download slowly, in parts with pauses.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

use taut_netlab::world::Host;

/// A thread that reads a download. Dropping this ends the connection and the thread.
pub(super) struct Reader {
    stream: TcpStream,
    thread: Option<JoinHandle<()>>,
}

/// The rhythm of a reader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// The maximum mean rate, in bytes per second.
    pub(super) rate: u64,
    /// The mean time from one part to the next.
    pub(super) period: Duration,
    pub(super) seed: u64,
}

// === impl Reader ===

impl Reader {
    /// Connects `host` to an HTTP server, requests `path`, and reads the answer at this pace.
    pub(super) fn start(
        host: &Host,
        server: SocketAddr,
        path: &str,
        pace: Pace,
    ) -> io::Result<Self> {
        let connected = host.run(move || TcpStream::connect(server));
        let mut stream = connected.map_err(io::Error::other)??;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let reading = stream.try_clone()?;
        let thread = std::thread::Builder::new().spawn(move || read(reading, pace))?;
        Ok(Self {
            stream,
            thread: Some(thread),
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Makes `read` return 0 once the receive queue is empty, so the thread ends when it has
        // read the rest of the queue at its pace.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads until the connection ends.
fn read(mut stream: TcpStream, pace: Pace) {
    let mut random = Pcg64Mcg::seed_from_u64(pace.seed);
    let mut buffer = vec![0; 1 << 16];
    let mut due = Instant::now();
    loop {
        // Uniform between 0.5 and 1.5 times the mean.
        let drawn = 0.5 + random.next_u64() as f64 / u64::MAX as f64;
        let period = pace.period.mul_f64(drawn);
        let mut left = (pace.rate as f64 * period.as_secs_f64()) as usize;
        while left > 0 {
            let most = left.min(buffer.len());
            match stream.read(&mut buffer[..most]) {
                Ok(0) | Err(_) => return,
                Ok(read) => left -= read,
            }
        }
        due += period;
        let now = Instant::now();
        // Time lost waiting for data is not made up.
        due = due.max(now);
        std::thread::sleep(due - now);
    }
}
