//! The routes of a forward with `via = "auto"`, which change while the node runs.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use taut_mesh::auto::Predicted;
use taut_mesh::hello::Target;

use super::peer::Way;

/// The routes of one destination. The thread that exchanges rows chooses them; sessions read them.
#[derive(Debug)]
pub(crate) struct AutoRoute {
    pub(crate) destination: Target,
    chosen: ArcSwap<Chosen>,
}

/// The routes that are in use now.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The routes through other relays, in the order in which a session tries them.
    pub(crate) ways: Arc<[Way]>,
    /// The direct connection is better than all of them.
    pub(crate) direct_first: bool,
    /// The routes with their predictions, the first of which is the choice.
    pub(crate) predicted: Vec<Predicted>,
    /// Why this choice, in one sentence.
    pub(crate) why: String,
    /// When the first of them became the choice.
    pub(crate) since: Instant,
}

// === impl AutoRoute ===

impl AutoRoute {
    /// Returns the routes to a destination before any is known.
    pub(crate) fn new(destination: Target) -> Self {
        Self {
            destination,
            chosen: ArcSwap::from_pointee(Chosen {
                ways: Arc::from([]),
                direct_first: false,
                predicted: Vec::new(),
                why: "no relay has measured the path to the destination yet".to_owned(),
                since: Instant::now(),
            }),
        }
    }

    /// Returns the routes that are in use now.
    pub(crate) fn chosen(&self) -> Arc<Chosen> {
        self.chosen.load_full()
    }

    /// Replaces the routes.
    pub(crate) fn choose(&self, chosen: Chosen) {
        self.chosen.store(chosen.into());
    }
}
