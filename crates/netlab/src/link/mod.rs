//! Links between hosts. Each direction has its own delay, rate, loss and queue. A link is carried by a
//! thread in user space between two TAPs, or by the kernel's netem.

mod aqm;
pub mod checksum;
pub mod counters;
mod engine;
pub mod frame;
mod netem;
pub mod path;
pub(crate) mod running;
pub mod shape;

use std::io;

/// What carries the links of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkBackend {
    /// The same as `User`, even if the kernel has netem: only the user-space link draws losses from
    /// the seed and knows whether it was itself the bottleneck.
    #[default]
    Auto,
    /// A thread in user space for each link.
    User,
    /// The kernel's netem: without threads, seeds, counters and super-frames.
    Netem,
}

/// An error that keeps a link from being created.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A host's namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] taut_sys::netns::NetnsError),
    /// A TAP cannot be created.
    #[error(transparent)]
    Tap(#[from] taut_sys::tap::TapError),
    /// The link's thread cannot be started.
    #[error("link {name}: cannot start its thread: {source}")]
    Start {
        /// The two hosts, as `a-b`.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel lacks netem or tbf.
    #[error(
        "link {name}: this kernel lacks netem or tbf ({why}); load them with \
         `modprobe --all sch_netem sch_tbf`, or use the user-space link"
    )]
    NoNetem {
        /// The two hosts, as `a-b`.
        name: String,
        /// The error output of `tc`.
        why: String,
    },
    /// The link has a property that only user-space links have.
    #[error("link {name}: a netem link has no {what}; use the user-space link")]
    OnlyUser {
        /// The two hosts, as `a-b`.
        name: String,
        /// The property.
        what: &'static str,
    },
    /// A command that creates a netem link failed.
    #[error("link {name}: `{command}`: {why}")]
    Command {
        /// The two hosts, as `a-b`.
        name: String,
        /// The command.
        command: String,
        /// Its error output.
        why: String,
    },
}
