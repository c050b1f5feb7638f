//! Links: delay, rate, loss and a queue, each direction by itself, carried in user space between two
//! TAPs or by the kernel's netem.

pub mod checksum;
pub mod counters;
mod engine;
pub mod frame;
pub(crate) mod joint;
mod netem;
pub mod path;
pub mod shape;

use std::io;

/// What carries links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkBackend {
    /// A thread for each link, whatever the kernel has: only there is each segment's loss drawn from
    /// the seed, and is it known whether the link held traffic up.
    #[default]
    Auto,
    /// A thread for each link.
    User,
    /// The kernel's netem: no thread, but losses without a seed, no counters, and no super-frames.
    Netem,
}

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
    /// The kernel has no netem, or no tbf.
    #[error(
        "link {name}: netem was asked for and this kernel has none ({why}); \
         load it (modprobe sch_netem sch_tbf) or use the user-space link"
    )]
    NoNetem {
        /// The two hosts.
        name: String,
        /// What `tc` said.
        why: String,
    },
    /// A command that makes a netem link failed.
    #[error("link {name}: `{command}`: {why}")]
    Command {
        /// The two hosts.
        name: String,
        /// The command.
        command: String,
        /// What it said.
        why: String,
    },
}
