//! Links: delay, rate, loss and a queue, each direction by itself, carried in user space between two
//! TAPs or by the kernel's netem.

mod checksum;
pub mod counters;
mod engine;
pub mod frame;
pub(crate) mod joint;
pub mod path;
pub mod shape;

use std::io;

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A host's namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] taut_sys::netns::NetnsError),
    /// A device could not be made.
    #[error(transparent)]
    Tap(#[from] taut_sys::tap::TapError),
    /// The thread that carries it could not be started.
    #[error("link {name}: could not start carrying it: {source}")]
    Start {
        /// The two hosts.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}
