//! Routes: how connections over them begin.

pub mod message;
pub mod scan;
pub(crate) mod table;
