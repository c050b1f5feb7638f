//! Why the server does not start, or ends.

use std::io;
use std::path::PathBuf;

use taut_sys::Errno;
use taut_sys::listen::Listen;

use crate::config::ConfigError;
use crate::nearness::TooManyPrefixes;
use crate::zone::ZoneError;

/// The reason why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be bound.
    #[error(
        "cannot listen on {addr} ({protocol}): {source}; {hint}, or change mesh.dns.{key}",
        hint = bind_hint(source)
    )]
    Bind {
        /// The address.
        addr: Listen,
        /// The protocol.
        protocol: &'static str,
        /// The key of the configuration.
        key: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The round-trip times cannot be read.
    #[error("cannot read the round-trip times in {path}: {reason}; correct the file or mesh.dns.rtt_file", path = path.display())]
    Measured {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The relay on this machine cannot be asked.
    #[error("cannot ask the relay at {path} for round-trip times: {reason}; correct mesh.dns.relay_control, or start the relay", path = path.display())]
    Relay {
        /// Its control socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There are too many prefixes.
    #[error(transparent)]
    TooManyPrefixes(#[from] TooManyPrefixes),
    /// The zone has a mistake.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// The configuration cannot be read again.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A thread has ended.
    #[error("a thread that answers queries has stopped: {0}; restart the server, and report this")]
    Lost(Errno),
    /// The process's own set-up failed.
    #[error("cannot set up threads, signals and timers: {0}")]
    SetUp(#[from] io::Error),
}

/// Returns what to do about an address that cannot be bound.
fn bind_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the other server there",
        io::ErrorKind::AddrNotAvailable => "give this machine the address",
        io::ErrorKind::PermissionDenied => "start it as root",
        _ => "see whether the address is right",
    }
}
