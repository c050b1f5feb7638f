//! The state that the threads of the server share.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;

use crate::answer::Answers;
use crate::config::Config;
use crate::metrics::{Metrics, RelayMetrics};

/// The state that all threads share.
pub(crate) type Shared = Arc<State>;

pub(crate) struct State {
    /// Replaced as a whole, so that a query sees one state and takes no lock.
    pub(crate) current: ArcSwap<Current>,
    pub(crate) metrics: Metrics,
}

/// The state that a reload or new measurements replace.
pub(crate) struct Current {
    pub(crate) config: Config,
    pub(crate) answers: Answers,
    /// The counters of each relay of [`Answers::relays`].
    pub(crate) relay_metrics: Vec<RelayMetrics>,
}

/// Returns the time, in seconds since 1970. DNS compares such times with their overflow (RFC 1982).
pub(crate) fn seconds_since_1970() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    u32::try_from(seconds & u64::from(u32::MAX)).unwrap_or(0)
}
