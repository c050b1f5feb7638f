//! The `[relay]` section of the configuration file, checked.
//!
//! A mistake is reported as one sentence with the file, the line and the field.

use std::path::{Path, PathBuf};
use std::time::Duration;

use taut_sys::socket::Keepalive;

use crate::access::Sources;
use crate::access::identity::Identity;
use crate::early_syn::{Devices, Limits};
use crate::net::addr::{Destination, Listen};
use crate::session_log;

mod field;
mod file;
mod limits;
mod mesh;
mod transparent;

pub use limits::{InboundLimits, PoolLimits};
pub use mesh::{MeshConfig, Turbo};
pub use transparent::{InterceptConfig, Transparent};

use file::File;

/// How a relay node runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that move bytes; `None`: one for each CPU this process may run on.
    pub workers: Option<u16>,
    /// Sessions open at one time; further clients get RST. `None`: as many as the limit of open
    /// descriptors has room for.
    pub max_sessions: Option<u32>,
    /// Sessions that each source, an IPv4 address or an IPv6 /64, may have open at one time;
    /// `None`: as many as there are.
    pub max_sessions_per_source: Option<u32>,
    /// Where a line for each session that has ended goes; `None`: nowhere.
    pub session_log: Option<session_log::Target>,
    /// Where a new process asks this one for its listening sockets; `None`: nowhere.
    pub handover: Option<PathBuf>,
    /// The user that the process becomes at its start; `None`: it stays who it is.
    pub user: Option<String>,
    /// Where OpenMetrics are served; `None`: nowhere.
    pub metrics: Option<std::net::SocketAddr>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How bytes are moved.
    pub data: DataPath,
    /// Dead-peer detection on both legs.
    pub keepalive: Keepalive,
    /// Where SYNs are looked for, by forwards that have `early_syn`.
    pub early_syn: EarlySynConfig,
    /// How transparent forwards get their connections.
    pub intercept: InterceptConfig,
    /// Its part in a mesh of relays, if it has one.
    pub mesh: Option<MeshConfig>,
    /// What is listened on, and where it goes. At least one, unless the mesh is listened to.
    pub forwards: Vec<Forward>,
}

/// Where SYNs are looked for, and how much they may make this machine do.
#[derive(Clone, Debug)]
pub struct EarlySynConfig {
    /// The network devices.
    pub devices: Devices,
    /// The bounds.
    pub limits: Limits,
}

impl Default for EarlySynConfig {
    fn default() -> Self {
        Self {
            devices: Devices::AllUp,
            limits: Limits::default(),
        }
    }
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For each address of a destination: SYN to SYN-ACK.
    pub connect: Duration,
    /// Without a byte moved, once one side has ended its stream.
    pub half_closed: Duration,
    /// Without a byte moved either way; `None`: a session may be silent for ever.
    pub idle: Option<Duration>,
    /// Without a byte acknowledged, while the bytes that a broken connection had still delivered
    /// are passed on ahead of the RST.
    pub flush: Duration,
    /// From SIGTERM until the sessions that are still open are reset.
    pub drain: Duration,
    /// Between look-ups of destinations that are names.
    pub resolve: Duration,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPath {
    /// Bytes of a direction that are copied before it uses splice(2); `None`: all of them.
    pub splice_after: Option<u64>,
    /// Bytes asked for in each pipe.
    pub pipe_size: usize,
    /// Pipes of the whole node. A direction that gets none copies.
    pub max_pipes: u32,
}

/// One `[[relay.forward]]`.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Where clients connect to.
    pub listen: Vec<Listen>,
    /// The destination, or the next relay when that is no part of the mesh. `None`: where each
    /// client wanted to go (`transparent`).
    pub to: Option<Destination>,
    /// What is intercepted.
    pub transparent: Option<Transparent>,
    /// How its clients' addresses are learnt and passed on.
    pub identity: Identity,
    /// The relays of the mesh that connections go through, in order; none: straight to `to`.
    pub via: Vec<Destination>,
    /// Whether the upstream leg is begun when the client's SYN is seen, before its handshake is
    /// done (pied-piper 3.2, improvement 1).
    pub early_syn: bool,
    /// Who may connect.
    pub sources: Sources,
    /// Congestion control towards the client; `None`: the kernel's default.
    pub client_congestion: Option<String>,
    /// Congestion control towards the destination; `None`: the kernel's default.
    pub upstream_congestion: Option<String>,
}

impl Forward {
    /// What does not go together, as the end of a sentence that begins with the forward.
    fn contradiction(&self) -> Option<&'static str> {
        let Identity {
            borrow,
            send_proxy,
            accept_proxy,
        } = &self.identity;
        let introduced = accept_proxy.is_some();
        Some(match (&self.to, &self.transparent) {
            (None, None) => {
                ".to: say where connections go, or `transparent = true`: where their clients want to"
            }
            (Some(_), Some(_)) => {
                ": `to` and `transparent` say different things of where connections go; leave one out"
            }
            (_, Some(_)) if introduced => {
                ".accept_proxy: an intercepted connection is the client's own, and begins with no header"
            }
            _ if self.early_syn
                && (self.transparent.is_some() || introduced || *send_proxy || *borrow) =>
            {
                ".early_syn: it does not go together with transparent, source, send_proxy or accept_proxy"
            }
            _ if !self.via.is_empty() && (*send_proxy || *borrow) => {
                ".via: `send_proxy` and `source` are for connections to the destination itself; write \
                 `source` into [relay.mesh] of the last relay"
            }
            _ => return None,
        })
    }

    /// Connections that are intercepted, to where each client wanted to go.
    pub fn transparent(listen: Vec<Listen>, transparent: Transparent) -> Self {
        Self {
            listen,
            to: None,
            transparent: Some(transparent),
            identity: Identity::default(),
            via: Vec::new(),
            early_syn: false,
            sources: Sources::default(),
            client_congestion: None,
            upstream_congestion: None,
        }
    }

    /// From `listen` to `to`, with the kernel's defaults on both legs.
    pub fn new(listen: Vec<Listen>, to: Destination) -> Self {
        Self {
            listen,
            to: Some(to),
            transparent: None,
            identity: Identity::default(),
            via: Vec::new(),
            early_syn: false,
            sources: Sources::default(),
            client_congestion: None,
            upstream_congestion: None,
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file says something that cannot be.
    #[error("{path}:{line}: {message}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The field and what is wrong with it.
        message: String,
    },
    /// Nothing to do.
    #[error("{path}: no [[relay.forward]]: say what to listen on and where it goes", path = path.display())]
    NoForward {
        /// The file.
        path: PathBuf,
    },
}

// === impl Config ===

impl Config {
    /// A configuration with every default and the given forwards.
    pub fn new(forwards: Vec<Forward>) -> Self {
        Self {
            workers: None,
            max_sessions: None,
            max_sessions_per_source: None,
            session_log: None,
            handover: None,
            user: None,
            metrics: None,
            timeouts: Timeouts::default(),
            data: DataPath::default(),
            keepalive: Keepalive {
                idle: Duration::from_secs(60),
                interval: Duration::from_secs(15),
                probes: 4,
            },
            early_syn: EarlySynConfig::default(),
            intercept: InterceptConfig::default(),
            mesh: None,
            forwards,
        }
    }

    /// Reads the `[relay]` section of `path`.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Reads the `[relay]` section of `text`; `path` is only named in errors.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let invalid = |offset: usize, message: String| {
            let line = text.as_bytes()[..offset.min(text.len())]
                .iter()
                .filter(|&&b| b == b'\n');
            ConfigError::Invalid {
                path: path.to_owned(),
                line: line.count() + 1,
                message,
            }
        };
        let at = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);

        let parsed = toml::Deserializer::parse(text)
            .map_err(|e| invalid(at(&e), one_sentence(e.message())))?;
        let file: File = serde_path_to_error::deserialize(parsed).map_err(|e| {
            let field = field_name(e.path());
            let inner = e.inner();
            let message = one_sentence(inner.message());
            invalid(at(inner), format!("{field}: {message}"))
        })?;
        let Some(relay) = file.relay else {
            return Err(ConfigError::NoForward {
                path: path.to_owned(),
            });
        };
        let listens_to_mesh = relay.mesh.as_ref().is_some_and(|m| m.get_ref().listens());
        if relay.forward.is_empty() && !listens_to_mesh {
            return Err(ConfigError::NoForward {
                path: path.to_owned(),
            });
        }
        relay
            .check()
            .map_err(|(offset, message)| invalid(offset, message))
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            half_closed: Duration::from_secs(600),
            idle: None,
            flush: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            resolve: Duration::from_secs(30),
        }
    }
}

impl DataPath {
    /// What a node does that is told nothing else.
    pub const DEFAULT: Self = Self {
        splice_after: Some(128 << 10),
        pipe_size: 256 << 10,
        max_pipes: 128,
    };
}

impl Default for DataPath {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The path of a field as a person writes it.
fn field_name(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut name = String::new();
    for segment in path {
        match segment {
            // How `Spanned` is carried through serde, not a field of anybody's file.
            Segment::Map { key } if key.starts_with("$__serde") => {}
            Segment::Map { key } if name.is_empty() => name.push_str(key),
            Segment::Map { key } => name.extend([".", key]),
            Segment::Seq { index } => name.push_str(&format!("[{index}]")),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    name
}

/// The parser's messages may go over several lines; a sentence does not.
fn one_sentence(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
