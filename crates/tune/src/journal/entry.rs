//! The entries of the journal: the target of each change and its values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::demand::Direction;
use crate::profile::settings::Setting;
use crate::routes::message::RouteKey;
use crate::routes::metrics::Metrics;

/// The target of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The maximum of send buffers in the network namespace with this cookie.
    SendMaximum(u64),
    /// The maximum of receive buffers in the network namespace with this cookie.
    ReceiveMaximum(u64),
    /// The send buffer of the socket with this cookie.
    SendBuffer(u64),
    /// The receive buffer of the socket with this cookie.
    ReceiveBuffer(u64),
    /// A setting of a profile, in the namespace with this cookie.
    Setting(u64, Setting),
    /// The metrics of a route that set initial windows. The rest of the route is never changed.
    Route {
        /// The namespace's cookie.
        netns: u64,
        /// The route, in the main table.
        #[serde(rename = "name")]
        key: RouteKey,
    },
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The target of the change.
    #[serde(rename = "thing")]
    pub target: Target,
    /// The value before the first change.
    pub before: Value,
    /// The value of the last change. If the current value differs, another program has changed it,
    /// and undo leaves it alone.
    pub after: Value,
    /// The value of the change before the last. The target still has this value if the writer ended
    /// after writing the line and before making the last change.
    #[serde(default)]
    pub earlier: Option<Value>,
    /// For a buffer: the largest size that any change gave it, in bytes.
    #[serde(default)]
    pub largest: u32,
}

/// A value of a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// The text of a setting, as the kernel writes it.
    Text(String),
    /// The text of a setting that the kernel changes together with another one.
    #[serde(rename = "beside")]
    WithCompanion {
        /// The setting.
        text: String,
        /// The other setting.
        #[serde(rename = "other")]
        companion: String,
    },
    /// The metrics of a route. A metric is `None` if it was not set before, or is not changed.
    Route(Metrics),
    /// The state of a socket's buffer.
    Buffer {
        /// The size in bytes, with overhead.
        bytes: u32,
        /// Whether the size is locked, so that the kernel does not tune it.
        is_fixed: bool,
        /// The id of a process that has the socket, and the socket's inode.
        owner: (u32, u32),
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SendMaximum(netns) => {
                write!(f, "net.ipv4.tcp_wmem, namespace with cookie {netns}")
            }
            Self::ReceiveMaximum(netns) => {
                write!(f, "net.ipv4.tcp_rmem, namespace with cookie {netns}")
            }
            Self::SendBuffer(cookie) => write!(f, "send buffer of the socket with cookie {cookie}"),
            Self::ReceiveBuffer(cookie) => {
                write!(f, "receive buffer of the socket with cookie {cookie}")
            }
            Self::Setting(netns, setting) => {
                write!(f, "{}, namespace with cookie {netns}", setting.name(None))
            }
            Self::Route { netns, key } => write!(f, "route {key}, namespace with cookie {netns}"),
        }
    }
}

// === impl Target ===

impl Target {
    /// Names a buffer of the socket with this cookie.
    pub(crate) fn buffer(cookie: u64, direction: Direction) -> Self {
        match direction {
            Direction::Send => Self::SendBuffer(cookie),
            Direction::Receive => Self::ReceiveBuffer(cookie),
        }
    }

    /// Names a maximum of the namespace with this cookie.
    pub(crate) fn maximum(cookie: u64, direction: Direction) -> Self {
        match direction {
            Direction::Send => Self::SendMaximum(cookie),
            Direction::Receive => Self::ReceiveMaximum(cookie),
        }
    }

    /// Returns the socket's cookie and the direction of a buffer.
    pub(crate) fn as_buffer(&self) -> Option<(u64, Direction)> {
        match self {
            Self::SendBuffer(cookie) => Some((*cookie, Direction::Send)),
            Self::ReceiveBuffer(cookie) => Some((*cookie, Direction::Receive)),
            _ => None,
        }
    }

    /// Returns the namespace's cookie and the direction of a maximum.
    pub(crate) fn as_maximum(&self) -> Option<(u64, Direction)> {
        match self {
            Self::SendMaximum(netns) => Some((*netns, Direction::Send)),
            Self::ReceiveMaximum(netns) => Some((*netns, Direction::Receive)),
            _ => None,
        }
    }

    /// Returns the cookie of the namespace that the target ends with. `None` for a socket, which
    /// may outlive its namespace's name and processes.
    pub fn netns(&self) -> Option<u64> {
        match self {
            Self::SendMaximum(netns)
            | Self::ReceiveMaximum(netns)
            | Self::Setting(netns, _)
            | Self::Route { netns, .. } => Some(*netns),
            Self::SendBuffer(_) | Self::ReceiveBuffer(_) => None,
        }
    }
}

// === impl Entry ===

impl Entry {
    /// Returns the entry of a target's first change.
    pub fn new(target: Target, before: Value, after: Value) -> Self {
        Self {
            target,
            before,
            after,
            earlier: None,
            largest: 0,
        }
    }
}

// === impl Value ===

impl Value {
    /// Returns the size of a buffer; zero for other values.
    pub(crate) fn bytes(&self) -> u32 {
        match self {
            Self::Buffer { bytes, .. } => *bytes,
            Self::Text(_) | Self::WithCompanion { .. } | Self::Route(_) => 0,
        }
    }
}
