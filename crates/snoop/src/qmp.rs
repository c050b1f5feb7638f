//! Watches QEMU's machines at the QMP sockets named by `--qmp`.
//!
//! One thread handles all connections: it connects, reconnects, and reports when early ACKs at a
//! tap have to stop and when they may resume ([`policy`]).

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use lines::Lines;
use policy::{Policy, Restriction};
use session::{Fault, Output, Session};

mod lines;
pub mod message;
pub mod policy;
pub mod session;
mod source;

pub use source::{Source, SourceError};

/// The first pause before a reconnection, which doubles until [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
/// The longest such pause.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The time for which a connection is not read after it caused a restriction: a machine that is
/// stopped and continued all the time must not starve the others.
const REST: Duration = Duration::from_millis(20);

/// The number of bytes read from a connection before the next connection has its turn.
const READ: usize = 16 * 1024;

/// The number of bytes of unsent commands at which a monitor is given up.
const UNSENT_MAX: usize = 4096;

/// Handle to the thread that runs the connections.
#[derive(Debug)]
pub struct Monitors {
    taps: Arc<Mutex<Vec<String>>>,
    wake: UnixStream,
}

/// The state of the thread.
struct Watcher<T> {
    sources: Vec<Source>,
    taps: Arc<Mutex<Vec<String>>>,
    woken: UnixStream,
    /// Connections by socket path: a machine may have several taps, and its socket accepts one
    /// client.
    connections: BTreeMap<PathBuf, Connection>,
    began: Instant,
    tell: T,
}

/// A machine's monitor, connected or not.
struct Connection {
    path: PathBuf,
    /// The machine's taps.
    taps: Vec<String>,
    policy: Policy,
    link: Link,
    retry: Duration,
    /// Whether the missing connection was logged.
    logged: bool,
    /// The connection is not read before this time.
    rests_until: Duration,
}

enum Link {
    /// Disconnected; the time of the next attempt.
    Down(Duration),
    Up {
        stream: UnixStream,
        session: Session,
        lines: Lines,
        unsent: Vec<u8>,
    },
}

/// The reason why a connection broke.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("QEMU closed the connection")]
    Closed,
    #[error("QEMU does not read its commands")]
    Unread,
}

// === impl Monitors ===

impl Monitors {
    /// Starts the thread without any connections. The thread calls `tell` with a tap's name and a
    /// restriction, and ends when `tell` returns false.
    ///
    /// # Errors
    /// The system's error if no thread or file descriptor is available.
    pub fn watch(
        sources: Vec<Source>,
        tell: impl Fn(String, Restriction) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let taps = Arc::new(Mutex::new(Vec::new()));
        let mut watcher = Watcher {
            sources,
            taps: taps.clone(),
            woken,
            connections: BTreeMap::new(),
            began: Instant::now(),
            tell,
        };
        std::thread::Builder::new()
            .name("snoop-qmp".into())
            .spawn(move || while watcher.turn() {})?;
        Ok(Self { taps, wake })
    }

    /// Connects to the machines at these taps only.
    pub fn set_taps(&self, taps: Vec<String>) {
        let mut wanted = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted != taps {
            *wanted = taps;
            // If the pipe is full, the thread has a wake-up pending already.
            let _ = (&self.wake).write(&[0]);
        }
    }
}

// === impl Watcher ===

impl<T: Fn(String, Restriction) -> bool> Watcher<T> {
    /// Runs one round: sends pending commands, reports restrictions, waits, and reads. Returns
    /// false when the receiver is gone.
    fn turn(&mut self) -> bool {
        self.update_connections();
        let now = self.began.elapsed();
        for connection in self.connections.values_mut() {
            connection.poll(now);
            if let Some(restriction) = connection.policy.restriction() {
                connection.rests_until = now + REST;
                let mut taps = connection.taps.iter();
                if !taps.all(|tap| (self.tell)(tap.clone(), restriction)) {
                    return false;
                }
            }
        }
        match self.wait(now) {
            Ok(ready) => {
                let now = self.began.elapsed();
                let connections = self.connections.values_mut().zip(ready);
                for (connection, _) in connections.filter(|(_, ready)| *ready) {
                    connection.read(now);
                }
            }
            // The system is out of memory, which may pass.
            Err(error) => {
                tracing::warn!(%error, "cannot wait for QMP");
                std::thread::sleep(RETRY);
            }
        }
        self.is_wanted()
    }

    fn update_connections(&mut self) {
        let mut wanted = BTreeMap::<PathBuf, Vec<String>>::new();
        let taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        for tap in taps.iter() {
            if let Some(path) = self.sources.iter().find_map(|s| s.socket_of(tap)) {
                wanted.entry(path).or_default().push(tap.clone());
            }
        }
        drop(taps);
        self.connections
            .retain(|path, connection| wanted.get(path) == Some(&connection.taps));
        for (path, taps) in wanted {
            let now = self.began.elapsed();
            let connection = || Connection::new(path.clone(), taps, now);
            self.connections
                .entry(path.clone())
                .or_insert_with(connection);
        }
    }

    /// Waits until a timer is due, a connection is ready or the taps have changed. Returns, for
    /// each connection, whether it is ready.
    fn wait(&self, now: Duration) -> io::Result<Vec<bool>> {
        let due = self.connections.values().filter_map(Connection::due).min();
        let limit = due.map(|due| due.saturating_sub(now));
        let limit = limit.map(Timespec::try_from).transpose();
        let limit = limit.map_err(io::Error::other)?;
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let waited_for = self.connections.values().map(|connection| {
            let (stream, flags) = connection.waits_for(now)?;
            fds.push(PollFd::new(stream, flags));
            Some(fds.len() - 1)
        });
        let waited_for: Vec<_> = waited_for.collect();
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| !fds[at].revents().is_empty();
        Ok(waited_for
            .into_iter()
            .map(|at| at.is_some_and(is_ready))
            .collect())
    }

    /// Empties the wake-up pipe. Returns false if its other end is closed.
    fn is_wanted(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match (&self.woken).read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

// === impl Connection ===

impl Connection {
    fn new(path: PathBuf, taps: Vec<String>, now: Duration) -> Self {
        Self {
            path,
            taps,
            policy: Policy::default(),
            link: Link::Down(now),
            retry: RETRY,
            logged: false,
            rests_until: now,
        }
    }

    /// Returns the time at which [`Connection::poll`] or [`Connection::read`] may have work without
    /// input from QEMU.
    fn due(&self) -> Option<Duration> {
        match &self.link {
            Link::Down(at) => Some(*at),
            Link::Up { session, .. } => {
                let rest = (self.rests_until > Duration::ZERO).then_some(self.rests_until);
                session.due().into_iter().chain(rest).min()
            }
        }
    }

    fn waits_for(&self, now: Duration) -> Option<(&UnixStream, PollFlags)> {
        match &self.link {
            Link::Up { stream, unsent, .. } if now >= self.rests_until => {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, !unsent.is_empty());
                Some((stream, flags))
            }
            _ => None,
        }
    }

    /// Connects, or sends a query, if due.
    fn poll(&mut self, now: Duration) {
        if now >= self.rests_until {
            self.rests_until = Duration::ZERO;
        }
        let done = match &mut self.link {
            Link::Down(at) if now >= *at => self.connect(now),
            Link::Down(_) => Ok(()),
            Link::Up { session, .. } => match session.poll(now) {
                Ok(output) => self.output(output),
                Err(fault) => Err(fault.into()),
            },
        };
        if let Err(error) = done {
            self.break_off(now, &error);
        }
    }

    /// Reads input, and sends pending output.
    fn read(&mut self, now: Duration) {
        if let Err(error) = self.try_read(now) {
            self.break_off(now, &error);
        }
    }

    fn connect(&mut self, now: Duration) -> Result<(), LinkError> {
        self.link = Link::Up {
            stream: connect_to(&self.path)?,
            session: Session::new(now),
            lines: Lines::default(),
            unsent: Vec::new(),
        };
        Ok(())
    }

    fn try_read(&mut self, now: Duration) -> Result<(), LinkError> {
        let Link::Up {
            stream,
            session,
            lines,
            ..
        } = &mut self.link
        else {
            return Ok(());
        };
        let mut bytes = [0; READ];
        let read = match stream.read(&mut bytes) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        let mut outputs = Vec::new();
        let mut fault = None;
        let policy = &mut self.policy;
        lines.read(&bytes[..read], |line| {
            if fault.is_none() {
                match session.on_line(now, line, policy) {
                    Ok(more) => outputs.extend(more),
                    Err(error) => fault = Some(error),
                }
            }
        });
        match fault {
            Some(fault) => Err(fault.into()),
            None => self.output(outputs),
        }
    }

    fn output(&mut self, outputs: impl IntoIterator<Item = Output>) -> Result<(), LinkError> {
        for output in outputs {
            match (output, &mut self.link) {
                (Output::Send(line), Link::Up { unsent, .. }) => {
                    unsent.extend_from_slice(line.as_bytes());
                }
                (Output::Send(_), Link::Down(_)) => {}
                (Output::Ready(version), _) => {
                    tracing::info!(
                        taps = self.taps.join(" "), socket = %self.path.display(), qemu = version,
                        "connected to QMP: early ACKs stop before a migration and while the guest is stopped"
                    );
                    self.logged = false;
                    self.retry = RETRY;
                }
            }
        }
        let Link::Up { stream, unsent, .. } = &mut self.link else {
            return Ok(());
        };
        while !unsent.is_empty() {
            match stream.write(unsent) {
                Ok(written) => drop(unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        match unsent.len() > UNSENT_MAX {
            true => Err(LinkError::Unread),
            false => Ok(()),
        }
    }

    fn break_off(&mut self, now: Duration, error: &LinkError) {
        // Not logged after the first failure: a tap may appear a moment before its machine, and
        // vanish a moment after it.
        if !self.logged && self.retry > RETRY {
            tracing::warn!(
                taps = self.taps.join(" "), socket = %self.path.display(),
                "no QMP connection, so early ACKs do not stop automatically before a migration: {error}"
            );
            self.logged = true;
        }
        if matches!(&self.link, Link::Up { session, .. } if session.is_ready()) {
            self.policy.on_disconnected();
        }
        self.link = Link::Down(now + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }
}

/// Connects without blocking: the listener may have a client and no room for another.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests;
