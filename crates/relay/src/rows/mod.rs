//! Rows in a node: one thread measures the paths to other relays and to destinations, and exchanges
//! rows with other relays. The decisions are in [`taut_mesh::rows`] and
//! [`taut_mesh::auto`]; this module acts on them.
//!
//! Workers do not wait for the thread: they post what they have to its
//! [`RowsMailbox`](crate::rows_mailbox::RowsMailbox).
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | messages that wait for the thread | [`MAX_MESSAGES`](crate::rows_mailbox::MAX_MESSAGES) | dropped; a connection is reset |
//! | measurements at a time | [`probe::MAX_PROBES`] | later ones wait |
//! | destinations that are measured for other relays | [`destinations::MAX_DESTINATIONS`] | not measured |
//! | members from which automatic routes are chosen | [`taut_mesh::auto::MAX_PLANNED`] | those farthest from this relay are left out, `taut_relay_routes_left_out` |
//! | look-ups at a time, of members and of destinations | [`names::MAX_LOOK_UPS`] each | later ones wait |

mod addresses;
mod answer;
mod auto;
mod destinations;
mod kept;
mod link;
mod linking;
mod links;
mod measuring;
mod names;
mod probe;
mod routes_file;
mod thread;

pub(crate) use probe::MAX_PROBES;
pub(crate) use thread::start;
