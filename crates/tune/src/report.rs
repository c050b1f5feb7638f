//! Reports on changes that were made, advised or abandoned.

use std::net::SocketAddr;

use serde::Serialize;

use crate::plan::Change;
use crate::render;

/// A change, with its reason and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangeReport {
    /// The changed connection; `None` for a change of a namespace.
    pub connection: Option<Connection>,
    /// The network namespace, by name.
    pub netns: String,
    /// The change.
    pub change: String,
    /// The reason for the change.
    pub reason: String,
    /// The expected effect of the change.
    pub expected: String,
    /// The outcome of the change.
    pub outcome: Outcome,
}

/// A connection in a report.
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

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The change was only advised.
    Advised,
    /// No change helps this connection; only a new one would be faster.
    OutOfReach,
    /// The change was made.
    Applied,
    /// The connection, the namespace or the route does not exist any more.
    Gone,
    /// No process is known to have the socket.
    NoOwner,
    /// The change failed, for this reason.
    Failed(String),
}

// === impl Outcome ===

impl Outcome {
    /// All that [`Self::name`] returns.
    pub const NAMES: [&str; 6] = [
        "advised",
        "out-of-reach",
        "applied",
        "gone",
        "no-owner",
        "failed",
    ];

    /// Returns the name that it has in JSON and in metrics, without the reason of a failure.
    pub fn name(&self) -> &'static str {
        let [advised, out_of_reach, applied, gone, no_owner, failed] = Self::NAMES;
        match self {
            Self::Advised => advised,
            Self::OutOfReach => out_of_reach,
            Self::Applied => applied,
            Self::Gone => gone,
            Self::NoOwner => no_owner,
            Self::Failed(_) => failed,
        }
    }
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
