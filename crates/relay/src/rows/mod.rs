//! Rows in a node: one thread measures the paths to other relays and to destinations, and exchanges rows
//! with other relays. What is decided is decided in [`taut_mesh::rows`]; this is what acts.
//!
//! Workers do not wait for the thread: they post what they have to its [`RowsMailbox`].
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | messages that wait for the thread | [`mailbox::MAX_MESSAGES`] | dropped; a connection is reset |
//! | measurements at a time | [`probe::MAX_PROBES`] | later ones wait |
//! | destinations that are measured for other relays | [`destinations::MAX_DESTINATIONS`] | not measured |
//! | look-ups at a time | [`names::MAX_LOOK_UPS`] | later ones wait |

mod answer;
mod auto;
mod destinations;
mod link;
mod links;
mod mailbox;
mod names;
mod probe;
mod thread;

pub(crate) use mailbox::{
    PathSample, PeerFigure, Question, RowLink, RowsMailbox, SampledPath, ToRows,
};
pub(crate) use probe::MAX_PROBES;
pub(crate) use thread::start;
