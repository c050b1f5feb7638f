//! The network of the tour: a client, two hosts on the way, and a server.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::BitsPerSecond;
use taut_netlab::world::{Host, World, WorldBuilder, WorldError};

use crate::failure::Failure;

/// The round trip between client and server.
pub(super) const ROUND_TRIP: Duration = Duration::from_millis(100);
/// The rate of each link.
pub(super) const RATE: BitsPerSecond = BitsPerSecond::mega(50);
/// The round trip between a host at one end and the one next to it on the way.
const SHORT: Duration = Duration::from_millis(10);
/// The time after which a delivery of a link is late: a tenth of what is measured.
const LATE: Duration = Duration::from_millis(10);
/// How long a connection may say nothing.
const PATIENCE: Duration = Duration::from_secs(20);
/// The server's port.
const PORT: u16 = 80;

/// The network, with a server that sends as many bytes as it is asked for.
pub(super) struct Network {
    world: World,
}

/// How long a download took.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// From the client's SYN to the first byte.
    pub(super) first_byte: Duration,
    /// From the client's SYN to the last byte.
    pub(super) total: Duration,
}

/// A download without an end. Dropping it ends it.
pub(super) struct Stream {
    socket: TcpStream,
    received: Arc<AtomicU64>,
}

// === impl Network ===

impl Network {
    pub(super) fn make() -> Result<Self, Failure> {
        let link = |round_trip: Duration| {
            LinkSpec::both(Shape::delay(round_trip / 2).rate(RATE).tolerance(LATE))
        };
        let world = WorldBuilder::new("tour")
            .host("client")
            .host("near")
            .host("far")
            .host("server")
            .link("client", "near", link(SHORT))
            .link("near", "far", link(ROUND_TRIP - 2 * SHORT))
            .link("far", "server", link(SHORT))
            .keep_congestion_control()
            .build()
            .map_err(failure)?;
        let network = Self { world };
        network.serve()?;
        Ok(network)
    }

    /// Returns the host called `name`.
    pub(super) fn host(&self, name: &str) -> &Host {
        self.world.host(name)
    }

    /// Returns the server's address.
    pub(super) fn server(&self) -> SocketAddr {
        (self.world.addr("server"), PORT).into()
    }

    /// Returns the path of a file in a directory that goes with the network.
    pub(super) fn file(&self, name: &str) -> std::path::PathBuf {
        self.world.dir().join(name)
    }

    /// Downloads `bytes` from an address to the client.
    pub(super) fn download(&self, from: SocketAddr, bytes: u64) -> Result<Times, Failure> {
        let began = Instant::now();
        let mut socket = self.connect(from, bytes)?;
        let mut first_byte = None;
        let received = receive(&mut socket, |_| {
            first_byte.get_or_insert_with(|| began.elapsed());
        });
        let total = began.elapsed();
        match (received, first_byte) {
            (Ok(received), Some(first_byte)) if received == bytes => {
                Ok(Times { first_byte, total })
            }
            (Ok(received), _) => Err(Failure::Run(format!(
                "the download from {from} ended after {received} of {bytes} bytes"
            ))),
            (Err(e), _) => Err(Failure::Run(format!(
                "the download from {from} failed: {e}"
            ))),
        }
    }

    /// Starts a download from the server to the client that goes on until it is dropped.
    pub(super) fn stream(&self) -> Result<Stream, Failure> {
        let socket = self.connect(self.server(), u64::MAX)?;
        let received = Arc::new(AtomicU64::new(0));
        let failed = |e| Failure::Run(format!("cannot read from the server: {e}"));
        let mut reads = socket.try_clone().map_err(failed)?;
        let counts = Arc::clone(&received);
        std::thread::spawn(move || {
            receive(&mut reads, |bytes| {
                counts.fetch_add(bytes as u64, Ordering::Relaxed);
            })
        });
        Ok(Stream { socket, received })
    }

    /// Returns the counters of the links.
    pub(super) fn reports(&self) -> Result<Vec<LinkReport>, Failure> {
        self.world.link_reports().map_err(failure)
    }

    /// Whether the links were slower than they are meant to be since `earlier`.
    pub(super) fn is_late_since(&self, earlier: &[LinkReport]) -> Result<bool, Failure> {
        let now = self.reports()?;
        Ok(now
            .iter()
            .zip(earlier)
            .any(|(now, then)| now.since(then).overrun()))
    }

    /// Connects the client to an address, and asks for `bytes`.
    fn connect(&self, to: SocketAddr, bytes: u64) -> Result<TcpStream, Failure> {
        let connect = || {
            let mut socket = TcpStream::connect_timeout(&to, PATIENCE)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.write_all(&bytes.to_be_bytes())?;
            Ok::<_, io::Error>(socket)
        };
        let connected = self.host("client").run(connect).map_err(failure)?;
        connected.map_err(|e| Failure::Run(format!("the client cannot connect to {to}: {e}")))
    }

    /// Starts the server.
    fn serve(&self) -> Result<(), Failure> {
        let address = self.server();
        let bound = self.host("server").run(|| TcpListener::bind(address));
        let listener = bound
            .map_err(failure)?
            .map_err(|e| Failure::Run(format!("the server cannot listen at {address}: {e}")))?;
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // The client has gone, or reads no more.
                std::thread::spawn(move || send(client).is_err());
            }
        });
        Ok(())
    }
}

// === impl Stream ===

impl Stream {
    /// Returns the rate of the next `time`, in Mbit/s.
    pub(super) fn rate(&self, time: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.received.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let bytes = self.received.load(Ordering::Relaxed) - before;
        8.0 * bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Returns a failure of the network.
pub(super) fn failure(error: WorldError) -> Failure {
    Failure::Run(error.to_string())
}

/// Sends a client the number of bytes that it asks for.
fn send(mut client: TcpStream) -> io::Result<()> {
    static BLOCK: [u8; 1 << 16] = [0; 1 << 16];
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = [0; 8];
    client.read_exact(&mut bytes)?;
    let mut left = u64::from_be_bytes(bytes);
    while left > 0 {
        let block = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK.len());
        let sent = client.write(&BLOCK[..block])?;
        left -= sent as u64;
    }
    Ok(())
}

/// Reads until the end, and reports the size of each read. Returns the sum.
fn receive(socket: &mut TcpStream, mut note: impl FnMut(usize)) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut sum = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(sum),
            bytes => {
                note(bytes);
                sum += bytes as u64;
            }
        }
    }
}
