//! The initial windows of connections, set on routes of network namespaces.
//!
//! [`metrics`], [`message`] and [`selection`] decide and are pure. [`table`] lists and replaces the
//! routes of one namespace, [`apply`] journals a change before [`table`] makes it, [`undo`]
//! restores routes, and [`scan`] visits all namespaces.

pub(crate) mod apply;
pub mod error;
pub mod message;
pub mod metrics;
pub mod scan;
pub mod selection;
pub(crate) mod table;
pub(crate) mod undo;

#[cfg(test)]
mod testing;
