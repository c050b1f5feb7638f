//! Limits of connections between relays.

use std::time::Duration;

/// How many connections to each peer are kept ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// At least this many in the whole node.
    pub min: u32,
    /// At most this many; 0: none, each session dials its own.
    pub max: u32,
    /// The age at which an unused connection is replaced, give or take a fifth.
    pub max_age: Duration,
}

/// Limits of connections to the mesh port that carry no session yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundLimits {
    /// Connections that have not proven that they hold a key, in the whole node. A further one
    /// evicts the oldest of the source that has most; one from that same source is refused unless
    /// the oldest has had a second, within which an honest peer is done.
    pub max_unproven: u32,
    /// Connections that have proven it and wait to be used.
    pub max_ready: u32,
    /// The time limit of each step.
    pub times: taut_mesh::acceptor::Limits,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            min: 4,
            max: 128,
            // Below the idle time-outs of the public clouds' middleboxes, the shortest of which is
            // four minutes.
            max_age: Duration::from_secs(180),
        }
    }
}

impl Default for InboundLimits {
    fn default() -> Self {
        Self {
            max_unproven: 512,
            max_ready: 1024,
            times: taut_mesh::acceptor::Limits::default(),
        }
    }
}
