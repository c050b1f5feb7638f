//! What an operator asks a relay, and what it answers: one line of JSON each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::session_list::SessionRow;

/// A question or command of an operator.
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
        /// For this next relay: route new sessions around it. Not together with a forward.
        #[serde(default)]
        peer: Option<String>,
        /// For this address of destinations: lead new sessions to others. Not together with a forward or a peer.
        #[serde(default)]
        address: Option<String>,
        /// Accept connections again instead.
        #[serde(default)]
        undo: bool,
    },
    /// Read the configuration again.
    Reload,
    /// The mesh: members, paths, automatic routes.
    Mesh,
    /// The round-trip times that all relays have measured.
    Rtt {
        /// The maximum number of paths; 300,000 at most.
        limit: usize,
        /// Whether only paths to prefixes outside the mesh are wanted.
        #[serde(default)]
        prefixes_only: bool,
        /// The version of the times that the asker has. If they are still the same, no path is returned.
        #[serde(default)]
        known: Option<String>,
    },
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
    /// The mesh.
    Mesh(Box<MeshStatus>),
    /// Round-trip times.
    Rtt(RttRows),
    /// The request cannot be carried out, and why.
    Error(String),
}

/// The state of a relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the running program.
    pub version: String,
    /// The name of this relay among the members; `None` without a mesh.
    #[serde(default)]
    pub name: Option<String>,
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
    /// Clients that wait for a place among them, or among those of their forward.
    #[serde(default)]
    pub queued: usize,
    /// The maximum number of open sessions per source.
    pub max_sessions_per_source: Option<u32>,
    /// The maximum number of new connections per source and second.
    #[serde(default)]
    pub max_connects_per_source: Option<u32>,
    /// The forwards, drained ones included.
    pub forwards: Vec<ForwardStatus>,
    /// The next relays.
    pub peers: Vec<PeerStatus>,
    /// What is broken.
    pub broken: Vec<BrokenStatus>,
    /// The list of members; `None` without a mesh.
    #[serde(default)]
    pub members: Option<MembersStatus>,
    /// The memory of connections between relays; `None` if no window follows the need.
    #[serde(default)]
    pub window_memory: Option<WindowMemory>,
    /// The path at which the process that replaces this one takes its sockets; `None`: this one does not hand them
    /// over.
    #[serde(default)]
    pub handover: Option<PathBuf>,
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
    /// Why this relay could not announce itself or read which relays have, the last time; `None` if it could.
    pub announcement: Option<String>,
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
    /// Up to 256 addresses of its destinations that this relay connects to itself, those that are not up first.
    #[serde(default)]
    pub addresses: Vec<AddressStatus>,
    /// The number of further ones.
    #[serde(default)]
    pub addresses_left_out: u64,
}

/// An address of a destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AddressStatus {
    /// The address and port; the destination itself while it has no address.
    pub address: String,
    /// Whether sessions go there.
    pub state: AddressState,
    /// Open sessions of the whole relay there, those that are connecting included.
    pub sessions: u32,
    /// Seconds since it went down, if it is down.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Why it is down, as in `taut_relay_ended_total`.
    #[serde(default)]
    pub cause: Option<String>,
}

/// Whether sessions go to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressState {
    /// The destination has no address, because its name cannot be looked up.
    NoAddress,
    /// The last attempt, or the last checks, have failed.
    Down,
    /// An operator has drained it.
    Drained,
    /// Nothing speaks against it.
    Up,
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
    /// The window of the next connection to it, in bytes; `None` if the configuration has it, or without
    /// turbo start.
    #[serde(default)]
    pub window: Option<u32>,
}

/// The kernel memory of connections between relays whose windows follow the need, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowMemory {
    /// What they have.
    pub used: u64,
    /// Sum of what their windows exceed 4 MiB by.
    pub promised: u64,
    /// What they should not exceed.
    pub budget: u64,
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
    /// The sentence of the log: what is broken, and what to do.
    #[serde(default)]
    pub message: String,
}

/// The mesh as this relay knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeshStatus {
    /// The name of this relay.
    pub name: String,
    /// All members, this relay included.
    pub members: Vec<MemberStatus>,
    /// The paths between members that are known, up to 40,000.
    pub paths: Vec<PathStatus>,
    /// The number of further ones.
    pub paths_left_out: u64,
    /// The automatic routes of this relay's forwards.
    pub routes: Vec<RouteStatus>,
    /// The rows of all relays.
    pub rows: RowsStatus,
}

/// A member of the mesh, seen from this relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name.
    pub name: String,
    /// The site, a label.
    pub site: Option<String>,
    /// The cloud, a label.
    pub cloud: Option<String>,
    /// Whether it can be reached.
    pub state: MemberState,
    /// The least round-trip time of the last minutes, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The smoothed round-trip time, in milliseconds.
    pub smoothed_ms: Option<f64>,
    /// The share of lost segments.
    pub loss: Option<f64>,
    /// The age of its row in seconds; `None` if it has none.
    pub row_age_s: Option<f64>,
    /// The version of its row.
    pub row_version: Option<u64>,
    /// Whether this relay exchanges rows with it directly.
    pub link: bool,
    /// Connections to it that are ready for a session.
    pub pool_ready: u64,
    /// Open sessions through it.
    pub sessions: u64,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
}

/// Whether a member can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// This relay itself.
    This,
    /// It answers.
    Up,
    /// It does not.
    Down,
    /// This relay has not measured it: it has no address, or not been dialled yet.
    Unknown,
}

/// A path between two members, or from one to a prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The member that has measured it.
    pub from: String,
    /// A member or a prefix.
    pub to: String,
    /// The least round-trip time of the last minutes, in milliseconds.
    pub rtt_ms: f64,
    /// The smoothed round-trip time, in milliseconds.
    pub smoothed_ms: f64,
    /// The share of lost segments.
    pub loss: f64,
    /// The age of the row that it is in, in seconds.
    pub age_s: f64,
}

/// The automatic routes to one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The forward.
    pub forward: String,
    /// The destination.
    pub to: String,
    /// The relays of the route that new sessions try first, this one included; it alone is the direct path.
    /// Empty if no route is known.
    pub choice: Vec<String>,
    /// The predicted time to the first byte by that route, in milliseconds.
    pub first_byte_ms: Option<f64>,
    /// The routes that are tried after it.
    pub others: Vec<RouteOption>,
    /// Why this route, in one sentence.
    pub why: String,
    /// Seconds since it was chosen.
    pub since_s: f64,
}

/// A route, and what is predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteOption {
    /// The relays, this one included.
    pub relays: Vec<String>,
    /// The predicted time to the first byte, in milliseconds.
    pub first_byte_ms: f64,
}

/// The rows of all relays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowsStatus {
    /// The rows that are known, this relay's own included.
    pub known: u64,
    /// Their memory in bytes.
    pub bytes: u64,
    /// Bytes sent to other relays.
    pub sent_bytes: u64,
    /// Bytes received from them.
    pub received_bytes: u64,
    /// Rows that were not accepted.
    pub refused: u64,
}

/// Round-trip times, as [`Request::Rtt`] asks for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RttRows {
    /// Changes when any of the times has.
    pub revision: String,
    /// Whether the asker knows these times, so that they are left out.
    pub unchanged: bool,
    /// The paths, up to the limit.
    pub paths: Vec<PathStatus>,
    /// The number of further ones.
    pub left_out: u64,
}
