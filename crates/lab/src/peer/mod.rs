//! The programs that take part in experiments: real ones, as the distribution ships them, and
//! `taut` itself. Each runs on one host of a world and ends with it.

pub mod curl;
pub mod haproxy;
pub mod nginx;
pub mod nginx_stream;
pub mod program;
pub mod relay;
pub mod socat;
pub mod ss;
pub mod ssh;

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
/// Between two attempts to connect to a service that is starting.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// Why a program cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It is not installed, or too old to say what it is.
    #[error("{program} cannot be run: {source}; install the Debian package {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Its files could not be written.
    #[error("cannot prepare {what}: {source}")]
    Prepare {
        /// What was being prepared.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// It could not be started.
    #[error("{name}: cannot be started: {source}")]
    Start {
        /// The program and its host.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// It ended before it accepted a connection, or never did what it is there for.
    #[error("{name}: {how}; it said: {said}")]
    NotServing {
        /// The program and its host.
        name: String,
        /// What became of it.
        how: String,
        /// The end of its log.
        said: String,
    },
    /// Its host could not be used.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// A service on a host, accepting connections. It is killed when this is dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    name: String,
    log: PathBuf,
    /// Where it accepts connections.
    pub addr: SocketAddr,
}

impl Service {
    /// Starts `command` on `host`, its output going to `DIR/NAME.log`, and waits until it accepts
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
                    format!("it accepts no connection at {addr} after {START_LIMIT:?}")
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
    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it `signal`; that it has ended is no error.
    ///
    /// # Errors
    /// The system's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.child.signal(signal)
    }

    /// Waits until it has ended, for `limit` at most; `None`: it has not.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_for(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        self.child.wait_for(limit)
    }

    /// What it has said so far, on standard output and standard error.
    ///
    /// # Errors
    /// The system's.
    pub fn said(&self) -> io::Result<String> {
        // The last line may be half there, and a program may say what is not UTF-8.
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// That it accepts connections and still does not serve: `how`, and the end of its log.
    fn not_serving(&self, how: String) -> PeerError {
        PeerError::NotServing {
            name: self.name.clone(),
            how,
            said: last_words(&self.log),
        }
    }

    /// Descriptors it has open.
    ///
    /// # Errors
    /// The system's, when it has ended.
    pub fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.id()))?.count())
    }
}

/// The end of a log, on one line.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.len() {
        0 => "nothing".to_owned(),
        n => lines[n.saturating_sub(5)..].join(" | "),
    }
}
