//! Experiments: a world that loses time, what loses less, and the figures of both.

mod again;
pub mod applications;
pub mod budget;
mod commands;
pub mod consolidate;
pub mod descheduled;
mod descriptors;
pub mod guests;
pub mod idle_sessions;
pub mod incast;
pub mod long_fat;
pub mod observe_cost;
pub mod outcome;
mod peer_networks;
pub mod pied_piper;
mod process_tree;
pub mod progress;
pub mod relay_peers;
pub mod snoop_hazards;
pub mod snoop_soak;
pub mod soak;
pub mod stats;
mod steal;
mod streams;
pub mod table;
mod tap_frames;
pub mod tune_cost;
pub mod verdicts;

use std::io;
use std::path::PathBuf;

use crate::peer::PeerError;
use crate::peer::curl::FetchError;
use outcome::Outcome;
use taut_netlab::world::WorldError;

/// How an experiment is to be run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The short form, which ends within 60 s.
    pub quick: bool,
    /// Where random choices come from.
    pub seed: u64,
    /// Measurements of each configuration; `None`: as many as the form has.
    pub runs: Option<usize>,
    /// Only what has this in its name, of an experiment that has parts.
    pub only: Option<String>,
    /// The `taut` binary that plays Taut's part.
    pub taut: PathBuf,
}

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// Whether a part of it can be run by itself.
    pub has_parts: bool,
    /// Runs it.
    pub run: fn(&Request) -> Result<Outcome, ExperimentError>,
}

/// Every experiment.
pub const ALL: &[Experiment] = &[
    pied_piper::EXPERIMENT,
    consolidate::EXPERIMENT,
    applications::EXPERIMENT,
    idle_sessions::EXPERIMENT,
    observe_cost::EXPERIMENT,
    tune_cost::EXPERIMENT,
    verdicts::EXPERIMENT,
    long_fat::EXPERIMENT,
    budget::EXPERIMENT,
    incast::EXPERIMENT,
    descheduled::EXPERIMENT,
    relay_peers::EXPERIMENT,
    soak::EXPERIMENT,
    snoop_soak::EXPERIMENT,
    snoop_hazards::EXPERIMENT,
];

/// Why an experiment could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Its world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A program in it.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The part that was asked for.
    #[error("nothing of it has `{0}` in its name: names are as in its figures")]
    NoPart(String),
    /// A download.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Something of the machine.
    #[error("cannot {action}: {source}")]
    Machine {
        /// What was being done.
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
