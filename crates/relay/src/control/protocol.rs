//! What an operator asks a relay, and what it answers: one line of JSON each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::session_list::SessionRow;

/// What an operator asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum Request {
    /// The state of the relay.
    Status,
    /// The open sessions.
    Sessions {
        /// The sessions to list.
        #[serde(default)]
        filter: Filter,
        /// The maximum number of rows.
        limit: usize,
    },
    /// Reset these sessions.
    End {
        /// The sessions to reset; at least one part must be set.
        filter: Filter,
    },
    /// Accept no more connections.
    Drain {
        /// At this forward. Without a forward and a peer: at all, and then stop.
        forward: Option<String>,
        /// For this next relay: lead new sessions around it. Not together with a forward.
        #[serde(default)]
        peer: Option<String>,
        /// Accept connections again instead.
        #[serde(default)]
        undo: bool,
    },
    /// Read the configuration again.
    Reload,
}

/// Which sessions are meant. Every part that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The session's number.
    pub id: Option<String>,
    /// The forward's name.
    pub forward: Option<String>,
    /// The next relay's name.
    pub peer: Option<String>,
    /// The client's address or network.
    pub client: Option<String>,
}

/// What the relay answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The state of the relay.
    Status(Box<Status>),
    /// Open sessions.
    Sessions {
        /// The sessions, up to the limit.
        sessions: Vec<SessionRow>,
        /// The number of sessions that match.
        matching: u64,
    },
    /// The number of sessions that were reset.
    Ended {
        /// The number.
        sessions: u64,
    },
    /// The request has been carried out; each note is one sentence.
    Done {
        /// What the operator should know.
        notes: Vec<String>,
    },
    /// The request cannot be carried out, and why.
    Error(String),
}

/// The state of a relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the running program.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime: f64,
    /// Whether the relay accepts no more connections and ends with its last session.
    pub draining: bool,
    /// Threads that forward data.
    pub workers: usize,
    /// Open sessions.
    pub sessions: u64,
    /// The maximum number of open sessions.
    pub max_sessions: u32,
    /// The maximum number of open sessions per source.
    pub max_sessions_per_source: Option<u32>,
    /// The forwards, drained ones included.
    pub forwards: Vec<ForwardStatus>,
    /// The next relays.
    pub peers: Vec<PeerStatus>,
    /// What is broken.
    pub broken: Vec<BrokenStatus>,
    /// The list of members; `None` without a mesh.
    #[serde(default)]
    pub members: Option<MembersStatus>,
}

/// The state of the list of members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MembersStatus {
    /// Members, this relay included.
    pub count: u64,
    /// The serial of a signed list.
    pub serial: Option<u64>,
    /// Seconds until the list expires; negative: since it has expired.
    pub expires_in: Option<f64>,
    /// Lists that were refused since the start, by cause; causes that have not occurred are left out.
    pub refused: BTreeMap<String, u64>,
    /// Where the list comes from, if from etcd.
    pub etcd: Option<EtcdStatus>,
}

/// The state of the connection to etcd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EtcdStatus {
    /// The server in use, or tried last.
    pub endpoint: String,
    /// Whether it can be used.
    pub connected: bool,
    /// Seconds since the list was last read.
    pub read_age: Option<f64>,
    /// Changes of the list that etcd has reported since the start.
    pub changes: u64,
    /// Watches that ended since the start because etcd had compacted what they began with.
    pub compacted: u64,
    /// Failures since the start, by cause; causes that have not occurred are left out.
    pub failures: BTreeMap<String, u64>,
    /// Why the list in etcd is refused; `None` if it is not.
    pub refusal: Option<String>,
    /// The last failure.
    pub last_failure: Option<String>,
    /// Members that have announced themselves.
    pub present: u64,
    /// Up to 16 members that have not.
    pub absent: Vec<String>,
}

/// The state of a forward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// The name; `mesh` for sessions from other relays.
    pub name: String,
    /// The addresses that it listens on; none while it is drained.
    pub listen: Vec<String>,
    /// The destination; `None` for one that the configuration no longer has.
    pub to: Option<String>,
    /// Whether an operator has drained it.
    pub drained: bool,
    /// Open sessions.
    pub sessions: u64,
    /// Bytes forwarded to upstream legs.
    pub to_upstream: u64,
    /// Bytes forwarded to clients.
    pub to_client: u64,
}

/// The state of a next relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The name.
    pub name: String,
    /// Whether an operator has drained it, so that new sessions go around it.
    pub drained: bool,
    /// Connections that are ready for a session.
    pub ready: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// The rate that was found to reach it, in bytes a second; `None` if none was measured in the last hour.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Connections with data under way to it.
    #[serde(default)]
    pub active: u32,
}

/// Something that is broken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrokenStatus {
    /// What, as in `taut_relay_broken`.
    pub condition: String,
    /// The forward, peer or name; empty for the relay.
    pub subject: String,
    /// The most recent cause.
    pub cause: String,
    /// Seconds since it broke.
    pub seconds: f64,
    /// Sessions or clients affected so far.
    pub affected: u64,
}
