//! The routes from a listener to its connections' destinations.

pub(crate) mod auto;
pub(crate) mod by_name;
pub(crate) mod listener;
pub(crate) mod peer;
mod refused;
pub(crate) mod table;
