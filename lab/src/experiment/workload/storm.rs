//! New connections: each connects, sends one byte each way, and closes. Many run at once,
//! repeatedly.
//!
//! The clients are one thread and the server is another. Both use epoll, which leaves as much of
//! the machine as possible to the relay.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, connect, ipproto,
    recv, send, socket_with, sockopt,
};
use slab::Slab;
use taut_sys::epoll::{Interest, Poller, Readiness};

use super::Entrance;
use crate::experiment::stats;

/// The number of concurrent connections. It is so large that no relay waits for the clients.
const AT_ONCE: usize = 64;
/// How long connections may take to finish after the measurement. It is long, because a busy machine
/// may leave a relay without a CPU for seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a relay may take to close connections that both ends have closed, and to reap its
/// children.
const SETTLE: Duration = Duration::from_millis(50);
/// The longest sleep of a thread between two reads of the clock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The token of the server's listener. Connections have small tokens, those of the slab.
const LISTENER: u64 = u64::MAX;

/// The result of one storm.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Storm {
    /// Connections completed within the measured time.
    pub(in crate::experiment) in_time: u64,
    pub(in crate::experiment) time: Duration,
    /// All completed connections, including those that finished after the measured time.
    pub(in crate::experiment) completed: u64,
    pub(in crate::experiment) failed: u64,
    /// The relay's CPU time for all connections.
    pub(in crate::experiment) cpu: Duration,
    /// The time from connect to the returned byte, in seconds: the median, and the 99.9th
    /// percentile.
    pub(in crate::experiment) setup_p50: f64,
    pub(in crate::experiment) setup_p999: f64,
}

/// The result of polling a connection.
enum Polled {
    Wait,
    Complete,
    Failed,
}

/// A client's connection.
struct Client {
    socket: OwnedFd,
    has_asked: bool,
    since: Instant,
}

/// Makes connections for `time`, and measures them.
pub(in crate::experiment) fn measure(entrance: &Entrance, time: Duration) -> io::Result<Storm> {
    entrance.server.set_nonblocking(true)?;
    let before = entrance.processes.cpu()?;
    let over = AtomicBool::new(false);
    let storm = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&entrance.server, &over));
        let storm = visit(entrance.addr, time);
        over.store(true, Ordering::Relaxed);
        server
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p))?;
        storm
    });
    entrance.server.set_nonblocking(false)?;
    let storm = storm?;
    std::thread::sleep(SETTLE);
    let cpu = entrance.processes.cpu()?.saturating_sub(before);
    Ok(Storm { cpu, ..storm })
}

fn visit(to: SocketAddr, time: Duration) -> io::Result<Storm> {
    let poller = Poller::new()?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    for slot in 0..AT_ONCE {
        clients.push(Some(Client::start(to, &poller, slot)?));
    }
    let mut storm = Storm {
        in_time: 0,
        time,
        completed: 0,
        failed: 0,
        cpu: Duration::ZERO,
        setup_p50: f64::NAN,
        setup_p999: f64::NAN,
    };
    let mut setups = Vec::new();
    let end = Instant::now() + time;
    let mut left = AT_ONCE;
    let mut reports = Vec::new();
    while left > 0 {
        poller.wait(Some(POLL_INTERVAL), &mut reports)?;
        let now = Instant::now();
        for &(token, ready) in &reports {
            let slot = token as usize;
            let Some(place) = clients.get_mut(slot) else {
                continue;
            };
            match place
                .as_mut()
                .map_or(Polled::Wait, |client| client.poll(ready))
            {
                Polled::Wait => continue,
                Polled::Complete => {
                    storm.completed += 1;
                    storm.in_time += u64::from(now < end);
                    let since = place.as_ref().map_or(now, |client| client.since);
                    setups.push(since.elapsed().as_secs_f64());
                }
                Polled::Failed => storm.failed += 1,
            }
            *place = None;
            if now < end {
                *place = Some(Client::start(to, &poller, slot)?);
            } else {
                left -= 1;
            }
        }
        if now > end + PATIENCE {
            storm.failed += left as u64;
            break;
        }
    }
    storm.setup_p50 = stats::quantile(&setups, 0.5).unwrap_or(f64::NAN);
    storm.setup_p999 = stats::quantile(&setups, 0.999).unwrap_or(f64::NAN);
    Ok(storm)
}

fn serve(listener: &TcpListener, over: &AtomicBool) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.add(listener, LISTENER, Interest::Read)?;
    let mut open: Slab<OwnedFd> = Slab::new();
    let mut reports = Vec::new();
    let mut deadline = None;
    loop {
        poller.wait(Some(POLL_INTERVAL), &mut reports)?;
        for &(token, ready) in &reports {
            if token == LISTENER {
                accept(listener, &poller, &mut open)?;
            } else if let Some(stream) = open.get(token as usize)
                && answer(stream, ready)
            {
                open.remove(token as usize);
            }
        }
        if over.load(Ordering::Relaxed) {
            let end = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            if open.is_empty() || Instant::now() > end {
                return Ok(());
            }
        }
    }
}

fn accept(listener: &TcpListener, poller: &Poller, open: &mut Slab<OwnedFd>) -> io::Result<()> {
    loop {
        match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(stream) => {
                let place = open.vacant_entry();
                poller.add(&stream, place.key() as u64, Interest::StreamEdges)?;
                place.insert(stream);
            }
            Err(Errno::AGAIN) => return Ok(()),
            // The connection was reset in the accept queue.
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Echoes bytes. Returns `true` at the end of the stream.
fn answer(stream: &OwnedFd, ready: Readiness) -> bool {
    let mut bytes = [0; 16];
    loop {
        match recv(stream, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) => return true,
            Ok((n, _)) => {
                if send(stream, &bytes[..n], SendFlags::NOSIGNAL).is_err() {
                    return true;
                }
                if !ready.short_read_is_inconclusive() {
                    return false;
                }
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

// === impl Storm ===

impl Storm {
    /// Returns the number of connections per second.
    pub(in crate::experiment) fn per_second(&self) -> f64 {
        self.in_time as f64 / self.time.as_secs_f64()
    }

    /// Returns the relay's CPU time for each connection, in microseconds.
    pub(in crate::experiment) fn microseconds_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.completed as f64
    }
}

// === impl Client ===

impl Client {
    fn start(to: SocketAddr, poller: &Poller, slot: usize) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let since = Instant::now();
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        poller.add(&socket, slot as u64, Interest::StreamEdges)?;
        Ok(Self {
            socket,
            has_asked: false,
            since,
        })
    }

    fn poll(&mut self, ready: Readiness) -> Polled {
        if !self.has_asked && ready.writable() {
            match send(&self.socket, &[1], SendFlags::NOSIGNAL) {
                Ok(_) => self.has_asked = true,
                Err(Errno::AGAIN) => {}
                Err(_) => return Polled::Failed,
            }
        }
        if !ready.readable() {
            return Polled::Wait;
        }
        match recv(&self.socket, &mut [0u8; 16][..], RecvFlags::empty()) {
            Ok((1, _)) => Polled::Complete,
            Err(Errno::AGAIN | Errno::INTR) => Polled::Wait,
            Ok(_) | Err(_) => Polled::Failed,
        }
    }
}
