//! Limits of connections between relays.

use std::time::Duration;

/// How many connections are held ready for each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// At least so many, of the whole node.
    pub min: u32,
    /// At most so many; 0: none, each is made when it is needed.
    pub max: u32,
    /// Age at which an unused one is replaced, give or take a fifth.
    pub max_age: Duration,
}

/// What connections to the mesh port may cost before they carry a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundLimits {
    /// Connections that have not proven that they hold a key, of the whole node. When a further one
    /// comes, the oldest of the source that has most is closed; one that comes from that source
    /// itself is refused unless that oldest has had a second, in which an honest peer is done.
    pub max_unproven: u32,
    /// Connections that have, and wait to be used.
    pub max_ready: u32,
    /// How long each step may take.
    pub times: taut_mesh::acceptor::Limits,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            min: 4,
            max: 128,
            // Below the idle time-outs of the middleboxes of the public clouds, of which the
            // shortest is four minutes.
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
