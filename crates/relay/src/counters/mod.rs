//! What a worker counts: one writer for each number, read by the metrics.

pub(crate) mod counter;
pub(crate) mod histogram;
pub(crate) mod worker;
