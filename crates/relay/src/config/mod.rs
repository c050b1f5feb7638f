//! The `[relay]` section of the configuration file.
//!
//! A mistake is reported in one sentence with the file, the line and the field.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use taut_config::{ConfigError, ConfigFile};
use taut_sys::socket::Keepalive;

use crate::access::Nat64Prefix;
use crate::access::session_quota::{UNLIMITED, default_limit};
use crate::early_syn::{Devices, Limits};
use crate::net::addr::Listen;
use crate::session_log;

mod etcd;
mod field;
mod file;
mod forward;
mod limits;
mod mesh;
mod path;
mod server_name;
mod transparent;

pub use etcd::{ClientCertificate, Endpoint, EndpointError, EtcdConfig, Login, MAX_ENDPOINTS};
pub use forward::{Forward, ForwardTimeouts, HealthCheck};
pub use limits::{InboundLimits, PoolLimits};
pub(crate) use mesh::WINDOW;
pub use mesh::{INITIAL_WINDOW, LegConfig, MeshConfig, PeerRule, Removed, Turbo};
pub use server_name::{Named, ServerName, ServerNameError};
pub use transparent::{InterceptConfig, Transparent};

/// The default of `max_connects_per_source`. One source with short sessions, such as a proxy or a NAT,
/// rarely has as many, and a worker accepts several times as many.
const MAX_CONNECTS_PER_SOURCE: u32 = 1000;

/// The default of `idle_timeout`. A peer that is gone is found by keepalive. Connections that are kept
/// alive by their own keepalive, which ends here, may be idle for longer than a NAT keeps them (RFC
/// 5382, REQ-5: 2 hours and 4 minutes), but rarely for a day.
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The default of `first_byte_timeout`. Connections that are made before they are needed (those of browsers, or
/// of pools) are used within a minute or two, or their peers close them. One that nobody uses costs an attacker
/// nothing.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(300);

/// The default of `evict_after`: longer than users and servers usually think.
const EVICT_AFTER: Duration = Duration::from_secs(60);

/// The default of `queue_timeout`, that of `connect_timeout`: in both, a client waits before its session begins.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a relay node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads; `None`: one for each CPU that this process may run on.
    pub workers: Option<u16>,
    /// The maximum number of open sessions; above it, clients get a RST. `None`: as many as the
    /// limit of open descriptors allows.
    pub max_sessions: Option<u32>,
    /// The maximum number of open sessions per source (an IPv4 address or an IPv6 /64);
    /// [`UNLIMITED`]: no limit; `None`: [`default_limit`].
    pub max_sessions_per_source: Option<u32>,
    /// The maximum number of new connections per source and second;
    /// [`UNLIMITED`]: no limit.
    pub max_connects_per_source: u32,
    /// The session log; `None`: off.
    pub session_log: Option<session_log::Target>,
    /// The socket where the next process requests the listening sockets.
    pub handover: Handover,
    /// The socket at which operators give commands.
    pub control: Control,
    /// The user that the process switches to at start; `None`: it keeps its own.
    pub user: Option<String>,
    /// The address of the OpenMetrics endpoint; `None`: off.
    pub metrics: Option<Listen>,
    /// The address of the admin page; `None`: off.
    pub admin: Option<Listen>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// The destinations that must have an address for a start or a reload.
    pub resolve_required: ResolveRequired,
    /// How bytes are moved.
    pub data: DataPath,
    /// Time after which unacknowledged data ends a leg outside the mesh; `None`: the kernel decides.
    pub user_timeout: Option<Duration>,
    /// Dead-peer detection on both legs.
    pub keepalive: Keepalive,
    /// Early SYN, for forwards that have `early_syn`.
    pub early_syn: EarlySynConfig,
    /// Interception, for transparent forwards.
    pub intercept: InterceptConfig,
    /// The prefixes of this network's NAT64, besides the well-known one.
    pub nat64: Vec<Nat64Prefix>,
    /// The node's part in a mesh of relays; `None`: none.
    pub mesh: Option<MeshConfig>,
    /// The forwards. Never empty, unless the node has a mesh port.
    pub forwards: Vec<Forward>,
}

/// Where a relay hands its listening sockets to the process that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handover {
    /// Beside the control socket, if that is possible, and only to a process that is told to take them.
    Default,
    /// The relay does not hand them over.
    Off,
    /// At this path, to each process with the same path.
    At(PathBuf),
}

/// Where a relay takes commands from its operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// At [`crate::control::PATH`], if that is possible.
    Default,
    /// The relay takes no commands.
    Off,
    /// At this path.
    At(PathBuf),
}

/// The destinations and next relays whose look-up must succeed for a start or a reload. The others are looked up
/// again in the background, and their sessions are reset until they have an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResolveRequired {
    /// One look-up must succeed, unless the node serves something that needs none.
    #[default]
    Any,
    /// Every look-up must succeed.
    All,
    /// No look-up must succeed: the node also starts if it can serve nothing yet.
    None,
}

/// The devices on which early SYN sees SYNs, and its limits.
#[derive(Clone, Debug)]
pub struct EarlySynConfig {
    /// The network devices.
    pub devices: Devices,
    /// The limits.
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

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For each address of a destination: from SYN to SYN-ACK.
    pub connect: Duration,
    /// Without progress, after one side has ended its stream.
    pub half_closed: Duration,
    /// Without progress in either direction; `None`: sessions may be idle for ever.
    pub idle: Option<Duration>,
    /// From the connection to the destination to the first byte of either peer; `None`: no limit.
    pub first_byte: Option<Duration>,
    /// Without progress, after which the session may be ended for a new one if `max_sessions` are open;
    /// `None`: never.
    pub evict: Option<Duration>,
    /// For which a client waits for a place when `max_sessions` are open; `None`: it is reset at once.
    pub queue: Option<Duration>,
    /// Without an acknowledged byte, while the last bytes of a broken connection are forwarded
    /// ahead of the RST.
    pub flush: Duration,
    /// Without an acknowledgement of what was sent to another relay.
    pub user: Duration,
    /// From SIGTERM until open sessions are reset.
    pub drain: Duration,
    /// Between look-ups of destinations that are names.
    pub resolve: Duration,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPath {
    /// Bytes of a direction that are copied before it switches to splice(2); `None`: all of them.
    pub splice_after: Option<u64>,
    /// The requested size of each pipe in bytes.
    pub pipe_size: usize,
    /// The maximum number of pipes in the whole node. A direction without a pipe copies.
    pub max_pipes: u32,
}

// === impl Config ===

impl Config {
    /// Returns the defaults with the given forwards.
    pub fn new(forwards: Vec<Forward>) -> Self {
        Self {
            workers: None,
            max_sessions: None,
            max_sessions_per_source: None,
            max_connects_per_source: MAX_CONNECTS_PER_SOURCE,
            session_log: None,
            handover: Handover::Default,
            control: Control::Default,
            user: None,
            metrics: None,
            admin: None,
            timeouts: Timeouts::default(),
            resolve_required: ResolveRequired::default(),
            data: DataPath::default(),
            user_timeout: None,
            keepalive: Keepalive {
                idle: Duration::from_secs(60),
                interval: Duration::from_secs(15),
                probes: 4,
            },
            early_syn: EarlySynConfig::default(),
            intercept: InterceptConfig::default(),
            nat64: Vec::new(),
            mesh: None,
            forwards,
        }
    }

    /// Returns the maximum number of open sessions per source, of a node that has this many sessions.
    pub(crate) fn per_source(&self, max_sessions: u32) -> u32 {
        self.max_sessions_per_source
            .unwrap_or_else(|| default_limit(max_sessions))
    }

    /// Returns the same for addresses that may stand for many clients: unlimited unless it was asked
    /// for.
    pub(crate) fn per_shared_source(&self) -> u32 {
        self.max_sessions_per_source.unwrap_or(UNLIMITED)
    }

    /// Returns the path of the control socket, unless the relay takes no commands.
    pub fn control_path(&self) -> Option<&Path> {
        match &self.control {
            Control::Off => None,
            Control::Default => Some(Path::new(crate::control::PATH)),
            Control::At(path) => Some(path),
        }
    }

    /// Returns the path at which the relay hands its sockets over, unless it does not.
    pub fn handover_path(&self) -> Option<PathBuf> {
        match &self.handover {
            Handover::Off => None,
            Handover::Default => {
                let control = self.control_path()?;
                let mut name = control.file_name()?.to_owned();
                name.push(".handover");
                Some(control.with_file_name(name))
            }
            Handover::At(path) => Some(path.clone()),
        }
    }

    /// Reads the `[relay]` section of `path`.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(&ConfigFile::load(path)?)
    }

    /// Reads the `[relay]` section of `text`; `path` is for error messages.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(&ConfigFile::new(path, text.to_owned()))
    }

    /// Reads the `[relay]` section of a file.
    ///
    /// # Errors
    /// [`ConfigError`], one sentence.
    pub fn of_file(file: &ConfigFile) -> Result<Self, ConfigError> {
        let nothing_to_do = || file.lacks("no [[relay.forward]]: add one with `listen` and `to`");
        let relay: file::Section = file.section("relay")?.ok_or_else(nothing_to_do)?;
        let listens_to_mesh = relay.mesh.as_ref().is_some_and(|m| m.get_ref().listens());
        if relay.forward.is_empty() && !listens_to_mesh {
            return Err(nothing_to_do());
        }
        relay
            .check()
            .map_err(|(offset, message)| file.invalid(offset, message))
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            half_closed: Duration::from_secs(600),
            idle: Some(IDLE_TIMEOUT),
            first_byte: Some(FIRST_BYTE_TIMEOUT),
            evict: Some(EVICT_AFTER),
            queue: Some(QUEUE_TIMEOUT),
            flush: Duration::from_secs(30),
            user: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            resolve: Duration::from_secs(30),
        }
    }
}

impl DataPath {
    /// The defaults.
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

#[cfg(test)]
mod tests;
