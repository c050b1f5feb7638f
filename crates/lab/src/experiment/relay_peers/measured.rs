//! The measurements of every contender, in the order of the rounds.

use std::collections::BTreeMap;

use super::contender::Contender;
use crate::experiment::stats;
use crate::experiment::workload::bulk::Bulk;
use crate::experiment::workload::echo::{Beside, Echo};
use crate::experiment::workload::idle::Idle;
use crate::experiment::workload::storm::Storm;

/// All measurements.
#[derive(Default)]
pub(super) struct Measured {
    /// Whether the relayed bytes were unchanged.
    pub(super) exact: BTreeMap<Contender, bool>,
    pub(super) bulk: BTreeMap<Contender, Vec<Bulk>>,
    pub(super) storm: BTreeMap<Contender, Vec<Storm>>,
    pub(super) echo: BTreeMap<(Beside, Contender), Vec<Echo>>,
    pub(super) idle: BTreeMap<Contender, Vec<Idle>>,
}

// === impl Measured ===

impl Measured {
    pub(super) fn bulk(&self, of: Contender, quantity: fn(&Bulk) -> f64) -> Vec<f64> {
        self.bulk
            .get(&of)
            .into_iter()
            .flatten()
            .map(quantity)
            .collect()
    }

    pub(super) fn storm(&self, of: Contender, quantity: fn(&Storm) -> f64) -> Vec<f64> {
        self.storm
            .get(&of)
            .into_iter()
            .flatten()
            .map(quantity)
            .collect()
    }

    pub(super) fn echo(
        &self,
        beside: Beside,
        of: Contender,
        quantity: fn(&Echo) -> f64,
    ) -> Vec<f64> {
        let echoes = self.echo.get(&(beside, of)).into_iter().flatten();
        echoes.map(quantity).collect()
    }

    /// Returns the delay that a relay adds to the round trip. It is compared with the median of the
    /// direct round trips, because the noise of a p99 differs even within a round.
    pub(super) fn added(
        &self,
        beside: Beside,
        of: Contender,
        quantity: fn(&Echo) -> f64,
    ) -> Vec<f64> {
        let direct = self.echo(beside, Contender::Direct, quantity);
        let direct = stats::median(&direct).unwrap_or(f64::NAN);
        let own = self.echo(beside, of, quantity).into_iter();
        own.map(|own| own - direct).collect()
    }

    pub(super) fn resident(&self, of: Contender) -> Vec<f64> {
        let idle = self.idle.get(&of).into_iter().flatten();
        idle.map(|idle| idle.resident).collect()
    }

    /// Returns the slab memory of the relay's part of a session. The memory of a direct session is
    /// subtracted, because it belongs to the ends. Returns an empty list if there are too few
    /// sessions to be visible in the machine's slabs.
    pub(super) fn slab(&self, of: Contender) -> Vec<f64> {
        if !of.holds_thousands() {
            return Vec::new();
        }
        let ends = self.idle.get(&Contender::Direct).into_iter().flatten();
        let ends: Vec<f64> = ends.map(|idle| idle.slab).collect();
        let ends = stats::median(&ends).unwrap_or(f64::NAN);
        let idle = self.idle.get(&of).into_iter().flatten();
        idle.map(|idle| idle.slab - ends).collect()
    }
}
