//! What the journal says of each thing that was changed.

use serde::{Deserialize, Serialize};

use crate::profile::settings::Setting;
use crate::routes::message::Name;
use crate::routes::metrics::Metrics;

/// Something that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thing {
    /// The most that the kernel gives a send buffer in a network namespace: the namespace's cookie.
    SendMaximum(u64),
    /// The same of a receive buffer.
    ReceiveMaximum(u64),
    /// A socket's send buffer: its cookie.
    SendBuffer(u64),
    /// A socket's receive buffer.
    ReceiveBuffer(u64),
    /// A setting of a profile: the namespace's cookie, and which.
    Setting(u64, Setting),
    /// The two metrics of a route that say with how much connections over it begin, and nothing else of it.
    Route {
        /// The namespace's cookie.
        netns: u64,
        /// Which of its main table.
        name: Name,
    },
}

/// As it was, and as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What.
    pub thing: Thing,
    /// Before.
    pub before: Value,
    /// What it was made last. One that is another by now was changed by somebody else, and is left alone.
    pub after: Value,
    /// What it was made before that, and is, if its writer ended before it was made the last.
    #[serde(default)]
    pub earlier: Option<Value>,
    /// Of a buffer: the most bytes that it was ever made.
    #[serde(default)]
    pub largest: u32,
}

/// A value of a [`Thing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Of a setting: as the kernel writes it.
    Text(String),
    /// Of one that the kernel sets with another: as it writes both.
    Beside {
        /// It.
        text: String,
        /// The other.
        other: String,
    },
    /// Of a route; those that are missing were not there, or are not made.
    Route(Metrics),
    /// Of a buffer.
    Buffer {
        /// Bytes with overhead.
        bytes: u32,
        /// Whether the kernel leaves it alone.
        is_fixed: bool,
        /// A process that has the socket, and the socket's inode.
        owner: (u32, u32),
    },
}

// === impl Thing ===

impl Thing {
    /// Whether it is a socket's.
    pub fn is_buffer(&self) -> bool {
        matches!(self, Self::SendBuffer(_) | Self::ReceiveBuffer(_))
    }

    /// The cookie of the namespace with which it ends; a socket may outlive its own.
    pub fn netns(&self) -> Option<u64> {
        match self {
            Self::SendMaximum(netns)
            | Self::ReceiveMaximum(netns)
            | Self::Setting(netns, _)
            | Self::Route { netns, .. } => Some(*netns),
            Self::SendBuffer(_) | Self::ReceiveBuffer(_) => None,
        }
    }

    /// The cookie of the namespace and the name of the setting, if it is a maximum.
    pub fn setting(&self) -> Option<(u64, &'static str)> {
        match self {
            Self::SendMaximum(netns) => Some((*netns, "net/ipv4/tcp_wmem")),
            Self::ReceiveMaximum(netns) => Some((*netns, "net/ipv4/tcp_rmem")),
            Self::SendBuffer(_)
            | Self::ReceiveBuffer(_)
            | Self::Setting(..)
            | Self::Route { .. } => None,
        }
    }
}

// === impl Value ===

impl Value {
    /// Of a buffer; of another thing none.
    pub(crate) fn bytes(&self) -> u32 {
        match self {
            Self::Buffer { bytes, .. } => *bytes,
            Self::Text(_) | Self::Beside { .. } | Self::Route(_) => 0,
        }
    }
}
