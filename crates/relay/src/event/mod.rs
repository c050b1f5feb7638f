//! What a worker waits for: tokens that name the source of an event, and deadlines.

pub(crate) mod deadlines;
pub(crate) mod token;
