//! The `[relay]` section of the configuration file, checked.
//!
//! A mistake is reported as one sentence with the file, the line and the field.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer};
use taut_sys::socket::Keepalive;
use toml::Spanned;

use crate::access::{SourcePrefix, Sources};
use crate::addr::{Destination, Listen};
use crate::early_syn::{Devices, Limits};
use crate::identity::Identity;
use crate::session_log;

mod mesh;
mod transparent;

pub use mesh::{MeshConfig, Turbo};
pub use transparent::{InterceptConfig, Transparent};

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
    /// Whether the way onward is begun when the client's SYN is seen, before its handshake is
    /// done (pied-piper 3.2, improvement 1).
    pub early_syn: bool,
    /// Who may connect.
    pub sources: Sources,
    /// Congestion control towards the client; `None`: the kernel's default.
    pub client_congestion: Option<String>,
    /// Congestion control towards the destination; `None`: the kernel's default.
    pub onward_congestion: Option<String>,
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
            onward_congestion: None,
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
            onward_congestion: None,
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

// === the file as it is written ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    relay: Option<Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    workers: Option<Spanned<u16>>,
    max_sessions: Option<Spanned<u32>>,
    max_sessions_per_source: Option<Spanned<u32>>,
    session_log: Option<PathBuf>,
    handover: Option<PathBuf>,
    user: Option<String>,
    metrics: Option<Spanned<String>>,
    connect_timeout: Option<Spanned<Time>>,
    half_closed_timeout: Option<Spanned<Time>>,
    idle_timeout: Option<Spanned<Time>>,
    flush_timeout: Option<Spanned<Time>>,
    drain_timeout: Option<Spanned<Time>>,
    resolve_interval: Option<Spanned<Time>>,
    keepalive_idle: Option<Spanned<Time>>,
    splice: Option<bool>,
    splice_after: Option<ByteSize>,
    pipe_size: Option<Spanned<ByteSize>>,
    max_pipes: Option<u32>,
    early_syn_devices: Option<OneOrMany>,
    intercept_mark: Option<Spanned<u32>>,
    intercept_by: Option<Spanned<String>>,
    mesh: Option<Spanned<mesh::MeshSection>>,
    #[serde(default)]
    forward: Vec<ForwardSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardSection {
    // The texts inside an untagged enum have no place of their own; the list has.
    listen: Spanned<OneOrMany>,
    to: Option<Spanned<String>>,
    transparent: Option<Spanned<bool>>,
    ports: Option<Spanned<Vec<u16>>>,
    destinations: Option<Spanned<OneOrMany>>,
    devices: Option<Spanned<OneOrMany>>,
    allow: Option<Spanned<OneOrMany>>,
    deny: Option<Spanned<OneOrMany>>,
    source: Option<Spanned<String>>,
    #[serde(default)]
    send_proxy: bool,
    accept_proxy: Option<Spanned<bool>>,
    proxy_from: Option<Spanned<OneOrMany>>,
    via: Option<Spanned<OneOrMany>>,
    #[serde(default)]
    early_syn: bool,
    from: Option<Spanned<OneOrMany>>,
    not_from: Option<Spanned<OneOrMany>>,
    client_congestion: Option<String>,
    onward_congestion: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address or a list of addresses")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Time).map_err(|e| {
            serde::de::Error::custom(format!("`{text}` is not a duration such as \"10s\": {e}"))
        })
    }
}

/// What a time may be: long enough to be meant, short enough to be reckoned with.
const TIME: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(366 * 86_400);
/// A look-up more often than this is a load on the resolver and no use to anybody.
const RESOLVE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=*TIME.end();
/// The kernel takes keepalive times in whole seconds from 1 to 32767.
const KEEPALIVE_IDLE: std::ops::RangeInclusive<u64> = 1..=32_767;
/// Relays of a route; what a hello has room for, and the first one besides.
const MAX_VIA: usize = 8;
/// fs.pipe-max-size on a stock kernel; a page is the least there is.
const PIPE_SIZE: std::ops::RangeInclusive<u64> = (4 << 10)..=(1 << 20);

impl Section {
    /// The checked configuration, or the offset of what is wrong and what it is.
    fn check(self) -> Result<Config, (usize, String)> {
        let mut config = Config::new(Vec::with_capacity(self.forward.len()));
        config.workers = at_least_one(self.workers, "workers")?;
        config.max_sessions = at_least_one(self.max_sessions, "max_sessions")?;
        config.max_sessions_per_source =
            at_least_one(self.max_sessions_per_source, "max_sessions_per_source")?;
        config.session_log = self.session_log.map(|path| match path.as_os_str() == "-" {
            true => session_log::Target::Stdout,
            false => session_log::Target::File(path),
        });
        config.handover = self.handover;
        config.user = self.user;
        if let Some(metrics) = self.metrics {
            let addr = metrics.get_ref().parse().map_err(|_| {
                let text = metrics.get_ref();
                (
                    metrics.span().start,
                    format!("relay.metrics: `{text}` is not ADDRESS:PORT, such as 127.0.0.1:9464"),
                )
            })?;
            config.metrics = Some(addr);
        }

        let t = &mut config.timeouts;
        set_time(
            &mut t.connect,
            self.connect_timeout,
            TIME,
            "connect_timeout",
        )?;
        set_time(
            &mut t.half_closed,
            self.half_closed_timeout,
            TIME,
            "half_closed_timeout",
        )?;
        if self.idle_timeout.is_some() {
            let mut idle = Duration::ZERO;
            set_time(&mut idle, self.idle_timeout, TIME, "idle_timeout")?;
            t.idle = Some(idle);
        }
        set_time(&mut t.flush, self.flush_timeout, TIME, "flush_timeout")?;
        // None at all is a way to stop at once.
        let drain = Duration::ZERO..=*TIME.end();
        set_time(&mut t.drain, self.drain_timeout, drain, "drain_timeout")?;
        set_time(
            &mut t.resolve,
            self.resolve_interval,
            RESOLVE,
            "resolve_interval",
        )?;
        if let Some(idle) = self.keepalive_idle {
            let seconds = idle.get_ref().0.as_secs();
            if !KEEPALIVE_IDLE.contains(&seconds) {
                let (least, most) = KEEPALIVE_IDLE.into_inner();
                let message = format!("relay.keepalive_idle: must be from {least} s to {most} s");
                return Err((idle.span().start, message));
            }
            config.keepalive.idle = Duration::from_secs(seconds);
        }

        let d = &mut config.data;
        if let Some(after) = self.splice_after {
            d.splice_after = Some(after.as_u64());
        }
        if self.splice == Some(false) {
            d.splice_after = None;
        }
        if let Some(size) = self.pipe_size {
            let bytes = size.get_ref().as_u64();
            if !PIPE_SIZE.contains(&bytes) {
                let message = format!(
                    "relay.pipe_size: `{}` is not from 4 KiB to 1 MiB",
                    size.get_ref()
                );
                return Err((size.span().start, message));
            }
            d.pipe_size = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(max) = self.max_pipes {
            d.max_pipes = max;
        }

        if let Some(devices) = self.early_syn_devices {
            config.early_syn.devices = Devices::Named(devices.into_vec());
        }
        if let Some(mark) = self.intercept_mark {
            if *mark.get_ref() == 0 {
                let message = "relay.intercept_mark: 0 is what packets without a mark have";
                return Err((mark.span().start, message.into()));
            }
            config.intercept.mark = mark.into_inner();
        }
        if let Some(method) = self.intercept_by {
            config.intercept.method = Some(transparent::method(&method)?);
        }
        if let Some(mesh) = self.mesh {
            let at = mesh.span().start;
            config.mesh = Some(mesh.into_inner().check(at)?);
        }
        for (i, forward) in self.forward.into_iter().enumerate() {
            let via_at = forward.via.as_ref().map(|via| via.span().start);
            if let (Some(at), None) = (via_at, &config.mesh) {
                let message = format!(
                    "relay.forward[{i}].via: there is no [relay.mesh] with the key_file that the \
                     other relay would want to see"
                );
                return Err((at, message));
            }
            config.forwards.push(forward.check(i)?);
        }
        Ok(config)
    }
}

impl ForwardSection {
    fn check(self, i: usize) -> Result<Forward, (usize, String)> {
        let to = match &self.to {
            Some(to) => Some(parse(to.get_ref(), to.span().start, || {
                format!("relay.forward[{i}].to")
            })?),
            None => None,
        };
        let listen_at = self.listen.span().start;
        let listen = self.listen.into_inner().into_vec();
        if listen.is_empty() {
            let message = format!("relay.forward[{i}].listen: no address to listen on");
            return Err((listen_at, message));
        }
        let listen = listen
            .iter()
            .enumerate()
            .map(|(j, addr)| {
                parse(addr, listen_at, || {
                    format!("relay.forward[{i}].listen[{j}]")
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let via = match self.via {
            Some(via) => relays(via, i)?,
            None => Vec::new(),
        };
        let identity = transparent::identity(
            i,
            self.source.as_ref(),
            self.send_proxy,
            self.accept_proxy.as_ref(),
            self.proxy_from.as_ref(),
        )?;
        let transparent = transparent::Written {
            transparent: self.transparent,
            ports: self.ports,
            destinations: self.destinations,
            devices: self.devices,
            allow: self.allow,
            deny: self.deny,
        };
        let forward = Forward {
            transparent: transparent.check(i, listen_at, &listen)?,
            listen,
            to,
            identity,
            via,
            early_syn: self.early_syn,
            sources: sources(self.from, self.not_from, &format!("relay.forward[{i}]"))?,
            client_congestion: self.client_congestion,
            onward_congestion: self.onward_congestion,
        };
        match forward.contradiction() {
            None => Ok(forward),
            Some(what) => Err((listen_at, format!("relay.forward[{i}]{what}"))),
        }
    }
}

/// Who may connect, by the `from` and `not_from` of a section.
fn sources(
    from: Option<Spanned<OneOrMany>>,
    not_from: Option<Spanned<OneOrMany>>,
    section: &str,
) -> Result<Sources, (usize, String)> {
    let prefixes = |list: Spanned<OneOrMany>, name| -> Result<Vec<SourcePrefix>, _> {
        let at = list.span().start;
        let texts = list.into_inner().into_vec();
        let texts = texts.iter().enumerate();
        texts
            .map(|(j, text)| parse(text, at, || format!("{section}.{name}[{j}]")))
            .collect()
    };
    let at = from.as_ref().or(not_from.as_ref()).map(|l| l.span().start);
    let from = from.map(|list| prefixes(list, "from")).transpose()?;
    let not_from = not_from
        .map(|list| prefixes(list, "not_from"))
        .transpose()?;
    Sources::new(from, not_from.unwrap_or_default())
        .map_err(|e| (at.unwrap_or(0), format!("{section}.from: {e}")))
}

/// The relays of `forward[i].via`.
fn relays(via: Spanned<OneOrMany>, i: usize) -> Result<Vec<Destination>, (usize, String)> {
    let at = via.span().start;
    let texts = via.into_inner().into_vec();
    if texts.is_empty() || texts.len() > MAX_VIA {
        let message = format!("relay.forward[{i}].via: must name from 1 to {MAX_VIA} relays");
        return Err((at, message));
    }
    let texts = texts.iter().enumerate();
    texts
        .map(|(j, text)| parse(text, at, || format!("relay.forward[{i}].via[{j}]")))
        .collect()
}

fn parse<T>(text: &str, at: usize, field: impl Fn() -> String) -> Result<T, (usize, String)>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e| (at, format!("{}: {e}", field())))
}

fn at_least_one<T: Copy + Default + PartialEq>(
    value: Option<Spanned<T>>,
    field: &str,
) -> Result<Option<T>, (usize, String)> {
    match value {
        Some(v) if *v.get_ref() == T::default() => {
            Err((v.span().start, format!("relay.{field}: must be at least 1")))
        }
        other => Ok(other.map(Spanned::into_inner)),
    }
}

fn set_time(
    slot: &mut Duration,
    value: Option<Spanned<Time>>,
    range: std::ops::RangeInclusive<Duration>,
    field: &str,
) -> Result<(), (usize, String)> {
    let Some(value) = value else { return Ok(()) };
    if !range.contains(&value.get_ref().0) {
        let [least, most] = [range.start(), range.end()].map(|d| humantime::format_duration(*d));
        let message = format!("relay.{field}: must be from {least} to {most}");
        return Err((value.span().start, message));
    }
    *slot = value.into_inner().0;
    Ok(())
}

#[cfg(test)]
mod tests;
