//! Streams between real sockets: bytes generated from a seed, compared by SHA-256.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sha2::{Digest as _, Sha256};

/// The most bytes to write or read at once.
pub(super) const STEP: usize = 65_536;

/// The sending end. It generates bytes from a seed, and hashes the bytes that it has written.
#[derive(Debug)]
pub(super) struct Source {
    random: Pcg64Mcg,
    sum: Sha256,
    buffer: Vec<u8>,
}

/// The receiving end. It hashes and counts the bytes that it has read.
#[derive(Debug)]
pub(super) struct Sink {
    sum: Sha256,
    buffer: Vec<u8>,
    pub(super) bytes: u64,
}

/// A reason why an end of a transfer did not finish.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The deadline passed.
    Hung(String),
    /// The connection failed.
    Broken(String),
}

// === impl Source ===

impl Source {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Pcg64Mcg::seed_from_u64(seed),
            sum: Sha256::new(),
            buffer: vec![0; STEP],
        }
    }

    /// Writes the next `bytes` of the stream.
    pub(super) fn write(
        &mut self,
        mut stream: &TcpStream,
        mut bytes: u64,
        deadline: Instant,
    ) -> io::Result<()> {
        while bytes > 0 {
            let piece = &mut self.buffer[..(STEP as u64).min(bytes) as usize];
            self.random.fill_bytes(piece);
            self.sum.update(&*piece);
            stream.set_write_timeout(Some(left(deadline)?))?;
            stream.write_all(piece)?;
            bytes -= piece.len() as u64;
        }
        Ok(())
    }

    pub(super) fn sum(self) -> [u8; 32] {
        self.sum.finalize().into()
    }
}

// === impl Sink ===

impl Sink {
    pub(super) fn new() -> Self {
        Self {
            sum: Sha256::new(),
            buffer: vec![0; STEP],
            bytes: 0,
        }
    }

    /// Reads up to `most` bytes and returns their number; 0 at the end of the stream.
    pub(super) fn read(
        &mut self,
        mut stream: &TcpStream,
        most: usize,
        deadline: Instant,
    ) -> io::Result<usize> {
        loop {
            stream.set_read_timeout(Some(left(deadline)?))?;
            match stream.read(&mut self.buffer[..most.min(STEP)]) {
                Ok(len) => {
                    self.sum.update(&self.buffer[..len]);
                    self.bytes += len as u64;
                    return Ok(len);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads until the stream ends or `until` bytes have arrived in total.
    pub(super) fn read_until(
        &mut self,
        stream: &TcpStream,
        until: u64,
        deadline: Instant,
    ) -> io::Result<()> {
        while self.bytes < until {
            let most = usize::try_from(until - self.bytes).unwrap_or(STEP);
            if self.read(stream, most, deadline)? == 0 {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn sum(self) -> [u8; 32] {
        self.sum.finalize().into()
    }
}

// === impl Failure ===

impl Failure {
    pub(super) fn of(error: io::Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Hung(text),
            _ => Self::Broken(text),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hung(why) => write!(f, "hung ({why})"),
            Self::Broken(why) => write!(f, "broken ({why})"),
        }
    }
}

/// Returns the time left until `deadline`, or an error if it has passed.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Connects within `limit`, from an address of this host if one is given.
pub(super) fn connect(
    from: Option<IpAddr>,
    to: SocketAddr,
    limit: Duration,
) -> io::Result<TcpStream> {
    let Some(from) = from else {
        return TcpStream::connect_timeout(&to, limit);
    };
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    connect_within(&socket, to, limit)?;
    Ok(socket.into())
}

/// Connects a blocking socket within `limit`.
pub(super) fn connect_within(socket: &OwnedFd, to: SocketAddr, limit: Duration) -> io::Result<()> {
    // The send timeout limits connect() too (socket(7)).
    set_socket_timeout(socket, Timeout::Send, Some(limit))?;
    match rustix::net::connect(socket, &to) {
        Err(rustix::io::Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        other => Ok(other?),
    }
}

/// Accepts the next connection and makes it blocking. The listener must be non-blocking.
pub(super) fn accept(listener: &TcpListener, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        let limit = Timespec::try_from(left(deadline)?).map_err(io::Error::other)?;
        rustix::event::poll(&mut fds, Some(&limit))?;
    }
}
