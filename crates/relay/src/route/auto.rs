//! The routes of a forward with `via = "auto"`, which change while the node runs.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use taut_mesh::auto::Predicted;
use taut_mesh::hello::Target;

use super::peer::Way;
use super::refused::Refusals;

/// The routes of one destination. The thread that exchanges rows chooses them; sessions read them.
#[derive(Debug)]
pub(crate) struct AutoRoute {
    pub(crate) destination: Target,
    chosen: ArcSwap<Chosen>,
    refusals: RwLock<Refusals>,
    /// Whether there may be refusals. Without any, a session takes no lock.
    refused: AtomicBool,
}

/// The routes that are in use now.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The routes through other relays, in the order in which a session tries them.
    pub(crate) ways: Arc<[Way]>,
    /// The direct path is better than all of them.
    pub(crate) direct_first: bool,
    /// The routes with their predictions, the first of which is the choice.
    pub(crate) predicted: Vec<Predicted>,
    /// Why this choice, in one sentence.
    pub(crate) why: String,
    /// When the first of them became the choice.
    pub(crate) since: Instant,
    /// They were chosen before this process started, and read from `routes_file`.
    pub(crate) recalled: bool,
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
                recalled: false,
            }),
            refusals: RwLock::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Returns the routes that are in use now.
    pub(crate) fn chosen(&self) -> Arc<Chosen> {
        self.chosen.load_full()
    }

    /// Returns the routes through other relays in the order in which a session of `client` tries
    /// them.
    pub(crate) fn ways(&self, chosen: &Chosen, client: IpAddr, now: Instant) -> Arc<[Way]> {
        if !self.refused.load(Ordering::Relaxed) {
            return chosen.ways.clone();
        }
        let refusals = self.refusals.read();
        let refusals = refusals.unwrap_or_else(PoisonError::into_inner);
        if refusals.have_expired(now) {
            self.refused.store(false, Ordering::Relaxed);
        }
        if !refusals.has(client) {
            return chosen.ways.clone();
        }
        let avoids = |way: &&Way| refusals.avoids(client, &way.relays(), now);
        let (last, first): (Vec<_>, Vec<_>) = chosen.ways.iter().partition(avoids);
        first.into_iter().chain(last).cloned().collect()
    }

    /// Records that a session of `client` was reset on this route before the first byte of an
    /// answer. Returns `false` if there is no room to remember it.
    pub(crate) fn on_refusal(&self, client: IpAddr, way: &Way, now: Instant) -> bool {
        let refusals = self.refusals.write();
        let mut refusals = refusals.unwrap_or_else(PoisonError::into_inner);
        let is_kept = refusals.add(client, way.relays(), now);
        self.refused.store(true, Ordering::Relaxed);
        is_kept
    }

    /// Records that a session of `client` has had the first byte of an answer on this route.
    pub(crate) fn on_answer(&self, client: IpAddr, way: &Way) {
        if !self.refused.load(Ordering::Relaxed) {
            return;
        }
        let refusals = self.refusals.read();
        let has = refusals.is_ok_and(|refusals| refusals.has(client));
        if has {
            let refusals = self.refusals.write();
            let mut refusals = refusals.unwrap_or_else(PoisonError::into_inner);
            refusals.answered(client, &way.relays());
        }
    }

    /// Replaces the routes.
    pub(crate) fn choose(&self, chosen: Chosen) {
        self.chosen.store(chosen.into());
    }
}
