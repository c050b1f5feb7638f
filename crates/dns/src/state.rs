//! The state that the threads of the server share.

use std::sync::Arc;

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
