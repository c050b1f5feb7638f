//! Limits of connections between relays.

use std::time::Duration;

/// The number of ready connections to keep to each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// The minimum for each peer, in the whole node.
    pub min: u32,
    /// The maximum for each peer; 0: no pool, each session dials its own.
    pub max: u32,
    /// The age at which an unused connection is replaced, give or take a fifth.
    pub max_age: Duration,
    /// How long a peer may leave a hello unacknowledged, or a dial unanswered, before sessions take another
    /// route.
    pub patience: Duration,
}

/// Limits of connections to the mesh port before they carry a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboundLimits {
    /// The maximum number of connections in the whole node that have not yet proven possession of a
    /// key. A new connection above it evicts the oldest connection of the source that has the most.
    /// A new connection from that same source is refused instead, unless its oldest is older than a
    /// second, the time within which an honest peer completes the proof.
    pub max_unproven: u32,
    /// The connections a second that a source may open without proving possession of a key, and at once
    /// as many as in ten seconds; [`UNLIMITED`](crate::access::session_quota::UNLIMITED): no limit.
    pub max_connects_per_source: u32,
    /// The maximum number of connections that have proven possession of a key and wait for a
    /// session. A new connection above it takes the place of the oldest one of the member that has the
    /// most, if that has more than the new one's.
    pub max_ready: u32,
    /// The maximum number of open sessions of one member; `None`: three quarters of `max_sessions`.
    pub max_sessions_per_member: Option<u32>,
    /// The time limit of each step.
    pub times: taut_mesh::acceptor::Limits,
}

/// The default of `max_unproven`.
const MAX_UNPROVEN: u32 = 512;

impl PoolLimits {
    /// Returns how long a peer may leave a dial unanswered: a dial takes two round trips, a hello one.
    pub fn dial_patience(self) -> Duration {
        2 * self.patience
    }
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            min: 4,
            max: 128,
            // Public clouds' middleboxes drop idle connections after four minutes or more.
            max_age: Duration::from_secs(180),
            patience: Duration::from_secs(1),
        }
    }
}

impl InboundLimits {
    /// Returns the default of `max_connects_per_source`: at once as many connections as may be unproven, so that
    /// relays behind one address can all connect at the same time.
    pub(super) fn default_connects(max_unproven: u32) -> u32 {
        max_unproven.div_ceil(10).max(50)
    }
}

impl Default for InboundLimits {
    fn default() -> Self {
        Self {
            max_unproven: MAX_UNPROVEN,
            max_connects_per_source: Self::default_connects(MAX_UNPROVEN),
            max_ready: 1024,
            max_sessions_per_member: None,
            times: taut_mesh::acceptor::Limits::default(),
        }
    }
}
