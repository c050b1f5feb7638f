//! The programs that take part in experiments: `taut`, and programs as the distribution ships them.
//! Each runs on one host of a world and ends with that host.

pub mod curl;
pub mod haproxy;
pub mod mesh_pair;
pub mod nginx;
pub mod nginx_stream;
pub mod program;
pub mod relay;
pub mod relay_pair;
pub mod socat;
pub mod ss;
pub mod ssh;
pub mod tls;
pub mod two_relays;

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use taut_sys::child::Child;

use taut_netlab::world::{Host, WorldError};

/// How long a service may take until it accepts connections.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two attempts to connect to a starting service.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// A reason why a program cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The program is not installed, or does not print its version.
    #[error("{program} cannot be run: {source}; install the Debian package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package of the program.
        package: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The program's files could not be written.
    #[error("cannot prepare {what}: {source}")]
    Prepare {
        /// What was being prepared.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program could not be started.
    #[error("{name}: cannot be started: {source}")]
    Start {
        /// The program and its host.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program ended before it accepted a connection, or does not work as it should.
    #[error("{name}: {how}; its output: {said}")]
    NotServing {
        /// The program and its host.
        name: String,
        /// What happened to it.
        how: String,
        /// The end of its log.
        said: String,
    },
    /// The program's host could not be used.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// A service on a host that accepts connections. Dropping it kills the process.
#[derive(Debug)]
pub struct Service {
    child: Child,
    name: String,
    log: PathBuf,
    /// The address at which the service accepts connections.
    pub addr: SocketAddr,
}

impl Service {
    /// Starts `command` on `host` with its output in `DIR/NAME.log`, and waits until it accepts
    /// connections at `addr`.
    ///
    /// # Errors
    /// [`PeerError::Start`] and [`PeerError::NotServing`].
    pub fn start(
        host: &Host,
        name: &str,
        mut command: Command,
        addr: SocketAddr,
        dir: &Path,
    ) -> Result<Self, PeerError> {
        let name = format!("{name} on {}", host.name());
        let log = dir.join(format!("{}.log", name.replace(' ', "-")));
        let start = |source| PeerError::Start {
            name: name.clone(),
            source,
        };
        let out = File::create(&log).map_err(start)?;
        let err = out.try_clone().map_err(start)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let mut child = host.spawn(command).map_err(start)?;

        let deadline = Instant::now() + START_LIMIT;
        loop {
            if host.run(|| TcpStream::connect(addr))?.is_ok() {
                return Ok(Self {
                    child,
                    name,
                    log,
                    addr,
                });
            }
            let ended = child.wait_for(ATTEMPT_PAUSE).map_err(start)?;
            let how = match ended {
                Some(status) => format!("it ended before it accepted a connection ({status})"),
                None if Instant::now() > deadline => {
                    format!("it does not accept a connection at {addr} after {START_LIMIT:?}")
                }
                None => continue,
            };
            return Err(PeerError::NotServing {
                name,
                how,
                said: last_words(&log),
            });
        }
    }
}

// === impl Service ===

impl Service {
    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to the process. Succeeds even if the process has ended.
    ///
    /// # Errors
    /// The system's error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.child.signal(signal)
    }

    /// Waits for up to `limit` until the process has ended; returns `None` if it has not.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait_for(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        self.child.wait_for(limit)
    }

    /// Returns the output so far, from standard output and standard error.
    ///
    /// # Errors
    /// The system's error.
    pub fn said(&self) -> io::Result<String> {
        // The last line may be incomplete, and the output may not be UTF-8.
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// Returns the error that the service does not work: `how` it fails, and the end of its log.
    pub(crate) fn not_serving(&self, how: String) -> PeerError {
        PeerError::NotServing {
            name: self.name.clone(),
            how,
            said: last_words(&self.log),
        }
    }

    /// Returns the number of open descriptors.
    ///
    /// # Errors
    /// The system's error if the process has ended.
    pub fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.id()))?.count())
    }
}

/// Returns the end of a log as one line.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.len() {
        0 => "nothing".to_owned(),
        n => lines[n.saturating_sub(5)..].join(" | "),
    }
}
