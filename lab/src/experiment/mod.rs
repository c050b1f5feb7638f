//! The experiments: each builds a world that shows a problem, applies remedies, and measures both.

pub mod applications;
pub mod budget;
mod commands;
pub mod consolidate;
pub mod descheduled;
mod descriptors;
mod error;
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
mod request;
mod retry;
mod rounds;
pub mod routes;
mod sessions;
mod side_by_side;
pub mod snoop_hazards;
pub mod snoop_soak;
pub mod soak;
pub mod stats;
mod streams;
pub mod table;
mod tap_frames;
mod threads;
pub mod tune_cost;
pub mod verdicts;
mod workload;

use outcome::Outcome;

pub use error::ExperimentError;
pub use request::{Form, Request};

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

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experiment")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
