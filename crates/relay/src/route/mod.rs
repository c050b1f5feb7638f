//! The routes from a listener to its connections' destinations.

pub(crate) mod listener;
pub(crate) mod table;
