//! The experiments: each builds a world that shows a problem, applies remedies, and measures both.

pub mod applications;
pub mod budget;
mod commands;
pub mod consolidate;
pub mod descheduled;
mod descriptors;
pub mod failover;
mod flows;
pub mod guests;
pub mod idle_sessions;
pub mod incast;
pub mod internet;
pub mod long_fat;
pub mod mesh_peers;
pub mod neighbours;
pub mod observe_cost;
pub mod outcome;
mod peer_networks;
pub mod pied_piper;
mod process_tree;
pub mod progress;
pub mod relay_peers;
mod retry;
mod rounds;
pub mod routes;
mod sessions;
pub mod snoop_hazards;
pub mod snoop_soak;
pub mod soak;
pub mod stats;
mod streams;
pub mod table;
mod tap_frames;
pub mod tune_cost;
pub mod verdicts;
mod workload;

use std::io;
use std::path::PathBuf;

use crate::peer::PeerError;
use crate::peer::curl::FetchError;
use outcome::Outcome;
use taut_netlab::world::WorldError;

/// How much an experiment measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// What the published figures need.
    Full,
    /// The short form, which ends within 60 s.
    Quick,
    /// A few seconds: too little for figures, enough to show that the experiment runs. For tests.
    Smoke,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Request {
    /// How much to measure.
    pub form: Form,
    /// The seed of random choices.
    pub seed: u64,
    /// The number of measurements of each configuration; `None` for the form's default.
    pub runs: Option<usize>,
    /// Runs only the parts whose names contain this, for experiments with parts.
    pub only: Option<String>,
    /// The `taut` binary to measure.
    pub taut: PathBuf,
}

/// An experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// The name on the command line.
    pub name: &'static str,
    /// The description in `taut lab list`.
    pub about: &'static str,
    /// Whether its parts can be run separately.
    pub has_parts: bool,
    /// How long the full form takes on two cores, about; the short form takes a minute. Most of these
    /// are computed from the plans and not measured.
    pub minutes: u16,
    /// Runs the experiment.
    pub run: fn(&Request) -> Result<Outcome, ExperimentError>,
}

/// Every experiment.
pub const ALL: &[Experiment] = &[
    pied_piper::EXPERIMENT,
    internet::EXPERIMENT,
    neighbours::EXPERIMENT,
    consolidate::EXPERIMENT,
    applications::EXPERIMENT,
    idle_sessions::EXPERIMENT,
    observe_cost::EXPERIMENT,
    tune_cost::EXPERIMENT,
    verdicts::EXPERIMENT,
    verdicts::gains::EXPERIMENT,
    long_fat::EXPERIMENT,
    budget::EXPERIMENT,
    incast::EXPERIMENT,
    descheduled::EXPERIMENT,
    relay_peers::EXPERIMENT,
    mesh_peers::EXPERIMENT,
    failover::EXPERIMENT,
    routes::EXPERIMENT,
    soak::EXPERIMENT,
    snoop_soak::EXPERIMENT,
    snoop_hazards::EXPERIMENT,
];

// === impl Form ===

impl Form {
    /// Returns the short form if `quick`, or else the full one.
    pub fn of(quick: bool) -> Self {
        if quick { Self::Quick } else { Self::Full }
    }

    /// Returns whether this is not the full form.
    pub fn is_short(self) -> bool {
        self != Self::Full
    }

    /// Returns what belongs to this form.
    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}

/// Returns the papers' figures in the outcomes of the experiments that the report's page opens with.
#[cfg(test)]
pub(crate) fn paper(experiment: &str) -> serde_json::Map<String, serde_json::Value> {
    match experiment {
        "consolidate" => consolidate::paper(),
        "incast" => incast::paper(),
        "internet" => internet::paper(),
        "long-fat" => long_fat::paper(),
        "pied-piper" => pied_piper::paper(),
        _ => serde_json::Map::new(),
    }
}

/// A reason why an experiment could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The world could not be built or used.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A program could not take part.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No part matches the request.
    #[error("no part of it has `{0}` in its name; the parts are named as in its figures")]
    NoPart(String),
    /// A download failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An operation on this machine failed.
    #[error("cannot {action}: {source}")]
    Machine {
        /// What the experiment was doing.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ExperimentError {
    fn machine(action: &str) -> impl FnOnce(io::Error) -> Self {
        let action = action.to_owned();
        move |source| Self::Machine { action, source }
    }
}

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experiment")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
