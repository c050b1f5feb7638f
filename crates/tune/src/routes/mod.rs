//! Routes: how connections over them begin.

pub mod message;
pub mod metrics;
pub mod scan;
pub mod selection;
pub(crate) mod table;
