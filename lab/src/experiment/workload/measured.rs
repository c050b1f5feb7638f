//! The measurements of every contender, in the order of the rounds.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use super::Entrance;
use super::bulk::{self, Bulk};
use super::echo::{self, Beside, Echo};
use super::idle::Idle;
use super::storm::{self, Storm};
use crate::experiment::stats;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum Job {
    /// A flow at full speed.
    Bulk,
    /// As many new connections as possible.
    Storm,
    /// Round trips of single bytes.
    Echo(Beside),
}

/// The duration of each measurement.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Times {
    pub(in crate::experiment) bulk: Duration,
    pub(in crate::experiment) storm: Duration,
    pub(in crate::experiment) echo: Duration,
}

/// All measurements of the contenders `C`.
pub(in crate::experiment) struct Measured<C> {
    /// Whether the relayed bytes were unchanged.
    pub(in crate::experiment) exact: BTreeMap<C, bool>,
    pub(in crate::experiment) bulk: BTreeMap<C, Vec<Bulk>>,
    pub(in crate::experiment) storm: BTreeMap<C, Vec<Storm>>,
    pub(in crate::experiment) echo: BTreeMap<(Beside, C), Vec<Echo>>,
    pub(in crate::experiment) idle: BTreeMap<C, Vec<Idle>>,
}

// === impl Job ===

impl Job {
    pub(in crate::experiment) const ALL: [Self; 4] = [
        Self::Bulk,
        Self::Storm,
        Self::Echo(Beside::Nothing),
        Self::Echo(Beside::Bulk),
    ];

    /// Says what the job does, for an error.
    pub(in crate::experiment) fn verb(self) -> &'static str {
        match self {
            Self::Bulk => "relay in bulk",
            Self::Storm => "open connections",
            Self::Echo(_) => "echo",
        }
    }
}

// === impl Measured ===

impl<C> Default for Measured<C> {
    fn default() -> Self {
        Self {
            exact: BTreeMap::new(),
            bulk: BTreeMap::new(),
            storm: BTreeMap::new(),
            echo: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }
}

impl<C: Copy + Ord> Measured<C> {
    /// Does `job` through the entrance of `of`.
    pub(in crate::experiment) fn measure(
        &mut self,
        job: Job,
        of: C,
        entrance: &Entrance,
        times: &Times,
    ) -> io::Result<()> {
        match job {
            Job::Bulk => {
                let bulk = bulk::measure(entrance, times.bulk)?;
                self.bulk.entry(of).or_default().push(bulk);
            }
            Job::Storm => {
                let storm = storm::measure(entrance, times.storm)?;
                self.storm.entry(of).or_default().push(storm);
            }
            Job::Echo(beside) => {
                let echo = echo::measure(entrance, times.echo, beside)?;
                self.echo.entry((beside, of)).or_default().push(echo);
            }
        }
        Ok(())
    }

    pub(in crate::experiment) fn bulk(&self, of: C, quantity: fn(&Bulk) -> f64) -> Vec<f64> {
        self.bulk
            .get(&of)
            .into_iter()
            .flatten()
            .map(quantity)
            .collect()
    }

    pub(in crate::experiment) fn storm(&self, of: C, quantity: fn(&Storm) -> f64) -> Vec<f64> {
        self.storm
            .get(&of)
            .into_iter()
            .flatten()
            .map(quantity)
            .collect()
    }

    pub(in crate::experiment) fn echo(
        &self,
        beside: Beside,
        of: C,
        quantity: fn(&Echo) -> f64,
    ) -> Vec<f64> {
        let echoes = self.echo.get(&(beside, of)).into_iter().flatten();
        echoes.map(quantity).collect()
    }

    /// Returns the delay that a relay adds to the round trip. It is compared with the median of the
    /// direct round trips, because the noise of a p99 differs even within a round.
    pub(in crate::experiment) fn added(
        &self,
        beside: Beside,
        of: C,
        direct: C,
        quantity: fn(&Echo) -> f64,
    ) -> Vec<f64> {
        let direct = self.echo(beside, direct, quantity);
        let direct = stats::median(&direct).unwrap_or(f64::NAN);
        let own = self.echo(beside, of, quantity).into_iter();
        own.map(|own| own - direct).collect()
    }

    pub(in crate::experiment) fn resident(&self, of: C) -> Vec<f64> {
        let idle = self.idle.get(&of).into_iter().flatten();
        idle.map(|idle| idle.resident).collect()
    }

    /// Returns the slab memory of the relay's part of a session. The memory of a direct session is
    /// subtracted, because it belongs to the ends.
    pub(in crate::experiment) fn slab(&self, of: C, direct: C) -> Vec<f64> {
        let ends = self.idle.get(&direct).into_iter().flatten();
        let ends: Vec<f64> = ends.map(|idle| idle.slab).collect();
        let ends = stats::median(&ends).unwrap_or(f64::NAN);
        let idle = self.idle.get(&of).into_iter().flatten();
        idle.map(|idle| idle.slab - ends).collect()
    }
}

/// Puts `all` into a random order.
pub(in crate::experiment) fn shuffle<T>(all: &mut [T], random: &mut Pcg64Mcg) {
    for i in (1..all.len()).rev() {
        all.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
    }
}
