//! Why an experiment could not be completed.

use std::io;

use taut_netlab::world::WorldError;

use crate::peer::PeerError;
use crate::peer::curl::FetchError;

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
    pub(super) fn machine(action: &str) -> impl FnOnce(io::Error) -> Self {
        let action = action.to_owned();
        move |source| Self::Machine { action, source }
    }
}
