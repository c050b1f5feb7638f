//! The events that a worker waits for: tokens that identify their source, and deadlines.

pub(crate) mod token;
