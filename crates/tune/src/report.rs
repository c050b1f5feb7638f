//! What is reported about a change that was made, advised, or given up.

use std::net::SocketAddr;

use serde::Serialize;

use crate::plan::Change;
use crate::render;

/// A change, with its reason and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangeReport {
    /// The connection that is changed; `None` for a change of a namespace.
    pub connection: Option<Connection>,
    /// The network namespace, by name.
    pub netns: String,
    /// The change.
    pub change: String,
    /// Why it is made.
    pub reason: String,
    /// What it is expected to bring.
    pub expected: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// A connection, as it is reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Connection {
    /// The socket's cookie.
    pub cookie: u64,
    /// The local address.
    pub local: SocketAddr,
    /// The remote address.
    pub remote: SocketAddr,
    /// The name and the id of a process that has the socket.
    pub process: Option<(String, u32)>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was only advised.
    Advised,
    /// It was made.
    Applied,
    /// The connection, the namespace or the route does not exist any more.
    Gone,
    /// No process is known to have the socket.
    NoOwner,
    /// It could not be made, for this reason.
    Failed(String),
}

// === impl ChangeReport ===

impl ChangeReport {
    pub(crate) fn new(
        change: &Change,
        connection: Option<Connection>,
        netns: String,
        outcome: Outcome,
    ) -> Self {
        Self {
            connection,
            netns,
            change: render::change(change),
            reason: render::reason(change),
            expected: render::expected(change),
            outcome,
        }
    }
}
